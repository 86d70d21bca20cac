"""Checks and converts columns of any type: ids, titles, prices, tags, stock and discounts.

For speed a column is first reduced to its distinct values. Only the distinct values become Python objects.
"""

from __future__ import annotations

import math
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import compress
from typing import Any, Literal
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bundlemage.data.dataset import Vocabulary
from bundlemage.errors import Problem
from bundlemage.readers.texts import decoded, tags_of
from bundlemage.wire.images import fault_of_image

Codes = npt.NDArray[np.int32]
Locate = Callable[[int], tuple[str, int]]
"""A function that returns the file of a row, and the 1-based line (or row) there. It may read the file."""

_EXACT_FLOATS = 2**53
"""From this number on, floats skip some whole numbers: two different ids may have become the same float."""


@dataclass(frozen=True)
class Coded:
    """A column as its distinct values and, for each row, the position of its value; -1 means no value."""

    values: Sequence[Any]
    codes: Codes


def encode(column: pa.ChunkedArray) -> Coded:
    """Returns an Arrow column with distinct Python values. Values that occur in no row are left out."""
    try:
        codes, values = _encode(column)
    except pa.ArrowNotImplementedError:  # Arrow cannot hash lists and structs
        book = Codebook()
        book.add(column.to_pylist())
        return book.coded()
    try:
        python = values.to_pylist()
    except UnicodeDecodeError:  # Arrow does not check texts. Bytes let `read_column` report the faulty ids
        python = values.cast(pa.large_binary()).to_pylist()
    used = np.zeros(len(values) + 1, dtype=bool)
    used[codes] = True  # the code -1 sets the additional last entry
    renumbered = np.where(used, np.cumsum(used) - 1, -1).astype(np.int32)
    renumbered[-1] = -1
    return Coded(list(compress(python, used[:-1].tolist())), renumbered[codes])


def _encode(column: pa.ChunkedArray) -> tuple[Codes, pa.Array]:
    if isinstance(column.type, pa.BaseExtensionType):  # such as UUIDs: Arrow can hash only their storage type
        storage = [chunk.storage for chunk in column.chunks]
        hashed, values = _encode(pa.chunked_array(storage, column.type.storage_type))
        return hashed, pa.ExtensionArray.from_storage(column.type, values)
    if pa.types.is_dictionary(column.type):
        try:
            column = column.unify_dictionaries()
        except pa.ArrowInvalid:  # too many values for the index type, or a null among them
            column = column.cast(column.type.value_type).dictionary_encode()
    else:
        column = column.dictionary_encode()
    if column.num_chunks == 0:
        return np.empty(0, np.int32), pa.array([], column.type.value_type)
    codes = [chunk.indices.cast(pa.int32()).fill_null(-1).to_numpy() for chunk in column.chunks]
    return np.concatenate(codes), column.chunk(0).dictionary


def joined(parts: Sequence[Coded]) -> Coded:
    """Returns several columns as one. A value can occur more than once in the result's `values`."""
    starts = np.cumsum([0, *(len(part.values) for part in parts)])
    codes = [
        np.where(part.codes < 0, -1, part.codes + start)
        for part, start in zip(parts, starts[:-1], strict=True)
    ]
    values = [value for part in parts for value in part.values]
    return Coded(values, np.concatenate([np.empty(0, np.int32), *codes]).astype(np.int32))


class Codebook:
    """Builds a `Coded` column from batches of Python values."""

    def __init__(self) -> None:
        self._book: dict[Any, int] = {}
        self._originals: dict[Any, Any] = {}
        """Values that cannot be keys of a dict, such as lists, by their keys in the book."""
        self._batches: list[Codes] = []

    def add(self, values: Iterable[Any]) -> None:
        book, rows = self._book, list(values)
        try:
            codes = [-1 if value is None else book.setdefault(value, len(book)) for value in rows]
        except TypeError:  # some value is a list or a dict
            keys = [_hashable(value) for value in rows]
            codes = [-1 if key is None else book.setdefault(key, len(book)) for key in keys]
            for key, value in zip(keys, rows, strict=True):
                if key is not value:
                    self._originals.setdefault(key, value)
        self._batches.append(np.array(codes, dtype=np.int32))

    def coded(self) -> Coded:
        values = list(self._book)
        if self._originals:
            values = [self._originals.get(key, key) for key in values]
        return Coded(values, np.concatenate([np.empty(0, np.int32), *self._batches]))


def _hashable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value), *map(_hashable, value)
    return value if isinstance(value, Hashable) else (type(value), str(value))


# Problems


def shown(value: object, width: int = 60) -> str:
    """Returns a value as text for a message: texts are quoted, and long ones are cut to `width`."""
    text = repr(value) if isinstance(value, str | bytes) else str(value)
    return text if len(text) <= width else text[: width - 1] + "…"


@dataclass(frozen=True)
class Fault:
    """A kind of faulty value. `message` may use {name} (the column in words), {value} and {type}."""

    message: str
    fix: str
    kind: str
    severity: Literal["error", "warning"] = "error"

    def problem(
        self, row: int, value: object, name: str, locate: Locate, more: int, shown_as: str | None = None
    ) -> Problem:
        """Returns a problem that shows the faulty value of `row`. `more` is the number of further ones."""
        told = shown(value) if shown_as is None else shown_as
        message = self.message.format(name=name, value=told, type=type(value).__name__)
        where, line = locate(row)
        return Problem(self.kind, where, message, self.fix, line, str(value), more, self.severity)

    def of_rows(self, rows: npt.NDArray[np.intp], column: Coded, name: str, locate: Locate) -> Problem:
        """Returns a problem that shows the first of the faulty `rows` of a column and counts the others."""
        code = column.codes[rows[0]]
        return self.problem(
            int(rows[0]), "" if code < 0 else column.values[code], name, locate, len(rows) - 1
        )


# Ids

_MISSING_ID = Fault("{name} is empty", "Fill it in or remove the row", "missing-id")
_BROKEN_ID = Fault(
    "{name} holds bytes that are not UTF-8 text: {value}",
    "Store the ids as UTF-8 text or as whole numbers",
    "broken-utf8",
)
_NUL_ID = Fault(
    "{name} holds a NUL byte: {value}",
    "Export the data again; a NUL byte is a sign of a damaged copy",
    "nul-byte",
)
_BAD_ID_TYPE = Fault(
    "{name} holds {value}, a {type}; an id is text, a whole number or a UUID",
    "Convert the column to text or whole numbers, or name the right column",
    "bad-id-type",
)
_SPACED_ID = Fault(
    "{name} holds {value}, with a space at its start or end: without the space it is a different id",
    "Trim the ids if the space is a mistake",
    "id-with-spaces",
    "warning",
)
_DESCRIBED_TWICE = Fault(
    "{name} {value} is described a second time; only the first description counts",
    "Keep one row for each id",
    "duplicate-catalogue-id",
    "warning",
)


def read_column(
    column: Coded, name: str, locate: Locate, in_words: str
) -> tuple[Coded | None, list[Problem]]:
    """Check a column and convert its values: ids to text, prices to numbers, and so on.

    `in_words` is the column's name in messages. Returns the converted column (None if a value is an error),
    and the problems.
    """
    values: list[Any] = []
    faulty: dict[Fault, list[int]] = defaultdict(list)
    for position, value in enumerate(column.values):
        converted, fault = _read_detail(name, value) if name in _DETAILS else _read_id(value)
        values.append(converted)
        if fault:
            faulty[fault].append(position)
    if name not in _DETAILS and (column.codes < 0).any():
        faulty[_MISSING_ID].append(-1)
    rows = {}
    for fault, positions in faulty.items():
        is_faulty = np.zeros(len(column.values) + 1, dtype=bool)
        is_faulty[positions] = True
        rows[fault] = np.flatnonzero(is_faulty[column.codes])
    in_order = sorted(rows, key=lambda fault: int(rows[fault][0]))
    problems = [fault.of_rows(rows[fault], column, in_words, locate) for fault in in_order]
    if any(problem.severity == "error" for problem in problems):
        return None, problems
    if name in _DETAILS:
        return Coded(values, column.codes), problems
    # Different values may give the same text, such as 1 and '1': they are one id.
    distinct = {text: code for code, text in enumerate(dict.fromkeys(values))}
    merged = np.array([distinct[text] for text in values], dtype=np.int32)
    return Coded(list(distinct), merged[column.codes]), problems


def _read_id(value: Any) -> tuple[str, Fault | None]:
    """Returns an id as text, and its fault, if any."""
    if value is None:
        return "", _MISSING_ID
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return "", _BROKEN_ID
    if isinstance(value, str):
        if not value or value.isspace():
            return value, _MISSING_ID
        if "\0" in value:
            return value, _NUL_ID
        return value, _SPACED_ID if value[0].isspace() or value[-1].isspace() else None
    if isinstance(value, int | UUID) and not isinstance(value, bool):
        return str(value), None
    if isinstance(value, float | Decimal):  # a missing value in a column turns its whole numbers into floats
        if math.isnan(value):
            return "", _MISSING_ID
        exact = math.isfinite(value) and (isinstance(value, Decimal) or abs(value) < _EXACT_FLOATS)
        if exact and value == int(value):
            return str(int(value)), None
    return "", _BAD_ID_TYPE


def duplicates(ids: Coded, in_words: str, locate: Locate) -> list[Problem]:
    """Returns a warning if a catalogue describes an id more than once. `in_words` is as in `read_column`."""
    _, first_rows = np.unique(ids.codes, return_index=True)
    repeated = np.setdiff1d(np.arange(len(ids.codes)), first_rows)
    return [_DESCRIBED_TWICE.of_rows(repeated, ids, in_words, locate)] if repeated.size else []


# Details of the catalogue

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def _title(value: Any) -> str | None:
    text = decoded(_text(value))
    return text if text.strip() else None


def _event(value: Any) -> str | None:
    """Returns the name of a type of event. Numbers are names, too."""
    if isinstance(value, float | Decimal) and value == value // 1:
        value = int(value)
    return _text(value).strip() or None


def _image(value: Any) -> str | None:
    address = _text(value).strip()
    if address and fault_of_image(address) is not None:
        raise ValueError
    return address or None


def _tags(value: Any) -> list[str] | None:
    found = tags_of(value.decode() if isinstance(value, bytes) else value)
    return [tag for text in found if (tag := decoded(text).strip())] or None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _number(value: Any, highest: float = sys.float_info.max) -> float | None:
    """Returns a number from 0 to `highest`, or None for an empty value; raises `ValueError` for others."""
    if isinstance(value, str):
        text = value.strip()
        if not text:
            return None
        if not _NUMBER.fullmatch(text):
            raise ValueError
        value = float(text)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError  # noqa: TRY004 - callers treat every faulty value alike
    if math.isnan(value):
        return None
    if not 0 <= value <= highest:
        raise ValueError
    return float(value)


def _amount(value: Any) -> float | None:
    return _number(value, 1e12)  # the most that the API takes, too


def _stock(value: Any) -> int | None:
    stock = _number(value)
    if stock is not None and (stock != int(stock) or stock >= 2**63):
        raise ValueError
    return None if stock is None else int(stock)


_BROKEN_TEXT = Fault("{name} is {value}; expected text in UTF-8", "Store the text as UTF-8", "broken-utf8")
_BAD_AMOUNT = Fault(
    "{name} is {value}; expected a number from 0 to 1,000,000,000,000",
    "Write it without a currency sign, with a point for the decimals; leave it empty if it is not known",
    "bad-number",
)
_DETAILS: Mapping[str, tuple[Callable[[Any], Any], Fault]] = {
    "title": (_title, _BROKEN_TEXT),
    "tags": (
        _tags,
        Fault(
            "{name} is {value}, which is not read; "
            "expected a list of texts, or one text separated by | ; or ,",
            'Write it as ["Action", "Role play"] or as Action;Role play, or leave it: then there are no tags',
            "unread-tags",
            "warning",
        ),
    ),
    "description": (_title, _BROKEN_TEXT),
    "event": (_event, _BROKEN_TEXT),
    "price": (_amount, _BAD_AMOUNT),
    "cost": (_amount, _BAD_AMOUNT),
    "image_url": (
        _image,
        Fault(
            "{name} is {value}; expected the address of an image",
            "Write https://HOST/PATH, or /PATH for a file at the address of the service; leave it empty if "
            "there is none",
            "bad-url",
        ),
    ),
    "stock": (
        _stock,
        Fault(
            "{name} is {value}; expected a whole number, 0 or more",
            "Write how many can be sold; leave it empty if it is not known",
            "bad-number",
        ),
    ),
    "discount": (
        partial(_number, highest=1),
        Fault(
            "{name} is {value}; expected a fraction from 0 to 1",
            "Write 20% off as 0.2; leave it empty if it is not known",
            "bad-number",
        ),
    ),
}
"""For each column: the function that reads a value, and the fault of a value for which it raises."""


def _read_detail(name: str, value: Any) -> tuple[Any, Fault | None]:
    """Returns a value of a catalogue, and its fault, if any."""
    parse, fault = _DETAILS[name]
    try:
        return None if value is None else parse(value), None
    except UnicodeDecodeError:
        return None, _BROKEN_TEXT
    except ValueError:
        return None, fault


def align(
    columns: Mapping[str, Coded], facts: Mapping[str, pa.Array], vocabulary: Vocabulary, schema: pa.Schema
) -> pa.Table:
    """Returns the checked columns of a catalogue as a table of this schema, in the order of a vocabulary.

    `facts` are columns with one value for each row. If an id has several descriptions, the first is used.
    Values that the catalogue lacks are null.
    """
    ids = columns[schema.names[0]]
    positions, first_rows = np.unique(vocabulary.positions(ids.values)[ids.codes], return_index=True)
    aligned: dict[str, Any] = {schema.names[0]: vocabulary.to_arrow()}
    for field in list(schema)[1:]:
        if field.name in facts:
            rows = np.full(len(vocabulary), -1)
            rows[positions] = first_rows
            aligned[field.name] = facts[field.name].take(pa.array(rows, mask=rows < 0)).cast(field.type)
            continue
        values: Sequence[Any] = ()
        codes = np.full(len(vocabulary), -1, np.int32)
        if field.name in columns:
            values = columns[field.name].values
            codes[positions] = columns[field.name].codes[first_rows]
        aligned[field.name] = pa.array(values, field.type).take(pa.array(codes, mask=codes < 0))
    return pa.table(aligned, schema=schema)
