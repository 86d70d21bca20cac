"""Explains answers: the model scores an answer again without each item and bundle of the user in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, TypeVar

import torch

from bundlemage.core.history import User
from bundlemage.core.shop import Shop
from bundlemage.designer.constraints import Deadline, Items
from bundlemage.designer.evidence import Effect, Explained, Facts, Kind
from bundlemage.designer.sentences import Sentences
from bundlemage.errors import ConfigError, UnsupportedError
from bundlemage.models.base import Completer, Gated, Histories, Matcher, Model, can, require
from bundlemage.models.ragged import Ragged
from bundlemage.progress import Progress, in_silence
from bundlemage.wire.design_answers import Details, Explanation, Reason

MOST_LEFT_OUT = 2000
"""Maximum number of items, and of bundles, to leave out. The work grows with the square of their number."""
ROWS = 4096
"""The approximate number of scores that are computed at once."""

T = TypeVar("T")


class Explainer:
    """Explains answers to one user, the only row of `history`. `contents` has the items of each bundle.

    The first row of `users` has the whole history. Each further row lacks one item or bundle, and the last
    row has no history. If the model knows users only by id, there is only the first row.
    """

    def __init__(
        self,
        model: Model,
        shop: Shop,
        user: User,
        history: Histories,
        contents: Ragged,
        sentences: Sentences,
        progress: Progress = in_silence,
    ) -> None:
        """`sentences` writes the evidence; `progress` counts the answers that are explained."""
        self.model, self.shop, self.contents, self.progress = model, shop, contents, progress
        self.sentences, self.facts = sentences, Facts(shop, user, history, contents)
        self.no_history = not len(history.items.values) + len(history.bundles.values)
        most = MOST_LEFT_OUT if model.knows_new_users else 0
        items, bundles = history.items.values.tolist(), history.bundles.values.tolist()
        self.left_out: list[tuple[Kind, int]] = [("item", item) for item in items[:most]]
        middle = 1 + len(self.left_out)
        self.left_out += [("bundle", bundle) for bundle in bundles[:most]]
        self.rows = 1 + len(self.left_out) + bool(model.knows_new_users)
        self.not_asked = len(items) + len(bundles) - len(self.left_out)
        again = history.rows(torch.zeros(self.rows, dtype=torch.int64, device=history.items.device))
        users = Histories(
            _without_one(again.items, len(items), range(1, middle), self.rows - 1),
            _without_one(again.bundles, len(bundles), range(middle, self.rows - 1), self.rows - 1),
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
        matcher = require(self.model, Matcher)
        for some in self._batches(bundles):
            with torch.inference_mode():
                which = torch.arange(self.rows, device=device).repeat(len(some))
                candidates = torch.tensor(some, device=device).repeat_interleave(self.rows)
                fits = matcher.bundle_fit(self.users, which, candidates, self.contents, among)
            for place, row in zip(some, fits.view(len(some), self.rows).tolist(), strict=True):
                answer = self._answer("bundle", place, row, self.no_history or matcher.ranks_by_sales)
                explanations.append(self._explained(answer, row))
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
        """Explains each added item of designed bundles, given the items before it; None if time ran out.

        Given all others, two items would be each other's reason.
        """
        cases = [(item, start + added[:place]) for added in bundles for place, item in enumerate(added)]
        explanations: list[Explanation | None] = []
        for explanation in self._items(cases):
            explanations.append(explanation)
            if deadline.passed:
                break
        in_order = chain(explanations, repeat(None))
        return [[next(in_order) for _ in added] for added in bundles]

    def _items(self, cases: Sequence[tuple[int, Items]]) -> Iterator[Explanation]:
        """Explains items, given the items that their bundles already have, in batches."""
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
            for (item, partial), fit in zip(some, torch.split(fits, lengths), strict=True):
                row = fit.tolist()
                answer = self._answer("item", item, row, self.no_history and not partial)
                yield self._explained(answer, row, partial)

    def _batches(self, answers: Sequence[T]) -> Iterator[Sequence[T]]:
        """Yields the answers to explain, so many at a time that about `ROWS` scores are computed."""
        at_once = max(1, ROWS // self.rows)
        for first in range(0, len(answers), at_once):
            self.progress("reasons", first, len(answers))
            yield answers[first : first + at_once]

    def _answer(self, kind: Kind, place: int, fits: list[float], by_sales: bool) -> Explained:
        """The answer with this position. `fits` has a fit for each row of `users`."""
        history = fits[0] - fits[self.rows - 1] if self.model.knows_new_users else None
        return Explained(kind, place, fits[0], history, by_sales)

    def _explained(self, answer: Explained, fits: list[float], partial: Items = ()) -> Explanation:
        """`fits` has a fit for each row of `users`, and then one without each item of `partial`."""
        without = fits[1 : 1 + len(self.left_out)] + fits[self.rows :]
        left_out = [*self.left_out, *(("partial", item) for item in partial)]
        found = [
            (Effect(kind, place, answer.fit - fit), self._reason(kind, place, answer.fit, fit))
            for (kind, place), fit in zip(left_out, without, strict=True)
        ]
        found.sort(key=lambda pair: (-pair[1].effect, pair[1].kind, pair[1].id))
        evidence = self.facts.evidence(answer, (effect for effect, _ in found))
        details = Details(
            fit=answer.fit,
            history=answer.history,
            gate=self.gate,
            reasons=tuple(reason for _, reason in found),
            not_asked=self.not_asked,
        )
        return Explanation(words=self.sentences.of(evidence), evidence=evidence, details=details)

    def _reason(self, kind: Kind, place: int, whole: float, fit: float) -> Reason:
        return Reason(kind=kind, **self._named(kind, place), effect=whole - fit, without=fit)

    def _named(self, kind: Kind, place: int) -> dict[str, Any]:
        """Returns the id and the title. A bundle without an id is named by its number in the history."""
        shelf = self.shop.bundle_shelf if kind == "bundle" else self.shop.item_shelf
        if place >= len(shelf.ids):
            return {"id": f"bundle {place - len(shelf.ids) + 1} of the history", "title": None}
        return {"id": shelf.ids[place], "title": shelf.title(place)}


def _without_one(same: Ragged, length: int, rows: range, empty: int) -> Ragged:
    """Removes entry 0 from the first of `rows`, entry 1 from the second, and so on, and all entries from the
    row `empty` unless it is the first. All rows are equal."""
    keep = torch.ones(len(same.values), dtype=torch.bool, device=same.device)
    keep[[row * length + number for number, row in enumerate(rows)]] = False
    if empty:
        keep[empty * length : (empty + 1) * length] = False
    return same.keep(keep)
