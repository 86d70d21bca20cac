"""The cells of a plan: one after another in this process, or several at a time in processes of their own."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bundlemage.data.splits import Split
from bundlemage.errors import BundleMageError
from bundlemage.studies.cache import Cache
from bundlemage.studies.cells import Cell, Contender, find, find_or_run, run, split_key
from bundlemage.studies.outcome import Missing, Outcome
from bundlemage.training.history import Observer
from bundlemage.training.pool import Ask, Died, Pool, check_jobs
from bundlemage.training.relay import Teller, show


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


class _Results:
    """What became of each cell so far, by its place in the plan."""

    def __init__(self, cells: Sequence[Cell], watch: CompareObserver) -> None:
        self.cells, self.watch = cells, watch
        self.outcomes: dict[int, Outcome] = {}
        self.failures: dict[int, Missing] = {}

    def left_out(self, place: int) -> bool:
        """What failed with one seed would fail with the next."""
        cell = self.cells[place]
        return any(
            other < place and missing.label == cell.contender.label and missing.split == split_key(cell.split)
            for other, missing in self.failures.items()
        )

    def done(self, place: int, outcome: Outcome, from_cache: bool) -> None:
        self.outcomes[place] = outcome
        self.watch.on_done(self.cells[place], outcome, from_cache)

    def failed(self, place: int, message: str) -> None:
        self.failures[place] = missing_of(self.cells[place], message)
        self.watch.on_failure(self.cells[place], message)

    def in_order(self) -> list[Outcome | Missing | None]:
        """As if one had run after the other, so that the number of jobs makes no difference."""
        return [
            None if self.left_out(place) else self.outcomes.get(place) or self.failures.get(place)
            for place in range(len(self.cells))
        ]


def run_cells(
    cells: Sequence[Cell],
    cache: Cache,
    device: str,
    watch: CompareObserver,
    *,
    fresh: bool = False,
    jobs: int = 1,
) -> list[Outcome | Missing | None]:
    """For each cell what it found, or why it failed, or None: it was left out, as another seed had failed.

    With several `jobs` the cells that are not in the cache run in as many processes, on the same device.
    """
    check_jobs(jobs)
    results = _Results(cells, watch)
    watch.on_plan(cells)
    try:
        if jobs == 1:
            _one_by_one(find_or_run, range(len(cells)), results, cache, device, fresh)
        else:
            _side_by_side(results, cache, device, fresh, jobs)
    finally:
        watch.on_end()
    return results.in_order()


def _one_by_one(
    obtain: Callable[..., tuple[Outcome, bool]],
    places: Sequence[int],
    results: _Results,
    cache: Cache,
    device: str,
    fresh: bool,
) -> None:
    for place in places:
        if results.left_out(place):
            continue
        cell = results.cells[place]
        begin = partial(results.watch.on_begin, cell)
        try:
            outcome, from_cache = obtain(cell, cache, device, begin, fresh=fresh)
        except OSError:  # of the disk, not of the model
            raise
        except Exception as error:
            results.failed(place, explained(error, cell, cache))
        else:
            results.done(place, outcome, from_cache)


# ── Several at a time ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Shared:
    """What every process is given once."""

    splits: tuple[Split, ...]
    cache: Path
    device: str
    fresh: bool
    jobs: int


@dataclass(frozen=True)
class _Task:
    """A cell without its split, which is large."""

    place: int
    contender: Contender
    split: int
    seed: int


_BEGIN = "begin"


def _side_by_side(results: _Results, cache: Cache, device: str, fresh: bool, jobs: int) -> None:
    cells, watch = results.cells, results.watch
    unknown = []
    for place, cell in enumerate(cells):  # no process is started for what is known
        found = None if fresh else _known(cell, cache)
        if found is None:
            unknown.append(place)
        else:
            results.done(place, found, True)
    jobs = min(jobs, len(unknown))
    if jobs <= 1:
        _one_by_one(run, unknown, results, cache, device, fresh)
        return
    splits = {id(cells[place].split): cells[place].split for place in unknown}
    positions = {known: position for position, known in enumerate(splits)}
    watching: dict[int, Sequence[Observer]] = {}

    def tasks() -> Iterator[_Task]:
        for place in unknown:
            if not results.left_out(place):
                cell = cells[place]
                yield _Task(place, cell.contender, positions[id(cell.split)], cell.seed)

    def answer(task: _Task, question: Any) -> bool:
        """Whether anybody looks on."""
        if question == _BEGIN:
            watching[task.place] = watch.on_begin(cells[task.place])
        else:
            show(question, watching[task.place])
        return bool(watching[task.place])

    shared = _Shared(tuple(splits.values()), cache.folder, device, fresh, jobs)
    with Pool(jobs, _in_a_process, shared) as pool:
        for task, result in pool.run(tasks(), answer):
            if isinstance(result, Died):
                results.failed(task.place, result.reason)
            elif isinstance(result, str):
                results.failed(task.place, result)
            else:
                results.done(task.place, *result)


def _known(cell: Cell, cache: Cache) -> Outcome | None:
    try:
        return find(cell, cache)
    except OSError:
        raise
    except Exception:  # a model of another package that fails here fails when its turn comes
        return None


def _in_a_process(shared: _Shared, task: _Task, ask: Ask) -> tuple[Outcome, bool] | str:
    """A cell's outcome, and whether somebody else has found it in the meantime; or why it failed."""
    cell, cache = Cell(task.contender, shared.splits[task.split], task.seed), Cache(shared.cache)

    def begin() -> Sequence[Observer]:
        return [Teller(ask)] if ask(_BEGIN) else []

    try:
        return run(cell, cache, shared.device, begin, fresh=shared.fresh, jobs=shared.jobs)
    except OSError:
        raise
    except Exception as error:
        return explained(error, cell, cache, shared.jobs)


# ── When a cell fails ────────────────────────────────────────────────────────────────────────────


def missing_of(cell: Cell, message: str) -> Missing:
    """A cell without a result, and why."""
    split = cell.split
    return Missing(
        cell.contender.label,
        cell.contender.model,
        split.dataset.name,
        split.protocol,
        split_key(split),
        message,
    )


def explained(error: Exception, cell: Cell, cache: Cache, jobs: int = 1) -> str:
    """What went wrong, for a reader of the table."""
    if isinstance(error, BundleMageError):
        return str(error)
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error):
        fewer = "fewer --jobs, " if jobs > 1 else ""
        return f"out of memory: {fewer}a smaller batch_size or embedding_dim, or a larger machine, may help"
    # Another package's model may fail in any way; whoever wrote it wants to see where.
    where = cache.note(cell.key, "".join(traceback.format_exception(error)))
    return f"{type(error).__name__}: {error} (more in {where})"
