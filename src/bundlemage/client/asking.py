"""What a question is made of, and how it becomes JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

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


class Wishes(TypedDict, total=False):
    """What may be asked of a designed bundle. What is left out is as the service has it."""

    start: Sequence[Id]
    """What is in the bundle already. It counts in size, price and tags."""
    size: int | Sequence[int]
    """How many items the bundle has in all: a number, or (least, most)."""
    budget: float | Sequence[float | None] | None
    """What it costs after the discount: at most a number, or (least, most), each of which may be None."""
    must: Sequence[Id]
    """Items that are in every bundle."""
    forbid: Sequence[Id]
    """Items that are in none."""
    tags: Mapping[str, Mapping[str, int]]
    """{"at least": {tag: number}, "at most": {tag: number}}"""
    one_per: str | Sequence[str]
    """Tags of which at most one item is in a bundle; "brand:*" stands for every tag that begins so."""
    in_stock: bool | None
    """Whether to add only what is in stock; None: if the catalogue tells any stock."""
    not_owned: bool
    """Whether to add only items that they do not have."""
    discount: float
    """A fraction: 0.2 is 20% off the sum of the items' prices."""
    diversity: float
    """The weight of how different the items of a bundle are."""
    margin: float
    """The weight of what its items earn."""
    costs: Mapping[Id, float]
    """What items cost the shop."""
    n: int
    """How many bundles, up to 20."""
    apart: float
    """Any two bundles differ in at least this share of what was chosen, and in one item."""
    method: Literal["beam", "greedy", "exact"]
    seed: int
    time_limit: float
    """Seconds, up to 30, after which the best that was found is the answer."""
    reasons: bool
    """Whether to say of each added item why."""


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


def wished(wishes: Wishes) -> dict[str, Any]:
    given: dict[str, Any] = dict(wishes)
    for name in ("start", "must", "forbid"):
        if name in given:
            given[name] = ids(name, given[name])
    if "size" in given:
        given["size"] = _range("size", given["size"], least=given["size"])
    if given.get("budget") is not None:
        given["budget"] = _range("budget", given["budget"], least=None)
    if "one_per" in given:
        tags = given["one_per"]
        given["one_per"] = [tags] if isinstance(tags, str) else list(tags)
    if "tags" in given:
        given["tags"] = {kind.replace(" ", "_"): dict(counts) for kind, counts in given["tags"].items()}
    if "costs" in given:
        given["costs"] = {str(item): cost for item, cost in given["costs"].items()}
    return given


def _range(name: str, given: Any, least: Any) -> dict[str, Any]:
    """Of a number alone, or of two. `least` is what a number alone leaves open."""
    both = (least, given) if isinstance(given, int | float) else tuple(given)
    if len(both) != 2:
        raise ConfigError(f"{name} is {given!r}; a number is wanted, or (least, most)")
    return {"least": both[0], "most": both[1]}


def ids(name: str, given: Any) -> list[str]:
    return [str(one) for one in listed(name, given)]


def listed(name: str, given: Any) -> list[Any]:
    if isinstance(given, str):  # a text is a sequence of letters, and would be taken for ids
        raise ConfigError(f"{name} is a list, not one text: write [{given!r}]")
    return list(given)
