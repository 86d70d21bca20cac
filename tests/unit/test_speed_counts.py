"""What training does, counted and not timed: nothing that waits, nothing that grows, nothing done twice.

PyTorch tells of every operator that it runs. Our own (`bundlemage::…`) are one each, as on a GPU, where they
are one kernel or a few; so what is counted here, on a CPU, is what a GPU would be told to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from bundlemage.data.splits import Split, SplitPlan
from bundlemage.evaluation import MatchingEvaluator
from bundlemage.models import losses
from bundlemage.models.base import Sizes
from bundlemage.models.ragged import Ragged
from bundlemage.models.registry import build, make_config
from bundlemage.training import loop
from bundlemage.training.checkpoint import RunFolder
from bundlemage.training.history import EpochRecord, Observer
from bundlemage.training.loop import train
from bundlemage.training.steps import Rows, Stepper
from tests.small_shop import small_shop

WAITS = (
    "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::unique", "aten::_unique",
    "aten::bincount", "aten::equal", "aten::is_nonzero", "aten::_coalesce", "aten::lift_fresh",
)  # fmt: skip
"""Operators whose answer, or the size of it, a GPU makes one wait for; the last brings numbers to it."""
READINGS = ("tolist", "numpy", "cpu")
"""Methods of a tensor that do so without being operators, as long as it is on the CPU."""
BY_ROW = (
    "aten::embedding", "aten::index.Tensor", "aten::index_put_", "aten::_index_put_impl_",
    "aten::searchsorted", "aten::select", "aten::slice", "aten::detach", "aten::alias", "aten::view",
    "aten::_sparse_coo_tensor", "aten::new_zeros",
)  # fmt: skip
"""Operators that look at, or change, no more of a large array than the places they are told."""


@dataclass(frozen=True)
class Call:
    name: str
    part: str
    """`step`, `shuffling`, `validation`, or `epoch` for what else an epoch does."""
    step: int
    """How many steps had begun."""
    epoch: int
    """How many epochs had ended."""
    waits: bool
    largest: int
    """Entries of the largest dense array that is in it or comes from it."""
    fresh: int
    """Entries of the largest array that it makes."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps a note of every operator, and what goes on meanwhile."""

    def __init__(self, part: str = "epoch") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self.part, self.steps, self.epochs = part, 0, 0
        self.opaque = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, given = func.name(), dense(args, kwargs)
        self.opaque = name.startswith("bundlemage::")
        try:
            found = func(*args, **(kwargs or {}))
        finally:
            self.opaque = False
        made = dense(found)
        known = {tensor.untyped_storage().data_ptr() for tensor in given}
        fresh = [tensor for tensor in made if tensor.untyped_storage().data_ptr() not in known]
        waits = name.startswith(WAITS) or _by_mask(name, args) or _of_unknown_size(name, kwargs)
        self.note(name, waits, largest([*given, *made]), largest(fresh))
        return found

    def note(self, name: str, waits: bool, size: int = 0, fresh: int = 0) -> None:
        self.calls.append(Call(name, self.part, self.steps, self.epochs, waits, size, fresh))

    def of(self, part: str, epoch: int | None = None) -> list[Call]:
        return [call for call in self.calls if call.part == part and epoch in (None, call.epoch)]


def dense(*trees: Any) -> list[Tensor]:
    return [leaf for leaf in tree_iter(trees) if isinstance(leaf, Tensor) and not leaf.is_sparse]


def largest(tensors: Sequence[Tensor]) -> int:
    return max((tensor.numel() for tensor in tensors), default=0)


def _by_mask(name: str, args: tuple[Any, ...]) -> bool:
    """A mask as an index: how many it marks is not known beforehand."""
    if not name.startswith(("aten::index.", "aten::index_put", "aten::_index_put")):
        return False
    return any(place is not None and place.dtype in (torch.bool, torch.uint8) for place in args[1])


def _of_unknown_size(name: str, kwargs: Mapping[str, Any] | None) -> bool:
    return name.startswith("aten::repeat_interleave") and (kwargs or {}).get("output_size") is None


def waiting(calls: Sequence[Call]) -> list[str]:
    return [call.name for call in calls if call.waits]


@dataclass
class Watched(Observer):
    """A training under a recorder."""

    recorder: Recorder = field(default_factory=Recorder)
    stepper: Stepper | None = None

    def on_epoch(self, record: EpochRecord) -> None:
        self.recorder.epochs += 1

    @property
    def calls_per_step(self) -> list[Counter[str]]:
        found: dict[int, Counter[str]] = {}
        for call in self.recorder.of("step"):
            found.setdefault(call.step, Counter())[call.name] += 1
        return [found[step] for step in sorted(found)]


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as context:
        yield context


def watch(patch: pytest.MonkeyPatch, split: Split, folder: Path | None = None, **settings: Any) -> Watched:
    """Train, and have every operator noted with the part of the training that it belongs to."""
    watched = Watched()
    recorder = watched.recorder

    def as_part(part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, *args: Any) -> Any:
            recorder.part = part
            if part == "step":
                recorder.steps, watched.stepper = recorder.steps + 1, self
            try:
                return method(self, *args)
            finally:
                recorder.part = "epoch"

        return wrapped

    def noted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            if not recorder.opaque:
                recorder.note(f"Tensor.{name}", waits=True)
            return method(self, *args, **kwargs)

        return wrapped

    with patch.context() as context:
        context.setattr(Stepper, "step", as_part("step", Stepper.step))
        context.setattr(Rows, "shuffled", as_part("shuffling", Rows.shuffled))
        context.setattr(MatchingEvaluator, "metrics", as_part("validation", MatchingEvaluator.metrics))
        for name in READINGS:
            context.setattr(Tensor, name, noted(name, getattr(Tensor, name)))
        quick = {"embedding_dim": 16, "batch_size": 32, "epochs": 2, "device": "cpu"}
        config = make_config("bundlemage", quick | settings)
        model = build("bundlemage", config, Sizes.of(split.dataset))
        recorder.part = "epoch"
        with recorder:
            train(model, config, split, folder=folder, observers=[watched])
    return watched


PLAN = SplitPlan("paper", histories="as given")
SPLIT = PLAN.divide(small_shop())
LARGER = PLAN.divide(small_shop(users=240, items=300, bundles=130))


class TestNothingWaits:
    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"tasks": "matching"},
            {"tasks": "generation", "hide_target": False},
            {"loss_weighting": "mean", "schedule": "cosine"},
            {"popularity_weight": 0.0, "mixer": "average", "weight_average": 0.0},
            {"mask_bundles": 0.0, "mask_items": 0.0, "pairs_per_bundle": 0, "shared_fraction": 1.0},
        ],
    )
    def test_in_the_steps_of_the_exact_softmax(
        self, patch: pytest.MonkeyPatch, settings: dict[str, Any]
    ) -> None:
        watched = watch(patch, SPLIT, **settings)
        assert watched.stepper is not None
        assert watched.stepper.model.fixed_shapes
        names = {call.name for call in watched.recorder.of("step")}
        assert "bundlemage::multinomial" in names
        assert waiting(watched.recorder.of("step")) == []

    def test_what_does_wait_is_seen(self, patch: pytest.MonkeyPatch) -> None:
        """Else the test above would say nothing."""
        watched = watch(patch, SPLIT, sampled_softmax=10, epochs=1)
        assert watched.stepper is not None
        assert not watched.stepper.model.fixed_shapes
        seen = set(waiting(watched.recorder.of("step")))
        assert {"aten::_local_scalar_dense", "aten::_unique2", "aten::index.Tensor"} <= seen
        with Recorder() as recorder:
            some = torch.tensor([1, 0, 2])
            some[some > 0] += 1
            torch.repeat_interleave(some)
            torch.repeat_interleave(some, some, output_size=5)
            bool(some.any())
        assert Counter(waiting(recorder.calls)) == {
            "aten::lift_fresh": 1,
            "aten::index.Tensor": 1,
            "aten::index_put_": 1,
            "aten::repeat_interleave.Tensor": 1,
            "aten::_local_scalar_dense": 1,
        }

    @pytest.mark.parametrize("batch_size", [16, 500])
    @pytest.mark.parametrize(("tasks", "readings"), [("both", 2), ("generation", 1)])
    def test_an_epoch_reads_its_losses_once_and_its_metrics_once(
        self, patch: pytest.MonkeyPatch, batch_size: int, tasks: str, readings: int
    ) -> None:
        watched = watch(patch, SPLIT, batch_size=batch_size, tasks=tasks, epochs=3, select_by="matching")
        for epoch in (1, 2):  # the first begins with the preparations
            assert waiting(watched.recorder.of("epoch", epoch)) == ["Tensor.tolist"] * readings

    def test_what_validation_waits_for_follows_neither_the_cases_nor_the_epochs(
        self, patch: pytest.MonkeyPatch
    ) -> None:
        counts = {
            len(waiting(watched.recorder.of("validation", epoch)))
            for watched in (watch(patch, split, epochs=3, select_by="matching") for split in (SPLIT, LARGER))
            for epoch in range(3)
        }
        assert len(counts) == 1
        assert counts.pop() <= 8


class TestNothingGrows:
    def test_the_operators_of_a_step_are_the_same_whatever_the_sizes(self, patch: pytest.MonkeyPatch) -> None:
        seen = set()
        for split, batch_size in ((SPLIT, 32), (SPLIT, 7), (LARGER, 32), (LARGER, 200)):
            watched = watch(patch, split, batch_size=batch_size, epochs=3)
            per_epoch = len(watched.calls_per_step) // 3
            # In the first epoch the optimiser makes its memory.
            seen |= {frozenset(calls.items()) for calls in watched.calls_per_step[per_epoch:]}
        assert len(seen) == 2  # one kind of step for each task
        assert all(sum(times for _, times in step) < 320 for step in seen)

    def test_no_array_of_a_step_is_larger_than_a_table(self, patch: pytest.MonkeyPatch) -> None:
        batch_size, dim = 128, 16
        watched = watch(patch, LARGER, batch_size=batch_size, embedding_dim=dim)
        items, bundles = len(LARGER.dataset.items), len(LARGER.dataset.bundles)
        table = items * dim
        assert batch_size * bundles > table  # so that logits would be seen
        found = max(watched.recorder.of("step"), key=lambda call: call.fresh)
        assert found.fresh <= table, found.name


def softmax_calls(rows: int, catalogue: int, dim: int = 16) -> list[Call]:
    """What the loss does inside where there are no kernels for it: watched from when it asks for them."""
    recorder, watching = Recorder(), ExitStack()

    def none_from_here_on(_: Tensor) -> None:
        watching.enter_context(recorder)

    torch.manual_seed(0)
    z, table, weights, bias, shift = (
        torch.randn(size) for size in ((rows, dim), (catalogue, dim), (rows,), (catalogue,), (catalogue,))
    )
    positives = Ragged.from_lists([[row % catalogue, (row + 1) % catalogue] for row in range(rows)])
    with pytest.MonkeyPatch.context() as patch, watching:
        patch.setattr(losses, "kernels_for", none_from_here_on)
        losses.multinomial_loss(z, table, positives, weights, prior=losses.Prior(bias, shift))
    assert recorder.calls
    return recorder.calls


class TestTheSoftmax:
    @pytest.mark.parametrize(("rows", "blocks"), [(64, 1), (128, 2), (512, 8)])
    def test_it_takes_three_products_a_block_and_one_piece_of_memory(
        self, rows: int, blocks: int, patch: pytest.MonkeyPatch
    ) -> None:
        catalogue, dim = 1000, 16
        patch.setitem(losses.BLOCK_ENTRIES, "cpu", 64 * catalogue)
        patch.setattr(losses, "FEWEST_ROWS", 64)
        calls = softmax_calls(rows, catalogue, dim)
        products = [call for call in calls if call.name.startswith(("aten::mm", "aten::addmm", "aten::bmm"))]
        assert len(products) == 3 * blocks
        large = [call for call in calls if call.fresh > catalogue * dim]
        assert [(call.name.split(".")[0], call.fresh) for call in large] == [
            ("aten::new_empty", 64 * catalogue)
        ]

    @pytest.mark.parametrize("rows", [1, 65, 130, 700])
    @pytest.mark.parametrize(("catalogue", "entries"), [(10, 100), (100, 6500), (300, 3000), (300, 40_000)])
    def test_its_memory_is_bounded(
        self, rows: int, catalogue: int, entries: int, patch: pytest.MonkeyPatch
    ) -> None:
        patch.setitem(losses.BLOCK_ENTRIES, "cpu", entries)
        bound = max(entries + losses.FEWEST_ROWS * catalogue, rows * 16)
        assert max(call.fresh for call in softmax_calls(rows, catalogue)) <= bound

    def test_it_waits_as_often_for_many_blocks_as_for_one(self, patch: pytest.MonkeyPatch) -> None:
        counts = set()
        for entries in (64 * 100, 2**24):
            patch.setitem(losses.BLOCK_ENTRIES, "cpu", entries)
            counts.add(len(waiting(softmax_calls(512, 100))))
        assert len(counts) == 1


SPARSE: dict[str, Any] = {
    **{"sampled_softmax": 12, "batch_size": 8, "pairs_per_bundle": 2, "epochs": 3},
    "every_bundle": False,
}


def vast_shop(times: int) -> Split:
    """The same few users before a catalogue of any size."""
    shop = small_shop(users=24, items=4000 * times, bundles=2000 * times)
    return SplitPlan("none").divide(shop)


@pytest.fixture(scope="module")
def sampled() -> tuple[Watched, Watched]:
    with pytest.MonkeyPatch.context() as patch:
        small, vast = (watch(patch, vast_shop(times), **SPARSE) for times in (1, 10))
    return small, vast


class TestASample:
    def test_nothing_of_a_step_has_the_size_of_the_catalogue(self, sampled: tuple[Watched, Watched]) -> None:
        """But the optimiser's note, made once, of where its memory of each row is."""
        small, vast = (
            max(call.fresh for call in watched.recorder.of("step") if call.name != "aten::full")
            for watched in sampled
        )
        assert vast <= 1.5 * small

    def test_a_step_looks_at_rows_and_at_nothing_whole(self, sampled: tuple[Watched, Watched]) -> None:
        bundles = 20_000
        whole = Counter(
            call.name
            for call in sampled[1].recorder.of("step")
            if call.largest >= bundles and not call.name.startswith(BY_ROW)
        )
        assert whole == {"aten::full": 3}  # that note, for each table of items

    def test_gradients_and_memory_follow_what_was_touched(self, sampled: tuple[Watched, Watched]) -> None:
        remembered, changed = [], []
        for watched in sampled:
            assert watched.stepper is not None
            model, optimiser = watched.stepper.model, watched.stepper.optimiser
            for name, parameter in model.named_parameters():
                if name.startswith("item_"):
                    assert parameter.grad is not None
                    assert parameter.grad.is_sparse
                    changed.append(parameter.grad._nnz())
                    remembered.append(len(optimiser.state[parameter]["mean"]))
                    assert len(optimiser.state[parameter]["mean"]) == len(optimiser.state[parameter]["steps"])
                    assert remembered[-1] < len(parameter) / 2
        assert max(changed[3:]) <= 1.5 * max(changed[:3])
        assert max(remembered[3:]) <= 2.5 * max(remembered[:3])  # it grows by doubling

    def test_the_operators_of_a_step_do_not_follow_the_catalogue(
        self, sampled: tuple[Watched, Watched]
    ) -> None:
        small, vast = (max(sum(calls.values()) for calls in watched.calls_per_step) for watched in sampled)
        assert vast <= small + 20  # now and then the optimiser makes room


class TestNothingIsDoneTwice:
    @pytest.mark.parametrize("protocol", ["paper", "full"])
    def test_cases_and_data_are_brought_to_the_device_once(
        self, protocol: str, patch: pytest.MonkeyPatch
    ) -> None:
        brought: list[str] = []
        after: list[int] = []

        def counted(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                brought.append(name)
                return make(*args, **kwargs)

            return wrapped

        class Listener(Observer):
            def on_epoch(self, record: EpochRecord) -> None:
                assert record.validation
                after.append(len(brought))

        for name in ("from_numpy", "tensor", "as_tensor", "asarray"):
            patch.setattr(torch, name, counted(name, getattr(torch, name)))
        split = SplitPlan(protocol).divide(small_shop())
        config = make_config("bundlemage", {"embedding_dim": 8, "epochs": 4, "device": "cpu"})
        train(build("bundlemage", config, Sizes.of(split.dataset)), config, split, observers=[Listener()])
        assert after[0] > 0
        assert after == [after[0]] * 4


@dataclass
class Clock(Observer):
    """A time of our own: an epoch takes `epoch` seconds of it, and writing one down takes `writing`."""

    epoch: float
    writing: float
    now: float = 1000.0
    written: list[int] = field(default_factory=list)

    def perf_counter(self) -> float:
        return self.now

    def on_step(self, phase: str) -> None:
        self.now += self.epoch  # the epochs below have one step

    def training(self, patch: pytest.MonkeyPatch, folder: Path, every: int | None, epochs: int) -> list[int]:
        """The epochs that were written."""
        save = RunFolder.save

        def slow(run: RunFolder, tensors: Any, progress: Any, best: Any) -> None:
            save(run, tensors, progress, best)
            self.now += self.writing
            self.written.append(progress.epoch)

        with patch.context() as context:
            context.setattr(RunFolder, "save", slow)
            context.setattr(loop, "time", self)
            settings: dict[str, Any] = {"embedding_dim": 4, "batch_size": 5000, "tasks": "matching"}
            settings |= {"min_steps": 1, "small_shop_steps": 1, "patience": epochs}
            config = make_config("bundlemage", settings | {"epochs": epochs, "device": "cpu"})
            model = build("bundlemage", config, Sizes.of(SPLIT.dataset))
            train(model, config, SPLIT, folder=folder, checkpoint_every=every, observers=[self])
        return self.written


class TestCheckpoints:
    def test_slow_writing_takes_a_twentieth_of_the_time(
        self, patch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        clock = Clock(epoch=1.0, writing=2.0)
        written = clock.training(patch, tmp_path / "run", None, epochs=100)
        assert written == [1, 39, 77, 100]  # after 2 s of writing, 38 s of work
        assert clock.now == 1000 + 100 + 4 * 2

    def test_quick_writing_is_done_each_epoch(self, patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        clock = Clock(epoch=1.0, writing=0.01)
        assert clock.training(patch, tmp_path / "run", None, epochs=12) == list(range(1, 13))

    @pytest.mark.parametrize(("every", "expected"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (0, [])])
    def test_what_the_user_says_is_done_however_slow(
        self, patch: pytest.MonkeyPatch, tmp_path: Path, every: int, expected: list[int]
    ) -> None:
        clock = Clock(epoch=1.0, writing=100.0)
        assert clock.training(patch, tmp_path / "run", every, epochs=5) == expected
