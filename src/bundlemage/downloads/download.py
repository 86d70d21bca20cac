"""Download one file: resume a broken download, verify the content, and never leave half a file in place.

The bytes received so far are in FILE.part. FILE.part.json records the URL and the version of the file they
belong to. So a killed program can resume later, and two versions of a file are never mixed.
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
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from bundlemage.data.folders import into_place, write_whole
from bundlemage.errors import BundleMageError
from bundlemage.progress import Progress, in_silence

PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds to wait before each further attempt."""
LONGEST_PAUSE = 60.0
LARGEST = 2**30
"""Maximum size of a file in bytes."""
_TIMEOUT = 30.0
_BLOCK = 1 << 16


class DownloadError(BundleMageError):
    """A file could not be downloaded, or is not the expected one."""


class _TemporaryError(Exception):
    """A failure after which another attempt may succeed."""

    def __init__(self, reason: str, wait: float = 0.0, *, unreachable: bool = False) -> None:
        """`wait`: seconds to wait, as the server asks. `unreachable`: no connection could be made."""
        super().__init__(reason)
        self.wait, self.unreachable = wait, unreachable


@dataclass(frozen=True)
class Download:
    """A file to download."""

    url: str
    target: Path
    hosts: frozenset[str]
    """The only hosts that may be contacted. Redirects to other hosts are refused."""
    size: int | None = None
    """The expected size in bytes; None: not known."""
    sha256: str | None = None
    """The expected SHA-256; None: not known, so the content is not verified."""

    @property
    def part(self) -> Path:
        """The file with the bytes received so far."""
        return self.target.with_name(self.target.name + ".part")

    @property
    def part_info(self) -> Path:
        """The file that records the URL and the version of the bytes in `part`."""
        return self.target.with_name(self.target.name + ".part.json")

    def forget(self) -> None:
        """Delete the bytes received so far."""
        self.part.unlink(missing_ok=True)
        self.part_info.unlink(missing_ok=True)


def download(file: Download, progress: Progress = in_silence, pauses: Sequence[float] = PAUSES) -> str:
    """Download a file, or the rest of it, and put it in place.

    `progress` is called with the bytes received so far, and with the reason if an attempt failed. `pauses`
    are the seconds to wait before each further attempt. An existing target is replaced only at the end.
    Returns the SHA-256 of the file. Raises `DownloadError` if all attempts fail or the file is a wrong one.
    """
    check_address(file.url, file.hosts)
    with _locked(file.target.parent):
        while True:
            resumed = _resumable_bytes(file) > 0
            _receive_all(file, progress, pauses)
            checksum = sha256_of(file.part)
            if file.sha256 in (None, checksum):
                break
            file.forget()
            if not resumed:
                raise DownloadError(
                    f"{file.url}: the download is not the published file: its SHA-256 is {checksum}, "
                    f"expected {file.sha256}. The download was deleted. Try again, or use another mirror"
                )
            # The bytes from an earlier run may be damaged: try once more from the start.
        into_place(file.part, file.target)
        file.part_info.unlink(missing_ok=True)
    return checksum


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file's content in hexadecimal."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _receive_all(file: Download, progress: Progress, pauses: Sequence[float]) -> None:
    """Download the rest of the part file, in several attempts with pauses."""
    for attempt, pause in enumerate((*pauses, None), start=1):
        try:
            _receive(file, progress)
        except _TemporaryError as failure:
            # If the first attempt does not reach the host, give up. A host that is lost later may come back.
            if failure.unreachable and attempt == 1:
                raise DownloadError(
                    f"no network: {urlsplit(file.url).hostname} could not be reached ({failure}); "
                    f"fetch the file by hand from {file.url} and put it into {file.target.parent}"
                ) from None
            if pause is None:
                raise DownloadError(
                    f"{file.url}: {failure}; tried {attempt} times. The bytes received so far are kept: "
                    "run the command again to resume"
                ) from None
            seconds = min(max(pause, failure.wait), LONGEST_PAUSE)
            progress("waiting", 1, 1, f"{failure}; trying again in {seconds:g} s")
            time.sleep(seconds)
        else:
            return


def _receive(file: Download, progress: Progress) -> None:
    """Make one attempt to complete the part file. Raises an error if it is still incomplete."""
    done = _resumable_bytes(file)
    if done and done == file.size:
        return
    # With If-Range, the server sends the rest of the same version, or the whole file if it has changed.
    resume = {"Range": f"bytes={done}-", "If-Range": _part_info(file)["version"]} if done else {}
    try:
        response = _request(file, resume)
    except HTTPError as error:
        with error:
            if error.code == 416 and _range(error.headers)[1] == done:
                return
            if error.code == 416:
                file.forget()
            raise _refusal(file.url, error) from None
    with response:
        version = _version(response.headers)
        if response.status != 206:  # the whole file: the server cannot send ranges, or the file has changed
            done = 0
            # The order of the steps matters: `part_info` never describes an older part.
            file.forget()
            write_whole(file.part_info, json.dumps({"url": file.url, "version": version}).encode())
            file.part.touch()
        elif (
            not done
            or _range(response.headers)[0] != done
            or version not in ("", _part_info(file)["version"])
        ):
            file.forget()
            raise _TemporaryError("the server did not send the requested part of the file")
        _store(file, response, done, progress)


def _store(file: Download, response: HTTPResponse, done: int, progress: Progress) -> None:
    """Append the content of the response to the part file."""
    total = _total(file, response, done)
    progress("bytes", done, total or 0)
    with file.part.open("ab") as part:
        while True:
            try:
                block = response.read1(_BLOCK)
            except (OSError, HTTPException) as error:
                reason = f"the connection broke after {done:,} bytes ({_reason(error)})"
                raise _TemporaryError(reason) from None
            if not block:
                break
            done += len(block)
            if done > (total if total is not None else LARGEST):
                part.close()
                file.forget()
                raise DownloadError(
                    f"{file.url}: the server sent more than the {total or LARGEST:,} bytes expected"
                )
            part.write(block)
            progress("bytes", done, total or 0)
    if total is not None and done < total:
        raise _TemporaryError(f"the connection broke after {done:,} of {total:,} bytes")


def _resumable_bytes(file: Download) -> int:
    """Returns the number of reusable bytes in the part file; 0 if they are from another URL or version."""
    if not file.part.is_file():
        return 0
    info, size = _part_info(file), file.part.stat().st_size
    if info["url"] != file.url or not info["version"] or (file.size is not None and size > file.size):
        return 0
    return size


def _part_info(file: Download) -> dict[str, str]:
    try:
        info = json.loads(file.part_info.read_text(encoding="utf-8"))
        return {"url": str(info["url"]), "version": str(info["version"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"url": "", "version": ""}  # damaged or missing: the part cannot be used


def _total(file: Download, response: HTTPResponse, done: int) -> int | None:
    """Returns the length of the whole file; None if it is unknown, as in a chunked response."""
    total = _range(response.headers)[1] if response.status == 206 else None
    if total is None and response.length is not None:
        total = done + response.length
    if file.size is not None and total not in (None, file.size):
        file.forget()
        raise DownloadError(
            f"{file.url}: the file there has {total:,} bytes, the published one has {file.size:,}. "
            "It is not the same file"
        )
    if total is None and file.size is None and not response.chunked:
        # If the connection ended too early, the file would be cut off without any sign.
        raise DownloadError(f"{file.url}: the server does not say how long the file is; use another server")
    if total is not None and total > LARGEST:
        raise DownloadError(f"{file.url}: the file has {total:,} bytes, more than any published file")
    return file.size if total is None else total


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one program at a time download into a folder. The system frees the lock of a killed program."""
    folder.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise DownloadError(f"{folder}: another program is downloading into this folder") from None
    except OSError:
        pass  # some network drives have no locks
    try:
        yield
    finally:
        os.close(handle)


# Requests and responses


def _request(file: Download, headers: dict[str, str]) -> HTTPResponse:
    """Send a GET request. Returns the response; raises an error if it is not the plain file."""
    request = Request(
        file.url, headers={"Accept-Encoding": "identity", "User-Agent": "bundlemage", **headers}
    )
    try:
        response: HTTPResponse = build_opener(_Redirects(file.hosts)).open(request, timeout=_TIMEOUT)
    except HTTPError:
        raise
    except URLError as error:
        raise _TemporaryError(_reason(error.reason), unreachable=True) from None
    except (OSError, HTTPException) as error:
        raise _TemporaryError(f"the connection failed ({_reason(error)})") from None
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding == "identity" and response.headers.get_content_type() != "text/html":
        return response
    response.close()
    problem = "the server sent a web page instead of the file. Does the network require a login?"
    if encoding != "identity":
        problem = f"the server sends the file compressed ({encoding}), which was not requested"
    raise DownloadError(f"{file.url}: {problem}")


def _version(headers: Any) -> str:
    """Returns the version of the file for If-Range. A weak ETag is not used: two files may share it."""
    tag = headers.get("ETag", "")
    return str(headers.get("Last-Modified", "") if not tag or tag.startswith("W/") else tag)


def _range(headers: Any) -> tuple[int | None, int | None]:
    """Returns the first byte and the total length from Content-Range; None for a missing value."""
    parts = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(?:(\d+)|\*)", headers.get("Content-Range", "").strip())
    start, whole = parts.groups() if parts else (None, None)
    return int(start) if start else None, int(whole) if whole else None


def _refusal(url: str, error: HTTPError) -> Exception:
    """Returns the exception for an HTTP error status."""
    if error.code in (404, 410):
        return DownloadError(
            f"{url}: there is no such file ({error.code}). "
            "The publisher may have moved it; 'bundlemage data get list' names the pages to look at"
        )
    if error.code in (408, 416, 429) or error.code >= 500:
        wait = error.headers.get("Retry-After", "")
        return _TemporaryError(f"the server answered {error.code}", float(wait) if wait.isdecimal() else 0.0)
    return DownloadError(f"{url}: the server answered {error.code} ({error.reason})")


def _reason(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {_TIMEOUT:.0f} seconds"
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


class _Redirects(HTTPRedirectHandler):
    """Follows redirects to allowed hosts only, and never from https to http."""

    def __init__(self, hosts: frozenset[str]) -> None:
        self.hosts = hosts

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        check_address(newurl, self.hosts, came_from=req.full_url)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def check_address(url: str, hosts: frozenset[str], came_from: str = "") -> None:
    """Raise `DownloadError` unless `url` is http or https on one of `hosts`.

    `came_from` is the URL that redirected to `url`. A redirect from https to http is refused.
    """
    try:
        address = urlsplit(url)
        host = address.hostname
    except ValueError:
        raise DownloadError(f"{url}: this is not a URL") from None
    schemes = ("https",) if urlsplit(came_from).scheme == "https" else ("http", "https")
    if address.scheme in schemes and host in hosts:
        return
    sender = f"{came_from} redirects to {url}, which is refused: " if came_from else f"{url}: "
    raise DownloadError(f"{sender}only {' and '.join(schemes)} from {', '.join(sorted(hosts))} is allowed")
