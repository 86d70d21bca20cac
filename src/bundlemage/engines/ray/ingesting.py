"""Ingesting on Ray: ids and pairs are shuffled by ranges of ids, and nothing but counts comes to one place.

All tables are read twice. The first time they are checked, and items and bundles are gathered into their
vocabularies, range by range. The second time pairs go to the range of their owner, with the positions of what
they have; each range of users, items or bundles is then put in order, and files are cut from the ranges.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bundlemage.data.folders import beside
from bundlemage.data.shards import KINDS, MATRICES, Layout, Part, check_output, digests_of, seal
from bundlemage.engines.base import Progress, in_silence
from bundlemage.engines.ingesting import Ingested, IngestJob
from bundlemage.engines.ray import ingest_tasks as tasks
from bundlemage.engines.ray.cluster import Cluster
from bundlemage.engines.ray.ingest_ids import boundaries
from bundlemage.engines.ray.ingest_survey import Surveyed, piece_rows, survey
from bundlemage.engines.ray.windows import Done, Task, run
from bundlemage.errors import DataError, Problem
from bundlemage.readers import parquet, sql, tables
from bundlemage.readers.assemble import CATALOGUE_SCHEMAS, CROSSINGS, no_rows, placed
from bundlemage.readers.load import SAMPLE, is_layout
from bundlemage.readers.places import Place, is_remote, local_path, place

_PIECES_IN_A_RANGE = 4
_IDS = {"items": "item_id", "bundles": "bundle_id", "users": "user_id"}


@dataclass(frozen=True)
class _Ranges:
    """A vocabulary, range by range; of users only how they will be divided."""

    integers: bool
    bounds: Sequence[str]
    sizes: Sequence[int] = ()
    parts: Sequence[Any] = ()
    """References."""

    @property
    def firsts(self) -> list[int]:
        """The position with which each range begins."""
        found: list[int] = np.cumsum([0, *self.sizes])[:-1].tolist()
        return found

    @property
    def count(self) -> int:
        return len(self.bounds) + 1


class _Ingest:
    """One job on a cluster that is joined."""

    def __init__(self, workers: int, progress: Progress) -> None:
        self._workers, self._progress = workers, progress
        self._tables: dict[str, Surveyed] = {}
        self._known: dict[str, _Ranges] = {}

    def _run(self, what: str, work: Iterator[Task], of: int) -> list[Done]:
        return run(what, work, of, self._workers, self._progress)

    def check(self, where: Place) -> list[Problem]:
        """Everything that is wrong, in the order in which the local reader tells it."""
        found, problems = tables.find(where)
        if foreign := [
            file.where for table in found.values() for file in table.files if not table.is_parquet
        ]:
            raise DataError(_only_parquet(foreign[0]))
        self._tables, unreadable = survey(found, self._workers, self._progress)
        good = {table for table, surveyed in self._tables.items() if surveyed.good}
        twice: dict[str, list[Problem]] = {}
        crossed: dict[int, list[tuple[int, int, str]]] = {}
        for kind in ("items", "bundles"):
            for done in self._vocabulary(kind, good):
                for table, faults in done.value.duplicates.items():
                    twice.setdefault(table, []).extend(faults)
                for number, fact in done.value.strangers.items():
                    crossed.setdefault(number, []).append(fact)
        problems += unreadable
        for table, surveyed in self._tables.items():
            if surveyed.rows == 0:
                problems.append(no_rows(table, surveyed.found.where))
            mine = surveyed.problems + parquet.merged(twice.get(table, []))
            problems += [placed(problem, surveyed.starts) for problem in mine]
        for number, facts in sorted(crossed.items()):
            problems.append(self._stranger(number, facts))
        return problems

    def _stranger(self, number: int, facts: Sequence[tuple[int, int, str]]) -> Problem:
        crossing = CROSSINGS[number]
        table, known = self._tables[crossing.table], self._tables[crossing.known_in]
        _, row, value = min(facts, key=lambda fact: fact[1])
        more = sum(count for count, _, _ in facts) - 1
        problem = crossing.problem(table.found.where, known.found.where, row + 1, value, more)
        return placed(problem, table.starts)

    def _vocabulary(self, kind: str, good: set[str]) -> list[Done]:
        """The ids of one kind in their order, range by range; and what is told of each range."""
        column = _IDS[kind]
        blocks = [
            (table, size, block)
            for table, surveyed in self._tables.items()
            if surveyed.good_ids
            for size, block in surveyed.mentions.get(column, ())
        ]
        for surveyed in self._tables.values():
            surveyed.mentions.pop(column, None)  # so that what is divided below is kept once
        # Of a table with other faults ids are only compared; but they must go with the order of the others.
        ranges = self._ranges(column, {table for table, _, _ in blocks}, sum(size for _, size, _ in blocks))
        if ranges.bounds:
            work = (
                Task(tasks.divide, (ranges.bounds, ranges.integers, block), ranges.count)
                for _, _, block in blocks
            )
            divided = [done.blocks for done in self._run(f"sharing out {kind}", work, len(blocks))]
        else:
            divided = [[block] for _, _, block in blocks]
        owners = [table for table, _, _ in blocks]
        wheres = {table: surveyed.found.where for table, surveyed in self._tables.items()}
        common = (column, wheres, frozenset(good), owners, ranges.integers)
        work = (
            Task(tasks.vocabulary, (*common, *(each[number] for each in divided)), 1)
            for number in range(ranges.count)
        )
        made = self._run(f"ordering {kind}", work, ranges.count)
        sizes = [done.value.size for done in made]
        parts = [done.blocks[0] for done in made]
        self._known[kind] = _Ranges(ranges.integers, ranges.bounds, sizes, parts)
        return made

    def _ranges(self, column: str, names: set[str], rows: int) -> _Ranges:
        """How the ids of a column are divided, if there are so many rows of them."""
        having = [self._tables[table] for table in sorted(names)]
        integers = all(table.integers[column] for table in having)
        wanted = -(-rows // (_PIECES_IN_A_RANGE * piece_rows(rows)))
        samples = [name for table in having for name in table.samples[column]]
        return _Ranges(integers, boundaries(samples, wanted, integers))

    def write(self, building: Path, name: str, shard_rows: int) -> None:
        """The layout, from tables that are good."""
        self._progress("sharing out pairs", 0, 0)
        sizes = {kind: sum(known.sizes) for kind, known in self._known.items()}
        rows = sum(self._tables[table].rows for table in ("user_item", "user_bundle"))
        self._known["users"] = self._ranges("user_id", {"user_item", "user_bundle"}, rows)
        made = {"users": self._gather_users(sizes)}
        for kind in ("items", "bundles"):
            made[kind] = self._gather_catalogue(kind, sizes)
        files = {kind: self._write_files(building, kind, made.pop(kind), shard_rows) for kind in KINDS}
        work = (Task(digests_of, (building, files[kind], kind)) for kind in KINDS)
        found = [done.value for done in self._run("sealing", work, len(KINDS))]
        digests = {key: digest for each, _ in found for key, digest in each.items()}
        pairs = {key: count for _, each in found for key, count in each.items()}
        seal(
            building,
            [file for kind in KINDS for file in files[kind]],
            name=name,
            notes=(),
            shard_rows=shard_rows,
            sizes={kind: sum(part.rows for part in files[kind]) for kind in KINDS},
            pairs={key: pairs[key] for key in MATRICES},
            catalogue=any(table in CATALOGUE_SCHEMAS and self._tables[table].good for table in self._tables),
            digests={key: digests[key] for key in (*KINDS, *MATRICES)},
        )

    def _share(self, table: str, owners: str, others: str | None) -> list[list[Any]]:
        """The rows of a table by ranges of their owners: of each range, the blocks of all pieces."""
        ranges, pieces = self._known[owners], self._tables[table].pieces
        divided = (ranges.bounds, ranges.integers)
        if others is None:
            work = (Task(tasks.share_details, (piece, *divided), ranges.count) for piece in pieces)
        else:
            known = self._known[others]
            parts = list(zip(known.firsts, known.parts, strict=True))
            work = (Task(tasks.share_pairs, (piece, parts, *divided), ranges.count) for piece in pieces)
        shared = self._run(f"sharing out {table}", work, len(pieces))
        return [[done.blocks[number] for done in shared] for number in range(ranges.count)]

    def _gather_users(self, sizes: Mapping[str, int]) -> list[Done]:
        having = self._share("user_item", "users", "items")
        taking = self._share("user_bundle", "users", "bundles")
        integers = self._known["users"].integers

        def work() -> Iterator[Task]:
            for number in range(len(having)):
                items, having[number] = having[number], []  # what is put in order is let go
                bundles, taking[number] = taking[number], []
                yield Task(tasks.users, (sizes, integers, len(items), *items, *bundles), 1)

        return self._run("ordering users", work(), len(having))

    def _gather_catalogue(self, kind: str, sizes: Mapping[str, int]) -> list[Done]:
        known = self._known[kind]
        described: list[list[Any]] = [[] for _ in known.parts]
        inside: list[list[Any]] = [[] for _ in known.parts]
        if kind in self._tables and self._tables[kind].good:
            described = self._share(kind, kind, None)
        if kind == "bundles":
            inside = self._share("bundle_item", "bundles", "items")
        work = (
            Task(tasks.catalogue, (kind, sizes, part, len(pairs), *pairs, *rows), 1)
            for part, pairs, rows in zip(known.parts, inside, described, strict=True)
        )
        return self._run(f"describing {kind}", work, len(known.parts))

    def _write_files(self, building: Path, kind: str, ranges: list[Done], shard_rows: int) -> list[Part]:
        """The files of one kind, each from the ranges that have rows for it."""
        ends = np.cumsum([done.value for done in ranges])
        rows = int(ends[-1])

        def work() -> Iterator[Task]:
            for number, start in enumerate(range(0, rows, shard_rows)):
                stop = min(start + shard_rows, rows)
                having, places = [], []
                for end, done in zip(ends.tolist(), ranges, strict=True):
                    first = end - done.value
                    if max(first, start) < min(end, stop):
                        having += done.blocks
                        places.append((max(first, start) - first, min(end, stop) - first))
                    elif end <= start:
                        done.blocks.clear()
                yield Task(tasks.write, (building, kind, number, places, *having))

        count = -(-rows // shard_rows)
        return [done.value for done in self._run(f"writing {kind}", work(), count)]


def ingest(job: IngestJob, cluster: Cluster, progress: Progress = in_silence) -> Ingested:
    """The same files, byte for byte, as on one machine, and the same problems in the same words."""
    began = time.monotonic()
    if job.output is not None:
        check_output(job.output, job.shard_rows, overwrite=job.overwrite)
    work = _Ingest(cluster.workers, progress)
    try:
        where = _place(job)
        problems = work.check(where)
    except DataError as error:
        if job.output is not None:
            raise
        problems = list(error.problems)
    if job.output is None:
        ordered = sorted(problems, key=lambda problem: problem.severity == "warning")
        return Ingested(tuple(ordered), time.monotonic() - began)
    if any(problem.severity == "error" for problem in problems):
        raise DataError(problems)
    with beside(job.output) as building:
        work.write(building.resolve(), where.name, job.shard_rows)
    return Ingested.layout(Layout.open(job.output), tuple(problems), time.monotonic() - began)


def _place(job: IngestJob) -> Place:
    location = str(job.location)
    if location == SAMPLE or job.tables or sql.matches(location):
        raise DataError(_only_parquet("the sample" if location == SAMPLE else "the database"))
    if is_remote(location):
        return place(location)
    path = local_path(location).resolve()  # workers stand in other folders
    if path.is_dir() and (is_layout(path) or not tables.matches(path)):
        raise DataError(_only_parquet(location))
    return Place(location, path.name, str(path))


def _only_parquet(where: str) -> Problem:
    return Problem(
        "not-parquet",
        where,
        "on Ray only tables in Parquet are read, each as one file or as a folder of parts",
        "Store it as Parquet, or use --engine local",
    )
