"""Writes tables as a sharded layout on one machine, within bounded memory.

Arrow reads the files in batches of some hundred thousand rows. DuckDB stores the ids and the pairs and sorts
them; it uses the disk if memory is not enough. Only the catalogue is always held in memory. If data may be
faulty (an empty id, a damaged file), the in-memory reader reads all tables again and reports the problems.
"""

from __future__ import annotations

import csv
import os
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bundlemage.data.dataset import INTEGER, BundleDataset, Vocabulary, binary_matrix, fingerprint
from bundlemage.data.folders import beside
from bundlemage.data.leakage import Leakage, leakage_of
from bundlemage.data.shards import (
    KINDS,
    SHARD_ROWS,
    Layout,
    check_output,
    lists,
    matrices_of,
    write_layout,
    write_shards,
)
from bundlemage.errors import BundleMageError, DataError, Problem, worst_first
from bundlemage.progress import Progress, in_silence
from bundlemage.readers import load
from bundlemage.readers.assemble import (
    CROSSINGS,
    TableData,
    bought_again,
    no_common_user,
    repeated_purchases,
    unknown_id,
)
from bundlemage.readers.columns import CATALOGUE_SCHEMAS, EVENTS, TABLES, VECTORS, Columns
from bundlemage.readers.files import batches, locator, read_table, same_fault_once
from bundlemage.readers.places import Place, TableFiles, find, place
from bundlemage.readers.values import Locate, align, encode, read_column

THREADS = min(8, os.cpu_count() or 1)
"""The number of DuckDB's threads. It is limited because each thread needs its own memory for sorting."""
MEMORY = "50%"
"""The share of the machine's memory, or of the process's memory limit, that DuckDB may use."""
BATCH_ROWS = 500_000
MOST_PAIRS = 200_000
"""If user_bundle has more rows, leakage is looked for in some of the users, who have about this many."""
_POSITION_BITS = 32
_Pairs = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
_PLAIN_ID = "[!-~]([ -~]*[!-~])?"
"""Matches printable ASCII without a space at the start or end. Only other ids are checked in Python."""


@dataclass(frozen=True)
class Ingested:
    """The result of `ingest`: the layout that was written, and the problems of the data."""

    problems: tuple[Problem, ...]
    """Errors come first. If a layout was written, all are warnings and notes."""
    seconds: float
    layout: Layout | None = None
    """None if the data was only checked."""
    leakage: Leakage | None = None
    """Of the user-bundle pairs, or of a part of very many pairs. None unless good data was only checked."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the data in the layout."""
        return "" if self.layout is None else fingerprint(self.layout.digests)


def ingest(
    location: str,
    output: Path | None = None,
    shard_rows: int = SHARD_ROWS,
    *,
    overwrite: bool = False,
    named: Mapping[str, str] | None = None,
    progress: Progress = in_silence,
) -> Ingested:
    """Write data as a sharded layout in the folder `output`. Without `output`, only check the data.

    `location` and `named` are the arguments of `readers.load.read`. `shard_rows` is the number of users,
    items or bundles in one file. `overwrite` allows replacing a layout. Raises `DataError` for faulty data;
    a check returns the problems instead.
    """
    began = time.monotonic()
    if output is not None:
        check_output(output, shard_rows, overwrite=overwrite)
    found, problems = None, None
    if load.is_tables(location, named):
        found, problems = _by_duckdb(place(location), output, shard_rows, progress)
    if problems is None:
        found, problems = _in_memory(location, output, shard_rows, overwrite, named, progress)
    ordered, seconds = tuple(worst_first(problems)), time.monotonic() - began
    if isinstance(found, Layout):
        return Ingested(ordered, seconds, found)
    return Ingested(ordered, seconds, leakage=found)


def _in_memory(
    location: str,
    output: Path | None,
    shard_rows: int,
    overwrite: bool,
    named: Mapping[str, str] | None,
    progress: Progress,
) -> tuple[Layout | Leakage | None, Sequence[Problem]]:
    """Read all data into memory. Used for data other than tables, and for tables that may be faulty."""
    progress("reading", 0, 0)
    if output is None:
        checked, problems = load.try_to_read(location, named)
        dataset = None if checked is None else checked.dataset
        return None if dataset is None else leakage_of(dataset), problems
    source = load.read(location, named)
    layout = write_layout(
        source.dataset,
        output,
        shard_rows,
        overwrite=overwrite,
        progress=progress,
        about_tables=repeated_purchases(source.warnings),
    )
    return layout, source.warnings


class _SuspiciousError(Exception):
    """Raised if the tables may be faulty: the in-memory reader then reads all tables again."""


def _by_duckdb(
    where: Place, output: Path | None, shard_rows: int, progress: Progress
) -> tuple[Layout | Leakage | None, Sequence[Problem] | None]:
    """Returns the layout, or without `output` the leakage, and the warnings; (None, None) if the in-memory
    reader has to read the tables."""
    import duckdb

    try:
        with (
            nullcontext() if output is None else beside(output) as building,
            tempfile.TemporaryDirectory(prefix="spill-", dir=building) as spill,
            duckdb.connect(
                config={"memory_limit": MEMORY, "temp_directory": spill, "threads": THREADS}
            ) as database,
        ):
            tables = _Tables(where, database, progress)
            problems = tables.load()
            if building is None:
                return tables.leakage(), problems
            tables.write(building, shard_rows, repeated_purchases(problems))
    except _SuspiciousError:
        return None, None
    except duckdb.Error as error:
        raise BundleMageError(
            f"the tables could not be sorted: {str(error).splitlines()[0]}. Free some memory or disk space, "
            "or name an output folder on a larger disk"
        ) from error
    assert output is not None
    return Layout.open(output), problems


class _Tables:
    """The tables in DuckDB. `user_item`, … hold the ids as text, in the order of the rows in the files."""

    def __init__(self, where: Place, database: Any, progress: Progress) -> None:
        self._where, self._database, self._progress = where, database, progress
        self._files: dict[str, TableFiles] = {}
        self._locate: dict[str, Locate] = {}
        """For each loaded table, the function that returns the file and line of a row."""
        self._catalogue: dict[str, TableData] = {}
        """The catalogue tables that have rows."""

    def load(self) -> list[Problem]:
        """Read all tables; returns the warnings."""
        try:
            self._files, problems = find(self._where)
            if VECTORS in self._files:
                raise _SuspiciousError
            for table, files in self._files.items():
                if table in CATALOGUE_SCHEMAS:
                    problems += self._load_catalogue(table, files)
                else:
                    problems += self._load_pairs(table, files)
        except (DataError, pa.ArrowException, OSError, ValueError, EOFError, csv.Error, zlib.error) as error:
            raise _SuspiciousError from error
        if any(problem.severity == "error" for problem in problems):
            raise _SuspiciousError
        for number, kind in enumerate(KINDS):
            self._progress("sorting ids", number, len(KINDS))
            self._order_ids(kind)
        (common,) = self._row("SELECT count(*) FROM user_bundle SEMI JOIN user_item USING (user_id)")
        if not common:
            (value,) = self._row("SELECT arg_min(user_id, rowid) FROM user_bundle")
            place, known = self._locate["user_bundle"](0), self._files["user_item"].where
            problems.append(no_common_user(value, place, known))
        for table, column, other in CROSSINGS:
            if {table, other} <= self._locate.keys():
                count, row, value = self._row(
                    f"SELECT count(DISTINCT {column}), min(row), arg_min({column}, row) "
                    f"FROM (SELECT {column}, rowid AS row FROM {table}) ANTI JOIN {other} USING ({column})"
                )
                if count:
                    place, known = self._locate[table](row), self._files[other].where
                    problems.append(unknown_id(column, value, count - 1, place, known))
        for table in ("user_item", "user_bundle"):
            self._progress("looking for repeated purchases", 0, 0)
            rows, pairs, repeated, alike = self._row(
                "SELECT sum(times)::BIGINT, count(*), count_if(times > 1)::BIGINT, min(times) = max(times) "
                f"FROM (SELECT count(*) AS times FROM {table} GROUP BY {', '.join(TABLES[table])})"
            )
            problems += bought_again(table, self._files[table].where, rows, pairs, repeated, alike)
        return problems

    def _load_pairs(self, table: str, files: TableFiles) -> list[Problem]:
        rows = [0] * len(files.files)
        found: list[Columns] = []
        for number, file in enumerate(files.files):
            self._progress(f"reading {table}", number, len(files.files))
            for batch in batches(table, file, found, BATCH_ROWS):
                if set(batch.column_names) & set(EVENTS):
                    raise _SuspiciousError
                self._insert(table, pa.table({name: _texts(batch.column(name)) for name in TABLES[table]}))
                rows[number] += batch.num_rows
        if not any(rows):
            raise _SuspiciousError
        self._locate[table] = locator(files, rows)
        return same_fault_once(problem for columns in found for problem in columns.problems)

    def _load_catalogue(self, table: str, files: TableFiles) -> list[Problem]:
        self._progress(f"reading {table}", 0, 1)
        checked, problems = read_table(table, files).checked(table)
        if checked is not None:
            self._catalogue[table], self._locate[table] = checked, checked.locate
            (column,) = TABLES[table]
            ids = checked.columns[column]
            texts = pa.DictionaryArray.from_arrays(pa.array(ids.codes), pa.array(ids.values, pa.string()))
            self._insert(table, pa.table({column: texts}))
        return problems

    def _insert(self, table: str, batch: pa.Table) -> None:
        columns = ", ".join(f"{column} VARCHAR" for column in TABLES[table])
        self._database.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
        self._database.register("batch", batch)
        self._database.execute(f"INSERT INTO {table} SELECT * FROM batch")
        self._database.unregister("batch")

    def _row(self, query: str) -> tuple[Any, ...]:
        row: tuple[Any, ...] = self._database.execute(query).fetchone()
        return row

    def _order_ids(self, kind: str) -> None:
        """Create the table of distinct ids in `canonical_order`. The row number of an id is its position."""
        column = f"{kind[:-1]}_id"
        tables = [table for table in self._locate if column in TABLES[table]]
        all_ids = " UNION ALL ".join(f"SELECT {column} AS id FROM {table}" for table in tables)
        self._database.execute(f"CREATE TABLE distinct_ids AS SELECT DISTINCT id FROM ({all_ids})")
        unusual = f"SELECT id FROM distinct_ids WHERE NOT regexp_full_match(id, '{_PLAIN_ID}')"
        for batch in self._stream(unusual):
            _, faults = read_column(
                encode(pa.chunked_array([batch.column(0)])), column, lambda _: ("", 0), column
            )
            if faults:
                raise _SuspiciousError
        (integers,) = self._row(f"SELECT bool_and(regexp_full_match(id, '{INTEGER}')) FROM distinct_ids")
        key = "CAST(id AS BIGINT)" if integers else "id"
        self._database.execute(f"CREATE TABLE {kind}_ids AS SELECT id FROM distinct_ids ORDER BY {key}")
        self._database.execute("DROP TABLE distinct_ids")

    def _stream(self, query: str) -> Iterator[pa.RecordBatch]:
        """Returns the rows of a query. Each query has its own cursor, so several can be read at once."""
        return self._database.cursor().sql(query).to_arrow_reader(BATCH_ROWS)  # type: ignore[no-any-return]

    def leakage(self) -> Leakage:
        """Returns how many user-bundle pairs leak. If there are very many, only some users are looked at."""
        self._progress("looking for leakage", 0, 0)
        (rows,) = self._row("SELECT count(*) FROM user_bundle")
        self._database.execute(
            "CREATE TEMP TABLE buyers AS SELECT id, number FROM ("
            "SELECT id, rowid AS number, row_number() OVER (ORDER BY rowid) AS place FROM users_ids "
            f"SEMI JOIN user_bundle ON id = user_id) WHERE (place - 1) % {max(1, -(-rows // MOST_PAIRS))} = 0"
        )
        user_bundle, user_item = (
            self._positions(
                f"SELECT buyers.number, others.rowid FROM {name} JOIN buyers ON user_id = buyers.id "
                f"JOIN {kind}_ids AS others ON {kind[:-1]}_id = others.id"
            )
            for name, kind in (("user_bundle", "bundles"), ("user_item", "items"))
        )
        bundle_item = self._positions(
            "SELECT bundles_ids.rowid, items_ids.rowid FROM bundle_item "
            "SEMI JOIN (SELECT bundle_id FROM user_bundle JOIN buyers ON user_id = id) USING (bundle_id) "
            "JOIN bundles_ids ON bundle_id = bundles_ids.id JOIN items_ids ON item_id = items_ids.id"
        )
        return leakage_of(_few_positions(user_item, user_bundle, bundle_item))

    def _positions(self, query: str) -> _Pairs:
        """Returns the two columns of a query."""
        columns = self._database.execute(f"SELECT a, b FROM ({query}) AS pairs(a, b)").fetchnumpy()
        return columns["a"], columns["b"]

    def write(self, building: Path, shard_rows: int, about_tables: Sequence[Problem]) -> None:
        """Write the layout. The tables must have been loaded."""
        sizes = {kind: self._row(f"SELECT count(*) FROM {kind}_ids")[0] for kind in KINDS}
        shards = {kind: self._shards(kind, size, shard_rows) for kind, size in sizes.items()}
        name, catalogue = self._where.name, bool(self._catalogue)
        write_shards(
            building,
            shard_rows,
            sizes,
            lambda kind, *_: next(shards[kind]),
            self._progress,
            catalogue,
            name,
            about_tables=about_tables,
        )

    def _shards(self, kind: str, size: int, shard_rows: int) -> Iterator[dict[str, Any]]:
        """Yields the columns of each shard: ids, catalogue details, and a column of lists for each matrix."""
        lists_of = {}
        for name, column in matrices_of(kind).items():
            owner, other = TABLES[name]
            sorted_pairs = self._stream(  # one number encodes a pair of positions
                f"SELECT (owners.rowid << {_POSITION_BITS}) | others.rowid AS pair FROM {name} "
                f"JOIN {kind}_ids AS owners ON {owner} = owners.id "
                f"JOIN {column}_ids AS others ON {other} = others.id ORDER BY pair"
            )
            lists_of[column] = _shard_lists(sorted_pairs, size, shard_rows)
        catalogue = None
        if kind in self._catalogue:
            vocabulary = Vocabulary(kind[:-1], self._ids(kind).to_pylist())
            about = self._catalogue[kind]
            catalogue = align(about.columns, about.facts, vocabulary, CATALOGUE_SCHEMAS[kind])
        for start in range(0, size, shard_rows):
            columns: dict[str, Any] = {}
            if catalogue is None:
                columns[f"{kind[:-1]}_id"] = self._ids(kind, start, start + shard_rows)
            else:
                part = catalogue.slice(start, shard_rows)
                columns = {name: part[name] for name in part.column_names}
            yield columns | {column: next(rows) for column, rows in lists_of.items()}

    def _ids(self, kind: str, start: int = 0, stop: int = 2**62) -> pa.Array:
        query = f"SELECT id FROM {kind}_ids WHERE rowid >= {start} AND rowid < {stop} ORDER BY rowid"
        return pa.concat_arrays([batch.column(0).cast(pa.string()) for batch in self._stream(query)])


def _few_positions(user_item: _Pairs, user_bundle: _Pairs, bundle_item: _Pairs) -> BundleDataset:
    """Returns a data set of only those users, items and bundles that these pairs have, in the same order."""
    pairs = (user_item, user_bundle, bundle_item)
    every = ((user_item[0], user_bundle[0]), (user_item[1], bundle_item[1]), (user_bundle[1], bundle_item[0]))
    users, items, bundles = (np.unique(np.concatenate(parts)) for parts in every)
    matrices = (
        binary_matrix(np.searchsorted(rows, one), np.searchsorted(columns, other), (len(rows), len(columns)))
        for (one, other), rows, columns in zip(
            pairs, (users, users, bundles), (items, bundles, items), strict=True
        )
    )
    return BundleDataset.numbered(*matrices)


def _shard_lists(batches: Iterator[pa.RecordBatch], size: int, shard_rows: int) -> Iterator[pa.Array]:
    """Yields for each shard the positions of each owner (a user, item or bundle), sorted, without duplicates.

    `batches` are sorted pairs of an owner and a position. `size` is the number of owners. Batches are read
    only when they are needed.
    """
    rest: npt.NDArray[np.int64] = np.empty(0, np.int64)
    for start in range(0, size, shard_rows):
        stop = min(start + shard_rows, size)
        parts, end = [rest], stop << _POSITION_BITS
        while not len(parts[-1]) or parts[-1][-1] < end:
            batch = next(batches, None)
            if batch is None:
                break
            parts.append(batch.column(0).to_numpy())
        pairs = np.concatenate(parts)
        cut = np.searchsorted(pairs, end)
        pairs, rest = pairs[:cut], pairs[cut:]
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        counts = np.bincount((pairs >> _POSITION_BITS) - start, minlength=stop - start)
        yield lists(counts, (pairs & (2**_POSITION_BITS - 1)).astype(np.int32))


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column of texts or integers as text; raises if a value is missing or has another type."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_integer(kind):
        column = column.cast(kind).cast(pa.string())
    elif not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise _SuspiciousError
    if column.null_count:
        raise _SuspiciousError
    column.validate(full=True)
    return column
