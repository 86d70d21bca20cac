"""Forecasts for a new bundle: how many users would take it, which ones, and which item would be better."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from bundlemage.campaigns.chances import Numbers, new_log_probabilities, normaliser
from bundlemage.campaigns.new_bundles import RESAMPLES, NewBundleCalibration, Owners
from bundlemage.core.answering import nearest
from bundlemage.core.filters import Filter, Shelf
from bundlemage.core.history import Id
from bundlemage.core.ranking import top
from bundlemage.core.shop import Shop
from bundlemage.designer.constraints import price_of
from bundlemage.errors import ConfigError, UnsupportedError
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
    totals, best = scored.totals, scored.best
    weakest, replacement = None, None
    if shorter:
        place = int(np.argmax(totals[1:]))
        without = audience.expected(totals[1 + place])
        name, title = shop.dataset.items[inside[place]], shop.item_shelf.title(inside[place])
        weakest = ForecastWeakest(id=name, title=title, without=without)
        replacement = _replacement(audience, shorter[place], inside, totals[0], best.histories, notes)
    expected, (low, high) = audience.expected(totals[0]), audience.interval(scored.resampled, scored.users)
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
        above=None if threshold is None else scored.above,
        threshold=threshold,
        expected_takings=None if expected is None or price is None else expected * price,
        people=tuple(
            ForecastPerson(id=name, chance=None if threshold is None else chance, score=score)
            for name, chance, score in zip(best.ids, best.chances.tolist(), best.scores.tolist(), strict=True)
        )[:k],
        nearest=near,
        weakest=weakest,
        replacement=replacement,
        note=" ".join(notes) or None,
    )


ALIKE = (
    "A check found no sign that forecasts tell which new bundles sell better than others in this shop: take "
    "the number as that of a typical new bundle."
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
    if price is not None and not (_is_number(price) and price >= 0):
        raise ConfigError(f"the bundle's price is {price!r}; it should be a number from 0 up")
    if discount is not None and not (_is_number(discount) and 0 <= discount <= MOST_OFF):
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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


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
    """Some users, with their chances and scores for the first bundle in a call of `_Audience.score`."""

    ids: list[str]
    chances: Tensor  # [users]
    scores: Tensor  # [users]
    histories: Histories

    def with_more(self, other: _Users) -> _Users:
        own, more = self.histories, other.histories
        users = None if own.users is None or more.users is None else torch.cat([own.users, more.users])
        return _Users(
            self.ids + other.ids,
            torch.cat([self.chances, other.chances]),
            torch.cat([self.scores, other.scores]),
            Histories(own.items.append(more.items), own.bundles.append(more.bundles), users),
        )

    def best(self, most: int) -> _Users:
        """Returns at most `most` users, the best first. Users who have all items (chance -1) are left out."""
        values, places = top(self.chances[None], min(most, len(self.ids)))
        chosen = places[0][values[0] >= 0]
        ids = [self.ids[place] for place in chosen.tolist()]
        return _Users(ids, self.chances[chosen], self.scores[chosen], self.histories.rows(chosen))


@dataclass(frozen=True)
class _Scored:
    """All users, scored for several bundles."""

    totals: Numbers  # [bundles]
    """The sum of the users' chances for each bundle, or of probabilities without a calibration."""
    resampled: Numbers  # [RESAMPLES]
    """The sum of the users' chances for the first bundle, with each of the resampled coefficients."""
    above: int
    """The number of users with a chance for the first bundle above the threshold."""
    users: int
    """The number of all users."""
    best: _Users
    """The best users for the first bundle."""


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
        self.calibration = calibration if calibration and calibration.calibration else None
        self._user_batches, self._count, self._progress = user_batches, count, progress
        self._stage = "users"
        # Scoring all bundles of the shop is nearly all of the work, so it is done once for each batch. The
        # key tells whether the batch still has the same users: in a live shop, they may change.
        self._normalisers: dict[int, tuple[int, Tensor]] = {}

    @property
    def threshold(self) -> float | None:
        """The chance above which a user belongs to the audience; None if there is no calibration."""
        calibration = self.calibration and self.calibration.calibration
        return calibration.threshold if calibration else None

    def expected(self, total: float) -> float | None:
        return float(total) if self.calibration else None

    def interval(self, totals: Numbers, users: int) -> tuple[int, int] | tuple[None, None]:
        """The interval for the number of buyers, at most the number of users."""
        if self.calibration is None:
            return None, None
        low, high = self.calibration.interval(totals)
        return min(low, users), min(high, users)

    def score(self, bundles: Sequence[Sequence[int]], best: int) -> _Scored:
        """Scores all users for several bundles."""
        new = Ragged.from_lists(bundles, self.shop.device)
        contents = self.shop.interactions.bundle_item
        owners = Owners(new, contents, len(self.shop.dataset.items))
        totals = torch.zeros(len(bundles), dtype=torch.float64)
        resampled = torch.zeros(RESAMPLES, dtype=torch.float64)
        threshold, above, users, leading = self.threshold, 0, 0, None
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
                have_all, chances = owners.have_all(histories), logs.exp()
                if self.calibration is not None:
                    chances = self.calibration.chances(logs, histories, len(contents))
                    each = self.calibration.resampled_chances(logs[:, 0], histories, len(contents))
                    resampled += each.masked_fill(have_all[:, :1], 0.0).cpu().double().sum(0)
                chances = chances.masked_fill(have_all, 0.0)
                totals += chances.cpu().double().sum(0)
                first = chances[:, 0].masked_fill(have_all[:, 0], -1.0)
                above += 0 if threshold is None else int((first > threshold).sum())
                users += len(ids)
                batch = _Users(list(ids), first, logs[:, 0].exp(), histories).best(best)
                leading = batch if leading is None else leading.with_more(batch).best(best)
            self._progress(self._stage, users, self._count and max(users, self._count))
        if leading is None:
            raise ConfigError("the shop has no users, so a bundle has no audience")
        self._stage, self._count = "users, for a better item", users
        return _Scored(totals.numpy(), resampled.numpy(), above, users, leading)


# ── A better item ────────────────────────────────────────────────────────────────────


def _replacement(
    audience: _Audience,
    rest: tuple[int, ...],
    inside: tuple[int, ...],
    total: float,
    histories: Histories,
    notes: list[str],
) -> ForecastReplacement | None:
    """Returns the item on sale that best replaces the weakest item; None if no item improves the forecast.

    Tries the items that users with these `histories` would add to the `rest` of the bundle. `total` is the
    forecast of the whole bundle.
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
    totals = audience.score([(*rest, item) for item in tried], 1).totals
    place = int(np.argmax(totals))
    if totals[place] <= total:
        return None
    expected = audience.expected(totals[place])
    return ForecastReplacement(**_named(shop.item_shelf, tried[place]), expected=expected)
