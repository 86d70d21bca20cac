"""CSV and TSV files, gzipped or not: Arrow reads them, and a slow exact scan finds the line of a fault."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv as arrow_csv

BLOCK_BYTES = 16 << 20
_AFTER_END = "\0end"
"""A line added after the last one; a field that is still open there swallows it, and so is found out."""
_DICTIONARY = pa.dictionary(pa.int32(), pa.string())


class NulByteError(ValueError):
    """A NUL byte in a text file, which Arrow would let through."""


class OpenQuoteError(ValueError):
    """A quoted field that the end of the file cuts off."""

    def __init__(self, line: int = 0) -> None:
        super().__init__("a quote is never closed")
        self.line = line


@dataclass(frozen=True)
class Record:
    """One row of a text file; it may span several lines."""

    line: int
    last_line: int
    fields: list[str]


@dataclass(frozen=True)
class TextFile:
    """A delimited file and the few things its name says about it."""

    path: Path

    @property
    def delimiter(self) -> str:
        return "\t" if ".tsv" in self.path.suffixes else ","

    @property
    def is_gzip(self) -> bool:
        return self.path.suffix == ".gz"

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        with self.path.open("rb") as raw:
            if not self.is_gzip:
                yield raw
                return
            with closing(gzip.GzipFile(fileobj=raw)) as unpacked:
                yield unpacked  # type: ignore[misc]  # a binary stream in all but its declared type

    def records(self, guarded: bool = False) -> Iterator[Record]:
        """Every row that is not blank, the header first, with the lines it stands on.

        Bytes that are not UTF-8 come through as lone surrogates, so that a scan can go past them. A guarded
        scan raises `OpenQuoteError`, instead of giving the row, where a quoted field never ends.
        """
        with self.open() as stream:
            text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
            rows = csv.reader(chain(text, [_AFTER_END]), delimiter=self.delimiter)
            line = 1
            for fields in rows:
                if fields == [_AFTER_END]:
                    return
                if guarded and fields and fields[-1].endswith(_AFTER_END):
                    raise OpenQuoteError(line)
                if fields:
                    yield Record(line, rows.line_num, fields)
                line = rows.line_num + 1

    def line_of(self, row: int) -> int:
        """The line on which the n-th row after the header begins."""
        for number, record in enumerate(self.records(), start=-1):
            if number == row:
                return record.line
        raise IndexError(row)

    def read(self, header: Record, positions: list[int]) -> pa.Table:
        """The columns at these positions, as dictionaries of strings, under the names of the header."""
        names = [str(position) for position in range(len(header.fields))]
        wanted = [names[position] for position in positions]
        with self.open() as stream:
            table = arrow_csv.read_csv(
                _Guarded(stream, self._last_row(len(names))),
                read_options=arrow_csv.ReadOptions(
                    column_names=names, skip_rows=header.last_line, block_size=BLOCK_BYTES
                ),
                parse_options=arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(wanted, _DICTIONARY),
                    include_columns=wanted,
                    strings_can_be_null=False,  # an id may well read NA or null
                ),
            )
        return _without_last_row(table).rename_columns([header.fields[position] for position in positions])

    def _last_row(self, fields: int) -> bytes:
        return ("\n" + self.delimiter.join(['""'] * fields) + "\n").encode()


class _Guarded(io.RawIOBase):
    """A stream that refuses NUL bytes and adds a row of empty fields after its end.

    Arrow takes a quote that is never closed for a field that runs to the end of the file, and so swallows
    rows in silence. Such a field swallows the added row too, by which it is found out.
    """

    def __init__(self, stream: IO[bytes], last_row: bytes) -> None:
        self._stream = stream
        self._rest = last_row

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        if b"\0" in data:
            raise NulByteError
        space = len(buffer) - len(data)
        if space:  # the end: the added row joins the last block, since Arrow wants a header in one block
            data += self._rest[:space]
            self._rest = self._rest[space:]
        buffer[: len(data)] = data
        return len(data)


def _without_last_row(table: pa.Table) -> pa.Table:
    last = table.slice(table.num_rows - 1)
    if not table.num_rows or any(column[0].as_py() for column in last.columns):
        raise OpenQuoteError
    return table.slice(0, table.num_rows - 1)
