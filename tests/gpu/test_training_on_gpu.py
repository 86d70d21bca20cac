"""Training on a GPU: repeatable to the bit, the same whether steps are replayed or not, and never waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bundlemage.data.splits import Split, SplitPlan
from bundlemage.models.base import Model, Sizes
from bundlemage.models.registry import build, make_config
from bundlemage.sample.generate import sample_shop
from bundlemage.training import steps
from bundlemage.training.history import EpochRecord, Observer
from bundlemage.training.loop import TrainingResult, train
from bundlemage.training.steps import Rows

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

EPOCHS = 6
Trained = tuple[Model, TrainingResult]


@pytest.fixture(scope="module")
def split() -> Split:
    shop = sample_shop(
        users=300, items=400, bundles=120, items_per_user=10, bundles_per_user=6, items_per_bundle=6
    )
    return SplitPlan("paper").divide(shop.dataset)


def fitted(split: Split, folder: Path | None = None, resume: bool = False, **settings: Any) -> Trained:
    observers: Sequence[Observer] = settings.pop("observers", ())
    quick = {"embedding_dim": 32, "batch_size": 70, "epochs": EPOCHS, "device": "cuda"}
    config = make_config("bundlemage", quick | settings)
    model = build("bundlemage", config, Sizes.of(split.dataset))
    result = train(
        model, config, split, folder=folder, resume=resume, checkpoint_every=1, observers=observers
    )
    return model, result


def assert_the_same(one: Trained, other: Trained) -> None:
    first, second = one[0].state_dict(), other[0].state_dict()
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert different == []
    histories = [[replace(record, seconds=0) for record in result.history] for _, result in (one, other)]
    assert histories[0] == histories[1]


def losses_of(trained: Trained) -> list[float]:
    return [loss for record in trained[1].history for loss in record.losses.values()]


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each step that is replayed."""
    seen: list[int] = []
    replay = steps._Recorded.replay

    def counted(recorded: Any, rows: torch.Tensor) -> None:
        seen.append(len(rows))
        replay(recorded, rows)

    monkeypatch.setattr(steps._Recorded, "replay", counted)
    return seen


def without_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step anew, with the same kernels: only `Stepper.replays` becomes False."""
    monkeypatch.setattr(steps, "kernels_for", lambda _: None)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"weight_average": 0.0},
    {"schedule": "cosine", "loss_weighting": "mean"},
    {"masking": "row"},
    {"sampled_softmax": 40},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_same_seed_gives_the_same_weights_to_the_bit(split: Split, settings: dict[str, Any]) -> None:
    first = fitted(split, seed=4, **settings)
    torch.rand(3, device="cuda")
    assert_the_same(fitted(split, seed=4, **settings), first)
    other = fitted(split, seed=5, **settings)
    assert losses_of(other) != losses_of(first)


@pytest.mark.parametrize("settings", SETTINGS[:3])
def test_replayed_steps_are_the_steps(
    split: Split, settings: dict[str, Any], replays: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed = fitted(split, **settings)
    times = len(replays)
    assert times > 2 * EPOCHS
    without_replays(monkeypatch)
    anew = fitted(split, **settings)
    assert len(replays) == times
    assert losses_of(replayed) == pytest.approx(losses_of(anew), rel=2e-3)
    metrics = [[record.validation["ndcg@20"] for record in result.history] for _, result in (replayed, anew)]
    assert metrics[0] == pytest.approx(metrics[1], abs=0.03)


@pytest.mark.parametrize("settings", SETTINGS[3:])
def test_steps_of_no_fixed_size_are_not_replayed(
    split: Split, settings: dict[str, Any], replays: list[int]
) -> None:
    fitted(split, epochs=2, **settings)
    assert replays == []


def test_a_gpu_learns_what_a_cpu_learns(split: Split) -> None:
    """With nothing left to chance but the order, which is drawn on the CPU for both."""
    plain: dict[str, Any] = dict.fromkeys(("dropout", "item_dropout", "mask_bundles", "mask_items"), 0.0)
    gpu, cpu = (fitted(split, device=device, **plain) for device in ("cuda", "cpu"))
    assert losses_of(gpu) == pytest.approx(losses_of(cpu), rel=2e-2)
    assert losses_of(gpu)[-2] < losses_of(gpu)[0]


class Killed(BaseException):
    """The end of a process, as far as the loop can tell."""


class Killer(Observer):
    def __init__(self, epoch: int) -> None:
        self.epoch, self.finished = epoch, 0

    def on_step(self, phase: str) -> None:
        if self.finished == self.epoch - 1 and phase == "generation":
            raise Killed

    def on_epoch(self, record: EpochRecord) -> None:
        self.finished = record.epoch


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_killed_run_ends_as_one_that_was_not(
    split: Split, tmp_path: Path, settings: dict[str, Any]
) -> None:
    with pytest.raises(Killed):
        fitted(split, tmp_path / "run", observers=[Killer(4)], **settings)
    resumed = fitted(split, tmp_path / "run", resume=True, **settings)
    assert len(resumed[1].history) == EPOCHS
    assert_the_same(resumed, fitted(split, **settings))


class Epochs(Observer):
    done = 0

    def on_epoch(self, record: EpochRecord) -> None:
        self.done = record.epoch


@pytest.mark.parametrize("replayed", [True, False])
@pytest.mark.parametrize("settings", SETTINGS[:3])
def test_no_step_waits_for_the_gpu(
    split: Split, settings: dict[str, Any], replayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two epochs, when every kernel is compiled and every kind of step recorded."""
    if not replayed:
        without_replays(monkeypatch)
    epochs, guarded = Epochs(), []

    def strict(method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, *args: Any) -> Any:
            if epochs.done < 2:
                return method(self, *args)
            guarded.append(method.__name__)
            torch.cuda.set_sync_debug_mode("error")
            try:
                return method(self, *args)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return wrapped

    monkeypatch.setattr(steps.Stepper, "step", strict(steps.Stepper.step))
    monkeypatch.setattr(steps.Stepper, "begin_epoch", strict(steps.Stepper.begin_epoch))
    monkeypatch.setattr(Rows, "shuffled", strict(Rows.shuffled))
    fitted(split, observers=[epochs], **settings)
    assert set(guarded) == {"step", "begin_epoch", "shuffled"}


def test_what_does_wait_is_seen() -> None:
    """Else the test above would say nothing."""
    some = torch.ones(3, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            some.sum().item()
        with pytest.raises(RuntimeError, match="synchroniz"):
            some[some > 0]
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_an_epochs_readings_are_as_many_for_few_steps_as_for_many(
    split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for batch_size in (20, 1000):
        seen: list[str] = []
        epochs = Epochs()
        for name in ("tolist", "item", "cpu", "__bool__", "__int__", "__float__"):
            method = getattr(torch.Tensor, name)

            def noted(
                self: Any, *args: Any, _name: str = name, _method: Any = method, _seen: Any = seen,
                _epochs: Any = epochs,
            ) -> Any:  # fmt: skip
                if self.is_cuda and _epochs.done >= 2:
                    _seen.append(_name)
                return _method(self, *args)

            monkeypatch.setattr(torch.Tensor, name, noted)
        fitted(
            split,
            batch_size=batch_size,
            tasks="generation",
            select_by="matching",
            observers=[epochs],
            epochs=4,
        )
        monkeypatch.undo()
        counts.append(seen.count("tolist"))
        assert set(seen) == {"tolist"}
    assert counts == [2, 2]  # the losses, once in each of the last two epochs
