"""Steps of the optimiser. On a GPU a step is recorded once and then replayed, as launching its hundreds of
small pieces one by one takes longer than their work."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from bundlemage.models.accelerated import kernels_for
from bundlemage.models.base import Interactions, Learner, Phase
from bundlemage.models.config import LearnedConfig
from bundlemage.models.division import ALONE, Division
from bundlemage.training.adam import Adam


class Stepper:
    """The optimiser and what goes with it, a batch at a time."""

    def __init__(
        self,
        model: Learner,
        scored: Learner,
        config: LearnedConfig,
        data: Interactions,
        all_steps: int,
        division: Division = ALONE,
    ) -> None:
        """`scored` is the model itself, or its copy that holds the moving average of its weights."""
        self.all_steps, self.division = all_steps, division
        self.model, self.scored, self.config, self.data = model, scored, config, data
        self.device = data.user_item.device
        alone = division.group is None  # what processes tell each other is not recorded
        self.replays = alone and model.fixed_shapes and kernels_for(next(model.parameters())) is not None
        self.optimiser = Adam(model.parameters(), config.learning_rate, config.weight_decay)
        if self.replays:
            self.optimiser.rate = torch.tensor(config.learning_rate, device=self.device)
        self.steps = 0
        self.losses = {phase: torch.zeros((), device=self.device) for phase in model.phases}
        """The sum of each phase's loss over its rows: kept there, as reading it each step would wait."""
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
        if not self.replays or key not in self._seen:  # the first time is a rehearsal: kernels get compiled
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
                continue  # nor is a table averaged whole in a step that does not touch it
            moved = self.optimiser.rows_of(newest)
            if moved is None:
                mine.lerp_(newest, self._fresh)
            else:
                rows, steps = moved
                fresh = 1 - _kept(steps[:, None]).clamp(max=self.config.weight_average)
                mine[rows] = mine[rows].lerp(newest[rows], fresh)


Number = TypeVar("Number", float, Tensor)


def _kept(steps: Number) -> Number:
    """A young average forgets faster, or the first random weights would stay in it for long."""
    return (1 + steps) / (10 + steps)


class _Recorded:
    """One CUDA graph: the same work on whatever rows its input holds."""

    def __init__(self, work: Callable[[Tensor], None], example: Tensor) -> None:
        self.rows = example.clone()
        self.graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            work(self.rows)

    def replay(self, rows: Tensor) -> None:
        self.rows.copy_(rows)
        self.graph.replay()
