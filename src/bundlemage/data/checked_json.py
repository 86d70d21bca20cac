"""Reads JSON that somebody else may have written."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from functools import cache
from textwrap import shorten
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

DEEPEST = 20
"""The most levels of lists and objects. Without a limit, a later program may run out of its stack."""

MOST_DESCRIBED = 1000
"""The most wrong values of which the first one is named. A description of all takes a kilobyte for each."""


def parse(text: str | bytes) -> Any:
    """Returns the value of a JSON text. NaN and Infinity, which are not JSON, are read as null.

    Raises ValueError for other JSON that later programs may not process: deep nesting, numbers that do not
    fit into 64 bits, texts that are not Unicode.
    """
    try:
        value = json.loads(text, parse_constant=lambda _: None)
        _check(value, DEEPEST)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return value


_TOO_DEEP = f"it is nested deeper than {DEEPEST} levels"


def _check(value: Any, levels: int) -> None:
    if isinstance(value, dict | list):
        if levels == 0:
            raise ValueError(_TOO_DEEP)
        for each in value:
            _check(each, levels - 1)
        for each in value.values() if isinstance(value, dict) else ():
            _check(each, levels - 1)
    elif isinstance(value, str):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ValueError("it has a text that is not Unicode")
    elif (isinstance(value, int) and not -(2**63) <= value < 2**63) or value in (math.inf, -math.inf):
        raise ValueError("it has a number that does not fit into 64 bits")


Kind = TypeVar("Kind")


def typed(kind: type[Kind], value: Any) -> Kind:
    """Returns a parsed JSON value as an object of `kind`: a dataclass or a pydantic model.

    Raises ValueError, which names the field, if a type is wrong. Nothing is converted: "1" is not a number.
    """
    if is_dataclass(kind) and isinstance(value, dict):
        unknown = sorted(value.keys() - {field.name for field in fields(kind)})
        if unknown:
            raise ValueError(f"unknown key {_short(unknown[0])}")
    try:
        # pydantic is strict with Python values in another way: it would refuse a dict for a dataclass.
        adapter: TypeAdapter[Kind] = _adapter(kind)  # type: ignore[arg-type]  # a class is hashable
        checked = adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        if error.error_count() > MOST_DESCRIBED:
            raise ValueError(f"it has {error.error_count():,} values of a wrong type") from None
        fault = error.errors()[0]
        where = f"key {'.'.join(map(str, fault['loc']))!r}" if fault["loc"] else "the content"
        found = "" if fault["type"] == "missing" else f" is {_short(fault['input'])}"
        raise ValueError(f"{where}{found}: {fault['msg'].lower()}") from None
    return checked


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _short(value: Any) -> str:
    return shorten(repr(value), 80, placeholder="…")
