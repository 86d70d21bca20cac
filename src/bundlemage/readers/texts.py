"""Reads titles and lists of tags as shops write them: with HTML entities, in brackets, or with separators."""

from __future__ import annotations

import html
import re
from html.entities import html5
from typing import Any

# The semicolon is required, so that the title "Rise&notes" is left as it is. No number is longer than the
# largest code point.
_ENTITY = re.compile(r"&(#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]*);")
# Of an entity that was encoded twice, such as `&amp;amp;`, no semicolon is a separator.
_ENTITY_OR_SEPARATOR = re.compile(rf"{_ENTITY.pattern.replace('&', '&(?:amp;)*', 1)}|[|;,]")
# In a list, a text is in quotes, or it is a single word such as a number.
_TOKEN = re.compile(
    r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([\w.+-]+)|([\[\](){}:|;,]))\s*""", re.DOTALL
)
_CLOSING = {"[": "]", "(": ")", "{": "}"}
# PostgreSQL writes an element without quotes if it has no space, comma, brace, quote or backslash.
_OF_POSTGRES = re.compile(r"""(?:"((?:[^"\\]|\\.)*)"|([^\s,{}"\\'][^\s,{}"\\]*))(?:,|$)""", re.DOTALL)
_DEEPEST = 20
"""Lists may be nested up to this depth."""
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_NOTHING = ("null", "None", "NULL")


def decoded(text: str) -> str:
    """Returns a text with its HTML entities replaced: `Tom &amp; Jerry` is `Tom & Jerry`."""
    return _ENTITY.sub(_replacement, text) if "&" in text else text


def tags_of(value: Any) -> list[str]:
    """Returns the tags in a text or in a list of texts. HTML entities in them are not decoded.

    A text is a list in brackets as JSON, Python or PostgreSQL writes it, or has separators between the tags:
    | ; or ,. Lists may be nested. Of an object, the tag is its `name`. Raises `ValueError` for anything else,
    such as a text that begins with a bracket and is no such list.
    """
    return _tags_of_text(value.strip()) if isinstance(value, str) else _flat(value)


def _flat(value: Any) -> list[str]:
    """Returns the texts in a list, in lists in it, and in objects with a `name`."""
    if isinstance(value, list):
        return [text for part in value for text in _flat(part)]
    if isinstance(value, dict) and "name" in value:
        return _flat(value["name"])
    if isinstance(value, dict | tuple):  # a tuple is a key of a map and its value
        raise ValueError  # noqa: TRY004 - callers treat every faulty value alike
    return [] if value is None else [value.decode() if isinstance(value, bytes) else str(value)]


def _tags_of_text(text: str) -> list[str]:
    if text[:1] not in _CLOSING:
        return _separated(text)
    structure = _structure(text)
    if structure is not None:
        return _flat(structure)
    end, inner = _end_of_first_bracket(text), text[1:-1]
    if end == len(text) - 1:
        if text[0] == "{" and (elements := _of_postgres(inner)) is not None:
            return elements
        if not re.search(r"[\[\]{}]" if text[0] != "{" else r"[\[\]{}:]", inner):  # a list without quotes
            tags = _separated(inner)
            if not any(tag.lstrip().startswith('"') for tag in tags):
                return tags
    elif end >= 0 and not re.match(r".\s*[\"'\[({]", text):  # such as "[Early] access"
        return _separated(text)
    raise ValueError


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


def _structure(text: str) -> Any:
    """Returns the list or dict in a text; None if it is none. Texts are in quotes, or single words."""
    stack: list[tuple[str, list[Any], list[str]]] = [("", [], [])]  # closing bracket, elements, keys
    before, start = ",", 0  # the kind of the token before: a mark, or `"` for quoted texts, or `w`
    while start < len(text):
        token = _TOKEN.match(text, start)
        if token is None or len(stack) > _DEEPEST:
            return None
        start = token.end()
        double, single, word, mark = token.groups()
        closing, elements, keys = stack[-1]
        ended = before not in ("[", "(", "{", ",", ":")  # an element is complete
        if mark is None or mark in _CLOSING:
            # NumPy writes no separators between quoted texts.
            if ended and not (before == '"' and mark is None and word is None):
                return None
            if mark is not None:
                stack.append((_CLOSING[mark], [], []))
                before = mark
                continue
            quoted = double if single is None else single
            elements.append(word if quoted is None else _unescaped(quoted))
            if word in _NOTHING:
                elements[-1] = None
            before = '"' if word is None else "w"
        elif mark == ":":
            if closing != "}" or before != '"':
                return None
            keys.append(elements.pop())
            before = ":"
        elif mark in "|;,":
            before = ","
        else:
            if mark != closing or (keys and len(keys) != len(elements)):
                return None
            stack.pop()
            stack[-1][1].append(dict(zip(keys, elements, strict=True)) if keys else elements)
            before = mark
    _, elements, _ = stack[-1]
    return elements[0] if len(stack) == 1 and len(elements) == 1 else None


def _of_postgres(inner: str) -> list[str] | None:
    """Returns the elements of an array of PostgreSQL without its braces; None if it is no such array."""
    elements, start = [], 0
    while start < len(inner):
        element = _OF_POSTGRES.match(inner, start)
        if element is None:
            return None
        quoted, plain = element.groups()
        if plain not in _NOTHING:
            elements.append(plain if quoted is None else _unescaped(quoted))
        start = element.end()
    return elements


def _end_of_first_bracket(text: str) -> int:
    """Returns the position of the bracket that closes the first character; -1 if there is none."""
    depth = 0
    for mark in re.finditer(re.escape(text[0]) + "|" + re.escape(_CLOSING[text[0]]), text):
        depth += 1 if mark[0] == text[0] else -1
        if not depth:
            return mark.start()
    return -1


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
