"""The first look at all tables: which pieces they come in, and what is wrong with each table by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import isqrt
from typing import Any

import pyarrow as pa

from bundlemage.engines.base import Progress
from bundlemage.engines.ray import ingest_tasks as tasks
from bundlemage.engines.ray.ingest_pieces import Piece, Segment
from bundlemage.engines.ray.ingest_tasks import Survey
from bundlemage.engines.ray.windows import Done, Task, run
from bundlemage.errors import Problem
from bundlemage.readers import parquet
from bundlemage.readers.assemble import CATALOGUE_SCHEMAS
from bundlemage.readers.columns import TABLES
from bundlemage.readers.parquet import Footer, TableFiles

_FILES_AT_ONCE = 32
_LEAST_ROWS, _BLOCK = 100_000, 4000


@dataclass
class Surveyed:
    """One table after the first look."""

    found: TableFiles
    starts: Sequence[tuple[int, str]]
    """Of a table in parts: the first row of each file, and the file."""
    pieces: list[Piece]
    rows: int
    problems: list[Problem] = field(default_factory=list)
    """With lines that count over all files of the table."""
    good_ids: bool = True
    integers: dict[str, bool] = field(default_factory=dict)
    """For each column of ids, whether all are whole numbers."""
    samples: dict[str, list[str]] = field(default_factory=dict)
    mentions: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    """Of items and bundles, block by block: how many ids, and the reference."""

    @property
    def good(self) -> bool:
        """Whether it is without errors and not empty."""
        return self.rows > 0 and all(problem.severity == "warning" for problem in self.problems)


def piece_rows(rows: int) -> int:
    """How many rows a task reads of a table with so many.

    A piece is cut into as many blocks as there are ranges. By this root, blocks stay large enough to be worth
    their keeping, and pieces small enough for a worker, however large the table is.
    """
    return max(_LEAST_ROWS, isqrt(_BLOCK * rows))


def survey(
    found: Mapping[str, TableFiles], workers: int, progress: Progress
) -> tuple[dict[str, Surveyed], list[Problem]]:
    """Every table whose files can be read, and the problems of the files that cannot."""
    unreadable: list[Problem] = []
    tables: dict[str, Surveyed] = {}
    for table, footers in _footers(found, workers, progress).items():
        files = found[table]
        faults = chain.from_iterable(footer for footer in footers if not isinstance(footer, Footer))
        problems = parquet.same_fault_once(faults)
        if not problems:
            good = [footer for footer in footers if isinstance(footer, Footer)]
            types, problems = parquet.detail_types(table, files.files, good)
        if problems:
            unreadable += problems
            continue
        rows = [sum(footer.rows) for footer in good]
        pieces = list(_pieces(table, files, good, types))
        tables[table] = Surveyed(files, files.starts(rows), pieces, sum(rows))
    pieces = [piece for surveyed in tables.values() for piece in surveyed.pieces]
    work = (Task(tasks.survey, (piece,), len(tasks.mentions(piece.table))) for piece in pieces)
    looks = iter(run("checking", work, len(pieces), workers, progress))
    for table, surveyed in list(tables.items()):
        mine = [next(looks) for _ in surveyed.pieces]
        # A file may be read in several pieces, and its damage be met in each.
        damaged = {problem.where: problem for look in reversed(mine) for problem in look.value.unreadable}
        if damaged:
            unreadable += sorted(damaged.values(), key=lambda problem: problem.where)
            del tables[table]
        else:
            _take_in(table, surveyed, mine)
    order = list(found)
    return tables, sorted(unreadable, key=lambda problem: order.index(_table_of(problem, found)))


def _table_of(problem: Problem, found: Mapping[str, TableFiles]) -> str:
    return next(
        table for table, files in found.items() if problem.where in {file.where for file in files.files}
    )


def _footers(
    found: Mapping[str, TableFiles], workers: int, progress: Progress
) -> dict[str, list[Footer | list[Problem]]]:
    batches = [
        (table, files.files[start : start + _FILES_AT_ONCE])
        for table, files in found.items()
        for start in range(0, len(files.files), _FILES_AT_ONCE)
    ]
    work = (Task(tasks.looked, batch) for batch in batches)
    footers: dict[str, list[Footer | list[Problem]]] = {table: [] for table in found}
    for (table, _), done in zip(
        batches, run("looking at files", work, len(batches), workers, progress), strict=True
    ):
        footers[table] += done.value
    return footers


def _pieces(
    table: str, found: TableFiles, footers: Sequence[Footer], types: Mapping[str, pa.DataType]
) -> Iterator[Piece]:
    """Row groups in their order, as many together as make a piece; a small file is part of one."""
    wanted = piece_rows(sum(sum(footer.rows) for footer in footers))
    first = rows = 0
    segments: list[Segment] = []
    for file, footer in zip(found.files, footers, strict=True):
        groups: list[int] = []
        for group, size in enumerate(footer.rows):
            if rows and rows + size > wanted:
                segments += _segment(file, footer, groups)
                yield Piece(table, found.where, first, tuple(segments), types)
                first, rows, segments, groups = first + rows, 0, [], []
            groups.append(group)
            rows += size
        segments += _segment(file, footer, groups)
    if rows:
        yield Piece(table, found.where, first, tuple(segments), types)


def _segment(file: Any, footer: Footer, groups: Sequence[int]) -> list[Segment]:
    return [Segment(file, footer, tuple(groups))] if groups else []


def _take_in(table: str, surveyed: Surveyed, looks: Sequence[Done]) -> None:
    """What the pieces of a table tell, together."""
    surveys: list[Survey] = [look.value for look in looks]
    for column in TABLES[table].ids:
        problems = parquet.merged(chain.from_iterable(each.id_problems[column] for each in surveys))
        surveyed.problems += problems
        surveyed.good_ids &= all(problem.severity == "warning" for problem in problems)
        surveyed.integers[column] = all(each.integers.get(column, True) for each in surveys)
        surveyed.samples[column] = list(chain.from_iterable(each.samples.get(column, ()) for each in surveys))
    if table in CATALOGUE_SCHEMAS:
        for column in CATALOGUE_SCHEMAS[table].names[1:]:
            surveyed.problems += parquet.merged(
                chain.from_iterable(each.detail_problems.get(column, ()) for each in surveys)
            )
    for number, column in enumerate(tasks.mentions(table)):
        surveyed.mentions[column] = [
            (look.value.distinct.get(column, 0), look.blocks[number]) for look in looks
        ]
