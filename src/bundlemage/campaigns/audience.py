"""Forecasts for a new bundle: how many users would take it, which ones, and which item would be better."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from bundlemage.campaigns.chances import Numbers, new_log_probabilities, normaliser
from bundlemage.campaigns.new_bundles import NewBundleCalibration, Owners, shifts
from bundlemage.core.answering import nearest
from bundlemage.core.filters import Filter, Shelf
from bundlemage.core.history import Id
from bundlemage.core.ranking import top
from bundlemage.core.shop import Shop
from bundlemage.designer.constraints import price_of
from bundlemage.errors import ConfigError, UnsupportedError, is_number
from bundlemage.models.base import Completer, Embedder, Histories, Matcher, Model, can, require
from bundlemage.models.ragged import Ragged
from bundlemage.progress import Progress, in_silence
from bundlemage.wire.design_answers import (
    BundleForecast,
    ForecastItem,
    ForecastNeighbour,
    ForecastPerson,
    ForecastReplacement,
    ForecastWeakest,
)
from bundlemage.wire.requests import MOST_OFF

UserBatches: TypeAlias = Callable[[], Iterable[tuple[Sequence[str], Histories]]]
"""A function that returns all users in batches, each with ids and histories. It is called several times."""

BEST_USERS = 64
"""The number of users with the highest chances for whom replacements are ranked."""
TRIED = 32
"""The number of items that are tried in place of the weakest item."""


def forecast(
    model: Model,
    shop: Shop,
    user_batches: UserBatches,
    items: Sequence[Id],
    price: float | None = None,
    *,
    discount: float | None = None,
    k: int = 10,
    calibration: NewBundleCalibration | None = None,
    count: int = 0,
    progress: Progress = in_silence,
) -> BundleForecast:
    """Forecasts how many users would take a bundle of these items, and names the k likeliest.

    The bundle has a price, or a discount off its items' prices. Without a calibration, fields such as
    `expected` and `above` are None, and the note says why. `progress` is told how many of the users (about
    `count`) are scored.
    """
    shop.item_positions(items)  # raises an error if it is not a list of known ids
    inside = tuple(dict.fromkeys(shop.dataset.items.positions(map(str, items)).tolist()))
    if not inside:
        raise ConfigError("a bundle without items has no audience: give at least one item")
    price, list_price, discount = _prices(shop, inside, price, discount)
    notes = []
    if calibration is None:
        notes.append(UNCALIBRATED)
    elif calibration.reason is not None:
        notes.append(f"There is too little data to say how many users would buy it: {calibration.reason}.")
    elif not calibration.tells_apart:
        notes.append(ALIKE)
    near = _nearest(model, shop, inside, k, notes)
    forecaster = require(model, Matcher).forecaster
    audience = _Audience(forecaster, shop, user_batches, calibration, count, progress)
    shorter = [inside[:n] + inside[n + 1 :] for n in range(len(inside))] if len(inside) > 1 else []
    scored = audience.score([inside, *shorter], max(k, BEST_USERS))
    worth, best = audience.worth(scored.sums), scored.best
    weakest, replacement = None, None
    if shorter:
        place = int(np.argmax(worth[1:]))
        name, title = shop.dataset.items[inside[place]], shop.item_shelf.title(inside[place])
        without = audience.if_told_apart(worth[1 + place])
        weakest = ForecastWeakest(id=name, title=title, without=without)
        replacement = _replacement(audience, shorter[place], inside, worth[0], best.histories, notes)
    chances, above = audience.chances(scored)
    expected, (low, high) = audience.expected(scored.sums), audience.interval(scored.sums)
    threshold = audience.threshold
    return BundleForecast(
        items=tuple(ForecastItem(**_named(shop.item_shelf, n)) for n in inside),
        price=price,
        list_price=list_price,
        discount=discount,
        asked=scored.users,
        expected=expected,
        low=low,
        high=high,
        above=above,
        threshold=threshold,
        expected_takings=None if expected is None or price is None else expected * price,
        people=tuple(
            ForecastPerson(id=name, chance=chance, score=score)
            for name, chance, score in zip(best.ids, chances, best.scores.tolist(), strict=True)
        )[:k],
        nearest=near,
        weakest=weakest,
        replacement=replacement,
        note=" ".join(notes) or None,
    )


ALIKE = (
    "A check on bundles held out of training found no sign that forecasts tell which new bundles sell better "
    "than others in this shop. So the number is that of a typical new bundle, and no number is given for the "
    "bundle with other items."
)
UNCALIBRATED = (
    "This model was saved by an earlier version or fitted with calibrate=False, so the number of buyers is "
    "unknown. Its probabilities can only rank users and items. Train it again."
)


def _named(shelf: Shelf, place: int) -> dict[str, Any]:
    facts = shelf.facts(place)
    return {"id": shelf.ids[place], "title": facts.title, "price": facts.price}


def _prices(
    shop: Shop, inside: Sequence[int], price: float | None, discount: float | None
) -> tuple[float | None, float | None, float | None]:
    """Returns the price of a bundle, the sum of its items' prices, and the discount; None if unknown."""
    if price is not None and discount is not None:
        raise ConfigError("give the bundle's price or its discount, not both: one follows from the other")
    if price is not None and not (is_number(price) and price >= 0):
        raise ConfigError(f"the bundle's price is {price!r}; it should be a number from 0 up")
    if discount is not None and not (is_number(discount) and 0 <= discount <= MOST_OFF):
        raise ConfigError(f"the discount is {discount!r}; it should be a fraction from 0 to {MOST_OFF}")
    prices = [shop.item_shelf.facts(item).price for item in inside]
    list_price = price_of(prices)
    if list_price is None:
        if discount is not None:
            name = shop.dataset.items[inside[prices.index(None)]]
            raise ConfigError(
                f"a discount needs every item's price, and that of {name!r} is not known: give the bundle's "
                "price instead"
            )
        return price, None, None
    if price is None:
        return price_of(prices, discount or 0.0), list_price, discount or 0.0
    return price, list_price, 1 - price / list_price if list_price else None


# ── Similar bundles ──────────────────────────────────────────────────────────────────────────────


def _nearest(
    model: Model, shop: Shop, inside: Sequence[int], k: int, notes: list[str]
) -> tuple[ForecastNeighbour, ...]:
    """Returns the bundles on sale with the most similar vectors. Without vectors, adds a note to `notes`."""
    try:
        with torch.inference_mode():
            bundle = Ragged.from_lists([inside], shop.device)
            vector = require(model, Embedder).vectors_of_bundles(bundle)  # [1, d]
        similar = nearest(model, shop.interactions.bundle_item, vector, shop.bundles(), k)
    except UnsupportedError as error:
        notes.append(f"{error}.")
        return ()
    shelf, places = shop.bundle_shelf, shop.dataset.bundles.known_positions
    return tuple(ForecastNeighbour(**_named(shelf, places[each.id]), score=each.score) for each in similar)


# ── The users ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Users:
    """Some users, with their scores for the first bundle in a call of `_Audience.score`."""

    ids: list[str]
    logits: Tensor  # [users]
    """The higher, the likelier the user takes the bundle. -inf for a user who has all its items."""
    scores: Tensor  # [users]
    histories: Histories

    def with_more(self, other: _Users) -> _Users:
        own, more = self.histories, other.histories
        users = None if own.users is None or more.users is None else torch.cat([own.users, more.users])
        return _Users(
            self.ids + other.ids,
            torch.cat([self.logits, other.logits]),
            torch.cat([self.scores, other.scores]),
            Histories(own.items.append(more.items), own.bundles.append(more.bundles), users),
        )

    def best(self, most: int) -> _Users:
        """Returns at most `most` users, the best first. Users who have all items are left out."""
        values, places = top(self.logits[None], min(most, len(self.ids)))
        chosen = places[0][values[0] > -torch.inf]
        ids = [self.ids[place] for place in chosen.tolist()]
        return _Users(ids, self.logits[chosen], self.scores[chosen], self.histories.rows(chosen))


@dataclass(frozen=True)
class _Scored:
    """All users, scored for several bundles."""

    sums: Numbers  # [3, bundles]
    """As `NewBundleCalibration.sums`. The last row is in proportion to the sum of the probabilities."""
    logits: Tensor  # [users]
    """As in `_Users`, of all users."""
    best: _Users
    """The best users for the first bundle."""

    @property
    def users(self) -> int:
        return len(self.logits)


class _Audience:
    """Scores all users for several bundles at a time. Only one batch of users is in memory."""

    def __init__(
        self,
        model: Model,
        shop: Shop,
        user_batches: UserBatches,
        calibration: NewBundleCalibration | None,
        count: int,
        progress: Progress,
    ) -> None:
        self.model, self.shop = model, shop
        self.calibration = calibration if calibration and calibration.reason is None else None
        self._user_batches, self._count, self._progress = user_batches, count, progress
        self._stage = "users"
        # Scoring all bundles of the shop is nearly all of the work, so it is done once for each batch. The
        # key tells whether the batch still has the same users: in a live shop, they may change.
        self._normalisers: dict[int, tuple[int, Tensor]] = {}

    @property
    def threshold(self) -> float | None:
        """The chance above which a user belongs to the audience; None if there is no calibration."""
        return self.calibration.threshold if self.calibration else None

    def worth(self, sums: Numbers) -> Numbers:
        """Numbers by which bundles are compared: the expected buyers if these tell bundles apart, else the
        sums of the users' probabilities."""  # [bundles]
        if self.calibration is not None and self.calibration.tells_apart:
            return self.calibration.expected(sums)
        worth: Numbers = sums[2]
        return worth

    def if_told_apart(self, worth: float) -> float | None:
        """The number if it is one of expected buyers."""
        return float(worth) if self.calibration is not None and self.calibration.tells_apart else None

    def expected(self, sums: Numbers) -> float | None:
        """The expected number of buyers of the first bundle."""
        return float(self.calibration.expected(sums)[0]) if self.calibration else None

    def interval(self, sums: Numbers) -> tuple[int, int] | tuple[None, None]:
        """The interval for the number of buyers of the first bundle."""
        return self.calibration.interval(sums[:, 0]) if self.calibration else (None, None)

    def chances(self, scored: _Scored) -> tuple[list[float] | list[None], int | None]:
        """The chances of the best users, and how many users have a chance above the threshold."""
        if self.calibration is None:
            return [None] * len(scored.best.ids), None
        total = self.calibration.expected(scored.sums)[:1]
        shift = float(shifts(scored.logits[:, None].numpy(), total)[0])
        above = int((torch.sigmoid(scored.logits + shift) > self.calibration.threshold).sum())
        return torch.sigmoid(scored.best.logits + shift).tolist(), above

    def score(self, bundles: Sequence[Sequence[int]], best: int) -> _Scored:
        """Scores all users for several bundles."""
        new = Ragged.from_lists(bundles, self.shop.device)
        contents = self.shop.interactions.bundle_item
        owners = Owners(new, contents, len(self.shop.dataset.items))
        # Without a calibration, only the sums of the probabilities are used.
        calibration = self.calibration or NewBundleCalibration(0, 0, "none")
        sums, logits, leading = np.zeros((3, len(bundles))), [], None
        users = 0
        self._progress(self._stage, 0, self._count)
        for number, (ids, histories) in enumerate(self._user_batches()):
            if not len(ids):
                continue
            with torch.inference_mode():
                key = hash(tuple(ids))
                if self._normalisers.get(number, (None,))[0] != key:
                    self._normalisers[number] = key, normaliser(self.model, histories, contents)
                log_sums = self._normalisers[number][1]
                logs = new_log_probabilities(self.model, histories, contents, new, log_sums)
                lacks = ~owners.have_all(histories)
                sums += calibration.sums(logs, histories, lacks, len(contents))
                first = (
                    logs[:, :1] if self.calibration is None else calibration.logits(logs[:, :1], histories)
                )
                first = first.masked_fill(~lacks[:, :1], -torch.inf)[:, 0]
                logits.append(first.float().cpu())
                batch = _Users(list(ids), first, logs[:, 0].exp(), histories).best(best)
                leading = batch if leading is None else leading.with_more(batch).best(best)
            users += len(ids)
            self._progress(self._stage, users, self._count and max(users, self._count))
        if leading is None:
            raise ConfigError("the shop has no users, so a bundle has no audience")
        self._stage, self._count = "users, for a better item", users
        return _Scored(sums, torch.cat(logits), leading)


# ── A better item ────────────────────────────────────────────────────────────────────


def _replacement(
    audience: _Audience,
    rest: tuple[int, ...],
    inside: tuple[int, ...],
    worth: float,
    histories: Histories,
    notes: list[str],
) -> ForecastReplacement | None:
    """Returns the item on sale that best replaces the weakest item; None if no item improves the forecast.

    Tries the items that users with these `histories` would add to the `rest` of the bundle. `worth` is that
    of the whole bundle.
    """
    model, shop = audience.model, audience.shop
    if not can(model, Completer):
        notes.append(f"{model.title} does not complete bundles, so it names no replacement.")
        return None
    if not len(histories):
        return None
    with torch.inference_mode():
        partial = Ragged.from_lists([rest] * len(histories), shop.device)
        scores = model.item_scores(histories, partial, shop.interactions.bundle_item)
        sold = shop.items(Filter(in_stock=True) if shop.item_shelf.stock_known else None)
        liked = scores.softmax(1).mean(0) + sold.hidden
        liked[list(inside)] = -torch.inf
        values, places = top(liked[None], min(TRIED, len(liked)))
        tried = places[0][values[0] > -torch.inf].tolist()
    if not tried:
        return None
    found = audience.worth(audience.score([(*rest, item) for item in tried], 1).sums)
    place = int(np.argmax(found))
    if found[place] <= worth:
        return None
    expected = audience.if_told_apart(found[place])
    return ForecastReplacement(**_named(shop.item_shelf, tried[place]), expected=expected)
