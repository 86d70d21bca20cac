"""Where a request comes from and where it was sent to: addresses, the Host and Origin headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
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


def asked_host(headers: Headers, trust_proxy: bool) -> str:
    """The host (and port) in the URL that the caller used."""
    forwarded = headers.get(b"x-forwarded-host") if trust_proxy else None
    return _last(forwarded or headers.get(b"host", b"")).lower()


def asked_scheme(scope: Mapping[str, Any], headers: Headers, trust_proxy: bool) -> str:
    """`http` or `https`, as the caller used it."""
    forwarded = headers.get(b"x-forwarded-proto") if trust_proxy else None
    return _last(forwarded) if forwarded else str(scope.get("scheme", "http"))


def is_own_origin(origin: bytes, headers: Headers, trust_proxy: bool) -> bool:
    """Whether, according to the browser, a page of this service sent the request.

    The scheme is ignored: behind a proxy with TLS it is http here and https in the browser.
    """
    _, separator, authority = origin.decode("latin-1").lower().partition("://")
    return bool(separator) and authority == asked_host(headers, trust_proxy)


def was_forwarded(headers: Headers) -> bool:
    """Whether a proxy says that it passed the request on."""
    return any(name in headers for name in _FORWARDED)


def caller_address(scope: Mapping[str, Any], headers: Headers, trust_proxy: bool) -> str:
    """The address whose requests are counted; for IPv6 the network, because a caller has 2^64 addresses.

    Behind a proxy it is the last address of X-Forwarded-For: the proxy wrote that one, and the caller may
    have invented those before it.
    """
    client = scope.get("client")
    address = str(client[0]) if client else "unknown"
    forwarded = headers.get(b"x-forwarded-for") if trust_proxy else None
    if forwarded:
        address = _last(forwarded)
    if ":" not in address:
        return address
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return parsed.exploded[:19]
    return str(getattr(parsed, "ipv4_mapped", parsed))


def _last(value: bytes) -> str:
    return value.decode("latin-1").rpartition(",")[2].strip()
