"""Contenders × splits × seeds: the cells of a comparison are run, then put into tables.

Cells run one after another in this process, or several at a time in processes of their own.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter

from bundlemage.data.splits import Split
from bundlemage.errors import BundleMageError, ConfigError
from bundlemage.studies.cache import Cache
from bundlemage.studies.cells import Cell, Contender, find, run, split_key
from bundlemage.studies.outcome import CASE_METRICS, TASKS, Missing, Outcome
from bundlemage.studies.standings import DataFacts, ResultTable, case_groups, make_table
from bundlemage.training.history import Observer, Teller, show
from bundlemage.training.pool import Ask, Died, Pool, check_jobs


@dataclass(frozen=True)
class Comparison:
    """All results. `tables` has one for each split and task, in the order of the splits."""

    metric: str
    data: tuple[DataFacts, ...]
    tables: tuple[ResultTable, ...]
    outcomes: tuple[Outcome, ...]
    failures: tuple[Missing, ...] = ()
    """Contenders that failed; each keeps its row in the tables."""
    skipped: tuple[Missing, ...] = ()
    """Contenders that a split has no question for, such as a model that only completes bundles."""

    def to_json(self) -> dict[str, Any]:
        """All results as plain values, without the values of single cases."""
        return {
            "metric": self.metric,
            "data": [asdict(facts) for facts in self.data],
            "tables": [asdict(table) for table in self.tables],
            "outcomes": [outcome.to_json() for outcome in self.outcomes],
            "failures": [asdict(missing) for missing in self.failures],
            "skipped": [asdict(missing) for missing in self.skipped],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Comparison:
        """The comparison that `to_json` wrote; its outcomes have no values of single cases."""
        return TypeAdapter(cls).validate_python(content)


class CompareObserver:
    """Hears of the progress of a comparison. Override the methods of interest."""

    def on_plan(self, cells: Sequence[Cell]) -> None:
        """Called before anything runs."""

    def on_begin(self, cell: Cell) -> Sequence[Observer]:
        """Called when a cell that is not in the cache begins. Returns observers of its training."""
        return ()

    def on_done(self, cell: Cell, outcome: Outcome, from_cache: bool) -> None:
        """Called when a cell has its outcome."""

    def on_failure(self, cell: Cell, message: str) -> None:
        """Called when a cell has failed."""

    def on_end(self) -> None:
        """Called after the last cell, also when interrupted."""


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
    """Fit and test every contender on every split with every seed, unless the cache has the result.

    A contender whose result does not depend on the seed runs with the first one only. One that fails keeps
    its row, and the others go on. `metric` decides which row is best, `fresh` ignores the cache, and `jobs`
    is the number of cells that run at a time, each in a process of its own.
    """
    check_metric(metric)
    cells, skipped = plan_cells(contenders, splits, seeds)
    ended = run_cells(cells, cache, device, observer, fresh=fresh, jobs=jobs)
    outcomes = tuple(one for one in ended if isinstance(one, Outcome))
    failures = tuple(one for one in ended if isinstance(one, Missing))
    facts = tuple(map(DataFacts.of, splits))
    tables = [
        make_table(fact, task, metric, contenders, outcomes, failures, case_groups(split, task))
        for fact, split in zip(facts, splits, strict=True)
        for task in TASKS
    ]
    return Comparison(metric, facts, tuple(filter(None, tables)), outcomes, failures, tuple(skipped))


def check_metric(metric: str) -> None:
    """Raise ConfigError unless the metric is kept case by case, which significance tests need."""
    if metric not in CASE_METRICS:
        raise ConfigError(
            f"models cannot be compared by {metric!r}: only {', '.join(CASE_METRICS)} are kept case by case"
        )


# ── The plan ─────────────────────────────────────────────────────────────────────────────────────


def plan_cells(
    contenders: Sequence[Contender], splits: Sequence[Split], seeds: Sequence[int]
) -> tuple[list[Cell], list[Missing]]:
    """The cells to run, and the contenders that a split has no question for.

    Raises ConfigError for anything that can be known to be wrong before an hour of work.
    """
    _check(contenders, splits, seeds)
    cells: list[Cell] = []
    skipped: list[Missing] = []
    for split in splits:
        for contender in contenders:
            first = Cell(contender, split, seeds[0])
            try:
                testable, seeded = first.can_be_tested, contender.abilities().seeded
            except Exception:  # a model that cannot even be built fails when its turn comes
                testable, seeded = True, True
            if not testable:
                task = "generation" if split.generation and not split.test else "matching"
                skipped.append(_missing(first, f"this split asks {task} alone, which it does not do"))
            else:
                cells += [Cell(contender, split, seed) for seed in (seeds if seeded else seeds[:1])]
    return cells, skipped


def _check(contenders: Sequence[Contender], splits: Sequence[Split], seeds: Sequence[int]) -> None:
    if not contenders or not splits or not seeds:
        raise ConfigError("a comparison needs at least one model, one dataset and one seed")
    for what, values in (("seed", list(seeds)), ("model", [contender.label for contender in contenders])):
        if twice := [value for place, value in enumerate(values) if value in values[:place]]:
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
                f"{name}: nothing is held out to test on; choose another protocol, or bring more data"
            )


# ── Running cells ────────────────────────────────────────────────────────────────────────────────


def run_cells(
    cells: Sequence[Cell],
    cache: Cache,
    device: str,
    observer: CompareObserver | None = None,
    *,
    fresh: bool = False,
    jobs: int = 1,
) -> list[Outcome | Missing | None]:
    """For each cell its outcome, or why it failed, or None if it was left out as another seed had failed.

    With several `jobs` the cells that are not in the cache run in as many processes, on the same device.
    """
    check_jobs(jobs)
    results = _Results(cells, observer or CompareObserver())
    results.watch.on_plan(cells)
    try:
        unknown = [place for place in range(len(cells)) if fresh or not results.find(place, cache)]
        jobs = min(jobs, len(unknown))
        if jobs > 1:
            _side_by_side(unknown, results, cache, device, fresh, jobs)
        else:
            _one_by_one(unknown, results, cache, device, fresh)
    finally:
        results.watch.on_end()
    return results.in_order()


class _Results:
    """The result of each cell so far, by its place in the plan."""

    def __init__(self, cells: Sequence[Cell], watch: CompareObserver) -> None:
        self.cells, self.watch = cells, watch
        self.outcomes: dict[int, Outcome] = {}
        self.failures: dict[int, Missing] = {}

    def find(self, place: int, cache: Cache) -> bool:
        """Whether the cache has the outcome of a cell; if so it is noted."""
        try:
            outcome = find(self.cells[place], cache)
        except OSError:
            raise
        except Exception:  # a model of another package that fails here fails when its turn comes
            outcome = None
        if outcome is not None:
            self.done(place, outcome, True)
        return outcome is not None

    def left_out(self, place: int) -> bool:
        """Whether the same contender has failed with an earlier seed: it would fail with this one too."""
        cell = self.cells[place]
        return any(
            other < place and missing.label == cell.contender.label and missing.split == split_key(cell.split)
            for other, missing in self.failures.items()
        )

    def done(self, place: int, outcome: Outcome, from_cache: bool) -> None:
        self.outcomes[place] = outcome
        self.watch.on_done(self.cells[place], outcome, from_cache)

    def failed(self, place: int, message: str) -> None:
        self.failures[place] = _missing(self.cells[place], message)
        self.watch.on_failure(self.cells[place], message)

    def in_order(self) -> list[Outcome | Missing | None]:
        """The results as if one cell had run after the other, whatever the number of jobs."""
        return [
            None if self.left_out(place) else self.outcomes.get(place) or self.failures.get(place)
            for place in range(len(self.cells))
        ]


def _one_by_one(places: Sequence[int], results: _Results, cache: Cache, device: str, fresh: bool) -> None:
    for place in places:
        if results.left_out(place):
            continue
        cell = results.cells[place]
        try:
            outcome, from_cache = run(cell, cache, device, partial(results.watch.on_begin, cell), fresh=fresh)
        except OSError:  # of the disk, not of the model
            raise
        except Exception as error:
            results.failed(place, _explained(error, cell, cache))
        else:
            results.done(place, outcome, from_cache)


# ── Several at a time ────────────────────────────────────────────────────────────────────────────

_Task = tuple[int, Contender, int, int]
"""A cell without its split, which is large: its place, its contender, the number of its split, its seed."""
_BEGIN = "begin"


def _side_by_side(
    unknown: Sequence[int], results: _Results, cache: Cache, device: str, fresh: bool, jobs: int
) -> None:
    cells, watch = results.cells, results.watch
    splits = {id(cells[place].split): cells[place].split for place in unknown}
    numbers = {known: number for number, known in enumerate(splits)}
    watching: dict[int, Sequence[Observer]] = {}

    def tasks() -> Iterator[_Task]:
        for place in unknown:
            if not results.left_out(place):
                cell = cells[place]
                yield place, cell.contender, numbers[id(cell.split)], cell.seed

    def answer(task: _Task, question: Any) -> bool:
        """Whether anybody observes the training."""
        place = task[0]
        if question == _BEGIN:
            watching[place] = watch.on_begin(cells[place])
        else:
            show(question, watching[place])
        return bool(watching[place])

    shared = (tuple(splits.values()), cache.folder, device, fresh, jobs)
    with Pool(jobs, _in_a_process, shared) as pool:
        for (place, *_), result in pool.run(tasks(), answer):
            if isinstance(result, Died):
                results.failed(place, result.reason)
            elif isinstance(result, str):
                results.failed(place, result)
            else:
                results.done(place, *result)


def _in_a_process(
    shared: tuple[Sequence[Split], Path, str, bool, int], task: _Task, ask: Ask
) -> tuple[Outcome, bool] | str:
    """A cell's outcome, and whether another process has found it in the meantime; or why it failed."""
    splits, folder, device, fresh, jobs = shared
    _, contender, number, seed = task
    cell, cache = Cell(contender, splits[number], seed), Cache(folder)

    def begin() -> Sequence[Observer]:
        return [Teller(ask)] if ask(_BEGIN) else []

    try:
        return run(cell, cache, device, begin, fresh=fresh, jobs=jobs)
    except OSError:
        raise
    except Exception as error:
        return _explained(error, cell, cache, jobs)


# ── When a cell fails ────────────────────────────────────────────────────────────────────────────


def _missing(cell: Cell, message: str) -> Missing:
    """A cell without a result, and why."""
    data, contender = cell.split.dataset, cell.contender
    return Missing(
        contender.label, contender.model, data.name, cell.split.protocol, split_key(cell.split), message
    )


def _explained(error: Exception, cell: Cell, cache: Cache, jobs: int = 1) -> str:
    """What went wrong, for a reader of the table."""
    if isinstance(error, BundleMageError):
        return str(error)
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error):
        fewer = "fewer --jobs, " if jobs > 1 else ""
        return f"out of memory: {fewer}a smaller batch_size or embedding_dim, or a larger machine, may help"
    # Another package's model may fail in any way, and its author needs the traceback.
    where = cache.note(cell.key, "".join(traceback.format_exception(error)))
    return f"{type(error).__name__}: {error} (more in {where})"
