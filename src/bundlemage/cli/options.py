"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bundlemage.errors import ConfigError

Location = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A folder of tables, of a published layout or of 'data ingest'; a URI of Parquet tables, e.g. "
        "s3://bucket/prefix; a database URL; or 'sample', the built-in shop.",
        show_default=True,
    ),
]
Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        metavar="NAME=TABLE",
        help="For a database: the table or query of user_item, user_bundle, bundle_item, items, bundles.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables for people.")]
ModelFolder = Annotated[
    str, typer.Argument(metavar="DIR", help="A folder that 'bundlemage train' has written.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
EngineName = Annotated[
    str, typer.Option("--engine", help="Where the work runs: local, this machine; ray, a Ray cluster.")
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="The address of the Ray cluster; 'auto' finds the one of this machine. Without it, Ray is "
        "started on this machine for the command.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="How many processes work at a time. The default on Ray is one for each GPU, or else processor.",
        show_default=False,
    ),
]


def at_least_one(jobs: int | None) -> int | None:
    """Refuse `--jobs 0` in one line, before anything is read."""
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: at least one must run at a time")
    return jobs


Jobs = Annotated[
    int,
    typer.Option(
        metavar="N",
        callback=at_least_one,
        help="How many models are trained at a time, each in a process of its own on the same device.",
    ),
]


def label(location: str) -> str:
    """A location for messages, without the password that an address may hold."""
    if not may_hold_a_password(location):
        return location
    from bundlemage.readers import sql

    return "the database" if sql.matches(location) else "the object store"


def may_hold_a_password(text: str) -> bool:
    """Whether a location is the address of a server."""
    return "://" in text and not text.startswith(("sqlite:", "duckdb:", "file:"))


def only_given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were not left out."""
    return {name: value for name, value in options.items() if value is not None}


def key_values(pairs: Sequence[str] | None, option: str) -> dict[str, str]:
    """Texts such as `a=b` as a dict. `option` is the name of the option for messages."""
    values = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"{option} {pair!r}: write it as NAME=VALUE")
        values[key.strip()] = value
    return values


def settings(pairs: Sequence[str] | None) -> dict[str, Any]:
    """Texts such as `a=1` as a dict. A value that is not JSON is taken as text."""
    return {key: _value(text) for key, text in key_values(pairs, "--set").items()}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def can_be_written(file: Path) -> None:
    """Raise `ConfigError`, before the work, if the file cannot be written. This tries it, as not every file
    system has permissions."""
    existed = file.exists()
    try:
        with file.open("ab"):
            pass
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from None
    if not existed:
        file.unlink()


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


def ids(texts: Sequence[str] | None) -> list[str]:
    """A list of ids from texts with commas; an id that has a comma is in double quotes, as in CSV."""
    try:
        rows = list(csv.reader(texts or (), strict=True))
    except csv.Error as error:
        raise ConfigError(f"the list {', '.join(texts or ())!r} cannot be read: {error}") from None
    return [name.strip() for row in rows for name in row if name.strip()]
