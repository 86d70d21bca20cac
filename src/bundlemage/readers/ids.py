"""Ids of any type become the strings that people know them by. Only distinct ids are looked at singly."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import compress
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bundlemage.errors import Problem

Codes = npt.NDArray[np.int32]
LineOf = Callable[[int], int]
"""The 1-based line (or row) where the n-th row of a table stands. May read the file again."""

_EXACT_FLOATS = 2**53
"""From here on a float no longer holds every whole number: two ids may already have become one."""


@dataclass(frozen=True)
class Coded:
    """A column as its distinct values and, for each row, which of them it holds (-1: none)."""

    values: Sequence[Any]
    codes: Codes


def encode(column: pa.ChunkedArray) -> Coded:
    """Any Arrow column as distinct Python values; those that no row holds are left out."""
    try:
        codes, values = _encode(column)
    except pa.ArrowNotImplementedError:  # lists, structs and the like, which Arrow does not hash
        book = Codebook()
        book.add(column.to_pylist())
        return book.coded()
    used = np.zeros(len(values) + 1, dtype=bool)
    used[codes] = True  # -1 lands on the spare last place
    renumbered = np.where(used, np.cumsum(used) - 1, -1).astype(np.int32)
    renumbered[-1] = -1
    return Coded(list(compress(_python_values(values), used[:-1].tolist())), renumbered[codes])


def _encode(column: pa.ChunkedArray) -> tuple[Codes, pa.Array]:
    if isinstance(column.type, pa.BaseExtensionType):  # such as UUIDs: only what they are stored as is hashed
        storage = [chunk.storage for chunk in column.chunks]
        hashed, values = _encode(pa.chunked_array(storage, column.type.storage_type))
        return hashed, pa.ExtensionArray.from_storage(column.type, values)
    if pa.types.is_dictionary(column.type):
        try:
            column = column.unify_dictionaries()
        except pa.ArrowInvalid:  # more values than their index type can count, or a null among them
            column = column.cast(column.type.value_type).dictionary_encode()
    else:
        column = column.dictionary_encode()
    if column.num_chunks == 0:
        return np.empty(0, np.int32), pa.array([], column.type.value_type)
    codes = [chunk.indices.cast(pa.int32()).fill_null(-1).to_numpy() for chunk in column.chunks]
    return np.concatenate(codes), column.chunk(0).dictionary


def _python_values(values: pa.Array) -> list[Any]:
    try:
        python: list[Any] = values.to_pylist()
    except UnicodeDecodeError:  # Arrow trusts files; the bytes let the faulty ids be found
        python = values.cast(pa.large_binary()).to_pylist()
    return python


class Codebook:
    """Builds a `Coded` column from Python values that come a batch at a time."""

    def __init__(self) -> None:
        self._book: dict[Any, int] = {}
        self._batches: list[Codes] = []

    def add(self, values: Iterable[Any]) -> None:
        book, rows = self._book, list(values)
        try:
            codes = [-1 if value is None else book.setdefault(value, len(book)) for value in rows]
        except TypeError:  # a list or a dict among them
            codes = [-1 if value is None else book.setdefault(_hashable(value), len(book)) for value in rows]
        self._batches.append(np.array(codes, dtype=np.int32))

    def coded(self) -> Coded:
        return Coded(list(self._book), np.concatenate([np.empty(0, np.int32), *self._batches]))


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return value if isinstance(value, Hashable) else (str(value),)


@dataclass(frozen=True)
class IdColumn:
    """A column of good ids: row n holds `texts[codes[n]]`."""

    texts: Sequence[str]
    codes: Codes

    def first_row(self, chosen: npt.NDArray[np.bool_]) -> int:
        """The first row whose id is one of the chosen ones."""
        return int(np.argmax(chosen[self.codes]))


def read_ids(column: Coded, name: str, where: str, line_of: LineOf) -> tuple[IdColumn | None, list[Problem]]:
    """The column as strings, or None where an id is missing or is none; and what is wrong with it."""
    texts: list[str] = []
    faults: dict[str, list[int]] = defaultdict(list)
    for position, value in enumerate(column.values):
        text, fault = _read(value)
        texts.append(text)
        if fault:
            faults[fault].append(position)
    if (column.codes < 0).any():
        faults["missing-id"].append(-1)
    problems = [_problem(kind, positions, column, name, where, line_of) for kind, positions in faults.items()]
    good = all(problem.severity == "warning" for problem in problems)
    return (_merged(texts, column.codes) if good else None), problems


def _merged(texts: Sequence[str], codes: Codes) -> IdColumn:
    """Values that differ may be one id as text, such as 1 and '1'."""
    distinct = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    if len(distinct) == len(texts):
        return IdColumn(texts, codes)
    merged = np.array([distinct[text] for text in texts], dtype=np.int32)
    return IdColumn(list(distinct), merged[codes])


def _read(value: Any) -> tuple[str, str | None]:
    """An id as text, and the kind of its fault if it has one."""
    if value is None:
        return "", "missing-id"
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return "", "broken-utf8"
    if isinstance(value, str):
        return value, _fault(value)
    if isinstance(value, int | UUID) and not isinstance(value, bool):
        return str(value), None
    if isinstance(value, float | Decimal):  # a column of whole numbers that once had a gap in it
        if math.isnan(value):
            return "", "missing-id"
        exact = math.isfinite(value) and (isinstance(value, Decimal) or abs(value) < _EXACT_FLOATS)
        if exact and value == int(value):
            return str(int(value)), None
    return "", "bad-id-type"


def _fault(text: str) -> str | None:
    if not text or text.isspace():
        return "missing-id"
    if "\0" in text:
        return "nul-byte"
    return "id-with-spaces" if text[0].isspace() or text[-1].isspace() else None


_MESSAGES = {
    "missing-id": (
        "{name!r} is empty",
        "Fill it in or remove the row",
    ),
    "broken-utf8": (
        "{name!r} holds bytes that are not UTF-8 text: {value}",
        "Store the ids as UTF-8 text or as whole numbers",
    ),
    "nul-byte": (
        "{name!r} holds a NUL byte: {value}",
        "Export the data again; a NUL byte is the mark of a damaged copy",
    ),
    "bad-id-type": (
        "{name!r} holds {value}, a {type}; an id is text, a whole number or a UUID",
        "Convert the column to text or whole numbers, or name the right column",
    ),
    "id-with-spaces": (
        "{name!r} holds {value}, with a space at its start or end, which makes it another id than without",
        "Trim the ids if the space is not meant",
    ),
}


def _problem(
    kind: str, positions: Sequence[int], column: Coded, name: str, where: str, line_of: LineOf
) -> Problem:
    chosen = np.zeros(len(column.values) + 1, dtype=bool)
    chosen[list(positions)] = True
    rows = np.flatnonzero(chosen[column.codes])
    code = column.codes[rows[0]]
    value = "" if code < 0 else column.values[code]
    message, fix = _MESSAGES[kind]
    return Problem(
        kind=kind,
        where=where,
        message=message.format(name=name, value=shown(value), type=type(value).__name__),
        fix=fix,
        line=line_of(int(rows[0])),
        value=str(value),
        more=len(rows) - 1,
        severity="warning" if kind == "id-with-spaces" else "error",
    )


def shown(value: object, width: int = 60) -> str:
    """A value as it may stand in a message: quoted where it is text, and never long."""
    text = repr(value) if isinstance(value, str | bytes) else str(value)
    return text if len(text) <= width else text[: width - 1] + "…"
