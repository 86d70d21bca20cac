"""One file from a web server: resumed where it broke off, verified, and there only when it is whole.

What has come lies in FILE.part. FILE.part.json says from which address and of which version of the file, so
that two versions are never glued together, whenever the program was killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.parse import urlsplit

from bundlemage.data.folders import into_place, write_whole
from bundlemage.downloads.web import (
    BrokeOffError,
    DownloadError,
    UnreachableError,
    ask,
    check_address,
    refusal,
    version,
    whole_length,
    words,
)

PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each further try. What has come is kept, so that a later run can go on as well."""
LONGEST_PAUSE = 60.0
LARGEST = 2**30
"""A file without a known size is not read further than this."""
_BLOCK = 1 << 16


class Watcher:
    """Told what happens while a file comes. Does nothing; override what is of interest."""

    def on_bytes(self, done: int, total: int | None) -> None:
        """So many bytes of so many are there."""

    def on_pause(self, reason: str, seconds: float) -> None:
        """It broke off, and is tried again after so many seconds."""


@dataclass(frozen=True)
class Download:
    """What is wanted, from where, to where."""

    url: str
    target: Path
    hosts: frozenset[str]
    """No other machine is asked, whatever a redirect says."""
    size: int | None = None
    sha256: str | None = None

    @property
    def part(self) -> Path:
        return self.target.with_name(self.target.name + ".part")

    @property
    def begun(self) -> Path:
        return self.target.with_name(self.target.name + ".part.json")


class _WrongSumError(Exception):
    """Everything came, and it is something else."""

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found


def download(wanted: Download, watcher: Watcher | None = None, pauses: Sequence[float] = PAUSES) -> str:
    """Fetch the file, or the rest of it, into place; its SHA-256. A file there is replaced at the end."""
    check_address(wanted.url, wanted.hosts)
    watcher = watcher or Watcher()
    with _alone(wanted):
        resumed = _bytes_there(wanted) > 0
        try:
            found = _persistently(wanted, watcher, pauses)
        except _WrongSumError as wrong:
            # Of a download in two parts the first may have been damaged: once more, from the start.
            _forget(wanted)
            if not resumed:
                raise _not_the_file(wanted, wrong.found) from None
            try:
                found = _persistently(wanted, watcher, pauses)
            except _WrongSumError as again:
                _forget(wanted)
                raise _not_the_file(wanted, again.found) from None
        into_place(wanted.part, wanted.target)
        wanted.begun.unlink(missing_ok=True)
    return found


def sha256_of(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _persistently(wanted: Download, watcher: Watcher, pauses: Sequence[float]) -> str:
    for tries, pause in enumerate((*pauses, None), start=1):
        try:
            _receive(wanted, watcher, first=tries == 1)
        except BrokeOffError as fault:
            if pause is None:
                raise DownloadError(
                    f"{wanted.url}: {fault}; tried {tries} times. What has come is kept: "
                    "run the command again to go on from there"
                ) from None
            seconds = min(max(pause, fault.wait), LONGEST_PAUSE)
            watcher.on_pause(str(fault), seconds)
            time.sleep(seconds)
        else:
            break
    found = sha256_of(wanted.part)
    if wanted.sha256 not in (None, found):
        raise _WrongSumError(found)
    return found


def _receive(wanted: Download, watcher: Watcher, *, first: bool) -> None:
    """Bring the part to the file's full length, or raise."""
    done = _bytes_there(wanted)
    if done and done == wanted.size:
        return
    try:
        response = ask(wanted.url, wanted.hosts, _rest(wanted, done))
    except UnreachableError as error:
        # Who cannot be reached at all will not be in ten seconds; a server that broke off may well be.
        if not first:
            raise
        raise DownloadError(
            f"no network: {urlsplit(wanted.url).hostname} could not be reached ({error}); "
            f"fetch it by hand from {wanted.url} and put it into {wanted.target.parent}"
        ) from None
    except HTTPError as error:
        with error:
            if error.code == 416 and whole_length(error.headers) == done:
                return
            if error.code == 416:
                _forget(wanted)
            raise refusal(wanted.url, error) from None
    with response:
        if response.status == 206:
            _check_range(wanted, response, done)
        else:  # the server sends everything: there are no ranges, or the file is another one by now
            done = 0
            _begin(wanted, response)
        total = _total(wanted, response, done)
        watcher.on_bytes(done, total)
        with wanted.part.open("ab") as part:
            _store(response, part, done, total, watcher, wanted)


def _rest(wanted: Download, done: int) -> dict[str, str]:
    """Asks for what is missing of that version, and for all of any other."""
    return {"Range": f"bytes={done}-", "If-Range": _note(wanted)["version"]} if done else {}


def _store(
    response: HTTPResponse, part: IO[bytes], done: int, total: int | None, watcher: Watcher, wanted: Download
) -> None:
    while True:
        try:
            block = response.read1(_BLOCK)
        except (OSError, HTTPException) as error:
            raise BrokeOffError(f"the connection broke after {done:,} bytes ({words(error)})") from None
        if not block:
            break
        done += len(block)
        if done > (total if total is not None else LARGEST):
            part.close()
            _forget(wanted)
            raise DownloadError(f"{wanted.url}: more came than the {total or LARGEST:,} bytes expected")
        part.write(block)
        watcher.on_bytes(done, total)
    if total is not None and done < total:
        raise BrokeOffError(f"the connection broke after {done:,} of {total:,} bytes")


def _bytes_there(wanted: Download) -> int:
    """How much there is to go on from: nothing, if the server has no way to tell versions apart."""
    if not wanted.part.is_file():
        return 0
    note = _note(wanted)
    there = wanted.part.stat().st_size
    if note["url"] != wanted.url or not note["version"] or (wanted.size is not None and there > wanted.size):
        return 0
    return there


def _note(wanted: Download) -> dict[str, str]:
    try:
        note = json.loads(wanted.begun.read_text(encoding="utf-8"))
        return {"url": str(note["url"]), "version": str(note["version"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"url": "", "version": ""}  # whatever lies there, it says nothing of the part


def _begin(wanted: Download, response: HTTPResponse) -> None:
    """Start anew. The order matters: at no moment does a note stand beside a part it does not speak of."""
    _forget(wanted)
    note = {"url": wanted.url, "version": version(response.headers)}
    write_whole(wanted.begun, json.dumps(note).encode())
    wanted.part.touch()


def _forget(wanted: Download) -> None:
    wanted.part.unlink(missing_ok=True)
    wanted.begun.unlink(missing_ok=True)


def _check_range(wanted: Download, response: HTTPResponse, done: int) -> None:
    given = re.fullmatch(r"bytes (\d+)-\d+/(?:\d+|\*)", response.headers.get("Content-Range", "").strip())
    same = version(response.headers) in ("", _note(wanted)["version"])
    if not done or given is None or int(given[1]) != done or not same:
        _forget(wanted)
        raise BrokeOffError("the server went on with other bytes than were asked for")


def _total(wanted: Download, response: HTTPResponse, done: int) -> int | None:
    """The whole file's length. One that ends wherever the connection does could be cut short unseen."""
    total = whole_length(response.headers) if response.status == 206 else None
    if total is None and response.length is not None:
        total = done + response.length
    if wanted.size is not None and total not in (None, wanted.size):
        _forget(wanted)
        raise DownloadError(
            f"{wanted.url}: the file there has {total:,} bytes, the published one has {wanted.size:,}. "
            "It is not the same file"
        )
    if total is None and wanted.size is None and not response.chunked:
        raise DownloadError(f"{wanted.url}: the server does not say how long the file is; use another one")
    if total is not None and total > LARGEST:
        raise DownloadError(f"{wanted.url}: {total:,} bytes are more than any published file has")
    return wanted.size if total is None else total


def _not_the_file(wanted: Download, found: str) -> DownloadError:
    return DownloadError(
        f"{wanted.url}: what came is not the published file: its SHA-256 is {found}, expected was "
        f"{wanted.sha256}. It was thrown away. Try again, or another mirror"
    )


@contextmanager
def _alone(wanted: Download) -> Iterator[None]:
    """Two programs at one part would mix their bytes. The system takes the lock off whoever is killed."""
    wanted.target.parent.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":
        yield
        return
    import fcntl

    folder = os.open(wanted.target.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        raise DownloadError(f"{wanted.target.parent}: another program is fetching into this folder") from None
    except OSError:
        pass  # some network drives have no locks; there it is up to the user
    try:
        yield
    finally:
        os.close(folder)
