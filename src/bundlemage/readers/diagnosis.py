"""What is wrong with a file that could not be read: the slow, exact search that runs only after a failure."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import BinaryIO

from bundlemage.errors import Problem
from bundlemage.readers.delimited import OpenQuoteError, Record, TextFile
from bundlemage.readers.ids import shown

_DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def empty_file(where: str) -> Problem:
    return Problem("empty-file", where, "the file is empty", "Export the data again")


def unreadable(where: str, error: Exception) -> Problem:
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
    return Problem(
        "unreadable",
        where,
        f"the file cannot be read: {reason}",
        "Check that it exists, that you may read it, and that it opens in another program",
    )


def not_a_file(where: str, what: str) -> Problem:
    return Problem(
        "not-a-file", where, f"{what} stands where a file should be", "Put the table there as a single file"
    )


def bad_gzip(where: str, error: Exception) -> Problem:
    if isinstance(error, EOFError):
        return Problem("bad-gzip", where, "the gzip file is cut short", "Copy or export it again")
    return Problem(
        "bad-gzip",
        where,
        f"this is not a sound gzip file ({error})",
        "Compress it again, or drop .gz from the name if it is plain text",
    )


def bad_parquet(stream: BinaryIO, size: int, where: str, error: Exception) -> Problem:
    stream.seek(0)
    starts_well = stream.read(4) == b"PAR1"
    stream.seek(max(size - 4, 0))
    ends_well = stream.read(4) == b"PAR1"
    if starts_well and not ends_well:
        message = "the Parquet file is cut short: its end is missing"
    elif not starts_well:
        message = "this is not a Parquet file"
    else:
        message = f"the Parquet file is damaged ({str(error).splitlines()[0]})"
    return Problem("bad-parquet", where, message, "Copy or export it again")


def wrong_delimiter(file: TextFile, header: Record, where: str) -> Problem | None:
    """A header that is one field as the file's name has it, and several by another delimiter."""
    if len(header.fields) > 1:
        return None
    line = header.fields[0]
    counts = {mark: line.count(mark) for mark in _DELIMITERS if mark != file.delimiter}
    found = max(counts, key=lambda mark: counts[mark])
    if not counts[found]:
        return None
    ending = {",": ".csv", "\t": ".tsv"}.get(found)
    packed = ".gz" if where.endswith(".gz") else ""
    rename = f", or name it {ending}{packed}" if ending else ""
    expected = _DELIMITERS[file.delimiter]
    return Problem(
        "wrong-delimiter",
        where,
        f"the columns are separated by {_DELIMITERS[found]}, not {expected}: {shown(line)}",
        f"Save it with {expected}{rename}",
        line=header.line,
        value=line,
    )


def text_problems(file: TextFile, where: str, error: Exception) -> list[Problem]:
    """Everything that is wrong with a text file that Arrow would not read."""
    problems = list(_encoding_problems(file, where))
    if not problems:  # where the bytes are not text, rows mean nothing
        problems = list(_row_problems(file, where))
    return problems or [unreadable(where, error)]


def _encoding_problems(file: TextFile, where: str) -> Iterator[Problem]:
    nul: list[tuple[int, bytes]] = []
    broken: list[tuple[int, bytes]] = []
    with file.open() as stream:
        for number, line in enumerate(stream, start=1):
            if number == 1 and line.startswith(_UTF16_MARKS):
                yield _utf16(where)
                return
            if b"\0" in line:
                nul.append((number, line))
            elif not _is_utf8(line):
                broken.append((number, line))
    if nul:
        line_number, line = nul[0]
        every_other = line.count(b"\0") * 3 > len(line)
        yield Problem(
            "nul-byte",
            where,
            f"there is a NUL byte in the line {_escaped(line)}",
            "Save the file as UTF-8; it looks like UTF-16"
            if every_other
            else "Export the data again; a NUL byte is the mark of a damaged copy",
            line=line_number,
            value=_escaped(line),
            more=len(nul) - 1,
        )
    if broken:
        line_number, line = broken[0]
        yield Problem(
            "broken-utf8",
            where,
            f"the line is not UTF-8 text: {_escaped(line)}",
            "Save the file as UTF-8; it is probably in Latin-1 or Windows-1252 now",
            line=line_number,
            value=_escaped(line),
            more=len(broken) - 1,
        )


def _utf16(where: str) -> Problem:
    return Problem(
        "broken-utf8",
        where,
        "the file is UTF-16, not UTF-8",
        "Save it as UTF-8 (in Excel: 'CSV UTF-8')",
        line=1,
    )


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _escaped(line: bytes) -> str:
    return shown(line.rstrip(b"\r\n")).removeprefix("b")


def _row_problems(file: TextFile, where: str) -> Iterator[Problem]:
    """Rows of the wrong length, or a quote that runs to the end of the file."""
    ragged: list[Record] = []
    expected = next_line = 0
    try:
        for record in file.records(guarded=True):
            expected = expected or len(record.fields)
            if len(record.fields) != expected:
                ragged.append(record)
            next_line = record.last_line + 1
    except csv.Error:  # a field beyond any sensible length
        yield _open_quote(where, next_line)
    except OpenQuoteError as error:
        yield _open_quote(where, error.line)
    if ragged:
        first = ragged[0]
        value = file.delimiter.join(first.fields)
        yield Problem(
            "ragged-row",
            where,
            f"{_fields(len(first.fields))} where the header has {expected}: {shown(value)}",
            "Correct the row; put a field that holds a delimiter in double quotes",
            line=first.line,
            value=value,
            more=len(ragged) - 1,
        )


def _fields(count: int) -> str:
    return f"{count} field{'' if count == 1 else 's'}"


def _open_quote(where: str, line: int) -> Problem:
    return Problem(
        "unclosed-quote",
        where,
        'a field opens with " and is never closed, so that the rest of the file is one field',
        'Close the quote; write a " inside a quoted field as ""',
        line=line,
    )
