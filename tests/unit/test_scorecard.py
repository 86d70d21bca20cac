"""What a table of figures means: which closed form is better, and when the figures say nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from bundlemage import Recommender, SplitPlan
from bundlemage.cli import show
from bundlemage.data.dataset import BundleDataset, binary_matrix
from bundlemage.data.splits import PAD, MatchingCases, Split
from bundlemage.evaluation import Evaluation, ranking_metrics
from bundlemage.models.base import Model, Sizes
from bundlemage.models.ragged import Ragged
from bundlemage.models.registry import build, make_config
from bundlemage.scorecard import Command, Competitor, chance_of, commands, scorecard, scorecard_of
from tests.cli.run import TINY, run, run_json
from tests.small_shop import datasets, small_shop

SPLIT = SplitPlan("paper").divide(small_shop())


def command(competitor: Competitor) -> str:
    return f"bundlemage train PATH --model={competitor.model.name}"


def model(name: str, **settings: Any) -> Model:
    return build(name, make_config(name, settings), Sizes.of(SPLIT.dataset))


def findings(
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    rival: str = "ease",
    split: Split = SPLIT,
    command: Command | None = command,
) -> list[str]:
    """What is said of BundleMage with these figures of the matching cases, and of a rival."""
    assert split.test is not None
    cut = replace(split, test=split.test.chosen((np.arange(len(ours)) % len(split.test)).astype(np.int32)))
    models = [Competitor(model("bundlemage")), Competitor(model(rival))]
    measured = [{"matching": {"ndcg@5": torch.tensor(each, dtype=torch.float64)}} for each in (ours, theirs)]
    return list(scorecard_of(models, measured, cut, command).findings)


def figures(mean: float, spread: float, count: int = 400, seed: int = 0) -> list[float]:
    values = np.random.default_rng(seed).normal(mean, spread, count)
    found: list[float] = (values - values.mean() + mean).tolist()
    return found


class TestBetter:
    def test_a_clearly_better_one_is_named_with_the_command(self) -> None:
        noise = np.array(figures(0, 0.1))
        told = findings((0.3 + noise).tolist(), (0.35 + 1.2 * noise).tolist())
        assert len(told) == 1
        assert "EASE is better than BundleMage: nDCG@5 0.3500 against 0.3000, 0.0500 ± 0.0010 more" in told[0]
        assert told[0].endswith("To use it: bundlemage train PATH --model=ease")

    def test_the_error_is_that_of_the_difference_of_each_case(self) -> None:
        """Cases are hard or easy for both models. Unpaired, this difference would be within the error."""
        hard = np.array(figures(0.4, 0.3))
        assert findings(hard.tolist(), (hard + figures(0.01, 0.02, seed=1)).tolist())

    @pytest.mark.parametrize(
        ("errors", "told"),
        [
            (2.1, "EASE is better than BundleMage"),
            (1.9, "EASE is higher than BundleMage, but within chance"),
            (-1.9, "EASE, which takes seconds, is as good as BundleMage within chance"),
            (-2.1, None),
            (-9.0, None),
        ],
    )
    def test_it_takes_two_standard_errors(self, errors: float, told: str | None) -> None:
        noise = np.array(figures(0, 0.1))
        error = noise.std(ddof=1) / np.sqrt(len(noise))
        other = 0.3 + noise + errors * error
        found = findings([0.3] * len(noise), other.tolist())
        assert len(found) == (told is not None)
        assert told is None or told in found[0]

    def test_the_best_of_those_that_are_clearly_better_is_named(self) -> None:
        """Popularity has the highest mean by chance; EASE is better in nearly every case."""
        noise = np.random.default_rng(1)
        ours = np.full(400, 0.3)
        lucky = np.array([1.0] * 136 + [0.0] * 264)
        surely = ours + 0.03 + noise.normal(0, 0.01, 400)
        assert lucky.mean() > surely.mean()
        assert SPLIT.test is not None
        rows = (np.arange(400) % len(SPLIT.test)).astype(np.int32)
        told = scorecard_of(
            [Competitor(model(name)) for name in ("bundlemage", "popularity", "ease")],
            [{"matching": {"ndcg@5": torch.from_numpy(each)}} for each in (ours, lucky, surely)],
            replace(SPLIT, test=SPLIT.test.chosen(rows)),
            command,
        ).findings
        (better,) = [each for each in told if "is better" in each]
        assert "EASE is better than BundleMage" in better

    def test_many_rivals_need_stronger_evidence(self) -> None:
        """One of nine models is higher by 2.3 standard errors: so much is expected by chance."""
        noise = np.array(figures(0, 0.1))
        error = noise.std(ddof=1) / np.sqrt(len(noise))
        other = 0.3 + noise + 2.3 * error
        assert any("is better" in each for each in findings([0.3] * 400, other.tolist()))
        assert SPLIT.test is not None
        rows = (np.arange(400) % len(SPLIT.test)).astype(np.int32)
        told = scorecard_of(
            [Competitor(model(name)) for name in ("bundlemage", *["ease"] * 9)],
            [
                {"matching": {"ndcg@5": torch.from_numpy(each)}}
                for each in (np.full(400, 0.3), other, *[0.3 + np.roll(noise, n) for n in range(8)])
            ],
            replace(SPLIT, test=SPLIT.test.chosen(rows)),
            command,
        ).findings
        assert any("within chance" in each for each in told)
        assert not any("is better" in each for each in told)

    def test_of_equal_models_nothing_is_said(self) -> None:
        same = figures(0.3, 0.1)
        assert findings(same, same) == []

    def test_without_a_command_none_is_given(self) -> None:
        told = findings([0.1] * 100, [0.2] * 100, command=None)
        assert len(told) == 1
        assert "To use it" not in told[0]

    def test_users_of_one_held_out_bundle_count_once(self) -> None:
        """EASE is better for two bundles of 30 users each, and worse for the ten bundles with one user."""
        assert SPLIT.generation is not None
        bundles = np.array([0] * 30 + [1] * 30 + list(range(2, 12)))
        cases = SPLIT.generation
        few = replace(
            cases,
            bundles=bundles,
            users=np.zeros(len(bundles), np.int32),
            candidates=np.tile(cases.candidates[:1], (12, 1)),
            **{name: getattr(cases, name)[np.zeros(12, int)] for name in ("partial", "positives")},
        )
        ours = torch.where(torch.from_numpy(bundles) < 2, 0.2, 0.4).double()
        theirs = torch.where(torch.from_numpy(bundles) < 2, 0.9, 0.3).double()
        models = [
            Competitor(model("bundlemage")),
            Competitor(model("co-occurrence")),
        ]
        measured = [{"generation": {"ndcg@5": each}} for each in (ours, theirs)]
        told = scorecard_of(models, measured, replace(SPLIT, generation=few), command).findings
        assert theirs.mean() > 2 * ours.mean()
        assert not any("better" in each for each in told)

    def test_a_better_one_that_cannot_match_says_so(self) -> None:
        """Whoever follows the command would lose the recommendations of bundles."""
        split = SplitPlan("paper").divide(small_shop(users=200, bundles=150))
        assert split.generation is not None
        ours = torch.full((len(split.generation),), 0.1, dtype=torch.float64)
        for name, alone in (("co-occurrence", True), ("popularity", False)):
            models = [Competitor(model("bundlemage")), Competitor(model(name))]
            measured = [{"generation": {"ndcg@5": each}} for each in (ours, 5 * ours)]
            told = scorecard_of(models, measured, split, command).findings
            (better,) = [each for each in told if "is better" in each]
            assert ("It completes bundles and does nothing else." in better) == alone


class TestFiguresThatSayNothing:
    def test_every_model_has_0(self) -> None:
        (told,) = findings([0.0] * 60, [0.0] * 60)
        assert "every model scores 0" in told

    def test_every_model_has_1(self) -> None:
        (told,) = findings([1.0] * 60, [1.0] * 60)
        assert "every model scores 1" in told

    def test_one_model_has_0(self) -> None:
        assert not any("every model" in each for each in findings([0.0] * 60, [0.2] * 60))
        assert not any("every model" in each for each in findings([1.0] * 60, [0.2] * 60))

    @pytest.mark.parametrize(("count", "told"), [(49, True), (50, False)])
    def test_few_cases(self, count: int, told: bool) -> None:
        found = findings([0.3] * count, [0.3] * count)
        assert any("fewer than 50" in each and f"{count} test cases" in each for each in found) == told

    def test_many_cases_of_few_held_out_bundles(self) -> None:
        """88 users of two bundles are two cases. Nothing else is said of them."""
        cases = SPLIT.generation
        assert cases is not None
        rows = np.zeros(88, int)
        few = replace(
            cases,
            bundles=np.repeat([0, 1], 44),
            users=np.zeros(88, np.int32),
            candidates=cases.candidates[:2],
            partial=cases.partial[rows[:2]],
            positives=cases.positives[rows[:2]],
        )
        models = [Competitor(model("bundlemage")), Competitor(model("popularity"))]
        measured = [{"generation": {"ndcg@5": torch.full((88,), each).double()}} for each in (0.5, 0.0)]
        (told,) = scorecard_of(models, measured, replace(SPLIT, generation=few), command).findings
        assert "All 88 test cases of generation come from 2 held-out bundles" in told

    def test_cleaned_histories_that_lost_real_items(self) -> None:
        """Users prefer bundles whose items they have. Without these items, the rule is worse than chance."""
        assert SPLIT.test is not None
        chance = chance_of(SPLIT.test)
        low, high = figures(chance - 0.05, 0.01), figures(chance + 0.05, 0.01)
        clean = replace(SPLIT, histories="without held-out")
        given = replace(SPLIT, histories="as given")
        found = findings(high, low, rival="owned-share", split=clean)
        assert any("--histories as-given" in each for each in found)
        for split, values in ((given, low), (clean, high)):
            assert not any(
                "--histories" in each for each in findings(high, values, rival="owned-share", split=split)
            )

    def test_popularity_is_worse_than_a_random_order(self) -> None:
        assert SPLIT.test is not None
        chance = chance_of(SPLIT.test)
        low, high = figures(chance - 0.05, 0.01), figures(chance + 0.05, 0.01)
        assert any(
            "Popularity" in each and "random order" in each
            for each in findings(high, low, rival="popularity")
        )
        assert not any("random order" in each for each in findings(low, high, rival="popularity"))
        assert not any("random order" in each for each in findings(high, low, rival="ease"))

    def test_popularity_itself_is_worse_than_a_random_order(self) -> None:
        """It is told, too, if popularity is the model in question."""
        assert SPLIT.test is not None
        low = torch.full((60,), chance_of(SPLIT.test) - 0.05).double()
        cut = replace(SPLIT, test=SPLIT.test.chosen(slice(0, 60)))
        told = scorecard_of([Competitor(model("popularity"))], [{"matching": {"ndcg@5": low}}], cut)
        assert any("random order" in each for each in told.findings)


class TestChance:
    def constant(self, cases: MatchingCases) -> float:
        """The mean over cases of a scorer that cannot tell candidates apart: ties count by expectation."""
        assert cases.candidates is not None
        scores = torch.zeros(cases.candidates.shape).masked_fill(
            torch.from_numpy(cases.candidates == PAD), -torch.inf
        )
        columns = [
            [column for column, bundle in enumerate(row) if bundle != PAD and bundle in positives]
            for row, positives in zip(
                cases.candidates.tolist(), (set(each.indices) for each in cases.positives), strict=True
            )
        ]
        return float(ranking_metrics(scores, Ragged.from_lists(columns), (5,))["ndcg@5"].nanmean())

    @given(datasets(), st.sampled_from(["paper", "some-users", "cold-bundles"]))
    @settings(max_examples=60, deadline=None)
    def test_it_is_that_of_equal_scores(self, shop: BundleDataset, protocol: str) -> None:
        """Even if there are fewer than five candidates."""
        cases = SplitPlan(protocol).divide(shop).test
        assert cases is not None
        if len(cases):
            assert chance_of(cases) == pytest.approx(self.constant(cases))

    def test_it_is_the_mean_of_random_orders(self) -> None:
        random = np.random.default_rng(4)
        candidates = np.tile(np.arange(8), (3, 1))
        candidates[1, 6:] = PAD
        candidates[2, 3:] = PAD
        positives = binary_matrix([0, 0, 1, 2], [1, 5, 2, 0], (3, 8))
        cases = MatchingCases(np.arange(3, dtype=np.int32), positives, candidates.astype(np.int32))
        columns = Ragged.from_lists([[1, 5], [2], [0]])
        gone = torch.from_numpy(candidates == PAD)
        drawn = [
            ranking_metrics(
                torch.from_numpy(random.random((3, 8))).masked_fill(gone, -torch.inf), columns, (5,)
            )
            for _ in range(3000)
        ]
        mean = float(torch.stack([each["ndcg@5"] for each in drawn]).mean())
        assert chance_of(cases) == pytest.approx(mean, abs=0.01)

    def test_of_generation_it_is_that_of_the_random_model(self) -> None:
        assert SPLIT.generation is not None
        tested = [
            Recommender("random", device="cpu", seed=seed).fit(SPLIT, progress=False, calibrate=False)
            for seed in range(30)
        ]
        values = [(each.evaluate(SPLIT).generation or {})["ndcg@5"] for each in tested]
        error = np.std(values) / np.sqrt(len(values))
        assert abs(np.mean(values) - chance_of(SPLIT.generation)) < 4 * error + 0.01


class TestTable:
    @pytest.mark.parametrize(
        ("name", "tasks"),
        [
            ("ease", {"matching"}),
            ("co-occurrence", {"generation"}),
            ("popularity", {"matching", "generation"}),
        ],
    )
    def test_it_has_the_tasks_of_the_model(self, name: str, tasks: set[str], tmp_path: Path) -> None:
        fitted = Recommender(name, device="cpu").fit(SPLIT, progress=False, calibrate=False)
        card = scorecard(fitted, SPLIT)
        shown = {task for row in card.rows for task in ("matching", "generation") if getattr(row, task)}
        assert shown == tasks
        assert card.rows[0].model == fitted.model.title
        assert len({row.model for row in card.rows}) == len(card.rows) > 2
        fitted.metrics = card.to_json()
        text = (fitted.save(tmp_path / "model") / "README.md").read_text()
        assert {task for task in ("matching", "generation") if f"| {task} |" in text} == tasks

    def test_figures_are_those_of_the_models(self) -> None:
        fitted = Recommender("item-knn", device="cpu").fit(SPLIT, progress=False, calibrate=False)
        rows = {row.model: row for row in scorecard(fitted, SPLIT).rows}
        assert rows["ItemKNN"].matching == fitted.evaluate(SPLIT).matching
        popular = Recommender("popularity", device="cpu").fit(SPLIT, progress=False, calibrate=False)
        assert rows["Popularity"].matching == popular.evaluate(SPLIT).matching

    def test_auto_is_beside_bundlemage_and_the_closed_forms(self) -> None:
        fitted = Recommender("auto", device="cpu", epochs=1, embedding_dim=8).fit(
            SPLIT, progress=False, calibrate=False
        )
        titles = [row.model for row in scorecard(fitted, SPLIT).rows]
        assert titles[:2] == ["Auto", "BundleMage"]
        assert {"EASE", "ItemKNN", "Popularity", "Item co-occurrence"} <= set(titles)


class TestCommand:
    def test_it_has_the_data_and_the_split_and_no_password(self) -> None:
        fitted = Recommender("bundlemage", device="cpu", epochs=7, seed=3, embedding_dim=8)
        fitted.fit(small_shop(), SplitPlan("none"), progress=False, calibrate=False)
        fitted.plan = SplitPlan("full", seed=5, histories="as given")
        address = "postgresql://shop:hunter2@db.example/shop"
        told = commands(fitted, address, Path("my model"), {"user_item": "select 1"}, final=True)
        learned, closed = (
            told(Competitor(model(name), settings))
            for name, settings in (("bundlemage", {}), ("ease", {"regularisation": 10.0}))
        )
        both = (
            "bundlemage train DATABASE_URL -o 'my model' --overwrite '--table=user_item=select 1' "
            "--protocol=full --split-seed=5 --histories=as-given --seed=3 --final "
        )
        assert closed == f"{both}--model=ease --set=regularisation=10.0"
        assert learned == f"{both}--model=bundlemage --set=epochs=7 --set=embedding_dim=8"

    def test_evaluate_tells_a_command_that_works(self, tmp_path: Path) -> None:
        given = ("sample:best-sellers", "-o", tmp_path / "model", "--model", "owned-share")
        run_json("train", *given, "--split-seed", "1", "--device", "cpu")
        told = run_json("evaluate", tmp_path / "model", "--device", "cpu")["findings"]
        (better,) = [each for each in told if "is better" in each]
        words = better.partition("To use it: bundlemage ")[2].split()
        assert "--split-seed=1" in words
        used = run_json(*words, "--device", "cpu")
        assert not any(each.startswith("In matching") and "is better" in each for each in used["findings"])

    def test_train_names_the_better_model_and_the_command_works(self, tmp_path: Path) -> None:
        given = ["train", "sample:best-sellers", "-o", tmp_path / "model"]
        told = run_json(*given, "--model", "bundlemage", *TINY, "--epochs", 1, "--set", "min_steps=1")
        assert told["test"][0]["model"] == "BundleMage"
        assert "Popularity" in [row["model"] for row in told["test"]]
        (better,) = [
            each for each in told["findings"] if each.startswith("In matching") and "is better" in each
        ]
        command = better.partition("To use it: bundlemage ")[2].split()
        assert command[:4] == ["train", "sample:best-sellers", "-o", str(tmp_path / "model")]
        used = run_json(*command, "--device", "cpu")
        assert used["test"][0]["model"] in better
        rows = {row["model"]: row["matching"] for row in told["test"]}
        assert used["test"][0]["matching"] == pytest.approx(rows[used["test"][0]["model"]])
        assert not any(each.startswith("In matching") and "is better" in each for each in used["findings"])
        card = (tmp_path / "model" / "README.md").read_text()
        assert all(each in card for each in used["findings"])

    def test_train_and_evaluate_show_the_sentences(self, tmp_path: Path) -> None:
        given = ["train", "sample:tiny", "-o", tmp_path / "model", "--model", "popularity", "--device", "cpu"]
        for shown in (run(*given).stdout, run("evaluate", tmp_path / "model", "--device", "cpu").stdout):
            text = " ".join(shown.split())
            assert "EASE" in text
            assert "note: Matching has 23 test cases: with fewer than 50" in text
        told = run_json("evaluate", tmp_path / "model", "--device", "cpu")
        assert any("fewer than 50" in each for each in told["findings"])


class TestPrintedTable:
    @pytest.fixture
    def rows(self) -> tuple[Evaluation, ...]:
        values = {f"{name}@{k}": 0.2 for name in ("ndcg", "recall") for k in (5, 10, 20)}
        models = [("Auto", 0.2), ("Popularity", 0.1), ("Share of items owned", 0.3)]
        return tuple(
            Evaluation(title, "shop", "paper", {**values, "ndcg@5": ndcg}, 99, None, 0)
            for title, ndcg in models
        )

    @pytest.mark.parametrize(
        ("width", "metrics"),
        [
            (120, ["ndcg@5", "ndcg@10", "ndcg@20", "recall@5", "recall@10", "recall@20"]),
            (80, ["ndcg@5", "ndcg@10", "ndcg@20", "recall@5", "recall@20"]),
            (60, ["ndcg@5", "ndcg@20", "recall@20"]),
        ],
    )
    def test_a_narrow_one_has_fewer_metrics_and_whole_names(
        self,
        rows: tuple[Evaluation, ...],
        width: int,
        metrics: list[str],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr(show, "out", Console(width=width, highlight=False))
        show.out.print(show.evaluations(rows))
        lines = capsys.readouterr().out.splitlines()
        (head,) = [line for line in lines if line.startswith("┃")]
        assert re.findall(r"\w+@\d+", head) == metrics
        # The model itself comes first, then the others, the best first.
        titles = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
        assert titles == ["Auto", "Share of items owned", "Popularity"]
