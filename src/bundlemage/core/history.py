"""The user for whom a question is asked: an id, or a history of items and bundles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Id: TypeAlias = str | int


@dataclass(frozen=True)
class History:
    """What a user or a visitor has. A bundle without an id is a list of its items."""

    items: Sequence[Id] = ()
    bundles: Sequence[Id | Sequence[Id]] = ()


User: TypeAlias = Id | History
"""The id of a user, or the history of a visitor."""
NewBundles: TypeAlias = Mapping[str, Sequence[Id]]
"""Bundles that the shop did not have at training: id → item ids."""
