"""The training loop: repeatable, stopped in time, left with the best weights, honest about failure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import Split, SplitPlan
from bundlemage.errors import BundleMageError, DeviceError
from bundlemage.evaluation import MatchingEvaluator, means
from bundlemage.models.base import Interactions, Learner, Matcher, Model, Sizes, require
from bundlemage.models.config import ModelConfig
from bundlemage.models.registry import build, make_config
from bundlemage.training.devices import resolve_device
from bundlemage.training.history import SELECTION_METRIC, EpochRecord, Observer
from bundlemage.training.loop import TrainingResult, train
from tests.small_shop import QUICK, dataset_of, small_shop

Weights = Mapping[str, Tensor]


@pytest.fixture(scope="module")
def split() -> Split:
    return SplitPlan("paper").divide(small_shop())


def fitted(split: Split, name: str = "bundlemage", **settings: Any) -> tuple[Model, TrainingResult]:
    observers: Sequence[Observer] = settings.pop("observers", ())
    learned = QUICK | {"weight_average": 0.0} if name == "bundlemage" else {"device": "cpu"}
    config = make_config(name, learned | settings)
    model = build(name, config, Sizes.of(split.dataset))
    return model, train(model, config, split, observers=observers)


def attempt(split: Split, **settings: Any) -> Model | str:
    """A fitted model, or the message for which there is none."""
    try:
        return fitted(split, **settings)[0]
    except BundleMageError as error:
        return str(error)


def equal(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def without_seconds(history: Sequence[EpochRecord]) -> list[EpochRecord]:
    return [replace(record, seconds=0) for record in history]


def validation_value(model: Model, split: Split) -> float:
    assert split.validation is not None
    data = Interactions.of(split.train, torch.device("cpu"))
    return means(MatchingEvaluator(split.validation, data).metrics(model))[SELECTION_METRIC]


class Scripted:
    """Stands in for the validation metric: the values it is told, one an epoch."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = iter(values)

    def __call__(self, *_: object) -> dict[str, Tensor]:
        return {SELECTION_METRIC: torch.tensor([next(self.values)], dtype=torch.float64)}


class Keeper(Observer):
    """Keeps a copy of a model's weights after every epoch, and counts what it is told."""

    def __init__(self) -> None:
        self.model: Model | None = None
        self.after: list[dict[str, Tensor]] = []
        self.steps: list[str] = []
        self.started: dict[str, Any] = {}
        self.ended = 0

    def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
        self.started = {"epochs": epochs, "steps_per_epoch": steps_per_epoch, "done": tuple(done)}

    def on_step(self, phase: str) -> None:
        self.steps.append(phase)

    def on_epoch(self, record: EpochRecord) -> None:
        assert self.model is not None
        self.after.append({name: value.clone() for name, value in self.model.state_dict().items()})

    def on_end(self) -> None:
        self.ended += 1


def watched(split: Split, **settings: Any) -> tuple[Model, TrainingResult, Keeper]:
    keeper = Keeper()
    config = make_config("bundlemage", QUICK | {"weight_average": 0.0} | settings)
    keeper.model = model = build("bundlemage", config, Sizes.of(split.dataset))
    return model, train(model, config, split, observers=[keeper]), keeper


class TestSeeds:
    @pytest.mark.parametrize("settings", [{}, {"weight_average": 0.9}, {"masking": "row"}])
    def test_the_same_seed_gives_the_same_weights(self, split: Split, settings: dict[str, Any]) -> None:
        first, one = fitted(split, seed=4, **settings)
        torch.rand(17)  # whatever the caller draws in between changes nothing
        second, two = fitted(split, seed=4, **settings)
        assert equal(first.state_dict(), second.state_dict())
        assert without_seconds(one.history) == without_seconds(two.history)

    def test_another_seed_gives_others(self, split: Split) -> None:
        assert not equal(fitted(split, seed=4)[0].state_dict(), fitted(split, seed=5)[0].state_dict())

    def test_the_callers_random_state_is_untouched(self, split: Split) -> None:
        torch.manual_seed(11)
        before = torch.get_rng_state()
        fitted(split)
        assert torch.equal(torch.get_rng_state(), before)

    def test_the_callers_determinism_setting_is_untouched(self, split: Split) -> None:
        before = torch.are_deterministic_algorithms_enabled()
        fitted(split, epochs=1)
        assert torch.are_deterministic_algorithms_enabled() == before

    def test_every_epoch_draws_anew(self, split: Split) -> None:
        # With hardly any learning the loss would repeat if an epoch repeated the masks of the last.
        _, result = fitted(split, learning_rate=1e-12, epochs=3)
        assert len({record.losses["matching"] for record in result.history}) == 3

    @pytest.mark.parametrize("seed", [2**32 - 1, 2**32, 2**62, 2**70])
    def test_a_large_seed_works_or_is_refused_by_name(self, split: Split, seed: int) -> None:
        outcome = attempt(split, seed=seed, epochs=1)
        assert isinstance(outcome, Model) or "seed" in outcome


class TestBest:
    def test_patience_stops_training(self, split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
        values = Scripted([0.2, 0.3, 0.2, 0.3, 0.2, 0.9])
        monkeypatch.setattr("bundlemage.training.validation.MatchingEvaluator.metrics", values)
        _, result = fitted(split, epochs=50, patience=3, select_by="matching")
        assert [record.epoch for record in result.history] == [1, 2, 3, 4, 5]
        assert [record.improved for record in result.history] == [True, True, False, False, False]
        assert result.best_epoch == 2

    def test_training_goes_on_while_the_score_still_rises(
        self, split: Split, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # One lucky epoch, then a slow rise: three epochs without a better one, but better than those before.
        values = Scripted([0.1, 0.1, 0.5, 0.3, 0.35, 0.4, 0.3, 0.2, 0.2, 0.9])
        monkeypatch.setattr("bundlemage.training.validation.MatchingEvaluator.metrics", values)
        _, result = fitted(split, epochs=50, patience=3, select_by="matching")
        assert len(result.history) == 8
        assert result.best_epoch == 3

    def test_the_best_weights_are_kept_and_not_the_last(
        self, split: Split, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        values = Scripted([0.1, 0.3, 0.2, 0.1])
        monkeypatch.setattr("bundlemage.training.validation.MatchingEvaluator.metrics", values)
        model, result, keeper = watched(split, epochs=4, select_by="matching")
        assert result.best_epoch == 2
        assert equal(model.state_dict(), keeper.after[1])
        assert not equal(model.state_dict(), keeper.after[3])

    @pytest.mark.parametrize("weight_average", [0.0, 0.99])
    def test_the_model_scores_what_its_best_epoch_recorded(self, split: Split, weight_average: float) -> None:
        settings: dict[str, Any] = {"weight_average": weight_average, "select_by": "matching"}
        model, result = fitted(split, epochs=8, learning_rate=0.01, **settings)
        recorded = {record.epoch: record.validation[SELECTION_METRIC] for record in result.history}
        assert recorded[result.best_epoch] == max(recorded.values())
        assert validation_value(model, split) == recorded[result.best_epoch]

    def test_the_first_of_equal_epochs_wins(self, split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "bundlemage.training.validation.MatchingEvaluator.metrics", Scripted([0.2, 0.2, 0.2])
        )
        assert fitted(split, epochs=3, select_by="matching")[1].best_epoch == 1

    def test_without_validation_cases_the_last_epoch_stays(self) -> None:
        split = SplitPlan("none").divide(small_shop())
        model, result, keeper = watched(split, epochs=3, patience=1)
        assert result.best_epoch == 3
        assert [record.validation for record in result.history] == [{}, {}, {}]
        assert equal(model.state_dict(), keeper.after[-1])
        assert not equal(model.state_dict(), keeper.after[-2])

    def test_a_model_that_does_not_match_keeps_the_last_epoch(self, split: Split) -> None:
        model, result, keeper = watched(split, tasks="generation", epochs=3, patience=1, select_by="matching")
        assert result.best_epoch == 3
        assert equal(model.state_dict(), keeper.after[-1])

    def test_an_average_of_weights_is_another_model(self, split: Split) -> None:
        plain, averaged = fitted(split)[0], fitted(split, weight_average=0.999)[0]
        assert not equal(plain.state_dict(), averaged.state_dict())

    def test_an_average_lies_between_the_first_weights_and_the_last(self) -> None:
        # One step a phase: the average after it is first + (1 - decay)(last - first), with 0 < decay < 1.
        split = SplitPlan("none").divide(small_shop())
        settings: dict[str, Any] = {"epochs": 1, "batch_size": 4096, "tasks": "matching"}
        config = make_config("bundlemage", QUICK | {"weight_average": 0.0} | settings)
        first = build("bundlemage", config, Sizes.of(split.dataset)).state_dict()["item_shared"]
        last = fitted(split, **settings)[0].state_dict()["item_shared"]
        mean = fitted(split, weight_average=0.999, **settings)[0].state_dict()["item_shared"]
        moved = (last - first).abs() > 1e-6
        share = ((mean - first) / (last - first))[moved]
        assert moved.any()
        assert 0 < float(share.min()) <= float(share.max()) < 1
        assert float(share.max() - share.min()) < 1e-2


class TestWhatIsLearned:
    @pytest.mark.parametrize("tasks", ["both", "matching", "generation"])
    @pytest.mark.parametrize("mixer", ["gate", "average"])
    @pytest.mark.parametrize("shared_fraction", [0.0, 0.5, 1.0])
    def test_every_ablation_trains(
        self, split: Split, tasks: str, mixer: str, shared_fraction: float
    ) -> None:
        settings: dict[str, Any] = {"tasks": tasks, "mixer": mixer, "shared_fraction": shared_fraction}
        model, result = fitted(split, epochs=6, learning_rate=0.01, dropout=0.0, **settings)
        phases = {"both": {"matching", "generation"}}.get(tasks, {tasks})
        assert set(result.history[0].losses) == phases
        for phase in phases:
            assert result.history[-1].losses[phase] < result.history[0].losses[phase]
        assert all(bool(torch.isfinite(value).all()) for value in model.state_dict().values())

    @pytest.mark.parametrize("masking", ["row", "batch"])
    @pytest.mark.parametrize("loss_weighting", ["sum", "mean"])
    def test_every_weighting_and_masking_trains(
        self, split: Split, masking: str, loss_weighting: str
    ) -> None:
        settings: dict[str, Any] = {"masking": masking, "loss_weighting": loss_weighting}
        _, result = fitted(split, epochs=6, learning_rate=0.01, dropout=0.0, **settings)
        for phase in ("matching", "generation"):
            assert result.history[-1].losses[phase] < result.history[0].losses[phase]

    @pytest.mark.parametrize(
        "changed",
        [{"mask_bundles": 0}, {"mask_items": 0}, {"dropout": 0}, {"weight_decay": 0.1}, {"batch_size": 32}],
        ids=lambda changed: "-".join(changed),
    )
    def test_every_setting_has_an_effect(self, split: Split, changed: dict[str, Any]) -> None:
        plain, other = fitted(split, epochs=1)[0], fitted(split, epochs=1, **changed)[0]
        assert not equal(plain.state_dict(), other.state_dict())

    def test_a_model_without_steps_is_fitted_at_once(self, split: Split) -> None:
        model, result = fitted(split, "popularity")
        assert (result.history, result.best_epoch, result.interrupted) == ((), 0, False)
        assert int(model.state_dict()["bundle_counts"].sum()) == split.train.user_bundle.nnz

    @pytest.mark.parametrize(
        "shop",
        [
            dataset_of([[0], []], [[], []], [[0], []], 2),
            dataset_of([[], []], [[0], [0, 1]], [[], []], 2),
            dataset_of([[0]], [[0]], [[0]], 1),
        ],
        ids=["no-bundles-taken", "empty-bundles", "one-of-each"],
    )
    def test_degenerate_data_trains(self, shop: BundleDataset) -> None:
        for protocol in ("paper", "none", "cold-bundles"):
            split = SplitPlan(protocol).divide(shop)
            model, result = fitted(split)
            assert all(math.isfinite(loss) for loss in result.history[-1].losses.values())
            assert all(bool(torch.isfinite(value).all()) for value in model.state_dict().values())


class TestObservers:
    def test_observers_hear_of_every_step_and_epoch_and_of_the_end(self, split: Split) -> None:
        settings: dict[str, Any] = {"every_bundle": False, "pairs_per_bundle": 0, "select_by": "matching"}
        _, result, keeper = watched(split, epochs=2, batch_size=50, **settings)
        users, pairs = len(split.dataset.users), split.train.user_bundle.nnz
        each = ["matching"] * math.ceil(users / 50) + ["generation"] * math.ceil(pairs / 50)
        assert keeper.started == {"epochs": 2, "steps_per_epoch": len(each), "done": ()}
        assert keeper.steps == each * 2, "all matching batches first, then all generation batches"
        assert len(keeper.after) == len(result.history) == 2
        assert keeper.ended == 1

    def test_observers_hear_of_the_end_of_a_failure_too(self, split: Split) -> None:
        class Failing(Keeper):
            def on_step(self, phase: str) -> None:
                raise OSError("the disk is full")

        failing = Failing()
        with pytest.raises(OSError, match="disk is full"):
            fitted(split, observers=[failing])
        assert failing.ended == 1

    def test_records_go_to_lines_and_back(self, split: Split) -> None:
        _, result = fitted(split)
        for record in result.history:
            line = record.to_line()
            assert line.endswith("\n")
            assert line.count("\n") == 1
            assert EpochRecord.from_line(line) == record


class Interrupting(Keeper):
    """Ctrl-C in the middle of an epoch."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch

    def on_step(self, phase: str) -> None:
        super().on_step(phase)
        whole = self.started["steps_per_epoch"]
        if len(self.steps) == whole * (self.epoch - 1) + whole // 2 + 1:
            raise KeyboardInterrupt


class TestInterruption:
    @pytest.mark.parametrize("weight_average", [0.0, 0.9])
    def test_ctrl_c_keeps_the_best_so_far(self, split: Split, weight_average: float) -> None:
        settings = {"epochs": 9, "weight_average": weight_average}
        interrupting = Interrupting(epoch=3)
        config = make_config("bundlemage", QUICK | {"weight_average": 0.0} | settings)
        interrupting.model = model = build("bundlemage", config, Sizes.of(split.dataset))
        result = train(model, config, split, observers=[interrupting])
        assert result.interrupted
        assert len(result.history) == 2
        assert interrupting.ended == 1
        assert not model.training
        uninterrupted = fitted(split, epochs=2, weight_average=weight_average)[0]
        assert equal(model.state_dict(), uninterrupted.state_dict())

    def test_a_finished_run_was_not_interrupted(self, split: Split) -> None:
        assert not fitted(split)[1].interrupted

    def test_ctrl_c_before_there_is_a_model_says_so(self, split: Split) -> None:
        with pytest.raises(BundleMageError, match="before the first epoch"):
            fitted(split, observers=[Interrupting(epoch=1)])


class TestDevices:
    @pytest.mark.parametrize("name", ["gpu", "cuda:x", "", "cuda:-1"])
    def test_an_unknown_device_is_refused(self, split: Split, name: str) -> None:
        with pytest.raises(DeviceError, match="unknown device") as error:
            fitted(split, device=name)
        assert repr(name) in str(error.value)

    def test_a_device_that_torch_knows_and_this_program_not_is_refused(self) -> None:
        with pytest.raises(DeviceError, match="unsupported device 'meta'"):
            resolve_device("meta")

    @pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:7"])
    def test_an_absent_cuda_is_refused(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(DeviceError, match=f"{name}.*is not present"):
            resolve_device(name)

    def test_a_second_card_is_refused_where_there_is_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        assert resolve_device("cuda:0") == torch.device("cuda:0")
        with pytest.raises(DeviceError, match=r"cuda:1.*is not present"):
            resolve_device("cuda:1")

    def test_auto_takes_cuda_then_mps_then_the_cpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for cuda, mps, expected in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
            monkeypatch.setattr(torch.cuda, "is_available", lambda there=cuda: there)
            monkeypatch.setattr(torch.backends.mps, "is_available", lambda there=mps: there)
            assert resolve_device("auto") == torch.device(expected)

    def test_the_result_names_the_device(self, split: Split) -> None:
        assert fitted(split, epochs=1)[1].device == "cpu"


class TestDivergence:
    @pytest.mark.parametrize("tasks", ["both", "matching"])
    @pytest.mark.parametrize("protocol", ["paper", "none"])
    @pytest.mark.parametrize("batch_size", [32, 4096])
    @pytest.mark.parametrize("learning_rate", [1e6, 1e30])
    def test_steps_that_are_too_large_say_so_or_stay_finite(
        self, tasks: str, protocol: str, batch_size: int, learning_rate: float
    ) -> None:
        split = SplitPlan(protocol).divide(small_shop())
        outcome = attempt(split, tasks=tasks, batch_size=batch_size, learning_rate=learning_rate, epochs=1)
        if isinstance(outcome, Model):
            assert bool(torch.isfinite(require(outcome, Matcher).score_bundles(*everyone(split))).all())
        else:
            assert "no longer finite" in outcome
            assert "learning_rate" in outcome


def everyone(split: Split) -> tuple[Any, Any]:
    data = Interactions.of(split.train, torch.device("cpu"))
    return data.histories(torch.arange(len(split.dataset.users))), data.bundle_item


def scores_of_a_fresh_model(model: Model, config: ModelConfig, split: Split) -> Tensor:
    fresh = build("bundlemage", config, model.sizes)
    fresh.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    with torch.inference_mode():
        return require(fresh.eval(), Matcher).score_bundles(*everyone(split))


class TestNoStaleScores:
    """A cache of bundle embeddings once outlived the weights they were made from."""

    def test_validation_changes_from_epoch_to_epoch(self, split: Split) -> None:
        _, result = fitted(split, epochs=6, learning_rate=0.01)
        assert len({record.validation["ndcg@20"] for record in result.history}) >= 5

    @pytest.mark.parametrize("weight_average", [0.0, 0.9])
    def test_every_epochs_metric_is_that_of_a_fresh_model(self, split: Split, weight_average: float) -> None:
        # A run of n epochs without patience running out, for n = 1 … 4, ends with epoch n's weights if
        # only its last epoch counts: so score the model of each shorter run anew.
        settings: dict[str, Any] = {
            "learning_rate": 0.01,
            "weight_average": weight_average,
            "select_by": "matching",
        }
        _, whole = fitted(split, epochs=4, **settings)
        unvalidated = replace(split, validation=None)
        for record in whole.history:
            model, _ = fitted(unvalidated, epochs=record.epoch, **settings)
            assert validation_value(model, split) == record.validation[SELECTION_METRIC]

    def test_scores_follow_the_weights_through_every_change(self, split: Split) -> None:
        config = make_config("bundlemage", QUICK | {"learning_rate": 0.05})
        model, other = (
            build("bundlemage", config.model_copy(update={"seed": seed}), Sizes.of(split.dataset))
            for seed in (0, 1)
        )
        histories, contents = everyone(split)
        seen: list[Tensor] = []

        def check() -> None:
            with torch.inference_mode():
                scores = require(model.eval(), Matcher).score_bundles(histories, contents)
            assert torch.equal(scores, scores_of_a_fresh_model(model, config, split))
            assert not any(torch.equal(scores, earlier) for earlier in seen)
            seen.append(scores)

        check()
        model.load_state_dict(other.state_dict())
        check()
        train(model, config, split)
        check()
        train(model, config, split)
        check()
        model.train()
        optimiser = torch.optim.Adam(model.parameters(), lr=0.05, fused=True)
        data = Interactions.of(split.train, torch.device("cpu"))
        require(model, Learner).loss(require(model, Learner).phases[0], torch.arange(20), data).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        check()

    def test_loading_weights_into_a_model_that_has_scored_already(self, split: Split) -> None:
        config = make_config("bundlemage", QUICK)
        model, other = (
            build("bundlemage", config.model_copy(update={"seed": seed}), Sizes.of(split.dataset)).eval()
            for seed in (0, 1)
        )
        histories, contents = everyone(split)
        with torch.inference_mode():
            require(model, Matcher).score_bundles(histories, contents)
            model.load_state_dict(other.state_dict())
            after = require(model, Matcher).score_bundles(histories, contents)
            assert torch.equal(after, require(other, Matcher).score_bundles(histories, contents))
