"""Reads the paths of requests, so that a slash inside an id is not mistaken for the end of the id.

The server decodes `/v1/users/a%2Fbundles` to `/v1/users/a/bundles`, which is the path of another route. So
the path is split before it is decoded. Inside a part, a slash is replaced by a character that no valid UTF-8
text contains. A line break is replaced, too, because the framework ignores one at the end of a path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.convertors import Convertor, register_url_convertor

_STAND_INS = {ord("/"): "\udc2f", ord("\n"): "\udc0a"}
_ORIGINALS = {ord(stand_in): letter for letter, stand_in in _STAND_INS.items()}


class _Id(Convertor[str]):
    """Converts `{user_id:id}` in a path. It also matches what is not an id, so that the check of ids can say
    what is wrong with it."""

    regex = "[^/]*"

    def convert(self, value: str) -> str:
        return value.translate(_ORIGINALS)

    def to_string(self, value: str) -> str:
        return value.translate(_STAND_INS)


register_url_convertor("id", _Id())


def path_of(scope: Mapping[str, Any]) -> str | None:
    """The path of a request, for the routes; None if it is not UTF-8."""
    raw: bytes | None = scope.get("raw_path")
    if raw is None or b"%" not in raw:
        path: str = scope["path"]
        return path
    try:
        parts = [unquote_to_bytes(part).decode() for part in raw.split(b"/")]
    except UnicodeDecodeError:
        return None
    return "/".join(part.translate(_STAND_INS) for part in parts)


def is_text(query: bytes) -> bool:
    """Whether a query string is ASCII that decodes to UTF-8."""
    if not query.isascii():
        return False
    try:
        unquote_to_bytes(query).decode()
    except UnicodeDecodeError:
        return False
    return True
