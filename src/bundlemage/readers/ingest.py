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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bundlemage.data.dataset import (
    EVENTS_OF,
    INTEGER,
    BundleDataset,
    Catalogue,
    Vocabulary,
    binary_matrix,
    fingerprint,
)
from bundlemage.data.events import UNDATED
from bundlemage.data.folders import beside
from bundlemage.data.leakage import Leakage, leakage_of
from bundlemage.data.shard_columns import FACT_COLUMNS, MATRICES, lists, matrices_of
from bundlemage.data.shards import (
    KINDS,
    SHARD_ROWS,
    Layout,
    check_output,
    optional_columns,
    write_layout,
    write_shards,
)
from bundlemage.data.statistics import EventFacts, event_facts
from bundlemage.errors import BundleMageError, DataError, Problem, worst_first
from bundlemage.progress import Progress, in_silence
from bundlemage.readers import load
from bundlemage.readers.assemble import (
    CROSSINGS,
    TableData,
    bought_again,
    catalogue_of,
    in_words_of,
    no_common_user,
    repeated_purchases,
    unknown_id,
)
from bundlemage.readers.columns import CATALOGUE_SCHEMAS, EVENTS, TABLES, VECTORS, Columns
from bundlemage.readers.facts import read_numbers
from bundlemage.readers.files import batches, locator, read_table, same_fault_once
from bundlemage.readers.pairs import Rows, Types, check_events, pairs_of_rows
from bundlemage.readers.places import Place, TableFiles, find, place
from bundlemage.readers.values import Locate, encode, read_column

THREADS = min(8, os.cpu_count() or 1)
"""The number of DuckDB's threads. It is limited because each thread needs its own memory for sorting."""
MEMORY = "50%"
"""The share of the machine's memory, or of the process's memory limit, that DuckDB may use."""
BATCH_ROWS = 500_000
MOST_PAIRS = 200_000
"""If user_bundle has more rows, leakage is looked for in some of the users, who have about this many."""
_POSITION_BITS = 32
_TYPES = {"at": "BIGINT", "weight": "DOUBLE", "pair": "BIGINT"}
"""The types of columns that are no text."""
_Pairs = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
_PLAIN_ID = "[!-~]([ -~]*[!-~])?"
"""Matches printable ASCII without a space at the start or end. Only other ids are checked in Python."""


@dataclass(frozen=True)
class Ingested:
    """The result of `ingest`: the layout that was written, and the problems of the data."""

    problems: Sequence[Problem]
    """Errors come first. If a layout was written, all are warnings and notes."""
    layout: Layout | None = None
    """None if the data was only checked."""
    leakage: Leakage | None = None
    """Of the user-bundle pairs, or of a part of very many pairs. None unless good data was only checked."""
    about_events: Mapping[str, EventFacts] = field(default_factory=dict)
    """What is known about the pairs of each table of events. Empty for a table without such columns."""
    seconds: float = 0.0

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
    events: Mapping[str, float] | None = None,
    progress: Progress = in_silence,
) -> Ingested:
    """Write data as a sharded layout in the folder `output`. Without `output`, only check the data.

    `location`, `named` and `events` are the arguments of `readers.load.read`. `shard_rows` is the number of
    users, items or bundles in one file. `overwrite` allows replacing a layout. Raises `DataError` for faulty
    data; a check returns the problems instead.
    """
    began = time.monotonic()
    events = check_events(events)
    if output is not None:
        check_output(output, shard_rows, overwrite=overwrite)
    found = None
    if load.is_tables(location, named):
        found = _by_duckdb(place(location), output, shard_rows, events, progress)
    if found is None:
        found = _in_memory(location, output, shard_rows, overwrite, named, events, progress)
    return replace(found, problems=tuple(worst_first(found.problems)), seconds=time.monotonic() - began)


def _in_memory(
    location: str,
    output: Path | None,
    shard_rows: int,
    overwrite: bool,
    named: Mapping[str, str] | None,
    events: Mapping[str, float] | None,
    progress: Progress,
) -> Ingested:
    """Read all data into memory. Used for data other than tables, and for tables that may be faulty."""
    progress("reading", 0, 0)
    if output is None:
        checked, problems = load.try_to_read(location, named, events)
        if checked is None:
            return Ingested(problems)
        return Ingested(problems, leakage=leakage_of(checked.dataset), about_events=event_facts(checked))
    source = load.read(location, named, events)
    layout = write_layout(
        source.dataset,
        output,
        shard_rows,
        overwrite=overwrite,
        progress=progress,
        about_tables=repeated_purchases(source.warnings),
        about_events={"event_types": source.event_types, "events": events},
    )
    return Ingested(source.warnings, layout)


class _SuspiciousError(Exception):
    """Raised if the tables may be faulty: the in-memory reader then reads all tables again."""


def _by_duckdb(
    where: Place,
    output: Path | None,
    shard_rows: int,
    events: Mapping[str, float] | None,
    progress: Progress,
) -> Ingested | None:
    """Returns None if the in-memory reader has to read the tables."""
    import duckdb

    try:
        with (
            nullcontext() if output is None else beside(output) as building,
            tempfile.TemporaryDirectory(prefix="spill-", dir=building) as spill,
            duckdb.connect(
                config={"memory_limit": MEMORY, "temp_directory": spill, "threads": THREADS}
            ) as database,
        ):
            tables = _Tables(where, database, events, progress)
            problems = tables.load()
            if building is None:
                return Ingested(problems, leakage=tables.leakage(), about_events=tables.about_events)
            tables.write(building, shard_rows, repeated_purchases(problems))
    except _SuspiciousError:
        return None
    except duckdb.Error as error:
        raise BundleMageError(
            f"the tables could not be sorted: {str(error).splitlines()[0]}. Free some memory or disk space, "
            "or name an output folder on a larger disk"
        ) from error
    assert output is not None
    return Ingested(problems, Layout.open(output))


class _Tables:
    """The tables in DuckDB. `user_item`, … hold the ids as text, in the order of the rows in the files."""

    def __init__(
        self, where: Place, database: Any, events: Mapping[str, float] | None, progress: Progress
    ) -> None:
        self._where, self._database, self._events, self._progress = where, database, events, progress
        self._files: dict[str, TableFiles] = {}
        self._locate: dict[str, Locate] = {}
        """For each loaded table, the function that returns the file and line of a row."""
        self._catalogue: dict[str, TableData] = {}
        """The catalogue tables that have rows."""
        self._aliases: dict[str, Mapping[str, str]] = {}
        """For each loaded table of pairs: the names of columns in the files that have another name."""
        self._columns: dict[str, set[str]] = {}
        """For each table of events: those of `EVENTS` that its files have."""
        self.about_events: dict[str, EventFacts] = {}
        """What is known about the pairs of tables that have such columns."""

    def load(self) -> list[Problem]:
        """Read all tables; returns the warnings."""
        try:
            self._files, problems = find(self._where)
            for table, files in self._files.items():
                if table in (*CATALOGUE_SCHEMAS, VECTORS):
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
        self._check_events(problems)
        for table in EVENTS_OF:
            self._progress("looking for repeated purchases", 0, 0)
            if self._columns.get(table):
                problems += self._reduce(table)
                continue
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
                ids = {name: _texts(batch.column(name)) for name in TABLES[table]}
                facts = {
                    name: _fact(name, batch.column(name)) for name in EVENTS if name in batch.column_names
                }
                self._columns.setdefault(table, set()).update(facts)
                self._insert(table, pa.table(ids | facts))
                rows[number] += batch.num_rows
        if not any(rows):
            raise _SuspiciousError
        self._locate[table] = locator(files, rows)
        self._aliases[table] = found[0].aliases
        return same_fault_once(problem for columns in found for problem in columns.problems)

    def _load_catalogue(self, table: str, files: TableFiles) -> list[Problem]:
        self._progress(f"reading {table}", 0, 1)
        checked, problems = read_table(table, files).checked(table)
        if checked is not None:
            self._catalogue[table], self._locate[table] = checked, checked.locate
            column = TABLES[table][0]
            ids = checked.columns[column]
            texts = pa.DictionaryArray.from_arrays(pa.array(ids.codes), pa.array(ids.values, pa.string()))
            self._insert(table, pa.table({column: texts}))
        return problems

    def _insert(self, table: str, batch: pa.Table) -> None:
        first, *others = batch.column_names
        self._database.execute(f"CREATE TABLE IF NOT EXISTS {table} ({first} {_TYPES.get(first, 'VARCHAR')})")
        for name in others:
            kind = _TYPES.get(name, "VARCHAR")
            self._database.execute(f'ALTER TABLE {table} ADD COLUMN IF NOT EXISTS "{name}" {kind}')
        self._database.register("batch", batch)
        self._database.execute(f"INSERT INTO {table} BY NAME SELECT * FROM batch")
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

    def _check_events(self, problems: list[Problem]) -> None:
        """Add what there is to say about the types of events; raises if one of them has no weight."""
        if {"items", VECTORS} <= self._catalogue.keys() and "vector" in self._catalogue["items"].facts:
            raise _SuspiciousError
        typed = [table for table in EVENTS_OF if "event" in self._columns.get(table, ())]
        if self._events and not typed:
            raise _SuspiciousError
        for table in typed:
            in_words = in_words_of("event", self._aliases[table])
            faults = self._types(table).problems(self._events, self._files[table].where, in_words)
            if any(problem.severity == "error" for problem in faults):
                raise _SuspiciousError
            problems += faults

    def _types(self, table: str) -> Types:
        query = f"SELECT event, count(*) FROM {table} GROUP BY event ORDER BY event NULLS LAST"
        names, counts = zip(*self._database.execute(query).fetchall(), strict=True)
        return Types(names, counts)

    def _reduce(self, table: str) -> list[Problem]:
        """Make the tables `TABLE_pairs` and `TABLE_rejected` from a table of events. Returns notes."""
        self._progress(f"joining the events of {table}", 0, 0)
        columns, types, worth = self._columns[table], None, None
        self._database.execute(f'CREATE TABLE {table}_pairs (pair BIGINT, "at" BIGINT, weight FLOAT)')
        self._database.execute(f"CREATE TABLE {table}_rejected (pair BIGINT)")
        conditions, event = ["coalesce(weight, 1) > 0"] if "weight" in columns else [], ""
        if "event" in columns:
            types = self._types(table)
            worth = types.worth(self._events)
            codes = pa.array(np.arange(len(worth), dtype=np.int32))
            self._database.register(
                "batch", pa.table({"name": pa.array(types.names, pa.string()), "code": codes, "worth": worth})
            )
            self._database.execute(f"CREATE TABLE {table}_types AS SELECT * FROM batch")
            self._database.unregister("batch")
            event = f" JOIN {table}_types ON event IS NOT DISTINCT FROM name"
            conditions.append("worth <> 0")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        adds_up = False
        if "weight" in columns:
            (adds_up,) = self._row(f"SELECT coalesce(bool_or(weight <> 1), false) FROM {table}{event}{where}")
        (owner, other), (owners, others) = TABLES[table], MATRICES[table]
        taken = {
            "pair": f"(owners.rowid << {_POSITION_BITS}) | others.rowid",
            "event": "code" if "event" in columns else None,
            "weight": "coalesce(weight, 1)" if adds_up else None,
            "at": f'coalesce("at", {UNDATED})' if "at" in columns else None,
        }
        listed = ", ".join(f'{value} AS "{name}"' for name, value in taken.items() if value)
        order = ", ".join(name for name in ("pair", "event", "weight") if taken[name])
        rows = self._stream(
            f"SELECT {listed} FROM {table} JOIN {owners}_ids AS owners ON {owner} = owners.id "
            f"JOIN {others}_ids AS others ON {other} = others.id{event}{where} ORDER BY {order}"
        )
        all_rows, all_pairs, repeated = 0, 0, 0
        counts: set[int] = set()
        for some in _whole_pairs(rows, worth):
            pairs = pairs_of_rows(some)
            self._insert(f"{table}_rejected", pa.table({"pair": pairs.rejected}))
            facts = {"at": pairs.at, "weight": pairs.weight}
            known = {name: values for name, values in facts.items() if values is not None}
            self._insert(f"{table}_pairs", pa.table({"pair": pairs.keys, **known}))
            times = some.purchases()
            all_rows, all_pairs = all_rows + int(times.sum()), all_pairs + len(times)
            repeated += int((times > 1).sum())
            counts.update(np.unique(times).tolist())
        self.about_events[table] = self._facts_of(table, types)
        where, alike = self._files[table].where, len(counts) < 2
        return bought_again(table, where, all_rows, all_pairs, repeated, alike, adds_up)

    def _facts_of(self, table: str, types: Types | None) -> EventFacts:
        """Returns what is known about the pairs that `_reduce` has made."""
        weight = "coalesce(weight, 1)"
        first, last, dated, all_pairs, least, median, most = self._row(
            f'SELECT min("at") FILTER ("at" <> {UNDATED}), max("at"), '
            f'count("at") FILTER ("at" <> {UNDATED}), count(*), '
            f"min({weight}), quantile_cont({weight}::DOUBLE, 0.5), max({weight}) FROM {table}_pairs"
        )
        (rejected,) = self._row(f"SELECT count(*) FROM {table}_rejected")
        return EventFacts.of_figures(
            {} if types is None else types.by_name,
            (first, last, all_pairs - dated) if dated else None,
            (least, median, most) if (least, most) not in ((1, 1), (None, None)) else None,
            rejected,
        )

    def leakage(self) -> Leakage:
        """Returns how many user-bundle pairs leak. If there are very many, only some users are looked at."""
        self._progress("looking for leakage", 0, 0)
        (rows,) = self._row("SELECT count(*) FROM user_bundle")
        buying = "SEMI JOIN user_bundle ON id = user_id"
        if "user_bundle" in self.about_events:
            buying = f"SEMI JOIN user_bundle_pairs ON users_ids.rowid = pair >> {_POSITION_BITS}"
        self._database.execute(
            "CREATE TEMP TABLE buyers AS SELECT id, number FROM ("
            "SELECT id, rowid AS number, row_number() OVER (ORDER BY rowid) AS place FROM users_ids "
            f"{buying}) WHERE (place - 1) % {max(1, -(-rows // MOST_PAIRS))} = 0"
        )
        user_bundle, user_item = (
            self._positions(
                f"SELECT number, pair & {2**_POSITION_BITS - 1} FROM {name}_pairs "
                f"JOIN buyers ON pair >> {_POSITION_BITS} = number"
                if name in self.about_events
                else f"SELECT buyers.number, others.rowid FROM {name} JOIN buyers ON user_id = buyers.id "
                f"JOIN {kind}_ids AS others ON {kind[:-1]}_id = others.id"
            )
            for name, kind in (("user_bundle", "bundles"), ("user_item", "items"))
        )
        bought = "SELECT bundle_id FROM user_bundle JOIN buyers ON user_id = id"
        if "user_bundle" in self.about_events:
            bought = (
                "SELECT bundles_ids.id AS bundle_id FROM user_bundle_pairs "
                f"JOIN buyers ON pair >> {_POSITION_BITS} = number "
                f"JOIN bundles_ids ON bundles_ids.rowid = pair & {2**_POSITION_BITS - 1}"
            )
        bundle_item = self._positions(
            "SELECT bundles_ids.rowid, items_ids.rowid FROM bundle_item "
            f"SEMI JOIN ({bought}) USING (bundle_id) "
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
        catalogue = None
        if self._catalogue:
            of = {kind: Vocabulary(kind[:-1], self._ids(kind).to_pylist()) for kind in CATALOGUE_SCHEMAS}
            catalogue = catalogue_of(self._catalogue, of["items"], of["bundles"])
        facts = {column for table in self.about_events for column in self._fact_columns(table)}
        optional = optional_columns(catalogue, facts)
        shards = {kind: self._shards(kind, size, shard_rows, catalogue) for kind, size in sizes.items()}
        types = {table: known.types for table, known in self.about_events.items() if known.types}
        write_shards(
            building,
            shard_rows,
            sizes,
            lambda kind, *_: next(shards[kind]),
            self._progress,
            catalogue is not None,
            self._where.name,
            about_tables=about_tables,
            optional=optional,
            about_events={"event_types": types, "events": self._events},
        )

    def _fact_columns(self, table: str) -> list[str]:
        """Returns the columns of shards that say something about the pairs of a table."""
        known, columns = self.about_events[table], FACT_COLUMNS[table]
        present = {"at": known.first, "weight": known.weights, "rejected": known.rejected}
        return [columns[fact] for fact, value in present.items() if value]

    def _shards(
        self, kind: str, size: int, shard_rows: int, catalogue: Catalogue | None
    ) -> Iterator[dict[str, Any]]:
        """Yields the columns of each shard: ids, catalogue details, and columns of lists for each matrix."""
        lists_of: dict[str, Iterator[pa.Array]] = {}
        for name, column in matrices_of(kind).items():
            if name in self.about_events:
                lists_of |= self._lists_of_events(name, size, shard_rows)
                continue
            owner, other = TABLES[name]
            sorted_pairs = self._stream(  # one number encodes a pair of positions
                f"SELECT (owners.rowid << {_POSITION_BITS}) | others.rowid AS pair FROM {name} "
                f"JOIN {kind}_ids AS owners ON {owner} = owners.id "
                f"JOIN {column}_ids AS others ON {other} = others.id ORDER BY pair"
            )
            lists_of[column] = _shard_lists(sorted_pairs, size, shard_rows)
        about = (
            None if catalogue is None else {"items": catalogue.items, "bundles": catalogue.bundles}.get(kind)
        )
        for start in range(0, size, shard_rows):
            columns: dict[str, Any] = {}
            if about is None:
                columns[f"{kind[:-1]}_id"] = self._ids(kind, start, start + shard_rows)
            else:
                part = about.slice(start, shard_rows)
                columns = {name: part[name] for name in part.column_names}
            yield columns | {column: next(rows) for column, rows in lists_of.items()}

    def _lists_of_events(self, name: str, size: int, shard_rows: int) -> dict[str, Iterator[pa.Array]]:
        """Returns the columns of lists of a matrix whose rows `_reduce` has joined."""
        present, columns = self._fact_columns(name), FACT_COLUMNS[name]

        def sorted_pairs(*values: str, table: str = "pairs") -> Iterator[pa.RecordBatch]:
            # DuckDB returns the rows of a table in the order in which they were inserted.
            return self._stream(f"SELECT {', '.join(('pair', *values))} FROM {name}_{table}")

        found = {MATRICES[name][1]: _shard_lists(sorted_pairs(), size, shard_rows)}
        for fact, kind in (("at", np.int64), ("weight", np.float32)):
            if columns[fact] in present:
                value = f'coalesce("{fact}", {1 if fact == "weight" else UNDATED})'
                found[columns[fact]] = _shard_lists(sorted_pairs(value), size, shard_rows, kind)
        if columns["rejected"] in present:
            found[columns["rejected"]] = _shard_lists(sorted_pairs(table="rejected"), size, shard_rows)
        return found

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


def _shard_lists(
    batches: Iterator[pa.RecordBatch], size: int, shard_rows: int, kind: type[np.generic] | None = None
) -> Iterator[pa.Array]:
    """Yields for each shard the positions of each owner (a user, item or bundle), sorted, without duplicates.

    `batches` are sorted pairs of an owner and a position. `size` is the number of owners. Batches are read
    only when they are needed. With `kind`, the batches have a second column of this type, and its values are
    yielded in place of the positions.
    """
    rest: npt.NDArray[np.int64] = np.empty(0, np.int64)
    values_rest: npt.NDArray[Any] = np.empty(0, kind)
    for start in range(0, size, shard_rows):
        stop = min(start + shard_rows, size)
        parts, values, end = [rest], [values_rest], stop << _POSITION_BITS
        while not len(parts[-1]) or parts[-1][-1] < end:
            batch = next(batches, None)
            if batch is None:
                break
            parts.append(batch.column(0).to_numpy())
            if kind is not None:
                values.append(batch.column(1).to_numpy())
        pairs, both = np.concatenate(parts), np.concatenate(values)
        cut = np.searchsorted(pairs, end)
        pairs, rest = pairs[:cut], pairs[cut:]
        both, values_rest = both[:cut], both[cut:]
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        counts = np.bincount((pairs >> _POSITION_BITS) - start, minlength=stop - start)
        positions = (pairs & (2**_POSITION_BITS - 1)).astype(np.int32)
        yield lists(counts, positions) if kind is None else lists(counts, both, kind)


def _whole_pairs(batches: Iterator[pa.RecordBatch], worth: npt.NDArray[np.float64] | None) -> Iterator[Rows]:
    """Yields sorted rows. All rows of a pair come together."""
    rest: pa.Table | None = None
    for batch in batches:
        both = pa.Table.from_batches([batch])
        both = both if rest is None else pa.concat_tables([rest, both])
        pairs = both["pair"].to_numpy()
        cut = int(np.searchsorted(pairs, pairs[-1]))
        rest = both.slice(cut)
        if cut:
            yield _rows(both.slice(0, cut), worth)
    if rest is not None:
        yield _rows(rest, worth)


def _rows(table: pa.Table, worth: npt.NDArray[np.float64] | None) -> Rows:
    columns = {name: table[name].to_numpy() for name in table.column_names}
    return Rows(columns["pair"], columns.get("event"), worth, columns.get("weight"), columns.get("at"))


def _fact(name: str, column: pa.ChunkedArray) -> Any:
    """Returns times or weights as numbers and types of events as text; raises if a value is faulty."""
    if name == "event":
        checked, faults = read_column(encode(column), name, lambda _: ("", 0), name)
        if checked is None or faults:
            raise _SuspiciousError
        codes = pa.array(checked.codes, mask=checked.codes < 0)
        return pa.DictionaryArray.from_arrays(codes, pa.array(checked.values, pa.string()))
    parts = [read_numbers(name, chunk) for chunk in column.chunks]
    numbers = [part for part in parts if part is not None]
    if len(numbers) < len(parts):
        raise _SuspiciousError
    return np.concatenate(numbers) if numbers else np.empty(0, {"at": np.int64, "weight": np.float64}[name])


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
