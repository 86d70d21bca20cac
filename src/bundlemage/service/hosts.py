"""Where a request comes from and where it was sent to: addresses, the Host and Origin headers."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Any

Headers = Mapping[bytes, bytes]
_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip")


@lru_cache(1024)
def is_loopback(host: str) -> bool:
    """Whether a host name or address, without a port, is this machine's own."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):  # by RFC 6761 these never leave the machine
        return True
    try:
        return ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def without_port(authority: str) -> str:
    """The host of `host:port`, or an empty text if it has another form."""
    parts = _AUTHORITY.fullmatch(authority)
    return "" if parts is None else parts[1]


def trust_proxy(scope: MutableMapping[str, Any], headers: dict[bytes, bytes]) -> None:
    """Take over what a proxy says about the caller's request: the address, the scheme and the host.

    If there are several values, the proxy wrote the last one; the caller may have invented those before it.
    """
    if forwarded := headers.get(b"x-forwarded-for"):
        scope["client"] = (_last(forwarded), 0)
    if scheme := headers.get(b"x-forwarded-proto"):
        scope["scheme"] = _last(scheme)
    if host := headers.get(b"x-forwarded-host"):
        headers[b"host"] = _last(host).encode("latin-1")


def asked_host(headers: Headers) -> str:
    """The host (and port) in the URL that the caller used."""
    return _last(headers.get(b"host", b"")).lower()


def is_own_origin(origin: bytes, headers: Headers) -> bool:
    """Whether, according to the browser, a page of this service sent the request.

    The scheme is ignored: behind a proxy with TLS it is http here and https in the browser.
    """
    _, separator, authority = origin.decode("latin-1").lower().partition("://")
    return bool(separator) and authority == asked_host(headers)


def was_forwarded(headers: Headers) -> bool:
    """Whether a proxy says that it passed the request on."""
    return any(name in headers for name in _FORWARDED)


def caller_address(scope: Mapping[str, Any]) -> str:
    """The address whose requests are counted; for IPv6 the network, because a caller has 2^64 addresses."""
    client = scope.get("client")
    address = str(client[0]) if client else "unknown"
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address)
    except ValueError:
        return address
    return parsed.exploded[:19] if parsed.ipv4_mapped is None else str(parsed.ipv4_mapped)


def _last(value: bytes) -> str:
    return value.decode("latin-1").rpartition(",")[2].strip()
