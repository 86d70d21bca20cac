"""What workers do to ingest: each takes a piece of a table, or a range of ids, and little memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray

from bundlemage.data.dataset import empty_catalogue
from bundlemage.data.shards import Part, lists, rows_of, write_part
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.engines.ray import ingest_ids as ids
from bundlemage.engines.ray.ingest_pieces import (
    Piece,
    column_of,
    concatenated,
    details_of,
    ids_of,
    packed,
    tables_of,
    unpacked,
)
from bundlemage.errors import DataError, Problem
from bundlemage.readers import parquet
from bundlemage.readers.assemble import CATALOGUE_SCHEMAS, CROSSINGS
from bundlemage.readers.columns import TABLES
from bundlemage.readers.parquet import Footer
from bundlemage.readers.places import TableFile
from bundlemage.readers.values import Coded, align, duplicates

_SAMPLES = 128
_NEVER = np.iinfo(np.int64).max


@dataclass
class Survey:
    """What a piece is like, in few words."""

    unreadable: list[Problem] = field(default_factory=list)
    id_problems: dict[str, list[Problem]] = field(default_factory=dict)
    detail_problems: dict[str, list[Problem]] = field(default_factory=dict)
    integers: dict[str, bool] = field(default_factory=dict)
    """For each column of ids, whether all are whole numbers."""
    distinct: dict[str, int] = field(default_factory=dict)
    samples: dict[str, list[str]] = field(default_factory=dict)


def looked(table: str, files: Sequence[TableFile]) -> list[Footer | list[Problem]]:
    """The footer of each file, or what is wrong with it."""
    found: list[Footer | list[Problem]] = []
    for file in files:
        try:
            found.append(parquet.look(table, file))
        except DataError as error:
            found.append(list(error.problems))
    return found


def mentions(table: str) -> list[str]:
    """The columns of a table whose ids are gathered from the start: users are only met when pairs are."""
    return [column for column in TABLES[table].ids if column != "user_id"]


def survey(piece: Piece) -> tuple[Any, ...]:
    """What is wrong with a piece, and its items and bundles: each with the first row that has it."""
    found = Survey()
    nothing = pa.table({"id": pa.array([], pa.string()), "row": pa.array([], pa.int64())})
    blocks = dict.fromkeys(mentions(piece.table), nothing)
    try:
        tables = tables_of(piece)
    except DataError as error:
        found.unreadable = list(error.problems)
        return (found, *map(packed, blocks.values()))
    for column in TABLES[piece.table].ids:
        good, found.id_problems[column] = ids_of(piece, column, tables)
        if good is None:
            continue
        found.integers[column] = ids.all_integers(good.texts)
        found.samples[column] = ids.sample(good.texts, _SAMPLES)
        if column in blocks:
            # Of a catalogue every row counts, as one that says something a second time is told of.
            every = piece.table in CATALOGUE_SCHEMAS
            texts = good.texts.take(pa.array(good.codes)) if every else good.texts
            rows = np.arange(len(good.codes)) if every else good.first_rows()
            blocks[column] = pa.table({"id": texts, "row": pa.array(rows + piece.first)})
        found.distinct[column] = len(blocks[column]) if column in blocks else len(good.texts)
    if piece.table in CATALOGUE_SCHEMAS:
        found.detail_problems = details_of(piece, tables)[1]
    return (found, *map(packed, blocks.values()))


def divide(bounds: Sequence[str], integers: bool, block: pa.Buffer) -> tuple[Any, ...]:
    """Ids with their rows, by ranges."""
    table = unpacked(block)
    table = table.take(pa.array(ids.order(column_of(table, "id"), integers)))
    return _ranges(table, "id", bounds, integers)


def _ranges(table: pa.Table, column: str, bounds: Sequence[str], integers: bool) -> tuple[Any, ...]:
    places = ids.cuts(column_of(table, column), bounds, integers)
    return (None, *(packed(table.slice(start, stop - start)) for start, stop in places))


@dataclass(frozen=True)
class VocabularyFacts:
    """What is told of a range of a vocabulary."""

    size: int
    duplicates: Mapping[str, list[Problem]]
    """By catalogue table."""
    strangers: Mapping[int, tuple[int, int, str]]
    """By the number of the crossing: how many ids, and the first row with one, and that id."""


def vocabulary(
    column: str,
    wheres: Mapping[str, str],
    checked: frozenset[str],
    owners: Sequence[str],
    integers: bool,
    *blocks: Any,
) -> tuple[VocabularyFacts, pa.Buffer]:
    """A range of a vocabulary in its order. `owners`: the table of each block."""
    mentioned: dict[str, Any] = {}
    doubled: dict[str, list[Problem]] = {}
    tables = defaultdict(list)
    for owner, block in zip(owners, blocks, strict=True):
        tables[owner].append(unpacked(block))
    whole = {owner: pa.concat_tables(parts) for owner, parts in tables.items()}
    texts = pa.concat_arrays(
        [pa.array([], pa.string()), *(column_of(table, "id") for table in whole.values())]
    )
    encoded = texts.dictionary_encode()
    codes, start = encoded.indices.to_numpy(), 0
    for owner, table in whole.items():
        mine, rows = codes[start : start + table.num_rows], table["row"].to_numpy()
        start += table.num_rows
        first = np.full(len(encoded.dictionary), _NEVER)
        np.minimum.at(first, mine, rows)
        mentioned[owner] = first
        if owner in CATALOGUE_SCHEMAS:
            by_row = np.argsort(rows)
            described = Coded(encoded.dictionary.to_pylist(), mine[by_row])
            ordered = rows[by_row]
            doubled[owner] = duplicates(described, column, wheres[owner], lambda at: int(ordered[at]) + 1)  # noqa: B023
    known = np.zeros(len(encoded.dictionary), bool)
    for owner in checked & mentioned.keys():
        known |= mentioned[owner] < _NEVER
    strangers = {}
    for number, crossing in enumerate(CROSSINGS):
        if crossing.column != column or not {crossing.table, crossing.known_in} <= checked:
            continue
        never = np.full(len(encoded.dictionary), _NEVER)
        first = mentioned.get(crossing.table, never)
        unknown = (first < _NEVER) & (mentioned.get(crossing.known_in, never) == _NEVER)
        if unknown.any():
            place = int(np.argmin(np.where(unknown, first, _NEVER)))
            strangers[number] = (int(unknown.sum()), int(first[place]), encoded.dictionary[place].as_py())
    found = encoded.dictionary.filter(pa.array(known))
    found = found.take(pa.array(ids.order(found, integers)))
    return VocabularyFacts(len(found), doubled, strangers), packed(pa.table({"id": found}))


def share_pairs(
    piece: Piece, vocabulary: Sequence[tuple[int, Any]], bounds: Sequence[str], integers: bool
) -> tuple[Any, ...]:
    """The pairs of a piece by ranges of their owners: each owner with the positions of what it has."""
    tables = tables_of(piece)
    owner_column, other_column = TABLES[piece.table].ids
    owners, _ = ids_of(piece, owner_column, tables)
    others, _ = ids_of(piece, other_column, tables)
    if owners is None or others is None:
        raise ids.changed(piece.where)
    parts = ((first, column_of(unpacked(ray.get(part)), "id")) for first, part in vocabulary)
    positions = ids.look_up(others.texts, parts, piece.where)[others.codes]
    order = ids.order(owners.texts, integers)
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    ranks = rank[owners.codes]
    counts = np.bincount(ranks, minlength=len(order))
    by_owner = lists(counts, positions[np.argsort(ranks, kind="stable")])
    table = pa.table({"owner": owners.texts.take(pa.array(order)), "has": by_owner})
    return _ranges(table, "owner", bounds, integers)


def share_details(piece: Piece, bounds: Sequence[str], integers: bool) -> tuple[Any, ...]:
    """The rows of a catalogue by ranges of their ids."""
    tables = tables_of(piece)
    (column,) = TABLES[piece.table].ids
    found, _ = ids_of(piece, column, tables)
    if found is None:
        raise ids.changed(piece.where)
    texts = found.texts.take(pa.array(found.codes))
    details = details_of(piece, tables)[0]
    table = details.append_column("id", texts).append_column(
        "row", pa.array(np.arange(len(texts)) + piece.first)
    )
    return _ranges(table.take(pa.array(ids.order(texts, integers))), "id", bounds, integers)


def users(sizes: Mapping[str, int], integers: bool, items: int, *blocks: Any) -> tuple[int, pa.Buffer]:
    """A range of users, with what each has. The first `items` blocks tell of items, the others of bundles."""
    tables = [concatenated(part) if part else None for part in (blocks[:items], blocks[items:])]
    named = [column_of(table, "owner") for table in tables if table is not None]
    known = pa.concat_arrays([pa.array([], pa.string()), *named]).unique()
    known = known.take(pa.array(ids.order(known, integers)))
    columns = {
        column: _has(table, known, sizes[column])
        for column, table in zip(("items", "bundles"), tables, strict=True)
    }
    return len(known), packed(pa.table({"user_id": known, **columns}))


def _has(table: pa.Table | None, known: pa.Array, size: int) -> pa.Array:
    """What each of the known owners has, in order and once each; `size`: how many things there are."""
    if table is None:
        return lists(np.zeros(len(known), np.int32), np.empty(0, np.int32))
    owners = pc.index_in(column_of(table, "owner"), value_set=known).to_numpy()
    counts, positions = rows_of(table["has"])
    keys = np.repeat(owners.astype(np.int64), counts) * max(size, 1) + positions
    keys.sort()
    keys = keys[np.diff(keys, prepend=-1) > 0]
    return lists(
        np.bincount(keys // max(size, 1), minlength=len(known)), (keys % max(size, 1)).astype(np.int32)
    )


def catalogue(
    kind: str, sizes: Mapping[str, int], part: pa.Buffer, pairs: int, *blocks: Any
) -> tuple[int, pa.Buffer]:
    """A range of items or bundles as they are described. The first `pairs` blocks say what is in bundles."""
    schema = CATALOGUE_SCHEMAS[kind]
    known = column_of(unpacked(part), "id")
    vocabulary = Vocabulary(kind[:-1], known.to_pylist())
    if len(blocks) > pairs:
        rows = concatenated(blocks[pairs:]).sort_by("row")
        named = column_of(rows, "id").dictionary_encode()
        column = Coded(named.dictionary.to_pylist(), named.indices.to_numpy())
        table = align(rows.drop_columns(["id", "row"]), column, vocabulary, schema)
    else:
        table = empty_catalogue(schema, vocabulary)
    if kind == "bundles":
        table = table.append_column(
            "items", _has(concatenated(blocks[:pairs]) if pairs else None, known, sizes["items"])
        )
    return len(known), packed(table)


def write(
    building: Path, kind: str, number: int, places: Sequence[tuple[int, int]], *parts: pa.Buffer
) -> Part:
    """A file of the layout, from the ranges in which its rows are; `places`: from where to where in each."""
    slices = [
        unpacked(part).slice(start, stop - start) for part, (start, stop) in zip(parts, places, strict=True)
    ]
    table = pa.concat_tables(slices).combine_chunks()
    return write_part(building, kind, number, {name: table[name] for name in table.column_names})
