"""Counts the values in the pages of a Parquet file, without unpacking them.

The footer of a forged file may state fewer values than the pages contain. A reader of a column of lists
unpacks all values of the pages, whatever the footer states. So the values must be counted before that.
"""

from __future__ import annotations

import io
from typing import BinaryIO

TYPE, PACKED_BYTES = 1, 3
"""Numbers of fields of a page header."""
DATA_PAGE, DATA_PAGE_2 = 0, 3
VALUES_IN = {DATA_PAGE: 5, DATA_PAGE_2: 8}
"""Type of a page → the field that describes it. The first field in there is the number of values."""
LONGEST_HEADER = 2**14
MOST_FIELDS = 32
Fields = dict[int, "int | Fields"]


def values_in_pages(handle: BinaryIO, start: int, size: int) -> int:
    """The number of values in the pages of a column. Raises ValueError if a page header cannot be read."""
    count, end = 0, start + size
    while start < end:
        handle.seek(start)
        content = io.BytesIO(handle.read(LONGEST_HEADER))
        header = _struct(content)
        kind = header.get(TYPE)
        if isinstance(kind, int) and kind in VALUES_IN:
            described = header.get(VALUES_IN[kind])
            count += _size(described.get(1) if isinstance(described, dict) else None)
        start += content.tell() + _size(header.get(PACKED_BYTES))
    return count


def _size(value: int | Fields | None) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError("it has a page without a size")
    return value


# ── Thrift's compact protocol, as far as page headers use it ─────────────────────────────────────


def _struct(content: BinaryIO) -> Fields:
    """The fields of a struct by their numbers. Texts and other values that are no whole numbers are 0."""
    fields: Fields = {}
    number = 0
    while head := _bytes(content, 1)[0]:
        number = number + (head >> 4) if head >> 4 else _number(content)
        if number in fields or not 0 < number < MOST_FIELDS:  # readers do not agree on what that means
            raise ValueError("it has a page header with a wrong field")
        fields[number] = _value(content, head & 15)
    return fields


def _value(content: BinaryIO, kind: int) -> int | Fields:
    if kind in (1, 2):  # true and false
        return 0
    if kind in (4, 5, 6):
        return _number(content)
    if kind == 8:
        _bytes(content, _unsigned(content))
        return 0
    if kind == 12:
        return _struct(content)
    raise ValueError("it has a page header of an unknown kind")


def _number(content: BinaryIO) -> int:
    value = _unsigned(content)
    return value >> 1 if value % 2 == 0 else -(value >> 1) - 1


def _unsigned(content: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        part = _bytes(content, 1)[0]
        value |= (part & 127) << shift
        if part < 128:
            return value
    raise ValueError("it has a page header with a number that is too long")


def _bytes(content: BinaryIO, count: int) -> bytes:
    found = content.read(count)
    if len(found) != count:
        raise ValueError("it has a page header that does not end")
    return found
