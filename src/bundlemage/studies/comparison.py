"""Contenders × splits × seeds, and the tables that come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from bundlemage.data.splits import Split
from bundlemage.errors import ConfigError
from bundlemage.studies.cache import Cache
from bundlemage.studies.cells import Cell, Contender, split_key
from bundlemage.studies.outcome import CASE_METRICS, TASKS, Missing, Outcome
from bundlemage.studies.running import CompareObserver, missing_of, run_cells
from bundlemage.studies.standings import DataFacts, Row, Spread, Table, case_groups, make_table

__all__ = [
    "Asked",
    "CompareObserver",
    "Comparison",
    "DataFacts",
    "Row",
    "Spread",
    "Table",
    "check_metric",
    "compare",
    "compare_together",
]


@dataclass(frozen=True)
class Comparison:
    """All that was found. `tables` has one for each split and task, in the order of the splits."""

    metric: str
    data: tuple[DataFacts, ...]
    tables: tuple[Table, ...]
    outcomes: tuple[Outcome, ...]
    failures: tuple[Missing, ...] = ()
    """Contenders that failed; each keeps its row in the tables."""
    skipped: tuple[Missing, ...] = ()
    """Contenders that cannot be asked anything on a split, such as a model that only completes bundles."""

    def to_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "data": [asdict(facts) for facts in self.data],
            "tables": [asdict(table) for table in self.tables],
            "outcomes": [outcome.to_json() for outcome in self.outcomes],
            "failures": [missing.to_json() for missing in self.failures],
            "skipped": [missing.to_json() for missing in self.skipped],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Comparison:
        """What `to_json` gave, also after JSON; the outcomes are then without their cases."""
        return cls(
            content["metric"],
            tuple(map(DataFacts.from_json, content["data"])),
            tuple(map(Table.from_json, content["tables"])),
            tuple(map(Outcome.from_json, content["outcomes"])),
            tuple(Missing(**missing) for missing in content["failures"]),
            tuple(Missing(**missing) for missing in content["skipped"]),
        )


@dataclass(frozen=True)
class Asked:
    """What is to be compared: every contender on every split with every seed."""

    contenders: Sequence[Contender]
    splits: Sequence[Split]
    seeds: Sequence[int] = (0,)


def compare(
    contenders: Sequence[Contender],
    splits: Sequence[Split],
    seeds: Sequence[int] = (0,),
    *,
    cache: Cache,
    device: str = "auto",
    observer: CompareObserver | None = None,
    metric: str = "ndcg@5",
    fresh: bool = False,
    jobs: int = 1,
) -> Comparison:
    """Every contender on every split with every seed; what the cache knows is not run again.

    A contender to which the seed does not matter runs with the first one only. One that fails keeps
    its row, and the rest goes on. With several `jobs` so many run at a time, each in a process of its own.
    """
    asked = Asked(contenders, splits, seeds)
    options: dict[str, Any] = {"cache": cache, "device": device, "observer": observer}
    return compare_together([asked], metric=metric, fresh=fresh, jobs=jobs, **options)[0]


def compare_together(
    asked: Sequence[Asked],
    *,
    cache: Cache,
    device: str = "auto",
    observer: CompareObserver | None = None,
    metric: str = "ndcg@5",
    fresh: bool = False,
    jobs: int = 1,
) -> list[Comparison]:
    """Several comparisons, whose cells are run as one plan: no process waits until one of them is done."""
    check_metric(metric)
    for one in asked:
        _check(one.contenders, one.splits, one.seeds)
    plans = [_plan(one.contenders, one.splits, one.seeds) for one in asked]
    every = [cell for cells, _ in plans for cell in cells]
    ended = iter(
        run_cells(every, cache, device, observer or CompareObserver(), fresh=fresh, jobs=jobs)
        if every
        else ()
    )
    return [
        _tabulated(one, metric, list(islice(ended, len(cells))), skipped)
        for one, (cells, skipped) in zip(asked, plans, strict=True)
    ]


def _tabulated(
    asked: Asked, metric: str, ended: Sequence[Outcome | Missing | None], skipped: Sequence[Missing]
) -> Comparison:
    outcomes = tuple(one for one in ended if isinstance(one, Outcome))
    failures = tuple(one for one in ended if isinstance(one, Missing))
    facts = tuple(map(DataFacts.of, asked.splits))
    tables = tuple(
        table
        for fact, split in zip(facts, asked.splits, strict=True)
        for task in TASKS
        if (
            table := make_table(
                fact, task, metric, asked.contenders, outcomes, failures, case_groups(split, task)
            )
        )
        is not None
    )
    return Comparison(metric, facts, tables, outcomes, failures, tuple(skipped))


def check_metric(metric: str) -> None:
    if metric not in CASE_METRICS:
        raise ConfigError(
            f"models cannot be compared by {metric!r}: only {', '.join(CASE_METRICS)} are kept case by case"
        )


def _check(contenders: Sequence[Contender], splits: Sequence[Split], seeds: Sequence[int]) -> None:
    """All that can be wrong is said before an hour of work."""
    if not contenders or not splits or not seeds:
        raise ConfigError("a comparison needs at least one model, one dataset and one seed")
    for what, given in (("seed", list(seeds)), ("model", [contender.label for contender in contenders])):
        if twice := [one for place, one in enumerate(given) if one in given[:place]]:
            raise ConfigError(f"the {what} {twice[0]!r} is given twice")
    for contender in contenders:
        for seed in seeds:
            try:
                contender.config(seed)
            except ConfigError as error:
                raise ConfigError(f"{contender.label}: {error}") from None
    keys: dict[str, str] = {}
    for split in splits:
        name = f"{split.dataset.name}, protocol {split.protocol}"
        if (other := keys.setdefault(split_key(split), name)) is not name:
            raise ConfigError(f"the same division of the same data is given twice: {other}; {name}")
        if not split.test and not split.generation:
            raise ConfigError(
                f"{split.dataset.name}, protocol {split.protocol}: nothing is held out to test on; "
                "choose another protocol, or bring more data"
            )


def _plan(
    contenders: Sequence[Contender], splits: Sequence[Split], seeds: Sequence[int]
) -> tuple[list[Cell], list[Missing]]:
    cells: list[Cell] = []
    skipped: list[Missing] = []
    for split in splits:
        for contender in contenders:
            first = Cell(contender, split, seeds[0])
            try:
                askable, seeded = first.can_be_tested, contender.abilities().seeded
            except Exception:  # a model that cannot even be built fails when its turn comes
                askable, seeded = True, True
            if not askable:
                asked = "generation" if split.generation and not split.test else "matching"
                skipped.append(missing_of(first, f"this split asks {asked} alone, which it does not do"))
            else:
                cells += [Cell(contender, split, seed) for seed in (seeds if seeded else seeds[:1])]
    return cells, skipped
