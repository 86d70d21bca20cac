"""Observers of training that time it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from benchmarks.setting import Setting
from bundlemage.training.history import EpochRecord, Observer


class Enough(Exception):  # noqa: N818, it is no error
    """Ends a training that has shown what it was begun for."""


class EpochClock(Observer):
    """Times the steps of every epoch apart from its validation. Stands last among the observers."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.training: list[float] = []
        """Seconds of each epoch's steps."""
        self.whole: list[float] = []
        """Seconds of each epoch, validation included."""
        self.steps: Counter[str] = Counter()
        """How many steps each phase had so far, in the epoch that goes on."""

    def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
        self.steps_per_epoch = steps_per_epoch
        self._begin()

    def _begin(self) -> None:
        self.steps = Counter()
        self.setting.synchronise()
        self.began = time.perf_counter()

    def on_step(self, phase: str) -> None:
        self.steps[phase] += 1
        if self.steps.total() == self.steps_per_epoch:
            self.setting.synchronise()
            self.training.append(time.perf_counter() - self.began)

    def on_epoch(self, record: EpochRecord) -> None:
        if len(self.training) != len(self.whole) + 1:
            raise RuntimeError(
                f"the loop announced {self.steps_per_epoch} steps an epoch and made {self.steps.total()}"
            )
        self.whole.append(record.seconds)
        self._begin()

    @property
    def validation(self) -> list[float]:
        return [max(0.0, whole - steps) for whole, steps in zip(self.whole, self.training, strict=True)]


class FirstSteps(Observer):
    """Ends the first epoch after some steps of its last phase, and scales what they took to all of them."""

    def __init__(self, last_phase: str, count: int) -> None:
        self.last_phase, self.count = last_phase, count
        self.seconds: dict[str, list[float]] = {}

    def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
        self.steps_per_epoch = steps_per_epoch
        self.previous = time.perf_counter()

    def on_step(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds.setdefault(phase, []).append(now - self.previous)
        self.previous = now
        if len(self.seconds.get(self.last_phase, ())) == self.count:
            raise Enough

    @property
    def epoch_seconds(self) -> float:
        """Of a whole epoch. The first step of a phase warms up, and counts only where it is the only one."""
        left = self.steps_per_epoch - sum(map(len, self.seconds.values()))
        total = 0.0
        for phase, seconds in self.seconds.items():
            warm = seconds[1:] or seconds
            steps = len(seconds) + (left if phase == self.last_phase else 0)
            total += sum(warm) / len(warm) * steps
        return total

    @property
    def made(self) -> str:
        return f"first {sum(map(len, self.seconds.values()))} of {self.steps_per_epoch} steps, scaled"
