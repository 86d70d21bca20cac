"""Reads the texts of options: lists of ids, pairs such as `a=b`, seeds and locations."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bundlemage.errors import ConfigError, UnknownIdError
from bundlemage.readers.address import may_hold_a_password


def key_values(pairs: Sequence[str] | None, option: str) -> dict[str, str]:
    """Texts such as `a=b` as a dict. `option` is the name of the option for messages."""
    values = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"{option} {pair!r}: write it as NAME=VALUE")
        values[key.strip()] = value
    return values


def numbers(pairs: Sequence[str] | None, option: str, expected: str) -> dict[str, float]:
    """Texts such as `a=2` as a dict of numbers from 0 up. The error message ends with `expected`."""
    values = {}
    for name, text in key_values(pairs, option).items():
        try:
            values[name] = float(text)
        except ValueError:
            values[name] = math.nan
        if not values[name] >= 0:
            raise ConfigError(f"{option} '{name}={text}': {expected}")
    return values


def event_weights(text: str | None) -> dict[str, float] | None:
    """A text such as `view=0.2,buy=1` as the weights of types of events. None: nothing was given."""
    from bundlemage.readers.pairs import check_events

    if text is None:
        return None
    values: dict[str, Any] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, number = (word.strip() for word in part.rpartition("="))
        if not equals or not name:
            raise ConfigError(f"--events {part!r}: write it as TYPE=WEIGHT, e.g. view=0.2,buy=1")
        if name in values:
            raise ConfigError(f"--events names {name!r} twice")
        try:
            values[name] = float(number)
        except ValueError:
            values[name] = number
    if not values:
        raise ConfigError("--events is empty: write it as TYPE=WEIGHT, e.g. view=0.2,buy=1")
    return check_events(values)


def lines_of(path: Path) -> list[str]:
    """The lines of a text file that are not empty."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}: give a text file with one user id per line") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}. Give a text file with one user id per line"
        ) from None
    return [line.strip() for line in text.split("\n") if line.strip()]


@contextmanager
def placed(path: Path | None) -> Iterator[None]:
    """Name the file and the line in an error about a user id that this file lists. None: there is none."""
    try:
        yield
    except UnknownIdError as error:
        if path is None or error.kind != "user":
            raise
        lines = [line.strip() for line in path.read_text(encoding="utf-8").split("\n")]
        if error.unknown[0] not in lines:
            raise
        raise ConfigError(f"{path}, line {lines.index(error.unknown[0]) + 1}: {error}") from None


def plural(count: int, noun: str) -> str:
    """A count with its noun, such as "1 user" and "2,000 users"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def settings(pairs: Sequence[str] | None, option: str = "--set") -> dict[str, Any]:
    """Texts such as `a=1` as a dict. A value that is not JSON is taken as text."""
    return {key: _value(text) for key, text in key_values(pairs, option).items()}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def only_given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that the user has set."""
    return {name: value for name, value in options.items() if value is not None}


def ids(texts: Sequence[str] | None) -> list[str]:
    """Split texts at commas into ids. An id that contains a comma is in double quotes, as in CSV."""
    try:
        rows = list(csv.reader(texts or (), strict=True))
    except csv.Error as error:
        raise ConfigError(f"the list {', '.join(texts or ())!r} cannot be read: {error}") from None
    return [name.strip() for row in rows for name in row if name.strip()]


def seed_list(text: str) -> tuple[int, ...]:
    """A text such as `0,1,2` as numbers."""
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        seeds = ()
    if not seeds or min(seeds) < 0:
        raise ConfigError(
            f"--seeds {text!r}: write whole numbers from 0 up with commas between them, e.g. 0,1,2"
        )
    return seeds


def label(location: str) -> str:
    """A location for messages, without the password that an address may hold."""
    if not may_hold_a_password(location):
        return location
    from bundlemage.readers import sql

    return "the database" if sql.matches(location) else "the object store"
