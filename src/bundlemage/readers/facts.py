"""Checks and converts the columns that are numbers in every row: times, weights and vectors.

Their values hardly repeat, so they stay in Arrow and NumPy. Only a column that Arrow cannot convert as a
whole becomes Python objects: then each distinct value is read on its own, and the faulty ones are found.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bundlemage.data.events import DAY, EARLIEST, LATEST, UNDATED
from bundlemage.errors import Problem
from bundlemage.readers.values import Codebook, Fault, Locate, encode, shown

Chunk: TypeAlias = pa.Array | list[Any]
"""A piece of a column. It is a list if its values are of several types, which only a database returns."""
Numbers: TypeAlias = npt.NDArray[Any]
_Bad: TypeAlias = npt.NDArray[np.bool_]

FACTS = ("at", "weight", "vector")
"""The columns that this module reads."""
LARGEST_WEIGHT = 1e12
LARGEST_FLOAT = float(np.finfo(np.float32).max)
_UNITS = ((10**11, 10**6, 1), (10**14, 10**3, 1), (10**17, 1, 1), (2**63, 1, 10**3))
"""Numbers below the first column are seconds, milliseconds, microseconds or nanoseconds since 1970. The other
columns make them microseconds: multiply, then divide."""
_COMPACT_DATES = 19000101, 20991231
_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_EXACT = 2**53
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)

_BAD_TIME = Fault(
    "{name} is {value}; expected a date and time",
    "Write it as 2026-01-31T12:00:00Z or 2026-01-31, or as seconds or milliseconds since 1970; leave it "
    "empty if it is not known, or rename the column if it is something else",
    "bad-time",
)
_BAD_WEIGHT = Fault(
    "{name} is {value}; expected a number from 0 to 1,000,000,000,000",
    "Write how many or how much it was; a return is an event of a negative type, not a negative number. "
    "Rename the column if it is something else",
    "bad-weight",
)
_BAD_VECTOR = Fault(
    "{name} is {value}; expected a list of numbers",
    "Write it as [0.1, -0.2, 0.3], each vector with the same length and without NaN; leave it empty if there "
    "is none",
    "bad-vector",
)
_UNEVEN_VECTOR = Fault(
    "{name} holds {value}",
    "Make all vectors with the same model, so that they have the same length",
    "uneven-vectors",
)


def read_fact(name: str, chunks: Sequence[Chunk], locate: Locate, in_words: str) -> tuple[Any, list[Problem]]:
    """Check a column and convert its values. `in_words` is the column's name in messages.

    Returns times in microseconds since 1970, weights as floats (1 where the table has none), or vectors as an
    Arrow array of lists; None if a value is an error. Also returns the problems.
    """
    read, fault = _READERS[name]
    parts: list[Any] = []
    first, found, row = 0, 0, 0
    value: Any = None
    for chunk in chunks:
        part, bad = read(chunk)
        if bad is not None:
            rows = np.flatnonzero(bad)
            if not found:
                row, value = first + int(rows[0]), _value_at(chunk, int(rows[0]))
            found += len(rows)
        parts.append(part)
        first += len(chunk)
    if found:
        told = _vector_in_words(value) if name == "vector" else None
        return None, [fault.problem(row, value, in_words, locate, found - 1, told)]
    if name == "vector":
        return _even(parts, locate, in_words)
    return np.concatenate(parts) if parts else np.empty(0), []


def read_numbers(name: str, chunk: pa.Array) -> Numbers | None:
    """Returns a piece of a column of times or weights like `read_fact`; None if a value is an error."""
    numbers, bad = _READERS[name][0](chunk)
    return None if bad is not None else numbers


def _value_at(chunk: Chunk, row: int) -> Any:
    if isinstance(chunk, list):
        return chunk[row]
    try:
        return chunk[row].as_py()
    except (ValueError, OverflowError):  # a time or a text that Python cannot hold
        scalar = chunk[row]
        return scalar.cast(pa.binary()).as_py() if _is_text(chunk.type) else str(scalar)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _vector_in_words(value: Any) -> str:
    """Returns a faulty vector for a message: of a list, the first faulty number."""
    if isinstance(value, list | tuple):
        for place, number in enumerate(value, start=1):
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            if not is_number or not abs(number) <= LARGEST_FLOAT:
                return f"a list with {shown(number)} at place {place:,}"
    return shown(value)


def _plain(chunk: pa.Array) -> pa.Array:
    return chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk


def _by_value(
    chunk: Chunk, convert: Callable[[Any], Any], kind: type[np.generic], missing: Any
) -> tuple[Numbers, _Bad | None]:
    """Converts each distinct value on its own. `convert` raises `ValueError` for a value that is none."""
    if isinstance(chunk, list):
        book = Codebook()
        book.add(chunk)
        coded = book.coded()
    else:
        coded = encode(pa.chunked_array([chunk]))
    numbers = np.full(len(coded.values) + 1, missing, kind)
    bad = np.zeros(len(coded.values) + 1, bool)
    for place, value in enumerate(coded.values):
        try:
            converted = convert(value)
        except (ValueError, OverflowError):
            bad[place] = True
        else:
            numbers[place] = missing if converted is None else converted
    faulty = bad[coded.codes]
    return numbers[coded.codes], faulty if faulty.any() else None


def _of_dictionary(
    chunk: pa.DictionaryArray, read: Callable[[pa.Array], tuple[Numbers, _Bad | None]], missing: Any
) -> tuple[Numbers, _Bad | None]:
    """Converts only the distinct values, which Arrow stores apart from the rows."""
    numbers, bad = read(chunk.dictionary)
    codes = chunk.indices.cast(pa.int64()).fill_null(-1).to_numpy()
    numbers = np.append(numbers, np.array([missing], numbers.dtype))[codes]
    faulty = None if bad is None else np.append(bad, False)[codes]
    return numbers, faulty if faulty is not None and faulty.any() else None


# Times


def _times(chunk: Chunk) -> tuple[Numbers, _Bad | None]:
    """Returns microseconds since 1970, UNDATED where there is no time, and marks the values that are none."""
    if isinstance(chunk, pa.Array):
        chunk = _plain(chunk)
        if pa.types.is_dictionary(chunk.type):
            return _of_dictionary(chunk, _times, UNDATED)
        found = _times_of_arrow(chunk)
        if found is not None:
            return found
    return _by_value(chunk, _time, np.int64, UNDATED)


def _times_of_arrow(chunk: pa.Array) -> tuple[Numbers, _Bad | None] | None:
    """Converts a whole piece by its type; None if its values must be read one by one."""
    kind = chunk.type
    nulls = None if not chunk.null_count else chunk.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_null(kind):
        return np.full(len(chunk), UNDATED), None
    if pa.types.is_timestamp(kind):
        ticks = chunk.cast(pa.int64()).fill_null(0).to_numpy()
        each = {"s": 10**6, "ms": 10**3, "us": 1, "ns": 1}[kind.unit]
        return _within(ticks // 1000 if kind.unit == "ns" else ticks, each, nulls)
    if pa.types.is_date32(kind):
        return _within(chunk.cast(pa.int32()).cast(pa.int64()).fill_null(0).to_numpy(), DAY, nulls)
    if pa.types.is_date64(kind):
        return _within(chunk.cast(pa.int64()).fill_null(0).to_numpy(), 10**3, nulls)
    if pa.types.is_integer(kind):
        try:
            return _since_1970(chunk.cast(pa.int64()).fill_null(0).to_numpy(), nulls)
        except pa.ArrowInvalid:  # unsigned numbers beyond 2**63
            return None
    if pa.types.is_floating(kind):
        return _since_1970(chunk.cast(pa.float64()).fill_null(0).to_numpy(), nulls)
    if _is_text(kind):
        return _times_of_texts(chunk)
    return None


def _within(ticks: Numbers, each: int, nulls: _Bad | None) -> tuple[Numbers, _Bad | None]:
    bad = (ticks < EARLIEST // each) | (ticks >= LATEST // each)
    if nulls is not None:
        bad &= ~nulls
    times = np.where(bad, 0, ticks) * each
    if nulls is not None:
        times[nulls] = UNDATED
    return times, bad if bad.any() else None


def _since_1970(numbers: Numbers, nulls: _Bad | None) -> tuple[Numbers, _Bad | None]:
    """Converts seconds, milliseconds, microseconds or nanoseconds, whichever the size of a number says."""
    whole = np.issubdtype(numbers.dtype, np.integer)
    bad = ~np.isfinite(numbers) | (numbers <= -(2.0**63)) | (numbers >= 2.0**63)
    safe = np.where(bad, 0, numbers)
    bad |= _is_compact_date(safe)
    size = np.abs(safe)
    times = np.zeros(len(safe), np.int64)
    below = 0
    for above, times_it, over in _UNITS:
        chosen = (size >= below) & (size < above)
        below = above
        if not chosen.any():
            continue
        part = safe[chosen]
        if whole:
            times[chosen] = part * times_it // over
        else:
            times[chosen] = np.round(part * times_it / over).astype(np.int64)
    bad |= (times < EARLIEST) | (times >= LATEST)
    if nulls is not None:
        bad &= ~nulls
        times[nulls] = UNDATED
    return times, bad if bad.any() else None


def _is_compact_date(numbers: Numbers) -> Any:
    """Marks numbers such as 20260131. As seconds since 1970 they would be a day in August 1970."""
    first, last = _COMPACT_DATES
    month, day = numbers % 10_000 // 100, numbers % 100
    return (
        (numbers >= first)
        & (numbers <= last)
        & (month >= 1)
        & (month <= 12)
        & (day >= 1)
        & (day <= 31)
        & (day == np.floor(day))
    )


def _times_of_texts(chunk: pa.Array) -> tuple[Numbers, _Bad | None] | None:
    try:
        texts = pc.utf8_trim_whitespace(chunk)
    except pa.ArrowException:  # bytes that are no text
        return None
    empty = pc.equal(texts, "")
    if pc.any(empty).as_py():
        texts = pc.if_else(empty, None, texts)
    for kind in (pa.int64(), pa.float64(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            converted = texts.cast(kind)
        except pa.ArrowInvalid:
            continue
        if pa.types.is_floating(kind):
            largest = pc.max(pc.abs(converted)).as_py()
            if largest is not None and not largest < _EXACT:
                return None
        found = _times_of_arrow(converted)
        assert found is not None
        return found
    return None


def _time(value: Any) -> int | None:
    """Returns a time in microseconds since 1970, None for an empty text; raises `ValueError` for others."""
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, str):
        value = _parsed(value.strip())
    if value is None:
        return None
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            value = value.astimezone(UTC).replace(tzinfo=None)
        return _checked((value - _EPOCH) // _MICROSECOND)
    if isinstance(value, date):
        return _checked((value - _EPOCH.date()).days * DAY)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError  # noqa: TRY004 - callers treat every faulty value alike
    if isinstance(value, int) and abs(value) < 2**63:
        times, bad = _since_1970(np.array([value], np.int64), None)
    else:
        times, bad = _since_1970(np.array([value], np.float64), None)
    if bad is not None:
        raise ValueError
    return int(times[0])


def _parsed(text: str) -> datetime | int | float | None:
    if not text:
        return None
    if _WHOLE.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    if "-" not in text[1:]:  # such as 20260131T120000, or 12:30
        raise ValueError
    return datetime.fromisoformat(text)


def _checked(time: int) -> int:
    if not EARLIEST <= time < LATEST:
        raise ValueError
    return time


# Weights


def _weights(chunk: Chunk) -> tuple[Numbers, _Bad | None]:
    """Returns weights, 1 where there is none, and marks the values that are no weights."""
    if isinstance(chunk, pa.Array):
        chunk = _plain(chunk)
        if pa.types.is_dictionary(chunk.type):
            return _of_dictionary(chunk, _weights, 1.0)
        found = _weights_of_arrow(chunk)
        if found is not None:
            return found
    return _by_value(chunk, _weight, np.float64, 1.0)


def _weights_of_arrow(chunk: pa.Array) -> tuple[Numbers, _Bad | None] | None:
    kind = chunk.type
    if pa.types.is_null(kind):
        return np.ones(len(chunk)), None
    if _is_text(kind):
        try:
            texts = pc.utf8_trim_whitespace(chunk)
            chunk = pc.if_else(pc.equal(texts, ""), None, texts)
        except pa.ArrowException:  # bytes that are no text
            return None
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return None
    try:
        numbers = chunk.cast(pa.float64(), safe=False).fill_null(1).to_numpy()
    except pa.ArrowInvalid:
        return None
    bad = ~((numbers >= 0) & (numbers <= LARGEST_WEIGHT))
    return numbers, bad if bad.any() else None


def _weight(value: Any) -> float | None:
    """Returns a weight, or None for an empty text; raises `ValueError` for others."""
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, str):
        text = value.strip()
        if not text:
            return None
        if not _DECIMAL.fullmatch(text):
            raise ValueError
        value = float(text)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError  # noqa: TRY004 - callers treat every faulty value alike
    if not 0 <= value <= LARGEST_WEIGHT:
        raise ValueError
    return float(value)


# Vectors


def _vectors(chunk: Chunk) -> tuple[pa.ListArray, _Bad | None]:
    """Returns lists of 32-bit floats, null where there is none, and marks the values that are no vectors."""
    if isinstance(chunk, pa.Array):
        chunk = _plain(chunk)
        if _is_list(chunk.type) and _is_number(chunk.type.value_type):
            return _vectors_of_lists(chunk)
        values = chunk.cast(chunk.type.value_type) if pa.types.is_dictionary(chunk.type) else chunk
        chunk = values.to_pylist()
    vectors: list[Any] = []
    bad = np.zeros(len(chunk), bool)
    for row, value in enumerate(chunk):
        try:
            vectors.append(_vector(value))
        except (ValueError, OverflowError):  # a text that is no JSON is a ValueError, too
            vectors.append(None)
            bad[row] = True
    return pa.array(vectors, pa.list_(pa.float32())), bad if bad.any() else None


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _vectors_of_lists(chunk: pa.Array) -> tuple[pa.ListArray, _Bad | None]:
    null = chunk.is_null().to_numpy(zero_copy_only=False)
    lengths = pc.list_value_length(chunk).cast(pa.int64()).fill_null(0).to_numpy()
    values = chunk.flatten()  # without what lies below nulls
    missing = values.null_count
    numbers = values.cast(pa.float32(), safe=False)
    if missing:
        numbers = numbers.fill_null(math.nan)
    floats = numbers.to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    vectors = pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), pa.array(floats), mask=pa.array(null) if null.any() else None
    )
    bad = (lengths == 0) & ~null
    faulty = np.flatnonzero(~np.isfinite(floats))
    bad[np.searchsorted(offsets, faulty, side="right") - 1] = True
    return vectors, bad if bad.any() else None


def _vector(value: Any) -> list[float] | None:
    """Returns a vector, from a list of numbers or from text such as `[0.1, -0.2]`."""
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, str):
        value = json.loads(value) if value.strip() else None
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not value:
        raise ValueError
    numbers = [
        float(number)
        for number in value
        if isinstance(number, int | float | Decimal) and not isinstance(number, bool)
    ]
    if len(numbers) < len(value) or not all(abs(number) <= LARGEST_FLOAT for number in numbers):
        raise ValueError
    return numbers


def _lengths(vectors: pa.ListArray) -> npt.NDArray[np.int64]:
    lengths: npt.NDArray[np.int64] = pc.list_value_length(vectors).fill_null(0).to_numpy()
    return lengths


def _even(
    parts: Sequence[pa.ListArray], locate: Locate, in_words: str
) -> tuple[pa.ListArray | None, list[Problem]]:
    """Joins vectors. Returns a problem if they do not have the same length."""
    vectors = pa.concat_arrays(parts) if parts else pa.array([], pa.list_(pa.float32()))
    lengths = _lengths(vectors)
    given = np.flatnonzero(lengths)
    other = given[lengths[given] != lengths[given[0]]] if len(given) else given
    if not len(other):
        return vectors, []
    value = f"{lengths[other[0]]:,} numbers, but the first vector has {lengths[given[0]]:,}"
    return None, [_UNEVEN_VECTOR.problem(int(other[0]), "", in_words, locate, len(other) - 1, value)]


_READERS: Mapping[str, tuple[Callable[[Chunk], tuple[Any, _Bad | None]], Fault]] = {
    "at": (_times, _BAD_TIME),
    "weight": (_weights, _BAD_WEIGHT),
    "vector": (_vectors, _BAD_VECTOR),
}
"""For each column: the function that reads a piece of it, and the fault of a value that it marks."""
