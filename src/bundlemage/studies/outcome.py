"""The result of one cell of a study, and its form in JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

TASKS = ("matching", "generation")
KS = (5, 10, 20, 40)
METRICS = tuple(f"{name}@{k}" for name in ("ndcg", "recall") for k in KS)
CASE_METRICS = ("ndcg@5", "ndcg@20", "recall@20")
"""Metrics that are kept case by case, and so can be tested for significance."""

PerCase = Mapping[str, Any]
"""Metric of CASE_METRICS → an array of float32 with a value for each case."""


@dataclass(frozen=True)
class Outcome:
    """One model with one seed on one split, fitted and tested."""

    label: str
    """The contender's name in this study, which does not identify the result."""
    model: str
    settings: Mapping[str, Any]
    """Every setting, defaults included."""
    dataset: str
    protocol: str
    split: str
    """`split_key` of the split: two splits may share a dataset's name and protocol."""
    seed: int
    seeded: bool
    """Whether another seed could give another result."""
    matching: Mapping[str, float] | None
    """Mean over the test cases of each of METRICS; None without cases, or if the model does not match."""
    matching_cases: int
    generation: Mapping[str, float] | None
    generation_cases: int
    validation: Mapping[str, float]
    """Of the epoch whose weights were kept, of an ensemble the mean of its members'; empty for a model that
    learns nothing by steps."""
    epochs: int
    """Of an ensemble, of all its members together."""
    best_epoch: int
    """Of an ensemble, its first member's."""
    fit_seconds: float
    evaluate_seconds: float
    memory: int | None
    """Peak bytes: allocated on a GPU, or what the process grew by on a CPU; None where unknown."""
    device: str
    """The hardware in words."""
    version: str
    torch: str
    date: str
    """When it was done, in UTC."""
    jobs: int = 1
    """How many cells ran at a time: beside others, seconds are no measure of speed."""
    curve: Sequence[float] = ()
    """Validation nDCG@5 after each epoch; empty for an ensemble, whose members have one each."""
    ensemble: int = 1
    """How many members were trained and averaged."""
    cases: Mapping[str, PerCase] = field(default_factory=dict, compare=False, repr=False)
    """Task → values of single cases. Not part of the JSON."""

    @property
    def shown_settings(self) -> dict[str, Any]:
        """The settings that say which model it is: without seed and device, with `ensemble` if it is one."""
        shown = {key: value for key, value in self.settings.items() if key not in ("seed", "device")}
        return shown if self.ensemble == 1 else {"ensemble": self.ensemble, **shown}

    def settings_text(self) -> str:
        """The model and the settings above as lines of text."""
        shown = self.shown_settings.items()
        return "\n".join([f"model = {self.model}", *(f"{key} = {value!r}" for key, value in shown)])

    @property
    def machine(self) -> str:
        """The hardware and the versions of the software."""
        return f"{self.device}; BundleMage {self.version}, PyTorch {self.torch}"

    def to_json(self) -> dict[str, Any]:
        """Everything but the cases as plain values."""
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "cases"}
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in plain.items()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], cases: Mapping[str, PerCase] | None = None) -> Outcome:
        """The outcome that `to_json` wrote, with the values of single cases if they are at hand."""
        return cls(**content, cases=cases or {})


@dataclass(frozen=True)
class Missing:
    """A contender without a result: why it failed, or why there was nothing to ask it."""

    label: str
    model: str
    dataset: str
    protocol: str
    split: str
    message: str
