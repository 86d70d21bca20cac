"""Contenders × splits × seeds, and the tables that come of it."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from bundlemage.data.splits import Split
from bundlemage.errors import BundleMageError, ConfigError
from bundlemage.studies.cache import Cache
from bundlemage.studies.cells import Cell, Contender, find_or_run, split_key
from bundlemage.studies.outcome import CASE_METRICS, TASKS, Missing, Outcome
from bundlemage.studies.standings import DataFacts, Row, Spread, Table, case_groups, make_table
from bundlemage.training.history import Observer

__all__ = [
    "CompareObserver",
    "Comparison",
    "DataFacts",
    "Row",
    "Spread",
    "Table",
    "check_metric",
    "compare",
]


class CompareObserver:
    """Told how a comparison goes on. Override what is of interest."""

    def on_plan(self, cells: Sequence[Cell]) -> None:
        """Before anything runs."""

    def on_begin(self, cell: Cell) -> Sequence[Observer]:
        """A cell that is not in the cache begins; what is returned observes its training."""
        return ()

    def on_done(self, cell: Cell, outcome: Outcome, from_cache: bool) -> None:
        pass

    def on_failure(self, cell: Cell, message: str) -> None:
        pass

    def on_end(self) -> None:
        """After the last cell, also when interrupted."""


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
) -> Comparison:
    """Every contender on every split with every seed; what the cache knows is not run again.

    A contender to which the seed does not matter runs with the first one only. One that fails keeps
    its row, and the rest goes on.
    """
    check_metric(metric)
    _check(contenders, splits, seeds)
    watch = observer or CompareObserver()
    cells, skipped = _plan(contenders, splits, seeds)
    outcomes: list[Outcome] = []
    failures: list[Missing] = []
    watch.on_plan(cells)
    try:
        for cell in cells:
            if any(_same(missing, cell) for missing in failures):
                continue  # what failed with one seed would fail with the next
            message = None
            try:
                begin = partial(watch.on_begin, cell)
                outcome, from_cache = find_or_run(cell, cache, device, begin, fresh=fresh)
            except OSError:  # of the disk, not of the model
                raise
            except Exception as error:
                message = _explained(error, cell, cache)
                failures.append(_missing(cell, message))
                watch.on_failure(cell, message)
            else:
                outcomes.append(outcome)
                watch.on_done(cell, outcome, from_cache)
    finally:
        watch.on_end()
    facts = tuple(map(DataFacts.of, splits))
    tables = tuple(
        table
        for fact, split in zip(facts, splits, strict=True)
        for task in TASKS
        if (table := make_table(fact, task, metric, contenders, outcomes, failures, case_groups(split, task)))
        is not None
    )
    return Comparison(metric, facts, tables, tuple(outcomes), tuple(failures), tuple(skipped))


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
                skipped.append(_missing(first, f"this split asks {asked} alone, which it does not do"))
            else:
                cells += [Cell(contender, split, seed) for seed in (seeds if seeded else seeds[:1])]
    return cells, skipped


def _missing(cell: Cell, message: str) -> Missing:
    split = cell.split
    return Missing(
        cell.contender.label,
        cell.contender.model,
        split.dataset.name,
        split.protocol,
        split_key(split),
        message,
    )


def _same(missing: Missing, cell: Cell) -> bool:
    return missing.label == cell.contender.label and missing.split == split_key(cell.split)


def _explained(error: Exception, cell: Cell, cache: Cache) -> str:
    if isinstance(error, BundleMageError):
        return str(error)
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error):
        return "out of memory: a smaller batch_size or embedding_dim, or a larger machine, may help"
    # Another package's model may fail in any way; whoever wrote it wants to see where.
    where = cache.note(cell.key, "".join(traceback.format_exception(error)))
    return f"{type(error).__name__}: {error} (more in {where})"
