"""Titles, prices, tags, stock and discounts, from whatever form they come in, put in vocabulary order."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from bundlemage.data.vocabulary import Vocabulary
from bundlemage.errors import Problem
from bundlemage.readers.ids import Coded, IdColumn, LineOf, encode, shown

Parse = Callable[[Any], Any]
"""A value as found to a value as kept (None: unknown); raises `ValueError` for one that makes no sense."""

_TAG_SEPARATOR = re.compile(r"[|;,]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def _title(value: Any) -> str | None:
    text = value.decode() if isinstance(value, bytes) else str(value)
    return text if text.strip() else None


def _tags(value: Any) -> list[str] | None:
    parts = value if isinstance(value, tuple) else _TAG_SEPARATOR.split(_title(value) or "")
    tags = [str(part).strip() for part in parts if part is not None]
    return [tag for tag in tags if tag] or None


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        text = value.strip()
        if text and not _NUMBER.fullmatch(text):
            raise ValueError
        return float(text) if text else None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError  # noqa: TRY004 - the one signal of a value that makes no sense
    return None if math.isnan(value) else float(value)


def _price(value: Any) -> float | None:
    price = _number(value)
    if price is not None and not 0 <= price < math.inf:
        raise ValueError
    return price


def _stock(value: Any) -> int | None:
    stock = _price(value)
    if stock is not None and (stock != int(stock) or stock >= 2**63):
        raise ValueError
    return None if stock is None else int(stock)


def _discount(value: Any) -> float | None:
    discount = _number(value)
    if discount is not None and not 0 <= discount <= 1:
        raise ValueError
    return discount


# For each column: how to read it, the kind of problem, what is expected, and what to do.
_COLUMNS: dict[str, tuple[Parse, str, str, str]] = {
    "title": (_title, "broken-utf8", "text in UTF-8", "Store the text as UTF-8"),
    "tags": (
        _tags,
        "broken-utf8",
        "a list of texts, or one text separated by | ; or ,",
        "Store the text as UTF-8",
    ),
    "price": (
        _price,
        "bad-number",
        "a number, 0 or more",
        "Write it without a currency sign, with a point for the decimals; leave it empty if it is not known",
    ),
    "stock": (
        _stock,
        "bad-number",
        "a whole number, 0 or more",
        "Write how many can be sold; leave it empty if it is not known",
    ),
    "discount": (
        _discount,
        "bad-number",
        "a fraction from 0 to 1",
        "Write 20% off as 0.2; leave it empty if it is not known",
    ),
}


def read_details(
    columns: dict[str, pa.ChunkedArray], schema: pa.Schema, rows: int, where: str, line_of: LineOf
) -> tuple[pa.Table, list[Problem]]:
    """The columns of a catalogue table in the types of `schema`, row by row as they came."""
    kept: dict[str, Any] = {}
    problems: list[Problem] = []
    for name in schema.names[1:]:
        kind = schema.field(name).type
        if name not in columns:
            kept[name] = pa.nulls(rows, kind)
            continue
        coded = encode(columns[name])
        values, bad = _parsed(coded, _COLUMNS[name][0])
        if bad:
            problems.append(_problem(name, bad, coded, where, line_of))
        values.append(None)  # the code -1
        kept[name] = pa.array([values[code] for code in coded.codes.tolist()], kind)
    return pa.table(kept), problems


def _parsed(coded: Coded, parse: Parse) -> tuple[list[Any], list[int]]:
    values: list[Any] = []
    bad: list[int] = []
    for position, value in enumerate(coded.values):
        try:
            values.append(None if value is None else parse(value))
        except ValueError:
            values.append(None)
            bad.append(position)
    return values, bad


def _problem(name: str, bad: Sequence[int], coded: Coded, where: str, line_of: LineOf) -> Problem:
    _, kind, expected, fix = _COLUMNS[name]
    rows = np.flatnonzero(np.isin(coded.codes, bad))
    value = coded.values[coded.codes[rows[0]]]
    return Problem(
        kind=kind,
        where=where,
        message=f"{name!r} is {shown(value)}; expected {expected}",
        fix=fix,
        line=line_of(int(rows[0])),
        value=str(value),
        more=len(rows) - 1,
    )


def align(details: pa.Table, ids: IdColumn, vocabulary: Vocabulary, schema: pa.Schema) -> pa.Table:
    """Row n describes position n of the vocabulary; an id described twice keeps its first description."""
    positions = vocabulary.positions(ids.texts)[ids.codes]
    described, first_rows = np.unique(positions, return_index=True)
    rows = np.full(len(vocabulary), -1, dtype=np.int64)
    rows[described] = first_rows
    taken = details.take(pa.array(rows, mask=rows < 0))
    return pa.table({schema.names[0]: vocabulary.to_arrow(), **dict(_columns(taken))}, schema=schema)


def _columns(table: pa.Table) -> list[tuple[str, Any]]:
    return [(name, table[name]) for name in table.column_names]


def duplicates(ids: IdColumn, name: str, where: str, line_of: LineOf) -> list[Problem]:
    """A warning where one id is described more than once."""
    _, first_rows = np.unique(ids.codes, return_index=True)
    repeated = np.setdiff1d(np.arange(len(ids.codes)), first_rows)
    if not repeated.size:
        return []
    row = int(repeated[0])
    value = ids.texts[ids.codes[row]]
    return [
        Problem(
            kind="duplicate-catalogue-id",
            where=where,
            message=f"{name!r} {shown(value)} is described a second time; only the first description counts",
            fix="Keep one row for each id",
            line=line_of(row),
            value=value,
            more=len(repeated) - 1,
            severity="warning",
        )
    ]
