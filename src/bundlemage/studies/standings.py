"""Tables of outcomes: means and deviations over seeds, the best row, and significance tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

from bundlemage.data.leakage import told
from bundlemage.data.splits import Split
from bundlemage.evaluation import ListMeasures, holm, paired_p, suspicious_rule
from bundlemage.measures.slices import SlicedFigures, Slicing, sliced
from bundlemage.studies.cells import Contender
from bundlemage.studies.outcome import METRICS, Missing, Outcome

LEVEL = 0.05
"""A row is significantly different from the best row if its corrected p is below this."""

Values = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a metric over seeds."""

    mean: float
    sd: float | None
    """Sample standard deviation; 0 if the seed does not matter, None if it does and only one seed was run."""


@dataclass(frozen=True)
class Row:
    """A contender in a table."""

    label: str
    model: str
    seeds: tuple[int, ...] = ()
    metrics: Mapping[str, Spread] | None = None
    """Each of METRICS → its mean and deviation; None for a contender that failed. A metric that a stored
    outcome of an earlier version lacks is left out."""
    lists: ListMeasures | None = None
    """The measures of the answer lists, means over the seeds; None for generation, or if they are unknown."""
    best: tuple[str, ...] = ()
    """The metrics for which no other row has a higher mean."""
    leads: bool = False
    """Whether this is the best row. The other rows are tested against it."""
    p: float | None = None
    """The p of a paired t-test against the leading row, Holm-corrected; None if not tested."""
    distinguishable: bool = True
    """False for a row that is not significantly different from the leading one."""
    fit_seconds: float | None = None
    """Training time, mean over the seeds."""
    jobs: tuple[int, ...] = ()
    """The numbers of cells that ran at a time while the training time was measured, sorted."""
    memory: int | None = None
    """Peak memory in bytes, maximum over the seeds."""
    failure: str | None = None


@dataclass(frozen=True)
class ResultTable:
    """The results for one dataset, protocol and task."""

    dataset: str
    protocol: str
    split: str
    task: str
    """`matching` or `generation`."""
    cases: int
    metric: str
    """The metric for choosing the best row and for the significance tests."""
    rows: tuple[Row, ...]
    """The rows, in the order of the contenders."""
    slices: tuple[SlicedFigures, ...] = ()
    """The metric in slices of the cases, for each contender by its label."""

    def row(self, label: str) -> Row:
        return next(row for row in self.rows if row.label == label)

    @property
    def timing_note(self) -> str:
        """A warning if several runs were timed at the same time; otherwise empty."""
        jobs = sorted({count for row in self.rows for count in row.jobs})
        if not jobs or jobs == [1]:
            return ""
        count = f"{jobs[0]} to {jobs[-1]}" if len(jobs) > 1 else f"{jobs[0]}"
        return f"measured with {count} runs at a time, so it does not show the speed"

    def suspicious(self) -> list[str]:
        """Returns a sentence for each rule that learns nothing and still scores far too high."""
        sentences = []
        for row in self.rows:
            means = {name: spread.mean for name, spread in (row.metrics or {}).items()}
            sentences += suspicious_rule(row.model, f"{self.task} of {self.dataset}, {self.protocol}", means)
        return sentences

    def ranked(self) -> ResultTable:
        """Returns the same table with the best row first and failed rows last."""
        value = {row.label: row.metrics[self.metric].mean if row.metrics else -1.0 for row in self.rows}
        return replace(self, rows=tuple(sorted(self.rows, key=lambda row: -value[row.label])))


@dataclass(frozen=True)
class DataFacts:
    """The sizes of a split."""

    name: str
    protocol: str
    split: str
    users: int
    bundles: int
    items: int
    user_bundle_pairs: int
    user_item_pairs: int
    bundle_item_pairs: int
    training_pairs: int
    """Number of user-bundle pairs for training."""
    validation_cases: int
    matching_cases: int
    generation_cases: int
    notes: tuple[str, ...]
    leakage: float = 0.0
    """The share of held-out pairs that users' items give away if histories are used as given."""
    leakage_by_chance: float = 0.0
    """The same share for bundles that these users do not have."""
    histories: str = "as given"
    """How histories were used: `as given` or `without held-out`."""
    about_leakage: str = ""
    """The leakage in words, and what was done about it."""

    @classmethod
    def of(cls, split: Split) -> DataFacts:
        data = split.dataset
        return cls(
            name=data.name,
            protocol=split.protocol,
            split=split.key,
            users=len(data.users),
            bundles=len(data.bundles),
            items=len(data.items),
            user_bundle_pairs=data.user_bundle.nnz,
            user_item_pairs=data.user_item.nnz,
            bundle_item_pairs=data.bundle_item.nnz,
            training_pairs=split.train.user_bundle.nnz,
            validation_cases=len(split.validation or ()),
            matching_cases=len(split.test or ()),
            generation_cases=len(split.generation or ()),
            notes=data.notes,
            leakage=split.leakage.share,
            leakage_by_chance=split.leakage.by_chance,
            histories=split.histories,
            about_leakage=told(split.leakage, split.histories),
        )


def make_table(
    facts: DataFacts,
    task: str,
    metric: str,
    contenders: Sequence[Contender],
    outcomes: Sequence[Outcome],
    failures: Sequence[Missing],
    groups: npt.NDArray[np.integer] | None = None,
    ways: Sequence[Slicing] = (),
) -> ResultTable | None:
    """Returns the table of a task on a split; None if there are no test cases or no results.

    `groups` has the group of each case. Cases of one group are not independent (see `case_groups`). `ways`
    are the slices of the cases. A
    contender that failed with one seed has no metrics: a mean over fewer seeds is not comparable.
    """
    failed = {missing.label: missing for missing in failures if missing.split == facts.split}
    rows: list[Row] = []
    cases: dict[str, Values] = {}
    for contender in contenders:
        runs = [
            outcome
            for outcome in outcomes
            if (outcome.label, outcome.split) == (contender.label, facts.split) and getattr(outcome, task)
        ]
        if (missing := failed.get(contender.label)) and _can_do(contender, task):
            rows.append(Row(contender.label, contender.model, failure=missing.message))
        elif runs:
            rows.append(_over_seeds(runs, task))
            key = f"{task}.{metric}"
            if stored := [outcome.cases[key] for outcome in runs if key in outcome.cases]:
                cases[contender.label] = np.mean(stored, axis=0, dtype=np.float64)
    means = {
        row.label: {name: value.mean for name, value in row.metrics.items()} for row in rows if row.metrics
    }
    count = facts.matching_cases if task == "matching" else facts.generation_cases
    if not count or not means:
        return None
    highest = {name: max(values.get(name, 0.0) for values in means.values()) for name in METRICS}
    leading = max(means, key=lambda label: means[label][metric])
    raw = {
        label: paired_p(cases[leading], values, groups)
        for label, values in cases.items()
        if label != leading and leading in cases
    }
    tested = {label: p for label, p in raw.items() if p is not None}
    ps = dict(zip(tested, holm([*tested.values()]), strict=True))
    marked = [
        replace(
            row,
            best=tuple(name for name, mean in means[row.label].items() if mean == highest[name]),
            leads=row.label == leading,
            p=ps.get(row.label),
            distinguishable=ps.get(row.label, 0.0) < LEVEL,
        )
        if row.metrics
        else row
        for row in rows
    ]
    slices = tuple(sliced(cases, way, groups) for way in ways) if cases else ()
    return ResultTable(facts.name, facts.protocol, facts.split, task, count, metric, tuple(marked), slices)


def _over_seeds(runs: Sequence[Outcome], task: str) -> Row:
    """Returns the row of a contender, from its outcomes with different seeds."""
    single_sd = None if runs[0].seeded else 0.0
    metrics = {}
    for metric in METRICS:
        values = [getattr(outcome, task)[metric] for outcome in runs if metric in getattr(outcome, task)]
        if len(values) < len(runs):
            continue
        metrics[metric] = Spread(fmean(values), stdev(values) if len(values) > 1 else single_sd)
    memory = [outcome.memory for outcome in runs if outcome.memory is not None]
    return Row(
        label=runs[0].label,
        model=runs[0].model,
        seeds=tuple(outcome.seed for outcome in runs),
        metrics=metrics,
        lists=_mean_lists([outcome.lists for outcome in runs]) if task == "matching" else None,
        fit_seconds=fmean(outcome.fit_seconds for outcome in runs),
        jobs=tuple(sorted({outcome.jobs for outcome in runs})),
        memory=max(memory, default=None),
    )


def _mean_lists(found: Sequence[Mapping[str, Any] | None]) -> ListMeasures | None:
    """Returns the means over the seeds; None if a stored outcome of an earlier version has no measures."""
    known = [ListMeasures(**each) for each in found if each is not None]
    if len(known) < len(found):
        return None

    def mean(sides: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
        values = {name: [side[name] for side in sides] for name in sides[0]}
        return {
            name: None if None in each else fmean(value for value in each if value is not None)
            for name, each in values.items()
        }

    bundles, items = mean([each.bundles for each in known]), mean([each.items for each in known])
    return replace(known[0], bundles=bundles, items=items)


def _can_do(contender: Contender, task: str) -> bool:
    """Whether a contender can do a task; True if it cannot be built, so that its failure is shown."""
    try:
        able = contender.abilities()
    except Exception:
        return True
    return able.matches if task == "matching" else able.generates
