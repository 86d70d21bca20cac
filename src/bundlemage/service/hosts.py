"""Finds the sender and the target of a request: its address, and its Host and Origin headers."""

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
    """Whether a host name or address (without a port) means this machine itself, such as localhost."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761: these names never leave the machine
        return True
    try:
        return ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def without_port(authority: str) -> str:
    """The host in `host` or `host:port`; an empty text if the form is invalid."""
    parts = _AUTHORITY.fullmatch(authority)
    return "" if parts is None else parts[1]


def trust_proxy(scope: MutableMapping[str, Any], headers: dict[bytes, bytes]) -> None:
    """Replace the address, scheme and host of a request by those in the X-Forwarded headers of a proxy.

    If a header has several values, only the last one is used. The proxy wrote that one; the caller may have
    invented the others.
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
    """Whether the browser's Origin header names this service, so that its own page sent the request.

    The scheme is ignored: behind a TLS proxy the browser sees https, and the service sees http.
    """
    _, separator, authority = origin.decode("latin-1").lower().partition("://")
    return bool(separator) and authority == asked_host(headers)


def was_forwarded(headers: Headers) -> bool:
    """Whether a header shows that a proxy forwarded the request."""
    return any(name in headers for name in _FORWARDED)


def caller_address(scope: Mapping[str, Any]) -> str:
    """The caller's address for rate limits. For IPv6 it is the /64 network, which one caller usually owns."""
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
