"""`auto` chooses for each task among BundleMage, closed forms and blends, on the validation cases alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bundlemage import History, Recommender, SplitPlan
from bundlemage import scorecard as scorecard_module
from bundlemage.campaigns.chances import new_log_probabilities
from bundlemage.campaigns.new_bundles import calibrate_new_bundles
from bundlemage.core.shop import Recommendation
from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import Split, new_completion_cases
from bundlemage.errors import ConfigError, UnsupportedError
from bundlemage.evaluation import MatchingEvaluator
from bundlemage.live import Live
from bundlemage.models.auto import LEARNED, TASKS, Auto
from bundlemage.models.base import Completer, Gated, Interactions, Matcher, can
from bundlemage.models.blend import Blend
from bundlemage.sample.generate import sample_shop
from bundlemage.sample.kinds import dataset_of_kind
from bundlemage.scorecard import competitors
from bundlemage.store.records import Sales
from bundlemage.store.repository import Store
from bundlemage.training.choice import Choice
from bundlemage.training.closed_forms import CLOSED_FORMS
from tests.cli.run import TINY, run, run_json
from tests.designing import numbers
from tests.forged import changed, forge
from tests.service.running import inside, new_key, ok
from tests.small_shop import QUICK, dataset_of, small_shop
from tests.unit.test_forged_models import refusal
from tests.unit.test_live import ask, owned_by, stock_of

SHOP = sample_shop(80, 90, 40, seed=1).dataset  # a shop in which auto is a mix
SPLIT = SplitPlan("paper").divide(SHOP)
LEARNS_NOTHING: dict[str, Any] = QUICK | {"learning_rate": 1e-6}
"""With these settings BundleMage stays as it begins, so a closed form is plainly best."""


def fitted(split: Split | BundleDataset = SPLIT, *, calibrate: bool = False, **settings: Any) -> Recommender:
    return Recommender("auto", **QUICK | settings).fit(split, progress=False, calibrate=calibrate)


@pytest.fixture(scope="module")
def mixed() -> Recommender:
    """BundleMage and closed forms match. A closed form completes."""
    return fitted()


@pytest.fixture(scope="module")
def closed() -> Recommender:
    """Closed forms only."""
    return fitted(SplitPlan("paper").divide(small_shop()), calibrate=True, **LEARNS_NOTHING)


@pytest.fixture(scope="module")
def saved(closed: Recommender, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return closed.save(tmp_path_factory.mktemp("auto") / "model")


def weights(recommender: Recommender, task: str) -> dict[str, float]:
    """The weight of each model that takes part in a task."""
    parts = model_of(recommender).parts
    return {part.model: getattr(part, task) for part in parts if getattr(part, task)}


def model_of(recommender: Recommender) -> Auto:
    assert isinstance(recommender.model, Auto)
    return recommender.model


def choice_of(recommender: Recommender) -> Choice:
    assert recommender.choice is not None
    return recommender.choice


def same_choice(one: Recommender, other: Recommender) -> bool:
    mine, theirs = (json.dumps(choice_of(each).to_json(), sort_keys=True) for each in (one, other))
    return mine == theirs and model_of(one).parts == model_of(other).parts


def found(answers: Sequence[Recommendation]) -> list[tuple[str, float]]:
    return [(answer.id, round(answer.score, 6)) for answer in answers]


class TestWeights:
    def test_they_are_shares(self, mixed: Recommender, closed: Recommender) -> None:
        for recommender in (mixed, closed):
            for task in TASKS:
                own = weights(recommender, task)
                assert own
                assert all(0 < weight <= 1 for weight in own.values())
                assert sum(own.values()) == pytest.approx(1, abs=1e-3)
        assert len(weights(mixed, "matching")) > 1

    @pytest.mark.parametrize("seed", range(6))
    def test_in_any_shop(self, seed: int) -> None:
        """Here purchases are random, or follow a pattern that misleads every closed form."""
        random = np.random.default_rng(seed)
        users, items, bundles = 50, 20, 30

        def rows(count: int, columns: int) -> list[list[int]]:
            return [
                random.choice(columns, random.integers(1, 6), replace=False).tolist() for _ in range(count)
            ]

        each = seed + 1
        owned = [[(user * each + place) % bundles for place in range(each)] for user in range(users)]
        shop = dataset_of(
            rows(users, items), owned if seed % 2 else rows(users, bundles), rows(bundles, items), items
        )
        model = fitted(shop, epochs=1, embedding_dim=4)
        for task in TASKS:
            assert sum(weights(model, task).values()) == pytest.approx(1, abs=1e-3)
        assert len(model.recommend("u0", 5)) == 5

    def test_blends_are_made_of_these_weights(self, mixed: Recommender) -> None:
        model = model_of(mixed)
        for task in TASKS:
            factors = [getattr(part, task) * getattr(part, f"{task}_scale") for part in model.parts]
            assert list(getattr(model, task)) == pytest.approx(factors)

    def test_the_figure_of_the_choice_is_that_of_the_model(self, mixed: Recommender) -> None:
        """The choice tells the nDCG@5 of the model that was made of it."""
        own = choice_of(mixed).matching
        assert own is not None
        assert SPLIT.validation is not None
        data = Interactions.of(SPLIT.train, torch.device("cpu"))
        measured = MatchingEvaluator(SPLIT.validation, data).metrics(mixed.model)["ndcg@5"]
        assert own.cases == len(SPLIT.validation)
        assert own.ndcg == pytest.approx(float(measured.mean()), abs=1e-3)


class TestWhatIsChosen:
    def test_where_only_popularity_matters_bundlemage_does_not_match(self) -> None:
        split = SplitPlan().divide(dataset_of_kind("best-sellers"))
        own = weights(fitted(split), "matching")
        assert LEARNED not in own
        assert max(own, key=lambda name: own[name]) == "popularity"

    def test_where_a_closed_form_is_plainly_best_bundlemage_is_left_out(self, closed: Recommender) -> None:
        for task in TASKS:
            assert LEARNED not in weights(closed, task)
        assert model_of(closed).part(LEARNED) is None
        assert not any(part.model == LEARNED for part in model_of(closed).parts)

    def test_where_bundlemage_is_plainly_best_with_many_cases_it_is_in(self) -> None:
        """Closed forms alone are worse here, each by itself and all together."""
        split = SplitPlan("paper").divide(sample_shop(users=600, items=300, bundles=120).dataset)
        model = fitted(split, epochs=12, learning_rate=0.01)
        own = choice_of(model).matching
        assert own is not None
        assert own.cases > 300
        assert weights(model, "matching")[LEARNED] >= 0.3
        best = max(each.ndcg for each in own.tried if each.model != LEARNED)
        assert own.ndcg is not None
        assert own.ndcg > best

    def test_all_closed_forms_of_a_task_are_tried(self, mixed: Recommender) -> None:
        for task in TASKS:
            own = getattr(choice_of(mixed), task)
            assert {each.model for each in own.tried} == {LEARNED, *(name for name, _ in CLOSED_FORMS[task])}
            figures = [each.ndcg for each in own.tried]
            assert figures == sorted(figures, reverse=True)
            assert {each.model for each in own.tried if each.weight} == set(weights(mixed, task))

    def test_one_task_alone(self) -> None:
        model = fitted(SplitPlan("paper").divide(small_shop()), tasks="matching", **LEARNS_NOTHING)
        assert LEARNED not in weights(model, "matching")
        assert model.similar("b0003", 5)  # the vectors are those of a part without weight
        assert choice_of(model).generation is None
        assert can(model.model, Matcher)
        assert not can(model.model, Completer)
        assert not weights(model, "generation")
        with pytest.raises(UnsupportedError, match="does not complete"):
            model.complete("u0001", ["g0001"])

    def test_without_validation_cases_it_is_bundlemage(self) -> None:
        model = fitted(SplitPlan("none").divide(SHOP))
        assert choice_of(model).matching == choice_of(model).generation
        assert model.choice_in_words() == [
            f"To {task} bundles: BundleMage. No purchases were held out for validation, so nothing could be "
            "compared."
            for task in ("match", "complete")
        ]
        assert [part.model for part in model_of(model).parts] == [LEARNED]
        alone = Recommender(**QUICK).fit(SHOP, SplitPlan("none"), progress=False, calibrate=False)
        assert found(model.recommend("u0001", 5)) == found(alone.recommend("u0001", 5))

    @pytest.mark.parametrize("plan", ["paper", "none"])
    def test_an_ensemble_is_saved_and_loaded(self, plan: str, tmp_path: Path) -> None:
        model = Recommender("auto", ensemble=2, **QUICK).fit(
            SHOP, SplitPlan(plan), progress=False, calibrate=False
        )
        loaded = Recommender.load(model.save(tmp_path / "model"), device="cpu")
        assert found(loaded.recommend("u0001", 5)) == found(model.recommend("u0001", 5))

    def test_members_that_were_not_trained_are_not_expected(self, tmp_path: Path) -> None:
        """Training was interrupted in the third member."""
        model = Recommender("auto", ensemble=2, **QUICK).fit(SPLIT, progress=False, calibrate=False)
        model.config = model.config.model_copy(
            update={"parts": tuple(p.model_copy(update={"ensemble": 1}) for p in model_of(model).parts)}
        )
        final = model.refit(SPLIT, progress=False)
        Recommender.load(final.save(tmp_path / "model"), device="cpu")

    def test_an_ensemble_is_one_part(self) -> None:
        model = Recommender("auto", ensemble=2, **QUICK).fit(SPLIT, progress=False, calibrate=False)
        part = next(part for part in model_of(model).parts if part.model == LEARNED)
        assert part.ensemble == 2
        assert isinstance(model_of(model).part(LEARNED), Blend)

    def test_a_shop_with_one_user_and_one_candidate(self) -> None:
        """There is one validation case, and its only candidate is right: nothing can be compared."""
        shop = dataset_of([[0, 1]], [[0, 1, 2]], [[0, 1], [1, 2], [0, 2]], 3)
        model = fitted(shop, epochs=1, embedding_dim=4)
        assert len(model.recommend(History(items=["i1"]), 3)) == 3

    def test_a_task_without_cases_still_has_its_closed_forms_in_the_table(self) -> None:
        split = SplitPlan("paper").divide(sample_shop(60, 60, 19, seed=1).dataset)
        model = fitted(split, epochs=1)
        choice = choice_of(model).generation
        assert choice is not None
        assert choice.cases == 0
        names = {each.model.name for each in competitors(model, split)}
        assert {"co-occurrence", "ease-items"} <= names

    def test_in_a_very_large_shop_only_popularity_is_fitted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = fitted()
        monkeypatch.setattr(scorecard_module, "MOST_SCORES", 1)
        monkeypatch.setattr(
            scorecard_module, "best_closed_forms", lambda *_: pytest.fail("closed forms are compared")
        )
        model.choice = None
        assert [each.model.name for each in competitors(model, SPLIT)] == ["auto", "bundlemage", "popularity"]

    def test_completing_closed_forms_do_not_learn_the_bundles_of_the_test(self) -> None:
        """As in a retraining, where the contents of tested bundles are in the training data."""
        known = np.flatnonzero(np.diff(SPLIT.train.bundle_item.indptr) > 1).astype(np.int32)
        cases = new_completion_cases(SPLIT, known[:20], np.random.default_rng(0))
        assert cases is not None
        split = replace(SPLIT, generation=cases)
        assert cases.known_as is not None
        emptied = SPLIT.train.bundle_item.tolil()
        emptied[cases.known_as] = 0
        without = replace(split, train=SPLIT.train.with_interactions(bundle_item=emptied.tocsr()))
        for name in ("co-occurrence", "ease-items"):
            fitted_on = [
                {each.model.name: each.model for each in competitors(fitted(each, **LEARNS_NOTHING), split)}
                for each in (split, without)
            ]
            one, other = (found[name].state_dict() for found in fitted_on)
            assert all(torch.equal(one[key], other[key]) for key in one if key != "tie_break"), name


class TestItDependsOn:
    def test_the_test_cases_do_not_matter(self, mixed: Recommender) -> None:
        assert SPLIT.test is not None
        assert SPLIT.generation is not None
        without = replace(SPLIT, test=None, generation=None)
        few = replace(
            SPLIT, test=SPLIT.test.chosen(slice(0, 3)), generation=SPLIT.generation.chosen(slice(0, 2))
        )
        for split in (without, few):
            other = fitted(split)
            assert same_choice(mixed, other)
            assert found(mixed.recommend("u0002", 5)) == found(other.recommend("u0002", 5))

    def test_the_same_seed_gives_the_same_choice(self, mixed: Recommender) -> None:
        assert same_choice(mixed, fitted())

    def test_the_validation_cases_matter(self, mixed: Recommender) -> None:
        """Another draw of the same shop, so the comparison really looks at the cases."""
        assert not same_choice(mixed, fitted(SplitPlan("paper", seed=5).divide(SHOP)))

    def test_parts_are_not_chosen_by_the_user_of_fit(self) -> None:
        """Training sets `parts`, whatever they were."""
        given = [{"model": "popularity", "matching": 1.0, "generation": 1.0}]
        assert same_choice(fitted(), fitted(parts=given))


class TestAnswers:
    """A model of closed forms alone answers all questions."""

    def test_it_is_small(self, saved: Path) -> None:
        assert sum(file.stat().st_size for file in saved.iterdir()) < 200_000

    def test_a_loaded_model_gives_equal_answers(self, closed: Recommender, saved: Path) -> None:
        loaded = Recommender.load(saved, device="cpu")
        someone = History(items=["g0002", "g0011"], bundles=["b0004"])
        for user in ("u0001", "u0033", someone, History()):
            assert found(closed.recommend(user, 10)) == found(loaded.recommend(user, 10))
            added, same = (each.complete(user, ["g0001", "g0005"], 10) for each in (closed, loaded))
            assert found(added) == found(same)
        new = {"box": ["g0001", "g0005", "g0007"]}
        boxes, others = (each.recommend("u0001", 50, new_bundles=new) for each in (closed, loaded))
        assert found(boxes) == found(others)
        assert "box" in [answer.id for answer in boxes]
        assert found(closed.similar("b0003", 5)) == found(loaded.similar("b0003", 5))
        assert closed.explain("u0001", bundle="b0003") == loaded.explain("u0001", bundle="b0003")
        items = ["g0001", "g0005", "g0007"]
        assert closed.score_bundle(items) == loaded.score_bundle(items)
        assert loaded.choice == closed.choice
        assert loaded.choice_in_words() == closed.choice_in_words()
        assert model_of(loaded).parts == model_of(closed).parts
        assert loaded.held_out == closed.held_out > 0

    def test_it_explains(self, closed: Recommender) -> None:
        """The most likely bundle has a reason: something that the user has speaks for it."""
        best = closed.recommend("u0001", 1)[0].id
        assert numbers(closed.explain("u0001", bundle=best)).reasons
        assert numbers(closed.explain("u0001", item="g0009", items=["g0001", "g0005"])).reasons

    def test_it_designs(self, closed: Recommender) -> None:
        designs = closed.design("u0001", size=3, n=2).bundles
        assert [len(each.items) for each in designs] == [3, 3]

    def test_it_forecasts(self) -> None:
        shop = sample_shop(users=150, items=120, bundles=80, items_per_user=8.0, bundles_per_user=6.0).dataset
        model = fitted(shop, calibrate=True, **LEARNS_NOTHING)
        assert LEARNED not in weights(model, "matching")
        told = model.score_bundle(["g0001", "g0005", "g0007"])
        assert told.expected is not None
        assert 0 <= told.expected <= 150
        assert told.low is not None
        assert told.high is not None
        assert told.low <= told.expected <= told.high
        assert len(told.people) == 10
        assert told.nearest

    def test_there_is_a_gate_only_where_bundlemage_matches(self, mixed: Recommender) -> None:
        assert mixed.gate("u0001") is not None
        number = next(n for n, part in enumerate(model_of(mixed).parts) if part.model == LEARNED)
        factors = [0.0 if n == number else f for n, f in enumerate(model_of(mixed).matching)]
        completes = Blend(list(model_of(mixed).members), factors, model_of(mixed).generation, "x")  # type: ignore[arg-type]
        assert not can(completes, Gated)

    def test_its_probes_are_models_of_the_same_parts(
        self, mixed: Recommender, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Assumed sales are tuned on the blend that is served, and the forecast on its `forecaster`."""
        split = SplitPlan("none").divide(small_shop(users=200, bundles=60))
        parts = mixed.config.model_dump(mode="json")["parts"]
        model = Recommender("auto", **QUICK | {"parts": parts}).fit(split, progress=False, calibrate=False)
        probes = model._probes(split)
        probe = probes.first.model
        assert isinstance(probe, Auto)
        shares = [[(part.model, part.matching) for part in own.parts] for own in (probe, model_of(model))]
        assert shares[0] == shares[1]
        assert len(weights(model, "matching")) > 1
        asked: list[Any] = []

        def scored(forecaster: Any, *others: Any) -> Any:
            asked.append(forecaster)
            return new_log_probabilities(forecaster, *others)

        monkeypatch.setattr("bundlemage.campaigns.new_bundles.new_log_probabilities", scored)
        assert calibrate_new_bundles(probes).reason is None
        assert asked[0] is probe.part(LEARNED)

    def test_it_has_no_gate(self, closed: Recommender) -> None:
        with pytest.raises(UnsupportedError, match="gate"):
            closed.gate("u0001")

    def test_it_is_live(self, closed: Recommender) -> None:
        shop = closed.dataset
        counts = (
            dict(zip(ids, np.asarray(matrix.sum(0)).ravel().astype(int).tolist(), strict=True))
            for ids, matrix in ((shop.items, shop.user_item), (shop.bundles, shop.user_bundle))
        )
        live = Live(closed, stock_of(shop), Sales(*counts))  # sales order equal scores
        for user in ("u0001", "u0033"):
            owned = owned_by(closed.dataset, user)
            mine, theirs = ask(live, owned, 5), closed.recommend(user, 5)
            assert [each.id for each in mine] == [each.id for each in theirs]
            added = closed.complete(user, ["g0001"], 5)
            live_added = ask(live, owned, 5, partial=("g0001",))
            assert [each.id for each in live_added] == [each.id for each in added]

    def test_it_is_served(self, closed: Recommender, saved: Path, tmp_path: Path) -> None:
        db = f"sqlite:///{tmp_path}/shop.db"
        store = Store.open(db)
        store.import_dataset(closed.dataset)
        store.close()
        with inside(saved, db) as service:
            key = new_key(service.store, "admin")
            with service.client(key) as client:
                bundles = ok(client.get("/v1/users/u0001/bundles?k=3"))["bundles"]
                assert [each["id"] for each in bundles] == [each.id for each in closed.recommend("u0001", 3)]
                put = client.put("/v1/bundles/box", json={"items": ["g0001", "g0005"], "title": "Box"})
                assert put.is_success
                every = ok(client.get("/v1/users/u0001/bundles?k=100"))["bundles"]
                assert "box" in [each["id"] for each in every]

    def test_its_choice_is_told(self, closed: Recommender, saved: Path) -> None:
        config = json.loads((saved / "config.json").read_text())
        assert config["choice"] == json.loads(json.dumps(choice_of(closed).to_json()))
        card = (saved / "README.md").read_text()
        lines = closed.choice_in_words()
        assert [line.split(":")[0] for line in lines] == ["To match bundles", "To complete bundles"]
        assert all(line in card for line in lines)
        assert all("BundleMage" in line and "left out" in line for line in lines)


def test_train_and_evaluate_tell_the_choice(tmp_path: Path) -> None:
    """`train` uses auto unless it is told otherwise."""
    told = run("train", "sample:tiny", "-o", tmp_path / "model", *TINY).stdout
    loaded = Recommender.load(tmp_path / "model", device="cpu")
    assert loaded.model_name == "auto"
    again = run("evaluate", tmp_path / "model", "--device", "cpu").stdout
    for line in loaded.choice_in_words():
        assert " ".join(line.split()) in " ".join(told.split())
        assert " ".join(line.split()) in " ".join(again.split())
    measured = run_json("evaluate", tmp_path / "model", "--device", "cpu")
    assert measured["test"][0]["model"] == "Auto"
    assert measured["test"][0] == loaded.metrics["test"][0]


def one_part(**changes: Any) -> list[dict[str, Any]]:
    return [{"model": "popularity", "matching": 1.0, "generation": 1.0, **changes}]


PARTS: Mapping[str, Any] = {
    "a text": "popularity",
    "a number": 5,
    "none": [],
    "part is a text": ["popularity"],
    "negative weight": one_part(matching=-0.5),
    "large weight": one_part(matching=1.5),
    "weight is a text": one_part(matching="all"),
    "weight is missing for both": one_part(matching=0.0, generation=0.0),
    "scale 0": one_part(matching_scale=0.0),
    "unknown model": one_part(model="no-such-model"),
    "auto in auto": one_part(model="auto"),
    "a model that needs another size": one_part(model="ease"),
    "many members": one_part(model="bundlemage", ensemble=10**6),
    "an ensemble of equal members": one_part(ensemble=2),
    "the same model twice": one_part() * 2,
    "unknown setting": one_part(settings={"no_such_setting": 1}),
    "settings are a list": one_part(settings=[1]),
    "unknown field": one_part(more=1),
    "10,000 parts": one_part() * 10_000,
}
CHOICES: Mapping[str, Any] = {
    "a text": "EASE",
    "a list": [1],
    "unknown field": {"matching": None, "generation": None, "more": 1},
    "task is a text": {"matching": "EASE", "generation": None},
    "reason is missing": {"matching": {"cases": 5}, "generation": None},
    "cases are a text": {"matching": {"reason": "x", "cases": "5"}, "generation": None},
    "figure is a text": {"matching": {"reason": "x", "ndcg": "high"}, "generation": None},
    "tried is a text": {"matching": {"reason": "x", "tried": "all"}, "generation": None},
    "tried lacks a field": {"matching": {"reason": "x", "tried": [{"model": "ease"}]}, "generation": None},
}


class TestForged:
    @pytest.mark.parametrize("name", PARTS)
    def test_parts_are_refused(self, saved: Path, tmp_path: Path, name: str) -> None:
        folder = Path(shutil.copytree(saved, tmp_path / "model"))
        refusal(forge(folder, changed("config.json", "settings", "parts", to=PARTS[name])))

    @pytest.mark.parametrize("name", CHOICES)
    def test_choices_are_refused(self, saved: Path, tmp_path: Path, name: str) -> None:
        folder = Path(shutil.copytree(saved, tmp_path / "model"))
        refusal(forge(folder, changed("config.json", "choice", to=CHOICES[name])))

    def test_a_model_without_a_choice_loads(self, saved: Path, tmp_path: Path) -> None:
        folder = Path(shutil.copytree(saved, tmp_path / "model"))
        loaded = Recommender.load(forge(folder, changed("config.json", "choice", to=None)), device="cpu")
        assert loaded.choice is None
        assert loaded.recommend("u0001", 3)

    @pytest.mark.parametrize(
        "name",
        [
            *("negative weight", "10,000 parts", "unknown field", "scale 0"),
            *("auto in auto", "an ensemble of equal members", "the same model twice"),
        ],
    )
    def test_wrong_parts_are_refused_as_settings(self, name: str) -> None:
        with pytest.raises(ConfigError, match="parts"):
            Recommender("auto", parts=PARTS[name])
