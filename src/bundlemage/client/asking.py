"""What a question is made of, and how it becomes JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from bundlemage.errors import ConfigError

Id: TypeAlias = str | int


class HistoryOf(TypedDict, total=False):
    """What someone has whom the shop does not know."""

    items: Sequence[Id]
    bundles: Sequence[Id]


class Where(TypedDict, total=False):
    """What may be shown. Every condition that is given must hold."""

    tags: Sequence[str]
    """At least one of these."""
    min_price: float
    max_price: float
    in_stock: bool
    """Only what can be sold: of a bundle, every item has stock."""
    exclude: Sequence[Id]
    """None of these."""
    among: Sequence[Id]
    """Only these."""


def someone(user: Id | HistoryOf) -> dict[str, Any]:
    if isinstance(user, str | int):
        return {"user_id": str(user)}
    if not isinstance(user, Mapping):
        raise ConfigError(
            f"a user is an id or {{'items': […], 'bundles': […]}}, and not {type(user).__name__}"
        )
    return {"history": {name: ids(name, given) for name, given in user.items()}}


def conditions(where: Where | None) -> dict[str, Any]:
    if where is None:
        return {}
    if not isinstance(where, Mapping):
        raise ConfigError(f"where is a dict such as {{'max_price': 40}}, and not {type(where).__name__}")
    given: dict[str, Any] = {name: value for name, value in where.items() if value is not None}
    for name in ("exclude", "among"):
        if name in given:
            given[name] = ids(name, given[name])
    if "tags" in given:
        given["tags"] = listed("tags", given["tags"])
    return given


def ids(name: str, given: Any) -> list[str]:
    return [str(one) for one in listed(name, given)]


def listed(name: str, given: Any) -> list[Any]:
    if isinstance(given, str):  # a text is a sequence of letters, and would be taken for ids
        raise ConfigError(f"{name} is a list, not one text: write [{given!r}]")
    return list(given)
