"""The shuffled batches of a phase, and the steps of the optimiser.

On a GPU, a step is recorded once as a CUDA graph and then replayed. A step has hundreds of small operations,
and starting each of them takes longer than computing it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from bundlemage.errors import ConfigError
from bundlemage.models.base import Interactions, Learner, Phase
from bundlemage.models.config import LearnedConfig
from bundlemage.models.division import ALONE, Division
from bundlemage.models.ragged import kernels_for
from bundlemage.training.adam import Adam


class Rows:
    """The training rows of a phase. They are shuffled on the CPU: the order is the same on all devices."""

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
        self.groups: Tensor | None = None  # the right side of each pair, for `at_most`
        if pairs is None:
            if phase.at_most is not None:
                raise ConfigError(
                    f"the phase {phase.name!r} is over {phase.over}; only phases over pairs can have at_most"
                )
            counts = {"users": len(data.user_bundle), "items": data.items, "bundles": len(data.bundle_item)}
            self.count = counts[phase.over]
        else:
            right = pairs.values.cpu()
            if phase.over == "completions":
                self.rows, right = _completions(data)
            elif phase.over == "user_bundle" and data.held_out is not None and phase.learns_contents:
                self.rows = (~data.held_out.cpu()[right]).nonzero()[:, 0]
                right = right[self.rows]
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

    def batch_size(self, most: int, min_steps: int) -> int:
        """Returns the batch size: `most`, or less if an epoch would have fewer than `min_steps` batches."""
        return max(1, min(most, -(-self.count // min_steps)))

    def shuffled(self, batch_size: int) -> tuple[Tensor, ...]:
        """Returns the batches of an epoch, in random order."""
        order = torch.randperm(self.count if self.groups is None else len(self.groups))
        if self.groups is not None:
            order = order[_early(self.groups[order], self.at_most or 0)]
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
    unbought = allowed & (torch.bincount(taken, minlength=bundles) == 0)
    pairs, alone = allowed[taken].nonzero()[:, 0], unbought.nonzero()[:, 0]
    return torch.cat([pairs, alone + len(taken)]), torch.cat([taken[pairs], alone])


def _early(groups: Tensor, at_most: int) -> Tensor:
    """Returns True for the first `at_most` elements of each group."""
    together = torch.argsort(groups, stable=True)
    sizes = torch.bincount(groups)
    starts = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    early = torch.empty(len(groups), dtype=torch.bool)
    early[together] = torch.arange(len(groups)) - starts < at_most
    return early


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
        alone = division.group is None  # exchanges between processes cannot be recorded
        self.replays = alone and model.fixed_shapes and kernels_for(next(model.parameters())) is not None
        self.optimiser = Adam(model.parameters(), config.learning_rate, config.weight_decay)
        if self.replays:
            self.optimiser.rate = torch.tensor(config.learning_rate, device=self.device)
        self.steps = 0
        self.losses = {phase: torch.zeros((), device=self.device) for phase in model.phases}
        """The sum of each phase's loss over its rows. It stays on the device: reading it would wait."""
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
        if (
            not self.replays or key not in self._seen
        ):  # the first step compiles kernels, so it is not recorded
            self._seen[key] = None
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
        for mine, newest in zip(self.scored.parameters(), self.model.parameters(), strict=True):
            if self.model.touches_rows and newest.grad is None:
                continue  # the step did not change this table
            moved = self.optimiser.rows_of(newest)
            if moved is None:
                mine.lerp_(newest, self._fresh)
            else:
                rows, steps = moved
                fresh = 1 - _kept(steps[:, None]).clamp(max=self.config.weight_average)
                mine[rows] = mine[rows].lerp(newest[rows], fresh)


Number = TypeVar("Number", float, Tensor)


def _kept(steps: Number) -> Number:
    """Returns the largest weight of the old average after `steps` steps. It is small at first: otherwise the
    random initial weights would stay in the average for long."""
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
