"""Reads the files of a table with Arrow: CSV and TSV, also gzipped, and Parquet.

If Arrow fails on a text file, a slow scan finds every faulty line. A table in Parquet is one file, or a
folder of files that may have been written separately.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from bundlemage.errors import DataError, Problem, collected
from bundlemage.readers.assemble import TableData
from bundlemage.readers.columns import TABLES, Columns, has_ids, resolve
from bundlemage.readers.facts import FACTS
from bundlemage.readers.places import TableFile, TableFiles, empty_file, unreadable
from bundlemage.readers.values import Coded, Locate, encode, joined, shown

BLOCK_BYTES = 16 << 20
_AFTER_END = "\0end"
"""A line that is added at the end. If a quoted field is never closed, the line becomes a part of it."""
_TEXTS = (pa.string(), pa.large_string())
_DICTIONARY = pa.dictionary(pa.int32(), pa.string())
_DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class _FaultyTextError(ValueError):
    """The file has a NUL byte, or a quoted field that is never closed. Arrow reports neither."""

    def __init__(self, line: int = 0) -> None:
        super().__init__("there is a NUL byte, or a quote is never closed")
        self.line = line


def read_table(table: str, source: TableFiles) -> TableData:
    """Returns one table; raises `DataError` with the problems of all its files."""
    problems: list[Problem] = []
    found: list[Columns] = []
    parts: list[pa.Table] = []
    for file in source.files:
        with collected(problems):
            parts.append(
                pa.concat_tables(batches(table, file, found))
                if file.is_parquet
                else _read_text(table, file, found)
            )
    problems = same_fault_once([*(problem for columns in found for problem in columns.problems), *problems])
    if len(parts) < len(source.files):
        raise DataError(problems)
    columns: dict[str, Coded] = {}
    facts: dict[str, list[pa.Array]] = {}
    for name in dict.fromkeys(name for part in parts for name in part.column_names):
        if name in FACTS:
            facts[name] = [chunk for part in parts for chunk in _column_of(name, part).chunks]
            continue
        with collected(problems):
            if name not in TABLES[table]:
                _check_types(name, source.files, parts)
            columns[name] = _joined_column(name, parts)
    if any(problem.severity == "error" for problem in problems):
        raise DataError(problems)
    locate = locator(source, [part.num_rows for part in parts])
    aliases = {
        column: name
        for column, name in found[0].aliases.items()
        if all(other.aliases.get(column) == name for other in found)
    }
    return TableData(source.where, columns, locate, facts, tuple(problems), aliases)


def batches(table: str, file: TableFile, found: list[Columns], rows: float = math.inf) -> Iterator[pa.Table]:
    """Yields pieces of a table. Its columns have their canonical names.

    Adds the columns of the file to `found`, with what there is to say about them, such as which are not used.
    `rows` is the maximum number of rows in a piece of a Parquet file, but a piece has at least one row group.
    By default there is one piece. Raises `DataError` if the file cannot be read or lacks a column. A faulty
    text file may raise any exception, also after the first pieces; `read_table` then reports the cause.
    """
    if file.is_parquet:
        return _parquet_batches(table, file, found, rows)
    return _text_batches(table, file, found)


def locator(source: TableFiles, rows: Sequence[int]) -> Locate:
    """Returns a function that finds the file and line of a row. `rows` are the sizes of the files."""
    firsts = np.cumsum([0, *rows])

    def locate(row: int) -> tuple[str, int]:
        number = int(np.searchsorted(firsts, row, side="right")) - 1
        file, row = source.files[number], row - int(firsts[number])
        # In a text file, the rows follow the header and may have several lines.
        return file.where, row + 1 if file.is_parquet else next(islice(_records(file), row + 1, None)).line

    return locate


def same_fault_once(problems: Iterable[Problem]) -> list[Problem]:
    """Returns one problem, with a count, for all files with the same fault; one each for damaged files."""
    first: dict[tuple[str, ...], Problem] = {}
    for problem in problems:
        key = (problem.kind, problem.message, *([problem.where] if problem.kind == "bad-parquet" else []))
        first[key] = replace(first[key], more=first[key].more + 1) if key in first else problem
    return list(first.values())


def _joined_column(name: str, parts: Sequence[pa.Table]) -> Coded:
    """Returns a column joined from all parts. It is null in the rows of parts that lack it."""
    columns = [_column_of(name, part) for part in parts]
    if len({column.type for column in columns}) == 1:
        chunks = [chunk for column in columns for chunk in column.chunks]
        return encode(pa.chunked_array(chunks, columns[0].type))
    return joined([encode(column) for column in columns])


def _column_of(name: str, part: pa.Table) -> pa.ChunkedArray:
    return part[name] if name in part.column_names else pa.chunked_array([pa.nulls(part.num_rows)])


def _check_types(name: str, files: Sequence[TableFile], parts: Sequence[pa.Table]) -> None:
    """Raises `DataError` if the types of a catalogue column in different files cannot be joined."""
    kind, first = None, ""
    for file, part in zip(files, parts, strict=True):
        if name not in part.column_names:
            continue
        file_type = part.schema.field(name).type
        file_type = file_type.value_type if pa.types.is_dictionary(file_type) else file_type
        kind, first = kind or file_type, first or file.where
        try:
            both = [pa.schema([(name, each)]) for each in (kind, file_type)]
            kind = pa.unify_schemas(both, promote_options="permissive").field(name).type
        except pa.ArrowException:
            message = f"{name!r} is of type {file_type} here and of type {kind} in {first}"
            fix = "Write it in one type in all files"
            raise DataError.of("mixed-types", file.where, message, fix) from None


# Parquet


def _parquet_batches(table: str, file: TableFile, found: list[Columns], rows: float) -> Iterator[pa.Table]:
    with _opened_parquet(file) as opened:
        resolved = resolve(table, opened.schema_arrow.names, file.where)
        found.append(resolved)
        positions = resolved.positions
        names = [opened.schema_arrow.names[position] for position in positions.values()]

        def piece(groups: list[int]) -> pa.Table:
            columns = opened.read_row_groups(groups, columns=names, use_threads=rows == math.inf)
            return columns.select(names).rename_columns(list(positions))

        groups: list[int] = []
        size = 0
        for group in range(opened.num_row_groups):
            group_rows = opened.metadata.row_group(group).num_rows
            if groups and size + group_rows > rows:
                yield piece(groups)
                groups, size = [], 0
            groups.append(group)
            size += group_rows
        yield piece(groups)


@contextmanager
def _opened_parquet(file: TableFile) -> Iterator[pq.ParquetFile]:
    """Open a file, with text columns as dictionaries; raises `DataError` if it is unreadable or damaged."""
    try:
        file.check()
        with file.open() as stream:  # an OSError of open() means that the file is not accessible, not damaged
            try:
                footer = pq.ParquetFile(stream)
                texts = [column.name for column in footer.schema_arrow if column.type in _TEXTS]
                yield pq.ParquetFile(stream, metadata=footer.metadata, read_dictionary=texts)
            except (pa.ArrowException, OSError) as error:
                raise DataError(_damaged(stream, file, error)) from error
    except OSError as error:
        raise DataError(unreadable(file.where, error)) from error


def _damaged(stream: BinaryIO, file: TableFile, error: Exception) -> Problem:
    stream.seek(0)
    starts_well = stream.read(4) == b"PAR1"
    stream.seek(max(file.size - 4, 0))
    ends_well = stream.read(4) == b"PAR1"
    message = f"the Parquet file is damaged ({str(error).splitlines()[0]})"
    if not starts_well:
        message = "this is not a Parquet file"
    elif not ends_well:
        message = "the Parquet file is cut short: its end is missing"
    return Problem("bad-parquet", file.where, message, "Copy or export it again")


# Text


def _read_text(table: str, file: TableFile, found: list[Columns]) -> pa.Table:
    """Returns a table, read from a text file on this machine; raises `DataError` with all its problems."""
    where = file.where
    try:
        try:
            return pa.concat_tables(_text_batches(table, file, found))
        except (UnicodeError, csv.Error, _FaultyTextError, pa.ArrowInvalid) as error:
            # Rows are checked only if the whole file is valid text.
            problems = list(_encoding_problems(file)) or list(_row_problems(file))
            raise DataError(problems or [unreadable(where, error)]) from error
    except EOFError as error:
        fix = "Copy or export it again"
        raise DataError.of("bad-gzip", where, "the gzip file is cut short", fix) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        message = f"this is not a valid gzip file ({error})"
        fix = "Compress it again, or drop .gz from the name if it is plain text"
        raise DataError.of("bad-gzip", where, message, fix) from error
    except OSError as error:
        raise DataError(unreadable(where, error)) from error


def _text_batches(table: str, file: TableFile, found: list[Columns]) -> Iterator[pa.Table]:
    """Yields pieces of a table. Its columns are dictionaries of strings; `FACTS` are strings."""
    if file.filesystem is not None:
        message = "text files are read from folders of this machine only"
        raise DataError.of("not-parquet", file.where, message, "Store the table as Parquet")
    file.check()
    header = next(_records(file), None)
    if header is None:
        raise DataError(empty_file(file.where))
    "".join(header.fields).encode()  # fails if a name is not UTF-8
    _check_delimiter(table, file, header)
    resolved = resolve(table, header.fields, file.where)
    found.append(resolved)
    positions = resolved.positions
    names = [str(position) for position in range(len(header.fields))]
    needed = [names[position] for position in positions.values()]
    empty_row = ("\n" + _delimiter(file).join(['""'] * len(names)) + "\n").encode()
    with _opened(file) as stream:
        pieces = arrow_csv.open_csv(
            _Guarded(stream, empty_row),
            arrow_csv.ReadOptions(column_names=names, skip_rows=header.last_line, block_size=BLOCK_BYTES),
            arrow_csv.ParseOptions(delimiter=_delimiter(file), newlines_in_values=True),
            arrow_csv.ConvertOptions(
                column_types={
                    names[position]: pa.string() if column in FACTS else _DICTIONARY
                    for column, position in positions.items()
                },
                include_columns=needed,
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
        raise _FaultyTextError  # the added row of empty fields became a part of an unclosed field
    yield last.slice(0, last.num_rows - 1)


class _Record(NamedTuple):
    """One row of a text file, with its first and last line: a quoted field may have line breaks."""

    line: int
    last_line: int
    fields: list[str]


def _delimiter(file: TableFile) -> str:
    return "\t" if ".tsv" in Path(file.path).suffixes else ","


def _opened(file: TableFile) -> IO[bytes]:
    if file.path.endswith(".gz"):
        return cast(IO[bytes], gzip.open(file.path))  # it behaves as a binary stream
    return Path(file.path).open("rb")


def _records(file: TableFile) -> Iterator[_Record]:
    """Yields the header, and then every row that is not blank.

    Bytes that are not UTF-8 become lone surrogates, which lets the scan continue. A quoted field that is
    never closed raises `_FaultyTextError`.
    """
    with _opened(file) as stream:
        text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
        rows = csv.reader(chain(text, [_AFTER_END]), delimiter=_delimiter(file))
        line = 1
        for fields in rows:
            if fields == [_AFTER_END]:
                return
            if fields and fields[-1].endswith(_AFTER_END):
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
        if space:
            # The file has ended. Add the row to this block: if the file is only a header without a line
            # break, the row begins with the missing one, and Arrow needs it in the header's block.
            data += self._rest[:space]
            self._rest = self._rest[space:]
        buffer[: len(data)] = data
        return len(data)


def _check_delimiter(table: str, file: TableFile, header: _Record) -> None:
    """Raises `DataError` if another delimiter would split a header of one field, or would find the columns
    with the ids that this one does not find."""
    delimiter, where = _delimiter(file), file.where
    line = delimiter.join(header.fields)
    others = [mark for mark in _DELIMITERS if mark != delimiter and mark in line]
    if len(header.fields) > 1:
        missing = not has_ids(table, header.fields)
        others = [mark for mark in others if missing and has_ids(table, line.split(mark))]
    if not others:
        return
    used = max(others, key=line.count)
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
        fix = "Export the data again; a NUL byte is a sign of a damaged copy"
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
        for record in _records(file):
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
        fix = "Correct the row; if a field contains a delimiter, put the field in double quotes"
        yield Problem("ragged-row", file.where, message, fix, first.line, value, len(ragged) - 1)
