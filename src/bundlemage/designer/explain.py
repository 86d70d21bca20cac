"""Explains answers: the model scores an answer again without each item and bundle of the user in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, Literal, TypeVar

import torch

from bundlemage.core.shop import Shop
from bundlemage.designer.constraints import Deadline, Items
from bundlemage.errors import ConfigError, UnsupportedError
from bundlemage.models.base import Completer, Gated, Histories, Matcher, Model, can, require
from bundlemage.models.ragged import Ragged
from bundlemage.progress import Progress, in_silence
from bundlemage.wire.design_answers import Explanation, Reason, in_words

MOST_LEFT_OUT = 2000
"""Maximum number of items, and of bundles, to leave out. The work grows with the square of their number."""
ROWS = 4096
"""The approximate number of scores that are computed at once."""

T = TypeVar("T")
Kind = Literal["item", "bundle", "partial"]


class Explainer:
    """Explains answers to one user, the only row of `history`. `contents` has the items of each bundle.

    The first row of `users` has the whole history. Each further row lacks one item or bundle. If the model
    knows users only by id, there is only the first row.
    """

    def __init__(
        self,
        model: Model,
        shop: Shop,
        history: Histories,
        contents: Ragged,
        progress: Progress = in_silence,
    ) -> None:
        """`progress` counts the answers that are explained."""
        self.model, self.shop, self.contents, self.progress = model, shop, contents, progress
        most = MOST_LEFT_OUT if model.knows_new_users else 0
        items, bundles = history.items.values.tolist(), history.bundles.values.tolist()
        self.left_out: list[tuple[Kind, int]] = [("item", item) for item in items[:most]]
        middle = 1 + len(self.left_out)
        self.left_out += [("bundle", bundle) for bundle in bundles[:most]]
        self.rows = 1 + len(self.left_out)
        self.not_asked = len(items) + len(bundles) - len(self.left_out)
        again = history.rows(torch.zeros(self.rows, dtype=torch.int64, device=history.items.device))
        users = Histories(
            _without_one(again.items, len(items), range(1, middle)),
            _without_one(again.bundles, len(bundles), range(middle, self.rows)),
            again.users,
        )
        with torch.inference_mode():
            self.users = model.encoded(users, contents)
            self.gate = float(model.item_share(history, contents)[0]) if can(model, Gated) else None

    def bundles(self, bundles: Sequence[int]) -> list[Explanation]:
        """Explains why the user is recommended each of these bundles."""
        if not self.model.knows_new_users:
            raise UnsupportedError(
                f"{self.model.title} knows users by id and not by history, so it cannot explain a bundle: "
                "'bundlemage models' lists the models that can, under 'new users'"
            )
        device = self.shop.device
        among = len(self.shop.dataset.bundles)  # without the bundles that only the history has
        explanations: list[Explanation] = []
        for some in self._batches(bundles):
            with torch.inference_mode():
                which = torch.arange(self.rows, device=device).repeat(len(some))
                candidates = torch.tensor(some, device=device).repeat_interleave(self.rows)
                matcher = require(self.model, Matcher)
                fits = matcher.bundle_fit(self.users, which, candidates, self.contents, among)
            explanations += map(self._explained, fits.view(len(some), self.rows).tolist())
        return explanations

    def item(self, item: int, partial: Items) -> Explanation:
        """Explains why an item completes a partial bundle for the user."""
        if item in partial:
            name = self.shop.dataset.items[item]
            raise ConfigError(f"the item {name!r} is already in the partial bundle: remove it from there")
        return next(self._items([(item, partial)]))

    def added(
        self, start: Items, bundles: Sequence[Items], deadline: Deadline
    ) -> list[list[Explanation | None]]:
        """Explains each added item of designed bundles, given the other items; None if time ran out."""
        cases = [
            (item, tuple(other for other in start + added if other != item))
            for added in bundles
            for item in added
        ]
        explanations: list[Explanation | None] = []
        for explanation in self._items(cases):
            explanations.append(explanation)
            if deadline.passed:
                break
        in_order = chain(explanations, repeat(None))
        return [[next(in_order) for _ in added] for added in bundles]

    def _items(self, cases: Sequence[tuple[int, Items]]) -> Iterator[Explanation]:
        """Explains items, given the other items of their bundles, in batches."""
        device = self.shop.device
        for some in self._batches(cases):
            which: list[int] = []
            partials: list[Items] = []
            for _, partial in some:
                which += [*range(self.rows), *[0] * len(partial)]
                partials += [partial] * self.rows
                partials += [partial[:number] + partial[number + 1 :] for number in range(len(partial))]
            lengths = [self.rows + len(partial) for _, partial in some]
            with torch.inference_mode():
                candidates = torch.tensor([item for item, _ in some], device=device)
                fits = require(self.model, Completer).item_fit(
                    self.users,
                    torch.tensor(which, device=device),
                    Ragged.from_lists(partials, device),
                    candidates.repeat_interleave(torch.tensor(lengths, device=device)),
                    self.contents,
                )
            for (_, partial), row in zip(some, torch.split(fits, lengths), strict=True):
                yield self._explained(row.tolist(), partial)

    def _batches(self, answers: Sequence[T]) -> Iterator[Sequence[T]]:
        """Yields the answers to explain, so many at a time that about `ROWS` scores are computed."""
        at_once = max(1, ROWS // self.rows)
        for first in range(0, len(answers), at_once):
            self.progress("reasons", first, len(answers))
            yield answers[first : first + at_once]

    def _explained(self, fits: list[float], partial: Items = ()) -> Explanation:
        whole, *without = fits
        left_out = [*self.left_out, *(("partial", item) for item in partial)]
        reasons = [
            Reason(kind=kind, **self._named(kind, place), effect=whole - fit, without=fit)
            for (kind, place), fit in zip(left_out, without, strict=True)
        ]
        reasons.sort(key=lambda reason: (-reason.effect, reason.kind, reason.id))
        return Explanation(
            fit=whole,
            gate=self.gate,
            words=in_words(reasons),
            reasons=tuple(reasons),
            not_asked=self.not_asked,
        )

    def _named(self, kind: Kind, place: int) -> dict[str, Any]:
        """Returns the id and the title. A bundle without an id is named by its number in the history."""
        shelf = self.shop.bundle_shelf if kind == "bundle" else self.shop.item_shelf
        if place >= len(shelf.ids):
            return {"id": f"bundle {place - len(shelf.ids) + 1} of the history", "title": None}
        return {"id": shelf.ids[place], "title": shelf.title(place)}


def _without_one(same: Ragged, length: int, rows: range) -> Ragged:
    """Removes entry 0 from the first of `rows`, entry 1 from the second, and so on. All rows are equal."""
    keep = torch.ones(len(same.values), dtype=torch.bool, device=same.device)
    keep[[row * length + number for number, row in enumerate(rows)]] = False
    return same.keep(keep)
