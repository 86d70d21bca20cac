"""Checks of values before they are written: they must be valid training data and safe in messages."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from bundlemage.errors import UnstorableError
from bundlemage.store.records import Bundle, InteractionRecord, Item, Served
from bundlemage.wire.requests import fault_of_id

LARGEST_STOCK: Final = 2**53  # training data has floats, which are exact up to here


def is_id(name: str) -> bool:
    """Whether this is a valid id. Do not query other ids: a database may reject them."""
    return fault_of_id(name) is None


def check_ids(kind: str, names: Iterable[str]) -> None:
    """Raises `UnstorableError` for the first id that is not valid. `kind` names it in the message."""
    for name in names:
        fault = fault_of_id(name)
        if fault is not None:
            raise UnstorableError(f"the {kind} id {name[:60]!r} {fault}. Give the {kind} another id")


def check_thing(thing: Item | Bundle) -> None:
    """Raises `UnstorableError` if a field of an item or a bundle cannot be stored."""
    kind = "item" if isinstance(thing, Item) else "bundle"
    named = f"{kind} {thing.id!r}"
    check_ids(kind, [thing.id])
    _check_texts(named, thing.title, thing.tags)
    _check_number(f"the price of {named}", thing.price)
    if isinstance(thing, Item):
        _check_number(f"the stock of {named}", thing.stock, LARGEST_STOCK)
        return
    check_ids("item", thing.items)
    _check_number(f"the discount of {named}", thing.discount, 1)
    _check_number(f"the expected sales of {named}", thing.expected_sales)
    if thing.sells_like is not None:
        check_ids("bundle", [thing.sells_like])
        if thing.sells_like == thing.id:
            raise UnstorableError(f"{named} must not sell like itself. Name another bundle")
        if thing.expected_sales is not None:
            raise UnstorableError(
                f"{named} has both 'expected_sales' and 'sells_like'. Give only one of them"
            )
    if len(set(thing.items)) < len(thing.items):
        twice = next(item for item in thing.items if thing.items.count(item) > 1)
        raise UnstorableError(f"{named} has the item {twice!r} twice. List each item once")


def check_interactions(interactions: Iterable[InteractionRecord]) -> None:
    for interaction in interactions:
        check_ids("user", [interaction.user_id])
        check_ids(interaction.kind, [interaction.thing_id])
        if interaction.request_id is not None:
            check_ids("request", [interaction.request_id])
        if interaction.at is not None:
            check_time(interaction.at)


def check_served(answers: Iterable[Served]) -> None:
    for answer in answers:
        check_ids("request", [answer.request_id])
        if answer.user_id is not None:
            check_ids("user", [answer.user_id])
        check_time(answer.at)


def check_time(at: datetime) -> None:
    if at.tzinfo is None:
        raise UnstorableError(f"the time {at.isoformat()} has no time zone. Write UTC as {at.isoformat()}Z")


def _check_texts(what: str, title: str | None, tags: Iterable[str]) -> None:
    for name, text in (("title", title or ""), *(("tags", tag) for tag in tags)):
        if any(letter == "\0" or unicodedata.category(letter) == "Cs" for letter in text):
            raise UnstorableError(f"{what} has {name!r} {text[:60]!r}, which is not text. Write it in UTF-8")


def _check_number(what: str, value: float | None, most: float = math.inf) -> None:
    if value is not None and not (math.isfinite(value) and 0 <= value <= most):
        expected = "0 or more" if most == math.inf else f"from 0 to {most:,}"
        raise UnstorableError(f"{what} is {value}; expected a number {expected}, or nothing if it is unknown")
