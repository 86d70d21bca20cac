"""The sampled softmax: what is drawn, what it stands for, and that of everything it is the exact one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bundlemage.models.base import Interactions, Sizes
from bundlemage.models.bundlemage import BundleMage
from bundlemage.models.config import BundleMageConfig
from bundlemage.models.losses import Prior, multinomial_loss
from bundlemage.models.ragged import Ragged
from bundlemage.models.sampled import Drawn, Sampler, sampled_loss, touched
from tests.small_shop import small_shop

COLUMNS, DIM = 9, 4
Lists = list[list[int]]
LISTS = st.lists(st.lists(st.integers(0, COLUMNS - 1), max_size=6, unique=True), min_size=1, max_size=6)
POPULARITY = torch.tensor([100, 60, 30, 0, 8, 4, 0, 2, 1, 1, 0, 0, 0, 3, 5] + [1] * 10)


class TestSampler:
    @pytest.mark.parametrize("size", [25, 26, 1000])
    def test_a_catalogue_no_larger_than_the_sample_comes_whole(self, size: int) -> None:
        drawn = Sampler(POPULARITY, size).draw()
        assert drawn.ids.tolist() == list(range(len(POPULARITY)))
        assert drawn.log_expected.tolist() == [0.0] * len(POPULARITY)

    def test_an_empty_catalogue_gives_nothing(self) -> None:
        assert len(Sampler(torch.zeros(0), 4).draw().ids) == 0

    @pytest.mark.parametrize("size", [1, 2, 10, 24])
    @pytest.mark.parametrize("popularity", [POPULARITY, torch.zeros_like(POPULARITY), POPULARITY.double()])
    def test_ids_are_distinct_members_and_no_more_than_asked_for(self, size: int, popularity: Tensor) -> None:
        torch.manual_seed(0)
        sampler = Sampler(popularity, size)
        for _ in range(50):
            drawn = sampler.draw()
            ids = drawn.ids.tolist()
            assert len(set(ids)) == len(ids) == len(drawn.log_expected) <= size
            assert set(ids) <= set(range(len(popularity)))
            assert bool(drawn.log_expected.isfinite().all())

    @pytest.mark.parametrize("size", [1, 6, 20])
    @pytest.mark.parametrize("popularity", [POPULARITY, torch.zeros_like(POPULARITY)])
    def test_every_member_stands_for_one_on_average(self, popularity: Tensor, size: int) -> None:
        """So that any sum over the catalogue is estimated without bias; and hence every member can come."""
        torch.manual_seed(size)
        sampler, times = Sampler(popularity, size), 6000
        stands_for, came = torch.zeros(len(popularity)).double(), torch.zeros(len(popularity))
        for _ in range(times):
            drawn = sampler.draw()
            stands_for[drawn.ids] += (-drawn.log_expected.double()).exp()
            came[drawn.ids] += 1
        assert bool((came > 0).all())
        # One draw's count of a member varies by at most what is expected of it: five standard errors.
        allowed = 5 / (sampler.log_expected.double().exp() * times).sqrt()
        assert bool(((stands_for / times - 1).abs() < allowed).all())

    def test_the_sum_over_what_is_not_right_is_estimated_without_bias(self) -> None:
        torch.manual_seed(3)
        logits = torch.randn(len(POPULARITY), dtype=torch.float64) + POPULARITY.double().log1p()
        wrong = torch.ones(len(POPULARITY), dtype=torch.bool)
        wrong[[0, 3, 7]] = False
        sampler, found = Sampler(POPULARITY, 10), []
        for _ in range(4000):
            drawn = sampler.draw()
            powers = (logits[drawn.ids] - drawn.log_expected).exp()
            found.append(float((powers * wrong[drawn.ids]).sum()))
        exact = float((logits.exp() * wrong).sum())
        error = float(np.std(found)) / math.sqrt(len(found))
        assert error < 0.02 * exact  # else the next line says little
        assert float(np.mean(found)) == pytest.approx(exact, abs=5 * error)

    def test_the_popular_come_more_often(self) -> None:
        torch.manual_seed(0)
        sampler, came = Sampler(POPULARITY, 3), torch.zeros(len(POPULARITY))
        for _ in range(500):
            came[sampler.draw().ids] += 1
        assert came.argmax() == 0
        assert came[:3].sum() > came[3:].sum()


def slow_loss(
    z: Tensor, table: Tensor, positives: Lists, drawn: Drawn, weights: Tensor, prior: Prior
) -> Tensor:
    """A row at a time: its positives as they are, and of the drawn those that are not among them."""
    total = z.new_zeros(())
    for row, right in enumerate(positives):
        if not right:
            continue
        logits = z @ table.T + prior.bias
        logits[row, right] = logits[row, right] + prior.shift[right]
        others = [place for place, chosen in enumerate(drawn.ids.tolist()) if chosen not in right]
        wrong = logits[row, drawn.ids[others]] - drawn.log_expected[others]
        normaliser = torch.cat([logits[row, right], wrong]).logsumexp(0)
        total = total + weights[row] * (len(right) * normaliser - logits[row, right].sum())
    return total / max(1, len(z))


def gradients(loss: Tensor, *by: Tensor) -> tuple[Tensor, ...]:
    if not loss.requires_grad:
        return tuple(torch.zeros_like(side) for side in by)
    return torch.autograd.grad(loss, by)


def assert_same(one: Tensor, other: Tensor, *by: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)
    for mine, theirs in zip(gradients(one, *by), gradients(other, *by), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-10)


def sides(seed: int, rows: int, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Prior]:
    random = np.random.default_rng(seed)
    z, table = random.normal(size=(rows, DIM)) * scale, random.normal(size=(COLUMNS, DIM)) * scale
    weights, bias, shift = random.random(rows) + 0.1, *random.normal(size=(2, COLUMNS))
    tensors = [torch.from_numpy(array) for array in (z, table, weights, bias, shift)]
    return tensors[0].requires_grad_(), tensors[1].requires_grad_(), tensors[2], Prior(*tensors[3:])


class TestLoss:
    @given(LISTS, st.integers(0, 1000), st.sampled_from([0.5, 3.0, 20.0]), st.booleans())
    @settings(max_examples=60, deadline=None)
    def test_with_everything_drawn_it_is_the_exact_one(
        self, lists: Lists, seed: int, scale: float, biased: bool
    ) -> None:
        z, table, weights, prior = sides(seed, len(lists), scale)
        given_prior = prior if biased else None
        everyone = Drawn(torch.arange(COLUMNS), torch.zeros(COLUMNS))
        sampled = sampled_loss(z, table, Ragged.from_lists(lists), everyone, weights, given_prior)
        exact = multinomial_loss(z, table, Ragged.from_lists(lists), weights, prior=given_prior)
        assert_same(sampled, exact, z, table)

    @given(
        LISTS,
        st.lists(st.integers(0, COLUMNS - 1), unique=True, max_size=COLUMNS),
        st.integers(0, 1000),
        st.sampled_from([0.5, 20.0]),
    )
    @settings(max_examples=60, deadline=None)
    def test_with_some_drawn_it_is_the_formula(
        self, lists: Lists, ids: list[int], seed: int, scale: float
    ) -> None:
        z, table, weights, prior = sides(seed, len(lists), scale)
        log_expected = torch.from_numpy(np.random.default_rng(seed).normal(size=len(ids)))
        drawn = Drawn(torch.tensor(ids, dtype=torch.int64), log_expected)
        found = sampled_loss(z, table, Ragged.from_lists(lists), drawn, weights, prior)
        assert_same(found, slow_loss(z, table, lists, drawn, weights, prior), z, table)

    def test_accidental_hits_do_not_count(self) -> None:
        z, table, weights, _ = sides(1, 2)
        positives = Ragged.from_lists([[2, 5], [5]])
        with_hits = Drawn(torch.tensor([5, 0, 7]), torch.tensor([-1.0, 0.3, 0.4]))
        without = Drawn(with_hits.ids[1:], with_hits.log_expected[1:])
        one, other = (sampled_loss(z, table, positives, drawn, weights) for drawn in (with_hits, without))
        assert_same(one, other, z, table)
        # What is right for one row is wrong for another, and counts there.
        apart = Ragged.from_lists([[2, 5], [1]])
        one, other = (sampled_loss(z, table, apart, drawn, weights) for drawn in (with_hits, without))
        assert one.item() > other.item()

    @pytest.mark.parametrize("ids", [[], [0, 3]])
    def test_rows_without_positives_add_nothing(self, ids: list[int]) -> None:
        z, table, weights, prior = sides(2, 3)
        drawn = Drawn(torch.tensor(ids, dtype=torch.int64), torch.zeros(len(ids)))
        loss = sampled_loss(z, table, Ragged.from_lists([[], [], []]), drawn, weights, prior)
        assert loss.item() == 0
        assert not any(side.any() for side in gradients(loss, z, table))
        mixed = sampled_loss(z, table, Ragged.from_lists([[], [4], []]), drawn, weights, prior)
        alone = sampled_loss(z[1:2], table, Ragged.from_lists([[4]]), drawn, weights[1:2], prior)
        assert mixed.item() == pytest.approx(alone.item() / 3)
        assert not gradients(mixed, z)[0][[0, 2]].any()


def test_touched_names_each_once_and_finds_all_again() -> None:
    one, other = torch.tensor([7, 3, 7]), torch.tensor([9, 3])
    ids, places = touched(one, other)
    assert ids.tolist() == [3, 7, 9]
    assert ids[places[0]].tolist() == one.tolist()
    assert ids[places[1]].tolist() == other.tolist()


@pytest.fixture(scope="module")
def data() -> Interactions:
    return Interactions.of(small_shop(), torch.device("cpu"))


def built(data: Interactions, **settings: Any) -> BundleMage:
    torch.manual_seed(0)
    plain = {"embedding_dim": 8, "dropout": 0.0, "item_dropout": 0.0, "mask_bundles": 0.0, "mask_items": 0.0}
    sizes = Sizes(len(data.user_item), data.items, len(data.bundle_item))
    model = BundleMage(BundleMageConfig(**(plain | settings)), sizes).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5)
    model.observe(data)
    return model.train()


def slopes(
    model: BundleMage, phase: int, rows: Tensor, data: Interactions
) -> tuple[Tensor, dict[str, Tensor]]:
    loss = model.loss(model.phases[phase], rows, data)
    torch.autograd.backward(loss)
    found = {name: side.grad for name, side in model.named_parameters() if side.grad is not None}
    return loss.detach(), found


class TestBundleMage:
    @pytest.mark.parametrize("phase", [0, 1])
    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"hide_target": False, "popularity_weight": 0.0},
            {"loss_weighting": "mean", "mixer": "average"},
            {"shared_fraction": 0.0, "masking": "row"},
            {"shared_fraction": 1.0},
        ],
    )
    @pytest.mark.parametrize("size", [90, 10_000])
    def test_a_sample_of_everything_is_the_exact_loss(
        self, data: Interactions, phase: int, settings: dict[str, Any], size: int
    ) -> None:
        rows = torch.tensor([3, 0, 17, 29, 8])
        exact, by_exact = slopes(built(data, **settings), phase, rows, data)
        sampled, by_sampled = slopes(built(data, sampled_softmax=size, **settings), phase, rows, data)
        torch.testing.assert_close(sampled, exact, rtol=1e-10, atol=0)
        assert by_sampled.keys() == by_exact.keys()
        for name, slope in by_sampled.items():
            dense = slope.to_dense() if slope.is_sparse else slope
            torch.testing.assert_close(dense, by_exact[name], rtol=1e-8, atol=1e-10, msg=name)

    @pytest.mark.parametrize("masking", ["row", "batch"])
    def test_gradients_of_the_tables_hold_only_what_was_touched(
        self, data: Interactions, masking: str
    ) -> None:
        # With masks on: what is hidden is no part of a mean, but is still a positive.
        model = built(data, sampled_softmax=6, masking=masking, mask_bundles=0.5, mask_items=0.5)
        rows = torch.tensor([3, 20])
        for phase, sampler in enumerate((model._of_sample.bundles, model._of_sample.items)):
            model.zero_grad()
            torch.manual_seed(7)
            drawn = sampler.draw().ids
            torch.manual_seed(7)
            _, found = slopes(model, phase, rows, data)
            touched = self.touched(data, phase, rows, drawn)
            tables = {"item_shared", "item_matching", "item_generation"} & found.keys()
            assert len(tables) == 2 + phase
            for name in tables:
                assert found[name].is_sparse
                held = set(found[name].coalesce().indices()[0].tolist())
                assert held <= touched, name
                assert len(held) < data.items

    def touched(self, data: Interactions, phase: int, rows: Tensor, drawn: Tensor) -> set[int]:
        users, targets = (rows, None) if phase == 0 else data.user_bundle.entries(rows)
        bundles = set(data.user_bundle.rows(users).values.tolist())
        items = set(data.user_item.rows(users).values.tolist())
        if targets is None:
            bundles |= set(drawn.tolist())
        else:
            bundles |= set(targets.tolist())
            items |= set(drawn.tolist())
        return items | set(data.bundle_item.rows(torch.tensor(sorted(bundles))).values.tolist())
