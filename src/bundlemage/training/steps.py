"""The shuffled batches of a phase, the training steps, and the optimiser Adam.

On a GPU, a step is recorded once as a CUDA graph and then replayed. A step has hundreds of small operations,
and without a graph it takes longer to start each of them than to compute it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from bundlemage.errors import ConfigError
from bundlemage.models.base import Interactions, Learner, Phase
from bundlemage.models.config import LearnedConfig
from bundlemage.models.division import ALONE, Division
from bundlemage.models.ragged import kernels_for

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
SMALL_SHOP = 5_000
"""A phase with fewer rows has at least `small_shop_steps` steps."""

Memory = dict[str, Tensor]
"""Adam's state of one parameter: step counts and moving averages of the gradient, by name."""
Number = TypeVar("Number", float, Tensor)


class Rows:
    """The training rows of a phase. They are shuffled on the CPU, so the order is the same on all devices."""

    def __init__(self, phase: Phase, data: Interactions) -> None:
        pairs = {
            "user_item": data.user_item,
            "user_bundle": data.user_bundle,
            "bundle_item": data.bundle_item,
            "completions": data.user_bundle,
        }.get(phase.over)
        self.device = data.user_bundle.device
        self.at_most = phase.at_most
        self.rows: Tensor | None = None  # the numbers of the rows; None: all
        self.groups: Tensor | None = None  # the second member of each pair, for `at_most`
        if pairs is None:
            if phase.at_most is not None:
                raise ConfigError(
                    f"the phase {phase.name!r} runs over {phase.over}; only phases that run over pairs can "
                    "have at_most"
                )
            counts = {"users": len(data.user_bundle), "items": data.items, "bundles": len(data.bundle_item)}
            self.count = counts[phase.over]
        else:
            right = pairs.values.cpu()
            if phase.over == "completions":
                self.rows, right = _completions(data)
            elif phase.over == "user_bundle" and phase.learns_contents:
                learned = _learned_pairs(data)
                self.rows = None if learned is None else learned.nonzero()[:, 0]
                right = right if self.rows is None else right[self.rows]
            self.count = len(right)
            if phase.at_most is not None:
                self.groups = right
                self.count = int(torch.bincount(right).clamp(max=phase.at_most).sum())

        # Pinned memory makes the copy to the GPU asynchronous. The copy is over before the next epoch.
        self.pinned = (
            torch.empty(self.count, dtype=torch.int64, pin_memory=True)
            if self.device.type == "cuda"
            else None
        )

    def __len__(self) -> int:
        """The number of rows in an epoch."""
        return self.count

    def batch_size(self, config: LearnedConfig) -> int:
        """Returns the batch size of the config, or less if an epoch would have too few batches."""
        steps = config.min_steps
        if self.count < SMALL_SHOP:
            steps = max(steps, config.small_shop_steps)
        return max(1, min(config.batch_size, -(-self.count // steps)))

    def shuffled(self, batch_size: int) -> tuple[Tensor, ...]:
        """Returns the batches of an epoch, in random order."""
        order = torch.randperm(self.count if self.groups is None else len(self.groups))
        if self.groups is not None:
            order = order[_first_in_group(self.groups[order], self.at_most or 0)]
        if self.rows is not None:
            order = self.rows[order]
        if self.pinned is not None:
            order = self.pinned.copy_(order)
        order = order.to(self.device, non_blocking=True)
        return tuple(order[start : start + batch_size] for start in range(0, self.count, batch_size))


def _completions(data: Interactions) -> tuple[Tensor, Tensor]:
    """Returns the rows of a phase over `completions`, and the bundle of each row."""
    bundles, taken = len(data.bundle_item), data.user_bundle.values.cpu()
    allowed = data.bundle_item.lengths.cpu() > 0
    if data.held_out is not None:
        allowed &= ~data.held_out.cpu()
    learned = _learned_pairs(data)
    bought = taken if data.user_bundle.weak is None else data.user_bundle.strong.values.cpu()
    unbought = allowed & (torch.bincount(bought, minlength=bundles) == 0)
    is_pair = allowed[taken] if learned is None else allowed[taken] & learned
    pairs, alone = is_pair.nonzero()[:, 0], unbought.nonzero()[:, 0]
    return torch.cat([pairs, alone + len(taken)]), torch.cat([taken[pairs], alone])


def _learned_pairs(data: Interactions) -> Tensor | None:
    """Marks the user-bundle pairs for which generation learns the bundle's contents: purchases of bundles
    that are not held out. None: all pairs."""
    pairs = data.user_bundle
    learned = None if pairs.weak is None else ~pairs.weak.cpu()
    if data.held_out is not None:
        kept = ~data.held_out.cpu()[pairs.values.cpu()]
        learned = kept if learned is None else learned & kept
    return learned


def _first_in_group(groups: Tensor, at_most: int) -> Tensor:
    """Returns True for the first `at_most` elements of each group."""
    together = torch.argsort(groups, stable=True)
    sizes = torch.bincount(groups)
    starts = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    is_first = torch.empty(len(groups), dtype=torch.bool)
    is_first[together] = torch.arange(len(groups)) - starts < at_most
    return is_first


class Stepper:
    """Does training steps. A step computes the loss of a batch, and updates the weights and their average."""

    def __init__(
        self,
        model: Learner,
        scored: Learner,
        config: LearnedConfig,
        data: Interactions,
        all_steps: int,
        division: Division = ALONE,
    ) -> None:
        """`scored` is the model itself, or its copy with the moving average of the weights."""
        self.all_steps, self.division = all_steps, division
        self.model, self.scored, self.config, self.data = model, scored, config, data
        self.device = data.user_item.device
        alone = division.group is None  # data exchange between processes cannot be recorded
        fixed = model.fixed_shapes and not data.weighted  # the kernels know no weights
        self.replays = alone and fixed and kernels_for(next(model.parameters())) is not None
        self.optimiser = Adam(model.parameters(), config.learning_rate, config.weight_decay)
        if self.replays:
            self.optimiser.rate = torch.tensor(config.learning_rate, device=self.device)
        self.steps = 0
        self.losses = {phase: torch.zeros((), device=self.device) for phase in model.phases}
        """The sum of each phase's loss over its rows. It stays on the device, as reading it is slow."""
        self._fresh = torch.zeros((), device=self.device)  # the share of the newest weights in the average
        self._seen: dict[tuple[Phase, int], _Recorded | None] = {}

    def begin_epoch(self) -> None:
        for total in self.losses.values():
            total.zero_()

    def step(self, phase: Phase, batch: Tensor) -> None:
        if self.config.schedule == "cosine":
            self.optimiser.set_rate(
                self.config.learning_rate * (1 + math.cos(math.pi * self.steps / self.all_steps)) / 2
            )
        self.steps += 1
        if self.config.weight_average:
            self._fresh.fill_(1 - min(self.config.weight_average, _kept(self.steps)))
        key = (phase, len(batch))
        if not self.replays or key not in self._seen:
            self._seen[key] = None  # the first step compiles kernels, so it is not recorded
            self._do(phase, batch)
            return
        recorded = self._seen[key]
        if recorded is None:
            recorded = self._seen[key] = _Recorded(lambda rows: self._do(phase, rows), batch)
        recorded.replay(batch)

    def _do(self, phase: Phase, batch: Tensor) -> None:
        self.optimiser.forget_gradients()
        loss = self.model.loss(phase, batch, self.data)
        loss.backward()  # type: ignore[no-untyped-call]
        self.division.add_gradients(self.model)
        self.optimiser.step()
        with torch.no_grad():
            self.losses[phase] += loss.detach() * len(batch)
            if self.scored is not self.model:
                self._average()

    def _average(self) -> None:
        for average, newest in zip(self.scored.parameters(), self.model.parameters(), strict=True):
            if self.model.touches_rows and newest.grad is None:
                continue  # the step did not change this table
            changed = self.optimiser.rows_of(newest)
            if changed is None:
                average.lerp_(newest, self._fresh)
            else:
                rows, steps = changed
                fresh = 1 - _kept(steps[:, None]).clamp(max=self.config.weight_average)
                average[rows] = average[rows].lerp(newest[rows], fresh)


def _kept(steps: Number) -> Number:
    """Returns the maximum weight of the old average after `steps` steps. It is small at first: otherwise the
    random initial weights would stay in the average for a long time."""
    return (1 + steps) / (10 + steps)


class _Recorded:
    """A step as a CUDA graph, which can be replayed with other rows."""

    def __init__(self, work: Callable[[Tensor], None], example: Tensor) -> None:
        self.rows = example.clone()
        self.graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            work(self.rows)

    def replay(self, rows: Tensor) -> None:
        self.rows.copy_(rows)
        self.graph.replay()


class Adam:
    """Adam (Kingma and Ba, 2015). With a sparse gradient, a step changes only the rows that have a gradient.

    PyTorch's Adam is not used: it takes seconds to import, and it keeps state for every row of a sparse
    table. Here a row gets its state at its first step. So time and memory depend on the number of changed
    rows, not on the size of the table. Each row counts its own steps.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float, weight_decay: float = 0.0) -> None:
        self.parameters = list(parameters)
        self.rate: float | Tensor = rate
        """The learning rate. It is a tensor if steps are replayed: a replayed step reads it again."""
        self.weight_decay = weight_decay
        self.state: dict[nn.Parameter, Memory] = {}

    def set_rate(self, rate: float) -> None:
        """Sets the learning rate."""
        if isinstance(self.rate, Tensor):
            self.rate.fill_(rate)
        else:
            self.rate = rate

    def forget_gradients(self) -> None:
        """Drops all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Updates all weights that have a gradient."""
        updated = [parameter for parameter in self.parameters if parameter.grad is not None]
        dense = [parameter for parameter in updated if not _gradient(parameter).is_sparse]
        if dense:
            self._move(dense)
        for parameter in updated:
            if _gradient(parameter).is_sparse:
                self._move_rows(parameter, _gradient(parameter).coalesce())

    def rows_of(self, parameter: nn.Parameter) -> tuple[Tensor, Tensor] | None:
        """Returns the rows that the last step changed, and their step counts; None if it changed all rows."""
        if parameter.grad is None or not parameter.grad.is_sparse:
            return None
        memory = self.state[parameter]
        rows = parameter.grad.coalesce().indices()[0]
        return rows, memory["steps"][memory["slot_of"][rows]]

    def _move(self, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter not in self.state:
                self.state[parameter] = {
                    "steps": torch.zeros((), device=parameter.device),
                    "mean": torch.zeros_like(parameter),
                    "square": torch.zeros_like(parameter),
                }
        memories = [self.state[parameter] for parameter in parameters]
        means, squares, steps = ([memory[key] for memory in memories] for key in ("mean", "square", "steps"))
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(
            list[Tensor](parameters),
            [_gradient(parameter) for parameter in parameters],
            means,
            squares,
            [],
            steps,
            lr=self.rate,
            beta1=BETA1,
            beta2=BETA2,
            weight_decay=self.weight_decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )

    def _move_rows(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        rows = gradient.indices()[0]
        slots = self._slots(parameter, rows)
        memory = self.state[parameter]
        memory["steps"][slots] += 1
        mean, square, steps = memory["mean"][slots], memory["square"][slots], memory["steps"][slots][:, None]
        slope = gradient.values() + self.weight_decay * parameter[rows]
        mean.lerp_(slope, 1 - BETA1)
        square.lerp_(slope.square(), 1 - BETA2)
        memory["mean"][slots], memory["square"][slots] = mean, square
        # The bias corrections 1 − β^steps. expm1 is exact where the direct formula in float32 is not.
        mean_correction, square_correction = (
            -torch.expm1(steps * math.log(decay)) for decay in (BETA1, BETA2)
        )
        denominator = (square / square_correction).sqrt_().add_(EPSILON)
        parameter[rows] -= (mean / mean_correction).div_(denominator).mul_(self.rate)

    def _slots(self, parameter: nn.Parameter, rows: Tensor) -> Tensor:
        """Returns the index of each row's state. Adds a state for rows that have none."""
        if parameter not in self.state:
            nothing = torch.zeros_like(parameter[:0])
            self.state[parameter] = {
                "slot_of": torch.full((len(parameter),), -1, dtype=torch.int32, device=parameter.device),
                "taken": torch.zeros((), dtype=torch.int64),
                "mean": nothing,
                "square": nothing.clone(),
                "steps": nothing.new_zeros(0),
            }
        memory = self.state[parameter]
        new = rows[memory["slot_of"][rows] < 0]
        if len(new):
            taken = int(memory["taken"])
            needed, room = taken + len(new), len(memory["steps"])
            if needed > room:
                more = min(len(parameter), max(needed, 2 * room)) - room
                for key in ("mean", "square", "steps"):
                    old = memory[key]
                    memory[key] = torch.cat([old, old.new_zeros(more, *old.shape[1:])])
            memory["slot_of"][new] = torch.arange(taken, needed, dtype=torch.int32, device=rows.device)
            memory["taken"].fill_(needed)
        return memory["slot_of"][rows].long()

    # ── Saving and loading ────────────────────────────────────────────────────────────────────────────

    def tensors(self) -> Memory:
        """Returns the state as tensors named `N.key`: N is the index of the parameter."""
        return {
            f"{place}.{key}": tensor
            for place, parameter in enumerate(self.parameters)
            for key, tensor in self.state.get(parameter, {}).items()
        }

    def load(self, tensors: Memory) -> None:
        """Continues from a state that `tensors` returned."""
        self.state = {}
        for name, tensor in tensors.items():
            place, _, key = name.partition(".")
            parameter = self.parameters[int(place)]
            if key not in ("steps", "mean", "square", "slot_of", "taken"):
                raise ValueError(f"the optimiser has no {name}")
            by_rows = f"{place}.slot_of" in tensors
            if key in ("mean", "square") and tensor.shape[by_rows:] != parameter.shape[by_rows:]:
                raise ValueError(f"the optimiser's {name} has the shape {list(tensor.shape)}")
            device = tensor.device if key == "taken" else parameter.device
            self.state.setdefault(parameter, {})[key] = tensor.to(device, copy=True)


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
