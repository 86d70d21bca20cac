"""What a measurement gives back, as it travels from its process to the table and into JSON."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any, Literal

Status = Literal["measured", "failed", "skipped"]

_COMPARE = {"≤": operator.le, "<": operator.lt, "≥": operator.ge}
LINEAR = 1.05
"""A slope up to this counts as linear growth: the same code timed twice differs by more than the rest."""


@dataclass(frozen=True)
class Figure:
    """One number. `wanted` is such as `≤ 1.5`, in the figure's own unit."""

    name: str
    value: float
    unit: str = ""
    wanted: str = ""
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether it is as wanted; None where nothing is."""
        if not self.wanted:
            return None
        sign, limit = self.wanted.split()
        return bool(_COMPARE[sign](self.value, float(limit)))

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Figure:
        return cls(**{key: value for key, value in content.items() if key != "met"})


@dataclass(frozen=True)
class Growth:
    """One figure over several sizes, and the slope between neighbours: 1 is linear, 0 is constant."""

    name: str
    unit: str
    points: tuple[int, ...]
    values: tuple[float, ...]
    bounded: bool = False
    """Whether the last step must be no more than linear."""
    note: str = ""

    @property
    def slopes(self) -> tuple[float, ...]:
        steps = zip(self.points, self.points[1:], self.values, self.values[1:], strict=False)
        return tuple(
            math.log(high / low) / math.log(large / small) if low > 0 and high > 0 else 0.0
            for small, large, low, high in steps
        )

    @property
    def met(self) -> bool | None:
        return self.slopes[-1] <= LINEAR if self.bounded and self.slopes else None

    def to_json(self) -> dict[str, Any]:
        slopes = [round(slope, 4) for slope in self.slopes]
        return {**asdict(self), "slopes": slopes, "wanted": self.wanted, "met": self.met}

    @property
    def wanted(self) -> str:
        return f"slope ≤ {LINEAR}" if self.bounded else ""


@dataclass(frozen=True)
class Outcome:
    """What became of one measurement."""

    name: str
    title: str
    status: Status
    figures: Sequence[Figure | Growth] = ()
    reason: str = ""
    """Why it failed or was skipped."""
    seconds: float = 0.0
    """Of the whole measurement, with its start and its data."""
    peak_bytes: int = 0
    """The most memory that a process of it had."""
    runs: Sequence[Mapping[str, float]] = field(default=())
    """The figures of every run, where it was repeated."""

    def to_json(self) -> dict[str, Any]:
        content = {key: value for key, value in vars(self).items() if key != "figures"}
        return {**content, "figures": [figure.to_json() for figure in self.figures]}


def medians(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """The figures of several runs as one, each with its spread."""
    if len(runs) == 1:
        return list(runs[0])
    merged = []
    for figure in runs[0]:
        values = [other.value for run in runs for other in run if other.name == figure.name]
        spread = f"median of {len(values)}: {shown(min(values))} … {shown(max(values))}"
        note = f"{figure.note}; {spread}" if figure.note else spread
        merged.append(replace(figure, value=median(values), note=note))
    return merged


def grown(
    points: Sequence[int], runs: Sequence[Sequence[Figure]], bounded: Sequence[str] = ()
) -> list[Growth]:
    """The same figures at every size, put side by side; the `bounded` ones must not outgrow the size."""
    found = []
    for figure in runs[-1]:
        values = tuple(other.value for run in runs for other in run if other.name == figure.name)
        limited = figure.name in bounded
        found.append(Growth(figure.name, figure.unit, tuple(points), values, limited, figure.note))
    return found


def shown(value: float) -> str:
    """Four digits, whatever the size."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
