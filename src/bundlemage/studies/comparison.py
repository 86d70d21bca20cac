"""Compares contenders: runs each on every split with every seed, and puts the results into tables.

One contender on one split with one seed is a cell. Cells run one after another in this process, or several
at a time in their own processes.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter

from bundlemage.data.splits import Split
from bundlemage.errors import BundleMageError, ConfigError
from bundlemage.measures.slices import case_groups, check_columns, slicings
from bundlemage.studies.cells import Cell, Contender, find, run
from bundlemage.studies.outcome import CASE_METRICS, TASKS, Cache, Missing, Outcome
from bundlemage.studies.standings import DataFacts, ResultTable, make_table
from bundlemage.training.history import Forwarder, Observer, show
from bundlemage.training.pool import Ask, Died, Pool, check_jobs


@dataclass(frozen=True)
class Comparison:
    """All results. `tables` has one table for each split and task, in the order of the splits."""

    metric: str
    data: tuple[DataFacts, ...]
    tables: tuple[ResultTable, ...]
    outcomes: tuple[Outcome, ...]
    failures: tuple[Missing, ...] = ()
    """Contenders that failed. Each still has a row in the tables."""
    skipped: tuple[Missing, ...] = ()
    """Contenders that cannot do any task of a split, such as a model that only completes bundles."""

    def suspicious(self) -> list[str]:
        """Returns a sentence for each rule that learns nothing and still scores far too high."""
        return [sentence for table in self.tables for sentence in table.suspicious()]

    def to_json(self) -> dict[str, Any]:
        """Returns all results as plain values, without the metrics of single cases."""
        without: Any = {"outcomes": {"__all__": {"cases"}}}
        content: dict[str, Any] = TypeAdapter(Comparison).dump_python(self, exclude=without)
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Comparison:
        """Returns the comparison that `to_json` wrote. Its outcomes have no metrics of single cases."""
        return TypeAdapter(cls).validate_python(content)


class CompareObserver:
    """Receives the progress of a comparison. Override the methods that you need."""

    def on_plan(self, cells: Sequence[Cell]) -> None:
        """Called before anything runs."""

    def on_begin(self, cell: Cell) -> Sequence[Observer]:
        """Called when a cell that is not in the cache begins. Returns observers of its training."""
        return ()

    def on_done(self, cell: Cell, outcome: Outcome, from_cache: bool) -> None:
        """Called when the outcome of a cell is known, computed or from the cache."""

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
    slice_by: Sequence[str] = (),
) -> Comparison:
    """Fit and test every contender on every split with every seed, unless the cache has the result.

    If a contender's result does not depend on the seed, only the first seed is used. A contender that fails
    keeps its row, and the others continue. `metric` decides which row is best, `fresh` ignores the
    cache, and `jobs` is the number of cells that run at a time, each in its own process. `slice_by` names
    columns of the catalogue that cases are divided by.
    """
    check_metric(metric)
    for split in splits:
        check_columns(split, slice_by)
    cells, skipped = plan_cells(contenders, splits, seeds)
    outcomes, failures = run_cells(cells, cache, device, observer, fresh=fresh, jobs=jobs)
    facts = tuple(map(DataFacts.of, splits))
    tables = []
    for fact, split in zip(facts, splits, strict=True):
        ways = slicings(split, slice_by)
        for task in TASKS:
            results = (contenders, outcomes, failures)
            cut = (case_groups(split, task), ways.get(task, ()))
            tables.append(make_table(fact, task, metric, *results, *cut))
    return Comparison(metric, facts, tuple(filter(None, tables)), outcomes, failures, tuple(skipped))


def check_metric(metric: str) -> None:
    """Raise ConfigError unless the metric is stored for each case. Significance tests need these values."""
    if metric not in CASE_METRICS:
        raise ConfigError(
            f"models cannot be compared by {metric!r}: only {', '.join(CASE_METRICS)} "
            "are stored for each case"
        )


def plan_cells(
    contenders: Sequence[Contender], splits: Sequence[Split], seeds: Sequence[int]
) -> tuple[list[Cell], list[Missing]]:
    """Returns the cells to run, and the contenders that cannot do any task of a split.

    Raises ConfigError for every mistake that can be detected before training.
    """
    _check(contenders, splits, seeds)
    cells: list[Cell] = []
    skipped: list[Missing] = []
    for split in splits:
        for contender in contenders:
            first = Cell(contender, split, seeds[0])
            try:
                testable, seeded = first.can_be_tested, contender.abilities().seeded
            except Exception:  # a model that cannot be built: the failure is reported when it runs
                testable, seeded = True, True
            if not testable:
                task = "generation" if split.generation and not split.test else "matching"
                skipped.append(_missing(first, f"the split only has {task} cases; the model cannot do them"))
            else:
                cells += [Cell(contender, split, seed) for seed in (seeds if seeded else seeds[:1])]
    return cells, skipped


def _check(contenders: Sequence[Contender], splits: Sequence[Split], seeds: Sequence[int]) -> None:
    if not contenders or not splits or not seeds:
        raise ConfigError("a comparison needs at least one model, one dataset and one seed")
    for what, values in (("seed", list(seeds)), ("model", [contender.label for contender in contenders])):
        if repeated := [value for place, value in enumerate(values) if value in values[:place]]:
            raise ConfigError(f"the {what} {repeated[0]!r} is given twice; name it once")
    for contender in contenders:
        for seed in seeds:
            try:
                contender.config(seed)
            except ConfigError as error:
                raise ConfigError(f"{contender.label}: {error}") from None
    keys: dict[str, str] = {}
    for split in splits:
        name = f"{split.dataset.name}, protocol {split.protocol}"
        if (other := keys.setdefault(split.key, name)) is not name:
            raise ConfigError(f"the same split of the same data is given twice: {other}; {name}")
        if not split.test and not split.generation:
            raise ConfigError(f"{name}: nothing is held out to test on; choose another protocol, or add data")


def run_cells(
    cells: Sequence[Cell],
    cache: Cache,
    device: str,
    observer: CompareObserver | None = None,
    *,
    fresh: bool = False,
    jobs: int = 1,
) -> tuple[tuple[Outcome, ...], tuple[Missing, ...]]:
    """Returns the outcomes and the failures, in the order of the cells. A contender that fails with one seed
    is not run with the other seeds.

    `jobs` is the number of processes for cells that are not in the cache. They share the device.
    """
    check_jobs(jobs)
    watch = observer or CompareObserver()
    ended: dict[int, Outcome | Missing] = {}
    observers: dict[int, Sequence[Observer]] = {}

    def done(place: int, outcome: Outcome, from_cache: bool) -> None:
        ended[place] = outcome
        watch.on_done(cells[place], outcome, from_cache)

    def left_out(place: int) -> bool:
        """Whether the same contender has failed with an earlier seed. It would probably fail again."""
        cell = cells[place]
        same = (cell.contender.label, cell.split.key)
        return any(
            other < place and isinstance(result, Missing) and (result.label, result.split) == same
            for other, result in ended.items()
        )

    def answer(task: _Task, question: Any) -> Any:
        """At `_BEGIN`, create observers and return whether there are any. Pass other events to them."""
        place = task[0]
        if question == _BEGIN:
            observers[place] = watch.on_begin(cells[place])
            return bool(observers[place])
        return show(question, observers[place])

    watch.on_plan(cells)
    try:
        unknown = []
        for place, cell in enumerate(cells):
            try:
                known = None if fresh else find(cell, cache)
            except OSError:
                raise
            except Exception:  # another package's model may fail: the failure is reported when it runs
                known = None
            if known is None:
                unknown.append(place)
            else:
                done(place, known, True)
        jobs = max(1, min(jobs, len(unknown)))
        splits = {id(cells[place].split): cells[place].split for place in unknown}
        numbers = {key: number for number, key in enumerate(splits)}
        tasks = (
            (place, cells[place].contender, numbers[id(cells[place].split)], cells[place].seed)
            for place in unknown
            if not left_out(place)
        )
        shared = (tuple(splits.values()), cache.folder, device, fresh, jobs)
        with Pool(jobs, _run_task, shared) as pool:
            for (place, *_), result in pool.run(tasks, answer):
                if isinstance(result, tuple):
                    done(place, *result)
                else:
                    reason = result.reason if isinstance(result, Died) else result
                    ended[place] = _missing(cells[place], reason)
                    watch.on_failure(cells[place], reason)
    finally:
        watch.on_end()
    # The number of jobs does not change the results: they are the same as with one cell after another.
    results = [ended[place] for place in sorted(ended) if not left_out(place)]
    outcomes = (result for result in results if isinstance(result, Outcome))
    return tuple(outcomes), tuple(result for result in results if isinstance(result, Missing))


_Task = tuple[int, Contender, int, int]
"""A cell without its large split: the cell's number, its contender, the number of its split, its seed."""
_BEGIN = "begin"


def _run_task(
    shared: tuple[Sequence[Split], Path, str, bool, int], task: _Task, ask: Ask
) -> tuple[Outcome, bool] | str:
    """Returns a cell's outcome and whether another process computed it; if the cell failed, the reason."""
    splits, folder, device, fresh, jobs = shared
    _, contender, number, seed = task
    cell, cache = Cell(contender, splits[number], seed), Cache(folder)

    def begin() -> Sequence[Observer]:
        return [Forwarder(ask, pause=0.5 if jobs > 1 else 0)] if ask(_BEGIN) else []

    try:
        return run(cell, cache, device, begin, fresh=fresh, jobs=jobs)
    except OSError:  # an error of the disk, not of the model
        raise
    except Exception as error:
        return _explained(error, cell, cache, jobs)


def _missing(cell: Cell, message: str) -> Missing:
    """Returns the entry for a cell without a result. `message` is the reason."""
    split, contender = cell.split, cell.contender
    name, protocol = split.dataset.name, split.protocol
    return Missing(contender.label, contender.model, name, protocol, split.key, message)


def _explained(error: Exception, cell: Cell, cache: Cache, jobs: int) -> str:
    """Returns the reason of a failure, as the table shows it."""
    if isinstance(error, BundleMageError):
        return str(error)
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error):
        fewer = "fewer --jobs, " if jobs > 1 else ""
        return f"out of memory: {fewer}a smaller batch_size or embedding_dim, or a larger machine, may help"
    # Another package's model may fail in any way, and its author needs the traceback.
    where = cache.note(cell.key, "".join(traceback.format_exception(error)))
    return f"{type(error).__name__}: {error} (more in {where})"
