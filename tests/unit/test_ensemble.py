"""Several members of one model answer as one: by the mean of their scores, wherever a model answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from rich.console import Console
from scipy.special import log_softmax

from bundlemage import History, Recommender, SplitPlan, sample_shop
from bundlemage.artifact.files import load_artifact, model_card
from bundlemage.errors import CheckpointError, ConfigError, NoModelYetError, UnsupportedError
from bundlemage.live import Live, Question
from bundlemage.models.base import Completer, Histories, Indexable, Matcher, Model, can, require
from bundlemage.models.blend import Blend
from bundlemage.models.ragged import Ragged
from bundlemage.progress import Shown
from bundlemage.recipe import Recipe
from bundlemage.store.records import Sales
from bundlemage.studies.cells import Cell, Contender
from bundlemage.studies.outcome import FORMAT, Cache
from bundlemage.studies.reproduction import table_plans
from bundlemage.training.checkpoint import RunFolder
from bundlemage.training.history import EpochProgress, EpochRecord, Observer, TensorBoard, kept
from tests.cli.run import BUNDLEMAGE, run, run_json
from tests.designing import numbers
from tests.small_shop import QUICK, small_shop
from tests.unit.test_compare import run_cell
from tests.unit.test_live import owned_by, stock_of

SETTINGS: dict[str, Any] = QUICK | {"learning_rate": 0.02, "seed": 5}
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
NEW = {"spring": ["g0001", "g0005", "g0007"]}
SOMEONE = History(items=["g0002", "g0011"], bundles=["b0004"])


@pytest.fixture(scope="module")
def three() -> Recommender:
    return Recommender(ensemble=3, **SETTINGS).fit(small_shop(), progress=False)


@pytest.fixture(scope="module")
def saved(three: Recommender, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three.save(tmp_path_factory.mktemp("ensembles") / "model")


def members(recommender: Recommender) -> list[Model]:
    model = recommender.model
    assert isinstance(model, Blend)
    return list(model.members)  # type: ignore[arg-type]


def everyone(recommender: Recommender) -> tuple[Histories, Ragged]:
    return recommender.shop.everyone(), recommender.shop.interactions.bundle_item


def weights_are_equal(one: Model, other: Model) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


class Epochs(Observer):
    """Whose epochs were trained; ends the run in the first epoch, or after it, of a member."""

    def __init__(self, end_in: int = 0, error: type[BaseException] = RuntimeError, *, after: int = 0) -> None:
        self.end_in, self.error, self.after = end_in, error, after
        self.told: list[tuple[int, int]] = []
        self.trained: list[tuple[int, int]] = []

    def on_member(self, number: int, of: int) -> None:
        self.told.append((number, of))

    def on_step(self, phase: str) -> None:
        member = self.told[-1][0] if self.told else 1
        if member == self.end_in and self.trained.count((member, self.after)) == (self.after > 0):
            raise self.error

    def on_epoch(self, record: EpochRecord) -> None:
        self.trained.append((record.member, record.epoch))


class TestScores:
    @torch.inference_mode()
    def test_every_score_is_the_mean_of_the_members(self, three: Recommender) -> None:
        model, (people, contents) = three.model, everyone(three)
        partial = Ragged.from_lists([[row % 7, 9] for row in range(len(people))])
        some = torch.arange(6).repeat(len(people), 1) * 3
        new = Ragged.from_lists([[1, 5, 7], [2]])
        each = members(three)
        for method, arguments in {
            "score_bundles": (people, contents),
            "score_candidates": (people, some, contents),
            "score_new_bundles": (people, contents, new),
            "score_items": (people, partial, contents),
            "score_item_candidates": (people, partial, some, contents),
            "item_share": (people, contents),
        }.items():
            found = getattr(model, method)(*arguments)
            alone = [getattr(member, method)(*arguments) for member in each]
            assert torch.allclose(found, torch.stack(alone).mean(0), **CLOSE), method
            assert not torch.allclose(found, alone[0], **CLOSE), method
        assert (can(model, Matcher), can(model, Completer), model.knows_new_users) == (True, True, True)
        assert model.title == "BundleMage × 3"
        assert not model.scores_candidates_apart

    @torch.inference_mode()
    def test_it_ranks_and_spreads_as_the_mean_of_log_probabilities(self, three: Recommender) -> None:
        people, contents = everyone(three)
        each = [
            require(member, Matcher).score_bundles(people, contents).double().numpy()
            for member in members(three)
        ]
        expected: npt.NDArray[np.float64] = np.mean([log_softmax(scores, axis=1) for scores in each], axis=0)
        found = require(three.model, Matcher).score_bundles(people, contents).double().numpy()
        difference = found - expected
        assert np.ptp(difference, axis=1).max() < 1e-4  # one number for a row
        assert np.ptp(np.concatenate(difference)) > 1e-3  # and not the same for all
        order = np.argsort(-expected, axis=1)
        for row, places in enumerate(order):
            falls = np.diff(found[row, places])
            assert falls.max() < 1e-4

    @torch.inference_mode()
    def test_fits_are_scores_less_their_mean(self, three: Recommender) -> None:
        model, (people, contents) = three.model, everyone(three)
        among = len(contents)
        which, chosen = torch.tensor([0, 3, 3]), torch.tensor([1, 0, 5])
        partial = Ragged.from_lists([[1], [2, 3], []])
        encoded = model.encoded(people, contents)
        scores = require(model, Matcher).score_bundles(people, contents)
        expected = scores[which, chosen] - scores.mean(1)[which]
        assert torch.allclose(
            require(model, Matcher).bundle_fit(encoded, which, chosen, contents, among), expected, **CLOSE
        )
        scores = require(model, Completer).score_items(people.rows(which), partial, contents)
        expected = scores.gather(1, chosen[:, None])[:, 0] - scores.mean(1)
        assert torch.allclose(
            require(model, Completer).item_fit(encoded, which, partial, chosen, contents), expected, **CLOSE
        )

    @torch.inference_mode()
    def test_factors_multiply_to_the_scores(self, three: Recommender) -> None:
        people, contents = everyone(three)
        factors = require(three.model, Indexable).factors_of_bundles(contents)
        found = (
            require(three.model, Indexable).factors_of_users(people, contents) @ factors.vectors.T
            + factors.bias
        )
        assert torch.allclose(found, require(three.model, Matcher).score_bundles(people, contents), **CLOSE)
        later = require(three.model, Indexable).factors_of_bundles(contents, 30)
        assert torch.equal(later.vectors, factors.vectors[30:])

    @torch.inference_mode()
    def test_cosines_are_the_mean_of_the_members(self, three: Recommender) -> None:
        _, contents = everyone(three)
        for method, arguments in {"vectors_of_items": (), "vectors_of_bundles": (contents,)}.items():
            cosines = [
                torch.nn.functional.cosine_similarity(vectors[:1], vectors[1:])
                for vectors in (
                    getattr(model, method)(*arguments) for model in (three.model, *members(three))
                )
            ]
            assert torch.allclose(cosines[0], torch.stack(cosines[1:]).mean(0), **CLOSE)

    def test_candidates_are_scored_alone_where_members_do_so(self) -> None:
        two = Recommender("ncf", ensemble=2, epochs=1, device="cpu").fit(small_shop(), progress=False)
        assert two.model.scores_candidates_apart
        assert two.calibration is not None

    def test_what_members_cannot_do_an_ensemble_cannot(self) -> None:
        two = Recommender("bpr", ensemble=2, epochs=1, device="cpu").fit(small_shop(), progress=False)
        assert two.model.title == "BPR × 2"
        assert two.recommend("u0001", 3)
        with pytest.raises(UnsupportedError, match="does not complete"):
            two.complete("u0001", ["g0001"])
        with pytest.raises(UnsupportedError, match="knows only the users"):
            two.recommend(SOMEONE)


class TestTraining:
    def test_members_are_single_fits_with_seeds_that_count_up(self, three: Recommender) -> None:
        each = members(three)
        for number, member in enumerate(each):
            alone = Recommender(**SETTINGS | {"seed": 5 + number}).fit(small_shop(), progress=False)
            assert weights_are_equal(alone.model, member)
            mine = [replace(record, seconds=0) for record in three.history if record.member == number + 1]
            assert mine == [replace(one, seconds=0, member=number + 1) for one in alone.history]
        assert not weights_are_equal(each[0], each[1])

    def test_the_result_tells_of_all_members(self, three: Recommender) -> None:
        assert three.training is not None
        assert [record.member for record in three.history] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
        assert [record.epoch for record in three.history] == [1, 2, 3] * 3
        assert [record.member for record in kept(three.history)] == [1, 2, 3]
        assert three.training.best_epoch == kept(three.history)[0].epoch
        assert three.training.seconds >= sum(record.seconds for record in three.history)
        assert not three.training.interrupted

    def test_observers_are_told_which_member_it_is(self) -> None:
        seen = Epochs()
        Recommender(ensemble=2, **SETTINGS).fit(small_shop(), observers=[seen], progress=False)
        assert seen.told == [(1, 2), (2, 2)]
        assert seen.trained == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
        Recommender(**SETTINGS).fit(small_shop(), observers=[seen := Epochs()], progress=False)
        assert seen.told == []

    def test_a_terminal_says_which_member_it_is(self) -> None:
        shown = StringIO()
        with Shown(Console(file=shown, force_terminal=True, width=120)) as progress:
            observers = [EpochProgress(progress)]
            Recommender(ensemble=2, **SETTINGS).fit(small_shop(), observers=observers, progress=False)
        assert "member 1 of 2" in shown.getvalue()
        assert "member 2 of 2" in shown.getvalue()

    def test_tensorboard_has_each_member(self, tmp_path: Path) -> None:
        pytest.importorskip("tensorboard")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        Recommender(ensemble=2, **SETTINGS).fit(
            small_shop(), observers=[TensorBoard(tmp_path)], progress=False
        )
        written: dict[str, int] = {}
        for file in tmp_path.iterdir():
            events = EventAccumulator(str(file)).Reload()
            written |= {tag: len(events.Scalars(tag)) for tag in events.Tags()["scalars"]}
        assert written["member-1/loss/matching"] == written["member-2/loss/matching"] == 3

    @pytest.mark.parametrize("after", [0, 1])
    def test_a_killed_run_goes_on_with_the_member_that_it_was_at(
        self, three: Recommender, tmp_path: Path, after: int
    ) -> None:
        def fit(observer: Epochs, resume: bool) -> Recommender:
            return Recommender(ensemble=3, **SETTINGS).fit(
                small_shop(),
                folder=tmp_path / "run",
                resume=resume,
                checkpoint_every=1,
                observers=[observer],
                progress=False,
            )

        with pytest.raises(RuntimeError):
            fit(Epochs(2, after=after), resume=False)
        assert RunFolder(tmp_path / "run").can_resume()
        seen = Epochs()
        resumed = fit(seen, resume=True)
        left = [(2, epoch) for epoch in range(1 + after, 4)] + [(3, 1), (3, 2), (3, 3)]
        assert seen.trained == left
        assert weights_are_equal(resumed.model, three.model)
        assert [replace(one, seconds=0) for one in resumed.history] == [
            replace(one, seconds=0) for one in three.history
        ]
        RunFolder(tmp_path / "run").discard()
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("after", [0, 1])
    def test_ctrl_c_keeps_the_members_that_are_finished(
        self, three: Recommender, tmp_path: Path, after: int
    ) -> None:
        stopped = Recommender(ensemble=4, **SETTINGS).fit(
            small_shop(), observers=[Epochs(3, KeyboardInterrupt, after=after)], progress=False
        )
        assert stopped.training is not None
        assert stopped.training.interrupted
        assert all(
            weights_are_equal(*pair) for pair in zip(members(stopped), members(three)[:2], strict=True)
        )
        assert {record.member for record in stopped.history} == {1, 2}
        loaded = Recommender.load(stopped.save(tmp_path / "model"), device="cpu")
        assert loaded.ensemble == 2
        assert weights_are_equal(loaded.model, stopped.model)

    def test_ctrl_c_in_the_first_member_is_as_for_a_single_model(self) -> None:
        one = Recommender(ensemble=2, **SETTINGS).fit(
            small_shop(), observers=[Epochs(1, KeyboardInterrupt, after=1)], progress=False
        )
        assert one.training is not None
        assert (one.training.interrupted, len(one.history)) == (True, 1)
        assert not isinstance(one.model, Blend)
        with pytest.raises(NoModelYetError, match="before the first epoch"):
            Recommender(ensemble=2, **SETTINGS).fit(
                small_shop(), observers=[Epochs(1, KeyboardInterrupt)], progress=False
            )

    def test_runs_of_one_and_of_several_are_not_mixed_up(self, tmp_path: Path) -> None:
        def fit(count: int, **how: Any) -> Recommender:
            return Recommender(ensemble=count, **SETTINGS).fit(
                small_shop(), folder=tmp_path / "run", progress=False, **how
            )

        fit(2)
        with pytest.raises(CheckpointError, match="begun as an ensemble"):
            fit(1, resume=True)
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["member-1", "member-2"]
        fit(1)  # starts over
        assert not RunFolder(tmp_path / "run").members()
        with pytest.raises(CheckpointError, match="begun as a single model"):
            fit(2, resume=True)

    @pytest.mark.parametrize("count", [0, -1, True, 2.0, "2"])
    def test_a_number_that_is_none_is_refused(self, count: Any) -> None:
        with pytest.raises(ConfigError, match=r"ensemble is .*1 or more"):
            Recommender(ensemble=count)

    def test_members_that_would_be_equal_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="ease does not learn by steps"):
            Recommender("ease", ensemble=2)
        assert Recommender("ease", ensemble=1).ensemble == 1

    def test_seeds_that_count_too_far_are_refused_before_training(self) -> None:
        seen = Epochs()
        with pytest.raises(ConfigError, match="seed"):
            Recommender(ensemble=2, **SETTINGS | {"seed": 2**32 - 1}).fit(
                small_shop(), observers=[seen], progress=False
            )
        assert not seen.told


class TestArtifact:
    def test_it_comes_back_whole(self, three: Recommender, saved: Path) -> None:
        loaded = Recommender.load(saved, device="cpu")
        assert (loaded.ensemble, loaded.config, loaded.history) == (3, three.config, three.history)
        assert weights_are_equal(loaded.model, three.model)
        people, contents = everyone(three)
        with torch.inference_mode():
            assert torch.equal(
                require(loaded.model, Matcher).score_bundles(people, contents),
                require(three.model, Matcher).score_bundles(people, contents),
            )
        assert loaded.complete("u0002", ["g0003"]) == three.complete("u0002", ["g0003"])
        assert json.loads((saved / "config.json").read_text())["ensemble"] == 3

    def test_a_model_of_before_is_a_single_one(self, tmp_path: Path) -> None:
        one = Recommender(**SETTINGS).fit(small_shop(), progress=False)
        artifact = load_artifact(one.save(tmp_path / "model"))
        assert artifact.config.pop("ensemble") == 1
        loaded = Recommender._of(artifact, tmp_path, "cpu", len(one.dataset.users))
        assert loaded.ensemble == 1
        assert weights_are_equal(loaded.model, one.model)

    def test_the_card_has_every_member(self, three: Recommender, saved: Path) -> None:
        card = (saved / "README.md").read_text()
        assert card.startswith("# BundleMage × 3 trained on")
        assert "Trained for 9 epochs; it is the mean of 3 members" in card
        for record in kept(three.history):
            assert f"member {record.member}, epoch {record.epoch} (validation" in card
        single = model_card(
            "M", {"settings": {}, "protocol": "", "split": {"seed": 0}, "shop": {}}, three.dataset, {}, []
        )
        assert "members" not in single


class TestAnswers:
    def test_new_people_and_new_bundles(self, three: Recommender) -> None:
        found = three.recommend(SOMEONE, k=50, new_bundles=NEW)
        assert "spring" in [answer.id for answer in found]
        assert [answer.source for answer in three.recommend(History(), 3)] == ["popular"] * 3

    def test_explanations_say_what_leaving_out_does(self, three: Recommender) -> None:
        fits = {}
        for items in (["g0002", "g0011"], ["g0011"]):
            explained = three.explain(History(items, ["b0004"]), bundle="b0001")
            fits[len(items)] = numbers(explained).fit
            if len(items) == 2:
                reason = next(one for one in numbers(explained).reasons if one.id == "g0002")
        assert reason.without == pytest.approx(fits[1], abs=1e-5)
        assert reason.effect == pytest.approx(fits[2] - fits[1], abs=1e-5)
        assert 0 < (numbers(explained).gate or 0) < 1
        assert numbers(three.explain("u0001", item="g0003", items=["g0001"])).reasons

    def test_a_design_and_a_forecast(self, three: Recommender) -> None:
        designs = three.design("u0001", start=["g0003"], size=(3, 4), diversity=0.5, n=2)
        assert all(3 <= len(one.items) <= 4 for one in designs)
        assert len(designs) == 2
        forecast = three.score_bundle(["g0001", "g0005"], 20.0, k=5)
        assert len(forecast.people) == 5
        assert forecast.nearest

    def test_everyone_at_once_and_a_campaign(self, three: Recommender, tmp_path: Path) -> None:
        rows = [row for batch in three.recommend_all(3) for row in batch.to_pylist()]
        mine = [row["bundle_id"] for row in rows if row["user_id"] == "u0001"]
        assert mine == [answer.id for answer in three.recommend("u0001", 3)]
        summary = three.campaign(tmp_path / "campaign", per_user=1)
        assert summary.users == len(three.dataset.users)

    def test_an_index_finds_what_is_there(self) -> None:
        pytest.importorskip("faiss")
        shop = small_shop(users=150, items=200, bundles=600)
        plain = Recommender(ensemble=2, **SETTINGS | {"epochs": 2}).fit(
            shop, SplitPlan("none"), progress=False
        )
        people = [f"u{number:04}" for number in range(1, 41)]
        exact = plain.recommend_many(people, 10)
        report = plain.use_index(0.9, least_bundles=1, most_share=1.0)
        assert report.kind == "ivf-flat"
        found = plain.recommend_many(people, 10)
        shared = [
            len({one.id for one in mine} & {one.id for one in theirs}) / 10
            for mine, theirs in zip(found, exact, strict=True)
        ]
        assert np.mean(shared) >= 0.9
        late = plain.recommend(SOMEONE, 50, new_bundles=NEW)
        assert len(late) == 50

    def test_a_live_shop(self, three: Recommender) -> None:
        data = three.dataset
        sales = Sales(dict.fromkeys(data.items, 1), dict.fromkeys(data.bundles, 1))
        live = Live(three, stock_of(data), sales)
        (answer,) = live.answer([Question(owned_by(data, "u0001"), 4)])
        assert not isinstance(answer, Exception)
        assert [one.id for one in answer] == [one.id for one in three.recommend("u0001", 4)]
        assert live.similar("b0001", 3)


def test_an_ensemble_is_as_good_as_its_members_and_better_than_most() -> None:
    """On a shop whose tastes are known to be there. A mean of members loses to their mean only by noise."""
    split = SplitPlan("paper").divide(sample_shop().dataset)
    found = Recommender(ensemble=3, embedding_dim=32, epochs=40, device="cpu").fit(split, progress=False)
    whole = found.evaluate(split)
    alone: list[float] = []
    for member in members(found):
        found._fitted = (member, found.shop)
        matching = found.evaluate(split).matching
        assert matching is not None
        alone.append(matching["ndcg@5"])
    assert whole.matching is not None
    assert whole.matching["ndcg@5"] > np.mean(alone) - 0.01


class TestStudies:
    def test_an_ensemble_has_a_key_of_its_own_and_others_keep_theirs(self) -> None:
        split = SplitPlan("paper").divide(small_shop())
        one, same, four = (Cell(Contender("any", "bundlemage", {}, count), split, 0) for count in (1, 1, 4))
        assert one.key == same.key != four.key
        # What the key was made of before there were ensembles.
        settings = one.contender.config(0).model_dump(mode="json", exclude={"device"})
        parts = [FORMAT, "bundlemage", settings, split.key]
        assert one.key == hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def test_ensembles_of_two_seeds_share_no_member(self) -> None:
        four = Contender("any", "bundlemage", {}, 4)
        assert [four.config(seed).seed for seed in (0, 1, 2)] == [0, 4, 8]

    def test_a_cell_of_an_ensemble(self, tmp_path: Path) -> None:
        recipe = tmp_path / "two.toml"
        recipe.write_text("ensemble = 2\n[settings]\nembedding_dim = 8\nbatch_size = 64\nepochs = 2\n")
        contender = Contender.parse(str(recipe))
        split = SplitPlan("paper").divide(small_shop())
        seen = Epochs()
        outcome = run_cell(contender, split, 1, Cache(tmp_path / "cache"), "cpu", [seen])
        assert (outcome.ensemble, outcome.seed, outcome.epochs, outcome.curve) == (2, 1, 4, [])
        assert outcome.shown_settings["ensemble"] == 2
        assert seen.told == [(1, 2), (2, 2)]
        assert outcome.validation["ndcg@5"] > 0
        again = run_cell(contender, split, 1, Cache(tmp_path / "cache"), "cpu", [Epochs(1)])
        assert again == outcome
        assert not [*(tmp_path / "cache").glob("*.run")]

    @pytest.mark.parametrize("dataset", ["youshu", "netease", "sample"])
    def test_four_averaged_have_a_row(self, dataset: str) -> None:
        tables = {plan.key: [entry.title for entry in plan.entries] for plan in table_plans(dataset)}
        named = {key for key, titles in tables.items() if "BundleMage, four averaged" in titles}
        assert named == {"matching", "generation"} | ({"full-ranking"} if dataset != "sample" else set())

    @pytest.mark.parametrize("name", ["youshu/bundlemage-ensemble", "youshu-full/bundlemage-ensemble"])
    def test_its_recipe_is_four_of_the_defaults(self, name: str) -> None:
        recipe = Recipe.find(name)
        assert recipe.ensemble == recipe.recommender().ensemble == recipe.changed({}, {}).ensemble == 4
        assert recipe.recommender().config == Recommender().config

    @pytest.mark.parametrize("text", ['ensemble = "4"', "ensemble = 0", "ensemble = true"])
    def test_a_recipe_with_a_wrong_number_is_refused(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "wrong.toml").write_text(text)
        with pytest.raises(ConfigError, match="ensemble"):
            Recipe.find(str(tmp_path / "wrong.toml")).recommender()


class TestCommands:
    def test_train_then_ask(self, tmp_path: Path) -> None:
        model = tmp_path / "model"
        result = run("train", "-o", model, *BUNDLEMAGE, "--ensemble", 2)
        assert "member 2 of 2" in result.stderr
        assert "2 × bundlemage" in result.stderr
        assert "BundleMage ×" in result.stdout
        assert not (tmp_path / "model.checkpoints").exists()
        found = run_json("recommend", model, "--user", "u0007", "-k", 3)
        loaded = Recommender.load(model, device="cpu")
        assert loaded.ensemble == 2
        assert [one["id"] for one in found["bundles"]] == [one.id for one in loaded.recommend("u0007", 3)]
        items = run_json("complete", model, "--user", "u0007", "--items", "g0022", "-k", 3)
        expected = loaded.complete("u0007", ["g0022"], 3)
        assert [one["id"] for one in items["items"]] == [one.id for one in expected]

    def test_json_has_each_member(self, tmp_path: Path) -> None:
        told = run_json("train", "-o", tmp_path / "model", *BUNDLEMAGE, "--ensemble", 2)
        assert told["epochs"] == 4
        assert [one["member"] for one in told["members"]] == [1, 2]
        each: Sequence[float] = [one["validation"]["ndcg@5"] for one in told["members"]]
        assert told["validation"]["ndcg@5"] == pytest.approx(np.mean(each))

    def test_bad_numbers_have_one_message(self, tmp_path: Path) -> None:
        assert "1 or more" in run("train", "-o", tmp_path / "m", "--ensemble", 0, code=2).stderr
        assert "does not learn" in run(
            "train", "-o", tmp_path / "m", "--model", "ease", "--ensemble", 2, code=2
        ).stderr  # fmt: skip

    def test_a_run_that_was_cut_off_is_not_lost(self, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError):
            Recommender(ensemble=2, **SETTINGS).fit(
                small_shop(), folder=tmp_path / "m.checkpoints", observers=[Epochs(2)], progress=False
            )
        said = run("train", "-o", tmp_path / "m", *BUNDLEMAGE, "--ensemble", 2, code=2).stderr
        assert "holds an interrupted run" in said

    def test_tune_tries_single_models(self, tmp_path: Path) -> None:
        recipe = tmp_path / "two.toml"
        recipe.write_text("ensemble = 2\n")
        said = run("tune", "-o", tmp_path / "study", "--recipe", recipe, code=2).stderr
        assert "single models" in said
