"""Reads CSV and TSV files, also gzipped, with Arrow. If Arrow fails, a slow scan finds every faulty line."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.csv as arrow_csv

from bundlemage.errors import DataError, Problem
from bundlemage.readers.assemble import TableData, resolve
from bundlemage.readers.places import TableFile, empty_file, unreadable
from bundlemage.readers.values import shown

BLOCK_BYTES = 16 << 20
_AFTER_END = "\0end"
"""A line that is added at the end. If a quoted field is never closed, the line becomes a part of it."""
_DICTIONARY = pa.dictionary(pa.int32(), pa.string())
_DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class _FaultyTextError(ValueError):
    """The file has a NUL byte, or a quoted field that is never closed. Arrow reports neither."""

    def __init__(self, line: int = 0) -> None:
        super().__init__("there is a NUL byte, or a quote is never closed")
        self.line = line


def read(table: str, file: TableFile) -> TableData:
    """Returns a table, read from a text file on this machine; raises `DataError` with all its problems."""
    where = file.where
    try:
        try:
            columns = pa.concat_tables(batches(table, file))
        except (UnicodeError, csv.Error, _FaultyTextError, pa.ArrowInvalid) as error:
            # Rows are checked only if all bytes are text.
            problems = list(_encoding_problems(file)) or list(_row_problems(file))
            raise DataError(problems or [unreadable(where, error)]) from error
        return TableData.from_arrow(table, where, columns, partial(locate, file))
    except EOFError as error:
        fix = "Copy or export it again"
        raise DataError.of("bad-gzip", where, "the gzip file is cut short", fix) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        message = f"this is not a valid gzip file ({error})"
        fix = "Compress it again, or drop .gz from the name if it is plain text"
        raise DataError.of("bad-gzip", where, message, fix) from error
    except OSError as error:
        raise DataError(unreadable(where, error)) from error


def batches(table: str, file: TableFile) -> Iterator[pa.Table]:
    """Yields pieces of a table. Its columns are dictionaries of strings and have their canonical names.

    A faulty file may raise any exception, also after the first pieces. `read` finds the cause and reports it.
    """
    if file.filesystem is not None:
        message = "text files are read from folders of this machine only"
        raise DataError.of("not-parquet", file.where, message, "Store the table as Parquet")
    file.check()
    header = next(_records(file), None)
    if header is None:
        raise DataError(empty_file(file.where))
    "".join(header.fields).encode()  # fails if a name is not UTF-8
    _check_delimiter(file, header)
    positions = resolve(table, header.fields, file.where)
    names = [str(position) for position in range(len(header.fields))]
    wanted = [names[position] for position in positions.values()]
    empty_row = ("\n" + _delimiter(file).join(['""'] * len(names)) + "\n").encode()
    with _opened(file) as stream:
        pieces = arrow_csv.open_csv(
            _Guarded(stream, empty_row),
            arrow_csv.ReadOptions(column_names=names, skip_rows=header.last_line, block_size=BLOCK_BYTES),
            arrow_csv.ParseOptions(delimiter=_delimiter(file), newlines_in_values=True),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(wanted, _DICTIONARY),
                include_columns=wanted,
                strings_can_be_null=False,  # an id may be NA or null
            ),
        )
        last = None
        for piece in pieces:
            if piece.num_rows:
                if last is not None:
                    yield last
                last = pa.Table.from_batches([piece]).rename_columns(list(positions))
    if last is None or any(column[-1].as_py() for column in last.columns):
        raise _FaultyTextError  # an open quote has swallowed the added row of empty fields
    yield last.slice(0, last.num_rows - 1)


def locate(file: TableFile, row: int) -> tuple[str, int]:
    """Returns the name of a text file, and the line where a row begins. Row 0 follows the header."""
    return file.where, next(islice(_records(file), row + 1, None)).line


class _Record(NamedTuple):
    """One row of a text file, with its first and last line: a quoted field may have line breaks."""

    line: int
    last_line: int
    fields: list[str]


def _delimiter(file: TableFile) -> str:
    return "\t" if ".tsv" in Path(file.path).suffixes else ","


@contextmanager
def _opened(file: TableFile) -> Iterator[IO[bytes]]:
    with file.open() as raw:
        if not file.path.endswith(".gz"):
            yield raw
            return
        with closing(gzip.GzipFile(fileobj=raw)) as unpacked:
            yield unpacked  # type: ignore[misc]  # it behaves as a binary stream; only its declared type differs


def _records(file: TableFile, guarded: bool = False) -> Iterator[_Record]:
    """Yields the header, and then every row that is not blank.

    Bytes that are not UTF-8 become lone surrogates, which lets the scan continue. If `guarded`, a quoted
    field that is never closed raises `_FaultyTextError`.
    """
    with _opened(file) as stream:
        text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
        rows = csv.reader(chain(text, [_AFTER_END]), delimiter=_delimiter(file))
        line = 1
        for fields in rows:
            if fields == [_AFTER_END]:
                return
            if guarded and fields and fields[-1].endswith(_AFTER_END):
                raise _FaultyTextError(line)
            if fields:
                yield _Record(line, rows.line_num, fields)
            line = rows.line_num + 1


class _Guarded(io.RawIOBase):
    """A stream that refuses NUL bytes and adds a row of empty fields at its end.

    If a quote is never closed, Arrow reads the rest of the file as one field and reports nothing. The added
    row is then missing from the result, which reveals the fault.
    """

    def __init__(self, stream: IO[bytes], last_row: bytes) -> None:
        self._stream = stream
        self._rest = last_row

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        if b"\0" in data:
            raise _FaultyTextError
        space = len(buffer) - len(data)
        if space:  # the file has ended. The added row joins its last block: Arrow needs a header in one block
            data += self._rest[:space]
            self._rest = self._rest[space:]
        buffer[: len(data)] = data
        return len(data)


def _check_delimiter(file: TableFile, header: _Record) -> None:
    """Raises `DataError` if the header has one field only, and another delimiter would split it."""
    line = header.fields[0]
    delimiter, where = _delimiter(file), file.where
    counts = {mark: line.count(mark) for mark in _DELIMITERS if mark != delimiter}
    used = max(counts, key=lambda mark: counts[mark])
    if len(header.fields) > 1 or not counts[used]:
        return
    ending = {",": ".csv", "\t": ".tsv"}.get(used)
    packed = ".gz" if where.endswith(".gz") else ""
    rename = f", or name it {ending}{packed}" if ending else ""
    expected = _DELIMITERS[delimiter]
    message = f"the columns are separated by {_DELIMITERS[used]}, not {expected}: {shown(line)}"
    fix = f"Save it with {expected}{rename}"
    raise DataError.of("wrong-delimiter", where, message, fix, header.line, line)


def _encoding_problems(file: TableFile) -> Iterator[Problem]:
    """Yields problems for NUL bytes and for lines that are not UTF-8."""
    nul: list[tuple[int, bytes]] = []
    broken: list[tuple[int, bytes]] = []
    with _opened(file) as stream:
        for number, line in enumerate(stream, start=1):
            if number == 1 and line.startswith(_UTF16_MARKS):
                fix = "Save it as UTF-8 (in Excel: 'CSV UTF-8')"
                yield Problem("broken-utf8", file.where, "the file is UTF-16, not UTF-8", fix, line=1)
                return
            if b"\0" in line:
                nul.append((number, line))
            elif line.decode(errors="ignore").encode() != line:
                broken.append((number, line))
    if nul:
        number, line = nul[0]
        message = f"there is a NUL byte in the line {_escaped(line)}"
        fix = "Export the data again; a NUL byte is the mark of a damaged copy"
        if line.count(b"\0") * 3 > len(line):
            fix = "Save the file as UTF-8; it looks like UTF-16"
        yield Problem("nul-byte", file.where, message, fix, number, _escaped(line), len(nul) - 1)
    if broken:
        number, line = broken[0]
        message = f"the line is not UTF-8 text: {_escaped(line)}"
        fix = "Save the file as UTF-8; it is probably in Latin-1 or Windows-1252 now"
        yield Problem("broken-utf8", file.where, message, fix, number, _escaped(line), len(broken) - 1)


def _escaped(line: bytes) -> str:
    return shown(line.rstrip(b"\r\n")).removeprefix("b")


def _row_problems(file: TableFile) -> Iterator[Problem]:
    """Yields problems for rows of the wrong length and for a quote that is never closed."""
    ragged: list[_Record] = []
    expected = next_line = open_quote = 0
    try:
        for record in _records(file, guarded=True):
            expected = expected or len(record.fields)
            if len(record.fields) != expected:
                ragged.append(record)
            next_line = record.last_line + 1
    except csv.Error:  # an extremely long field
        open_quote = next_line
    except _FaultyTextError as error:
        open_quote = error.line
    if open_quote:
        message = 'a field opens with " and is never closed, so that the rest of the file is one field'
        fix = 'Close the quote; write a " inside a quoted field as ""'
        yield Problem("unclosed-quote", file.where, message, fix, open_quote)
    if ragged:
        first = ragged[0]
        value, count = _delimiter(file).join(first.fields), len(first.fields)
        fields = f"{count} field{'' if count == 1 else 's'}"
        message = f"{fields} where the header has {expected}: {shown(value)}"
        fix = "Correct the row; put a field that holds a delimiter in double quotes"
        yield Problem("ragged-row", file.where, message, fix, first.line, value, len(ragged) - 1)
