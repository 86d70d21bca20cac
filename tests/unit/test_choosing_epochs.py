"""What an epoch is chosen by, what generation learns from, and what is hidden in a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bundlemage import SplitPlan
from bundlemage.data.splits import LEAST_BUNDLES, Split, completion_cases
from bundlemage.models.base import Interactions, Phase, Sizes
from bundlemage.models.config import LearnedConfig, parse_config
from bundlemage.models.division import ALONE
from bundlemage.models.losses import fitted_weight
from bundlemage.models.ragged import Hidden, Ragged, chances, mean_of_rows
from bundlemage.models.registry import build, make_config
from bundlemage.sample.generate import sample_shop
from bundlemage.training.history import EpochRecord
from bundlemage.training.loop import train
from bundlemage.training.steps import Rows
from bundlemage.training.validation import FLOOR, Validation, ValidationCases
from tests.small_shop import QUICK, small_shop


@pytest.fixture(scope="module")
def split() -> Split:
    return SplitPlan("paper").divide(sample_shop(users=200, items=150, bundles=90).dataset)


def trained(split: Split, **others: Any) -> tuple[EpochRecord, ...]:
    config = make_config("bundlemage", QUICK | {"epochs": 4} | others)
    return train(build("bundlemage", config, Sizes.of(split.dataset)), config, split).history


class TestJudging:
    def test_both_is_the_geometric_mean_relative_to_popularity(self, split: Split) -> None:
        config = make_config("bundlemage", QUICK)
        model = build("bundlemage", config, Sizes.of(split.dataset))
        cases = ValidationCases.of(model, config, split)
        data = Interactions.of(split.train, torch.device("cpu"))
        validation = Validation(cases, data, ALONE)
        popularity = validation.popularity
        assert set(popularity) == {"matching", "generation"}
        model.observe(data)
        verdict = validation.of(model)
        times = [
            max(found["ndcg@5"], FLOOR) / max(popularity[task], FLOOR)
            for task, found in (("matching", verdict.matching), ("generation", verdict.generation))
        ]
        assert verdict.value == pytest.approx((times[0] * times[1]) ** 0.5)

    @pytest.mark.parametrize("select_by", ["matching", "generation"])
    def test_one_task_chooses_by_its_own_metric(self, split: Split, select_by: str) -> None:
        for record in trained(split, select_by=select_by):
            metrics = record.validation if select_by == "matching" else record.generation
            assert record.value == metrics["ndcg@5"]

    def test_by_matching_no_bundle_is_held_out(self, split: Split) -> None:
        config = make_config("bundlemage", QUICK | {"select_by": "matching"})
        assert (
            ValidationCases.of(build("bundlemage", config, Sizes.of(split.dataset)), config, split).held_out
            is None
        )
        assert all(record.generation == {} for record in trained(split, select_by="matching"))

    def test_the_kept_epoch_is_the_best_by_value(self, split: Split) -> None:
        records = trained(split)
        best = max(records, key=lambda record: record.value or 0)
        assert [record for record in records if record.improved][-1] == best

    def test_trained_on_everything_nothing_is_held_out(self) -> None:
        assert all(
            (record.value, record.generation) == (None, {})
            for record in trained(SplitPlan("none").divide(small_shop()))
        )

    def test_a_small_shop_keeps_all_its_bundles(self) -> None:
        shop = sample_shop(users=60, items=60, bundles=LEAST_BUNDLES - 1).dataset
        assert completion_cases(shop, SplitPlan()) is None

    def test_held_out_bundles_are_left_out_of_their_users_histories(self, split: Split) -> None:
        made = completion_cases(split.train, SplitPlan())
        assert made is not None
        held_out, cases = made
        assert cases.known_as is not None
        assert set(cases.known_as.tolist()) == set(np.flatnonzero(held_out).tolist())
        bought = split.train.user_bundle
        for user, row in zip(cases.users.tolist(), cases.bundles.tolist(), strict=True):
            bundle = int(cases.known_as[row])
            nobody = user == len(split.train.users)
            assert nobody == (bought[:, [bundle]].nnz == 0)
            assert nobody or bought[user, bundle] == 1

    def test_a_run_goes_on_while_nothing_has_been_found(
        self, split: Split, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        zero = {"ndcg@5": torch.zeros(1, dtype=torch.float64)}
        monkeypatch.setattr("bundlemage.training.validation.MatchingEvaluator.metrics", lambda *_: dict(zero))
        assert len(trained(split, select_by="matching", patience=1, epochs=4)) == 4


class TestWhatIsLearnedFrom:
    def test_every_bundle_with_items_comes_and_none_that_is_held_out(self, split: Split) -> None:
        data = Interactions.of(split.train, torch.device("cpu"))
        filled = (data.bundle_item.lengths > 0).nonzero()[:, 0].tolist()
        held_out = torch.zeros(len(data.bundle_item), dtype=torch.bool)
        held_out[filled[::7]] = True
        data = Interactions(data.user_item, data.user_bundle, data.bundle_item, data.items, held_out=held_out)
        rows = Rows(Phase("generation", over="completions", at_most=2), data)
        (batch,) = rows.shuffled(10**6)
        users, bundles = data.completion(batch)
        assert set(bundles.tolist()) == set(filled) - set(filled[::7])
        assert int(torch.bincount(bundles).max()) <= 2
        sales = data.user_bundle.counts(len(data.bundle_item))
        assert torch.equal(users == len(data.user_bundle), sales[bundles] == 0)

    @pytest.mark.parametrize(
        ("rows", "most", "steps", "small", "size"),
        [
            (100, 64, 1, 1, 64),
            (100, 64, 8, 1, 13),
            (100, 64, 8, 24, 5),
            (100, 64, 8, 4, 13),
            (5_000, 1024, 8, 24, 625),  # not a small shop
            (4_999, 1024, 8, 24, 209),
            (3, 64, 8, 24, 1),
            (0, 64, 8, 24, 1),
        ],
    )
    def test_a_small_shop_gets_smaller_batches(
        self, rows: int, most: int, steps: int, small: int, size: int
    ) -> None:
        nothing = Ragged.from_lists([[] for _ in range(rows)])
        data = Interactions(nothing, nothing, Ragged.from_lists([]), 0)
        settings = {"batch_size": most, "min_steps": steps, "small_shop_steps": small}
        config = parse_config(LearnedConfig, settings)
        assert Rows(Phase("matching", over="users"), data).batch_size(config) == size


class TestHiding:
    def test_chances_are_even_and_independent(self) -> None:
        rows, keys = torch.arange(40).repeat_interleave(40), torch.arange(40).repeat(40)
        drawn = torch.stack(
            [(chances(torch.tensor([seed]), rows, keys) >= 0.5).float() for seed in range(800)]
        )
        assert drawn.mean().item() == pytest.approx(0.5, abs=0.005)
        signs = drawn * 2 - 1
        alike = (signs.T @ signs / len(signs)).fill_diagonal_(0)
        assert alike.std().item() == pytest.approx(len(signs) ** -0.5, rel=0.02)

    def test_what_is_hidden_does_not_depend_on_what_else_there_is(self) -> None:
        """So that a process that holds a part of the items hides what one with all of them would."""
        everything = torch.eye(30)
        whole, part = Ragged.from_lists([list(range(30))]), Ragged.from_lists([list(range(10, 20))])
        found = []
        for rows in (whole, part):
            torch.manual_seed(5)
            found.append(mean_of_rows(rows, torch.tensor([0]), everything, Hidden(0.5))[0][0] > 0)
        assert torch.equal(found[0][10:20], found[1][10:20])
        torch.manual_seed(5)
        renumbered = Ragged.from_lists([list(range(10))])
        keyed = mean_of_rows(
            renumbered, torch.tensor([0]), everything, Hidden(0.5), keys=torch.arange(10, 20)
        )[0]
        assert torch.equal(keyed[0][:10] > 0, found[0][10:20])


class TestPopularity:
    def test_one_where_sales_repeat_and_none_where_everything_sells_once(self) -> None:
        assert fitted_weight(torch.tensor([1000.0, 500.0, 20.0, 3.0, 0.0])) == pytest.approx(1, abs=0.02)
        assert fitted_weight(torch.ones(50)) == 0
        assert fitted_weight(torch.zeros(5)) == 0

    @given(st.lists(st.integers(0, 500), min_size=1, max_size=30))
    @settings(max_examples=50, deadline=None)
    def test_it_is_where_the_likelihood_is_highest(self, counts: list[int]) -> None:
        sales = torch.tensor(counts, dtype=torch.float64)
        chosen = (sales - 1).clamp(min=0).log1p()

        def likelihood(weight: float) -> float:
            scores = weight * sales.log1p()
            return float((sales * (weight * chosen - scores.logsumexp(0))).sum())

        best = likelihood(fitted_weight(sales))
        assert all(likelihood(weight) <= best + 1e-6 * (1 + abs(best)) for weight in np.linspace(0, 1, 21))
