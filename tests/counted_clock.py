"""A clock for the designer that counts readings, so that no test depends on how fast the machine is."""

from __future__ import annotations

import pytest

from bundlemage.designer import constraints

TICK = 0.01


class CountedClock:
    """Goes on by a hundredth of a second each time it is read: a time limit then counts work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.readings = 0
        monkeypatch.setattr(constraints, "clock", self)

    def __call__(self) -> float:
        self.readings += 1
        return self.readings * TICK
