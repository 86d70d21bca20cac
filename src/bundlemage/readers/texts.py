"""Reads titles and lists of tags as shops write them: with HTML entities, as JSON, or with separators."""

from __future__ import annotations

import html
import re
from html.entities import html5

# The semicolon is required, so that the title "Rise&notes" is left as it is. No number is longer than the
# largest code point.
_ENTITY = re.compile(r"&(#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]*);")
_ENTITY_OR_SEPARATOR = re.compile(rf"{_ENTITY.pattern}|[|;,]")
# An element is in quotes, or a single word such as a number.
_ELEMENT = re.compile(
    r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([\w.+-]*))\s*(?:[|;,]|$)""", re.DOTALL
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_NOTHING = ("null", "None")


def decoded(text: str) -> str:
    """Returns a text with its HTML entities replaced: `Tom &amp; Jerry` is `Tom & Jerry`."""
    return _ENTITY.sub(_replacement, text) if "&" in text else text


def tags_of(text: str) -> list[str]:
    """Returns the tags in a text: a list in brackets as JSON or Python writes it, or separated by | ; or ,"""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1]
        tags = _elements(inner)
        if tags is not None:
            return [decoded(tag) for tag in tags]
        if not re.search(r"[\[\]]", inner):  # a list without quotes
            text = inner
    return [decoded(tag) for tag in _separated(text)]


def _replacement(entity: re.Match[str]) -> str:
    character = _character(entity)
    return entity[0] if character is None else character


def _character(entity: re.Match[str]) -> str | None:
    """Returns the text of an entity; None if there is no such entity."""
    name = entity[1]
    if name is None:
        return None
    return html.unescape(entity[0]) if name.startswith("#") else html5.get(f"{name};")


def _separated(text: str) -> list[str]:
    """Returns the parts between separators. The semicolon at the end of an entity is not a separator."""
    parts, start = [], 0
    for mark in _ENTITY_OR_SEPARATOR.finditer(text):
        if _character(mark) is None:
            parts.append(text[start : mark.end() - 1])
            start = mark.end()
    return [*parts, text[start:]]


def _elements(inner: str) -> list[str] | None:
    """Returns the elements of a list of quoted texts and words; None if it is not such a list."""
    elements, start = [], 0
    while start < len(inner):
        element = _ELEMENT.match(inner, start)
        if element is None:
            return None
        double, single, word = element.groups()
        if word is None:
            elements.append(_unescaped(double if single is None else single))
        elif word not in _NOTHING:
            elements.append(word)
        start = element.end()
    return elements


def _unescaped(text: str) -> str:
    """Returns the content of a quoted text. JSON and Python write an unusual character as an escape."""
    if "\\" not in text:
        return text

    def character(escape: re.Match[str]) -> str:
        *codes, other = escape.groups()
        code = next((code for code in codes if code), None)
        if code is None:
            return _CONTROLS.get(other, other)
        return chr(int(code, 16)) if int(code, 16) <= 0x10FFFF else "\N{REPLACEMENT CHARACTER}"

    # JSON writes some characters as two escapes, each for one half. UTF-16 joins the halves.
    joined = _ESCAPE.sub(character, text).encode("utf-16", "surrogatepass")
    return joined.decode("utf-16", "replace")
