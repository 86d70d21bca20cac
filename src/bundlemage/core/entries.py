"""Turns histories into rows of positions on a device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from bundlemage.errors import ConfigError, list_of
from bundlemage.models.ragged import Ragged


class Entries:
    """Collects the items, or the bundles, of several users. All are positions."""

    def __init__(self, known: Ragged, known_rejected: Ragged | None, tells_purchases: bool) -> None:
        """`known` are the histories of the shop's users. `tells_purchases`: whether a weight below 1 means
        that a thing was not bought (see `Events.tells_purchases`)."""
        self._known, self._known_rejected, self._tells = known, known_rejected, tells_purchases
        self._values: list[list[int]] = []
        self._weights: list[list[float]] = []
        self._weak: list[list[bool]] = []
        self._rejected: list[list[int]] = []

    def add(
        self,
        name: str,
        places: Sequence[int],
        weights: Sequence[float] | None,
        rejected: Sequence[int],
        *,
        in_order: bool = False,
    ) -> None:
        """Adds a user with these things and weights. What occurs twice has its highest weight. `in_order`:
        things are sorted. `name` is the field of `History` with the weights, for error messages."""
        strongest = dict.fromkeys(places, 1.0)
        if weights is not None:
            strongest = dict.fromkeys(places, 0.0)
            for place, weight in zip(places, _checked(name, weights, len(places)), strict=True):
                strongest[place] = max(strongest[place], weight)
        gone = set(rejected)
        values = [place for place in (sorted(strongest) if in_order else strongest) if place not in gone]
        self._values.append(values)
        self._weights.append([strongest[place] for place in values])
        self._weak.append([self._tells and strongest[place] < 1 for place in values])
        self._rejected.append(sorted(gone))

    def add_row(self, row: int, values: list[int]) -> None:
        """Adds a user of the shop, who has these things."""
        known = self._known
        self._values.append(values)
        entries = slice(int(known.offsets[row]), int(known.offsets[row + 1]))
        plain, bought = [1.0] * len(values), [False] * len(values)
        self._weights.append(plain if known.weights is None else known.weights[entries].tolist())
        self._weak.append(bought if known.weak is None else known.weak[entries].tolist())
        gone = self._known_rejected
        self._rejected.append([] if gone is None else gone.between(row, row + 1).values.tolist())

    def entries(self, device: torch.device) -> Ragged:
        """Returns what the users have."""
        weighted = any(weight != 1 for weights in self._weights for weight in weights)
        weak = any(is_weak for row in self._weak for is_weak in row)
        return Ragged.from_lists(
            self._values, device, self._weights if weighted else None, self._weak if weak else None
        )

    def rejected(self, device: torch.device) -> Ragged | None:
        """Returns what the users rejected; None if nobody rejected anything."""
        return Ragged.from_lists(self._rejected, device) if any(self._rejected) else None


def _checked(name: str, weights: Sequence[float], count: int) -> list[float]:
    """Returns weights as numbers. Raises `ConfigError` if they are not `count` numbers above 0."""
    given = list_of(name, weights)
    if len(given) != count:
        raise ConfigError(f"{name!r} has {len(given)} weights for {count} things; give one for each")
    for weight in given:
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise ConfigError(f"{name!r} has {weight!r}; a weight is a number above 0")
    return [float(weight) for weight in given]
