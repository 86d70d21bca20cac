"""The user for whom a question is asked: an id, or a history of items and bundles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

Id: TypeAlias = str | int
T = TypeVar("T")


@dataclass(frozen=True)
class History:
    """What a user or a visitor has. A bundle without an id is a list of its items."""

    items: Sequence[Id] = ()
    bundles: Sequence[Id | Sequence[Id]] = ()
    item_weights: Sequence[float] | None = None
    """The strength of each item, above 0, in the order of `items`. What is below 1 was not bought, only
    viewed, say. None: everything was bought, and counts the same."""
    bundle_weights: Sequence[float] | None = None
    """The same for `bundles`."""
    rejected_items: Sequence[Id] = ()
    """Items that the user returned or dislikes. They are not proposed, and neither are bundles with them."""
    rejected_bundles: Sequence[Id] = ()
    """Bundles that the user returned or dislikes. They are not recommended."""


User: TypeAlias = Id | History
"""The id of a user, or the history of a visitor."""
NewBundles: TypeAlias = Mapping[str, Sequence[Id]]
"""Bundles that the shop did not have at training: id → item ids."""


def bought(things: Sequence[T], weights: Sequence[float] | None) -> Sequence[T]:
    """Returns those of the things of a history that the user bought."""
    if weights is None:
        return things
    return [thing for thing, weight in zip(things, weights, strict=True) if weight >= 1]
