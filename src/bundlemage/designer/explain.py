"""Explanations: each thing that a user has is left out in turn, and the model scores again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from bundlemage.core.shop import Shop
from bundlemage.designer.constraints import Items
from bundlemage.designer.waiting import Deadline
from bundlemage.errors import ConfigError, UnsupportedError
from bundlemage.models.base import Completer, Gated, Histories, Matcher, Model, can, require
from bundlemage.models.ragged import Ragged
from bundlemage.wire.design_answers import Explanation, Reason, in_words

MOST_LEFT_OUT = 2000
"""The most items, and the most bundles, that are left out. The work grows with the square of their number."""
ROWS = 4096
"""About how many scores are computed at once."""


Kind = Literal["item", "bundle", "partial"]


@dataclass(frozen=True)
class _LeftOut:
    """One user several times: the whole history in the first row, then without one thing each."""

    users: Histories
    what: list[tuple[Kind, int]]
    not_asked: int

    @classmethod
    def of(cls, one: Histories, *, history: bool = True) -> _LeftOut:
        """Without `history` only the whole: for a model that knows users by id alone."""
        items, bundles = one.items.values.tolist(), one.bundles.values.tolist()
        most = MOST_LEFT_OUT if history else 0
        some_items, some_bundles = items[:most], bundles[:most]
        rows = 1 + len(some_items) + len(some_bundles)
        device = one.items.device
        again = one.rows(torch.zeros(rows, dtype=torch.int64, device=device))
        users = Histories(
            _without_one(again.items, len(items), range(1, 1 + len(some_items))),
            _without_one(again.bundles, len(bundles), range(1 + len(some_items), rows)),
            again.users,
        )
        what: list[tuple[Kind, int]] = [("item", item) for item in some_items]
        what += [("bundle", bundle) for bundle in some_bundles]
        return cls(users, what, len(items) + len(bundles) - len(what))


def _without_one(same: Ragged, length: int, rows: range) -> Ragged:
    """Equal rows, some without an entry: the first of `rows` lacks its first, the next its second, …"""
    keep = torch.ones(len(same.values), dtype=torch.bool, device=same.device)
    keep[[row * length + number for number, row in enumerate(rows)]] = False
    return same.keep(keep)


def explain_bundles(
    model: Model, shop: Shop, one: Histories, contents: Ragged, bundles: Sequence[int]
) -> list[Explanation]:
    """Explains why a user is recommended each of these bundles."""
    if not model.knows_new_users:
        raise UnsupportedError(
            f"{model.title} knows users by id and not by history, so it cannot explain a bundle: "
            "'bundlemage models' lists those that can, under 'new users'"
        )
    matcher, left_out = require(model, Matcher), _LeftOut.of(one)
    rows = len(left_out.users)
    with torch.inference_mode():
        which = torch.arange(rows, device=shop.device).repeat(len(bundles))
        candidates = torch.tensor(bundles, device=shop.device).repeat_interleave(rows)
        among = len(shop.dataset.bundles)  # not those that the history brought along
        users = matcher.encoded(left_out.users, contents)
        fits = matcher.bundle_fit(users, which, candidates, contents, among).view(len(bundles), rows)
    gate = _gate(model, one, contents)
    return [_explained(row.tolist(), left_out.what, gate, left_out.not_asked, shop) for row in fits]


def explain_item(
    model: Model, shop: Shop, one: Histories, contents: Ragged, item: int, partial: Items
) -> Explanation:
    """Explains why an item completes a partial bundle for a user."""
    if item in partial:
        name = shop.dataset.items[item]
        raise ConfigError(f"the item {name!r} is in the partial bundle already: leave it out there")
    return next(_explain_items(model, shop, one, contents, [(item, partial)]))


def explain_added(
    model: Model,
    shop: Shop,
    one: Histories,
    contents: Ragged,
    start: Items,
    bundles: Sequence[Items],
    deadline: Deadline,
) -> list[list[Explanation | None]]:
    """Explains each added item of designed bundles, beside all the others; None if time ran out."""
    cases = [
        (item, tuple(other for other in start + added if other != item))
        for added in bundles
        for item in added
    ]
    explanations: list[Explanation | None] = []
    for explanation in _explain_items(model, shop, one, contents, cases):
        explanations.append(explanation)
        if deadline.passed:
            break
    explanations += [None] * (len(cases) - len(explanations))
    each = iter(explanations)
    return [[next(each) for _ in added] for added in bundles]


def _explain_items(
    model: Model, shop: Shop, one: Histories, contents: Ragged, cases: Sequence[tuple[int, Items]]
) -> Iterator[Explanation]:
    left_out = _LeftOut.of(one, history=model.knows_new_users)
    gate = _gate(model, one, contents)
    rows = len(left_out.users)
    with torch.inference_mode():
        users = model.encoded(left_out.users, contents)
    at_once = max(1, ROWS // rows)
    for first in range(0, len(cases), at_once):
        some = cases[first : first + at_once]
        which: list[int] = []
        partials: list[Items] = []
        for _, partial in some:
            which += [*range(rows), *[0] * len(partial)]
            partials += [partial] * rows
            partials += [partial[:number] + partial[number + 1 :] for number in range(len(partial))]
        lengths = [rows + len(partial) for _, partial in some]
        with torch.inference_mode():
            candidates = torch.tensor([item for item, _ in some], device=shop.device)
            fits = require(model, Completer).item_fit(
                users,
                torch.tensor(which, device=shop.device),
                Ragged.from_lists(partials, shop.device),
                candidates.repeat_interleave(torch.tensor(lengths, device=shop.device)),
                contents,
            )
        for (_, partial), row in zip(some, torch.split(fits, lengths), strict=True):
            inside: list[tuple[Kind, int]] = [("partial", item) for item in partial]
            yield _explained(row.tolist(), left_out.what + inside, gate, left_out.not_asked, shop)


def _gate(model: Model, one: Histories, contents: Ragged) -> float | None:
    if not can(model, Gated):
        return None
    with torch.inference_mode():
        return float(model.item_share(one, contents)[0])


def _explained(
    fits: list[float], what: list[tuple[Kind, int]], gate: float | None, not_asked: int, shop: Shop
) -> Explanation:
    whole, *without = fits
    reasons = [
        Reason(kind=kind, **_named(shop, kind, place), effect=whole - fit, without=fit)
        for (kind, place), fit in zip(what, without, strict=True)
    ]
    reasons.sort(key=lambda reason: (-reason.effect, reason.kind, reason.id))
    words = in_words(reasons)
    return Explanation(fit=whole, gate=gate, words=words, reasons=tuple(reasons), not_asked=not_asked)


def _named(shop: Shop, kind: Kind, place: int) -> dict[str, Any]:
    """The id and title. A bundle that only the history has is named by its number there."""
    ids = shop.dataset.bundles if kind == "bundle" else shop.dataset.items
    if place >= len(ids):
        return {"id": f"bundle {place - len(ids) + 1} of the history", "title": None}
    shelf = shop.bundle_shelf if kind == "bundle" else shop.item_shelf
    return {"id": ids[place], "title": shelf.title(place)}
