"""Asking a web server for a file: which machines, which answers, and what a refusal means."""

from __future__ import annotations

import re
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from bundlemage.errors import BundleMageError

_TIMEOUT = 30.0


class DownloadError(BundleMageError):
    """A file could not be fetched, or is not the right one."""


class BrokeOffError(Exception):
    """Worth another try."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


class UnreachableError(BrokeOffError):
    """There was not even a connection."""


def ask(url: str, hosts: frozenset[str], headers: dict[str, str]) -> HTTPResponse:
    """The answer to a GET, if it is the file or a part of it."""
    request = Request(url, headers={"Accept-Encoding": "identity", "User-Agent": "bundlemage", **headers})
    try:
        response: HTTPResponse = build_opener(_Redirects(hosts)).open(request, timeout=_TIMEOUT)
    except HTTPError:
        raise
    except URLError as error:
        raise UnreachableError(words(error.reason)) from None
    except (OSError, HTTPException) as error:
        raise BrokeOffError(f"the connection failed ({words(error)})") from None
    if (packed := response.headers.get("Content-Encoding", "identity")) != "identity":
        response.close()
        raise DownloadError(f"{url}: the server packs the file ({packed}) though it was asked not to")
    if response.headers.get_content_type() == "text/html":
        response.close()
        raise DownloadError(
            f"{url}: a web page came instead of the file. Does the network ask to log in first?"
        )
    return response


def version(headers: Any) -> str:
    """What If-Range may be asked with: a weak ETag may name two files that differ in bytes."""
    tag = headers.get("ETag", "")
    return str(headers.get("Last-Modified", "") if not tag or tag.startswith("W/") else tag)


def whole_length(headers: Any) -> int | None:
    found = re.search(r"/(\d+)$", headers.get("Content-Range", "").strip())
    return int(found[1]) if found else None


def refusal(url: str, error: HTTPError) -> Exception:
    if error.code in (404, 410):
        return DownloadError(
            f"{url}: there is no such file ({error.code}). "
            "The publisher may have moved it; 'bundlemage data get list' names the pages to look at"
        )
    if error.code in (408, 416, 429) or error.code >= 500:
        after = error.headers.get("Retry-After", "")
        return BrokeOffError(f"the server answered {error.code}", float(after) if after.isdecimal() else 0.0)
    return DownloadError(f"{url}: the server answered {error.code} ({error.reason})")


def words(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return f"no answer in {_TIMEOUT:.0f} seconds"
    return (isinstance(reason, OSError) and reason.strerror) or str(reason) or type(reason).__name__


class _Redirects(HTTPRedirectHandler):
    """Follows only to the machines that are allowed, and never from https to anything else."""

    def __init__(self, hosts: frozenset[str]) -> None:
        self.hosts = hosts

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        check_address(newurl, self.hosts, came_from=req.full_url)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def check_address(url: str, hosts: frozenset[str], came_from: str = "") -> None:
    try:
        address = urlsplit(url)
        host = address.hostname
    except ValueError:
        raise DownloadError(f"{url}: this is no address") from None
    schemes = ("https",) if urlsplit(came_from).scheme == "https" else ("http", "https")
    if address.scheme in schemes and host in hosts:
        return
    sender = f"{came_from} sends on to {url}, which is refused: " if came_from else f"{url}: "
    raise DownloadError(f"{sender}only {' and '.join(schemes)} from {', '.join(sorted(hosts))} is fetched")
