"""Forecasts for a new bundle: how many users would take it, which ones, and which item would be better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from bundlemage.campaigns.chances import Numbers
from bundlemage.campaigns.estimate import possible_sums, ratio
from bundlemage.campaigns.everyone import Everyone, UserBatches
from bundlemage.campaigns.new_bundles import NewBundleCalibration, shifts
from bundlemage.campaigns.sample import TYPICAL, buyers_among
from bundlemage.core.answering import nearest
from bundlemage.core.filters import Filter, Mask, Shelf
from bundlemage.core.history import Id
from bundlemage.core.ranking import top
from bundlemage.core.segments import Segment, SegmentTest
from bundlemage.core.shop import Shop
from bundlemage.designer.constraints import list_price_of, price_of
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
from bundlemage.wire.requests import LEAST_SAMPLED, MOST_OFF
from bundlemage.wire.shop import ShopSettings

BEST_USERS = 64
"""The number of users with the highest chances for whom replacements are ranked."""
NAMED = 3
"""At most this many unknown users are named."""
TRIED = 32
"""The number of items that are tried in place of the weakest item."""


def forecast(
    model: Model,
    shop: Shop,
    user_batches: UserBatches,
    items: Sequence[Id],
    price: float | None = None,
    *,
    settings: ShopSettings,
    discount: float | None = None,
    k: int = 10,
    calibration: NewBundleCalibration | None = None,
    segment: Segment | None = None,
    of: int | None = None,
    listed: UserBatches | None = None,
    count: int = 0,
    progress: Progress = in_silence,
) -> BundleForecast:
    """Forecasts how many users would take a bundle of these items, and names the k likeliest.

    The bundle has a price, or a discount off its items' prices. Without a calibration, fields such as
    `expected` and `above` are None, and the note says why. With a segment, only buyers in the segment count:
    the numbers of the parts of a shop add up to the number of the shop. If the users are a random sample,
    `of` is the number of users that it was drawn from. Then `listed` may have all users that the segment
    lists, so that their number is not estimated from those in the sample. `progress` is told how many of the
    users (about `count`) are scored.
    """
    inside = _positions(shop, items)
    price, list_price, discount = _prices(shop, settings, inside, price, discount)
    notes = []
    if calibration is None:
        notes.append(UNCALIBRATED)
    elif calibration.reason is not None:
        notes.append(f"There is too little data to say how many users would buy it: {calibration.reason}.")
    elif not calibration.tells_apart:
        notes.append(ALIKE)
    near = _nearest(model, shop, inside, k, notes)
    forecaster = require(model, Matcher).forecaster
    audience = _Audience(forecaster, shop, user_batches, calibration, segment, of, count, progress)
    shorter: list[tuple[int, ...]] = []
    if len(inside) > 1 and segment is None:
        shorter = [inside[:n] + inside[n + 1 :] for n in range(len(inside))]
    scored = audience.score([inside, *shorter], max(k, BEST_USERS))
    if of is not None and of < scored.users:
        raise ConfigError(
            f"'of' is {of:,}, but there are {scored.users:,} users: it is the number of all users"
        )
    scale, told, inside_of = audience.scale(scored), audience, scored
    if listed is not None and scale > 1:
        told = _Audience(forecaster, shop, listed, calibration, segment, None, 0, in_silence)
        inside_of = told.score([inside], max(k, BEST_USERS))
    best, exact = inside_of.best, scale == 1 or told is not audience
    worth = audience.worth(scored.sums * scale)
    weakest, replacement = None, None
    if shorter:
        place = int(np.argmax(worth[1:]))
        name, title = shop.dataset.items[inside[place]], shop.item_shelf.title(inside[place])
        without = audience.if_told_apart(worth[1 + place])
        weakest = ForecastWeakest(id=name, title=title, without=without)
        replacement = _replacement(audience, shorter[place], inside, worth[0], best.histories, notes)
    if exact:
        told.check_segment(inside_of)
        if segment is not None and (strangers := len(told.strangers)):
            listed_users = len(segment.users or ())
            notes.append(
                f"Left out, because they have no history: {strangers:,} of the {listed_users:,} listed users."
            )
    elif (found := int(inside_of.inside.sum())) < LEAST_SAMPLED:
        who = "users were sampled" if segment is None else "of the sampled users are in the segment"
        notes.append(f"Only {found:,} {who}, too few for an estimate: use a larger sample, or all users.")
    outlook = audience.outlook(scored, inside_of)
    expected = outlook.expected
    return BundleForecast(
        items=tuple(ForecastItem(**_named(shop.item_shelf, n)) for n in inside),
        price=price,
        list_price=list_price,
        discount=discount,
        asked=scored.users,
        of=round(scored.users * scale),
        sampled=scale > 1,
        in_segment=None if segment is None else round(inside_of.inside.sum() * (1 if exact else scale)),
        expected=expected,
        low=outlook.low,
        high=outlook.high,
        above=outlook.above,
        threshold=audience.threshold,
        expected_takings=None if expected is None or price is None else expected * price,
        people=tuple(
            ForecastPerson(id=name, chance=chance, score=score)
            for name, chance, score in zip(best.ids, outlook.chances, best.scores.tolist(), strict=True)
        )[:k],
        nearest=near,
        weakest=weakest,
        replacement=replacement,
        note=" ".join(notes) or None,
    )


BUYERS = pa.schema([("user_id", pa.string()), ("chance", pa.float64())])


def buyers(
    model: Model,
    shop: Shop,
    user_batches: UserBatches,
    items: Sequence[Id],
    *,
    least_chance: float | None = None,
    calibration: NewBundleCalibration | None = None,
    segment: Segment | None = None,
    count: int = 0,
    progress: Progress = in_silence,
) -> pa.Table:
    """Returns the users who would take a bundle, with the schema `BUYERS`, the likeliest first.

    These are the users with at least `least_chance`, or above the threshold of the calibration if it is None.
    Users who have all items are left out. Raises `UnsupportedError` if there is no calibration.
    """
    if least_chance is not None and not (is_number(least_chance) and 0 <= least_chance <= 1):
        raise ConfigError(f"the least chance is {least_chance!r}; it should be a number from 0 to 1")
    inside = _positions(shop, items)
    forecaster = require(model, Matcher).forecaster
    audience = _Audience(forecaster, shop, user_batches, calibration, segment, None, count, progress)
    if audience.calibration is None:
        why = UNCALIBRATED if calibration is None else f"{calibration.reason}."
        raise UnsupportedError(f"the chances of users are not known: {why}")
    scored = audience.score([inside], 1, with_ids=True)
    audience.check_segment(scored)
    chances: Numbers = audience.chances(scored).double().numpy()
    threshold = audience.calibration.threshold
    chosen = chances > threshold if least_chance is None else chances >= least_chance
    places = np.flatnonzero(chosen & scored.inside & np.isfinite(scored.logits.numpy()))
    order = places[np.argsort(-chances[places], kind="stable")]
    ids = pa.array(scored.ids, pa.string())
    return pa.table([ids.take(pa.array(order)), chances[order]], schema=BUYERS)


def _positions(shop: Shop, items: Sequence[Id]) -> tuple[int, ...]:
    """The positions of a bundle's items. Raises an error if these are not a list of known ids."""
    shop.item_positions(items)
    inside = tuple(dict.fromkeys(shop.dataset.items.positions(map(str, items)).tolist()))
    if not inside:
        raise ConfigError("a bundle without items has no audience: give at least one item")
    return inside


ALIKE = (
    f"{TYPICAL} For the same reason, it is not said how many more users would buy the bundle with the better "
    "item."
)
UNCALIBRATED = (
    "This model was saved by an earlier version or fitted with calibrate=False, so the number of buyers is "
    "unknown. Its probabilities can only rank users and items. Train it again."
)


def _named(shelf: Shelf, place: int) -> dict[str, Any]:
    facts = shelf.facts(place)
    return {"id": shelf.ids[place], "title": facts.title, "price": facts.price}


def _prices(
    shop: Shop,
    settings: ShopSettings,
    inside: Sequence[int],
    price: float | None,
    discount: float | None,
) -> tuple[float | None, float | None, float | None]:
    """Returns the price of a bundle, the sum of its items' prices, and the discount; None if unknown."""
    if price is not None and discount is not None:
        raise ConfigError("give the bundle's price or its discount, not both: one follows from the other")
    if price is not None and not (is_number(price) and price >= 0):
        raise ConfigError(f"the bundle's price is {price!r}; it should be a number from 0 up")
    if discount is not None and not (is_number(discount) and 0 <= discount <= MOST_OFF):
        raise ConfigError(
            f"the discount is {discount!r}; it should be a fraction such as 0.2 for 20%, at most {MOST_OFF}"
        )
    prices = [shop.item_shelf.facts(item).price for item in inside]
    list_price = list_price_of(prices, settings)
    if list_price is None:
        if discount is not None:
            name = shop.dataset.items[inside[prices.index(None)]]
            raise ConfigError(
                f"a discount needs every item's price, and that of {name!r} is not known: give the bundle's "
                "price instead"
            )
        return price, None, None
    if price is None:
        return price_of(prices, discount or 0.0, settings), list_price, discount or 0.0
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
    count = int(similar.counts[0])
    places, scores = (each[0, :count].tolist() for each in (similar.positions, similar.chances))
    best = zip(places, scores, strict=True)
    return tuple(ForecastNeighbour(**_named(shop.bundle_shelf, place), score=score) for place, score in best)


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
        return _Users(
            self.ids + other.ids,
            torch.cat([self.logits, other.logits]),
            torch.cat([self.scores, other.scores]),
            self.histories.append(other.histories),
        )

    def best(self, most: int, among: Mask | None = None) -> _Users:
        """Returns at most `most` users, the best first. Users who have all items are left out, and users who
        are not `among` these."""
        logits = self.logits
        if among is not None:
            logits = logits.masked_fill(~torch.from_numpy(among).to(logits.device), -torch.inf)
        values, places = top(logits[None], min(most, len(self.ids)))
        chosen = places[0][values[0] > -torch.inf]
        ids = [self.ids[place] for place in chosen.tolist()]
        return _Users(ids, self.logits[chosen], self.scores[chosen], self.histories.rows(chosen))


@dataclass(frozen=True)
class _Scored:
    """All users, scored for several bundles."""

    ids: list[str]
    """Empty unless they were asked for."""
    sums: Numbers  # [3, bundles]
    """As `NewBundleCalibration.sums`. The last row is in proportion to the sum of the probabilities."""
    terms: Numbers  # [3, users], of the first bundle
    """The terms of its sums; without users unless these are a sample."""
    logits: Tensor  # [users]
    """As in `_Users`, of all users."""
    inside: Mask  # [users]
    """True for the users of the segment."""
    best: _Users
    """The best users of the segment for the first bundle."""

    @property
    def users(self) -> int:
        return len(self.logits)


class _Audience:
    """Scores all users for several bundles, and turns the sums of the scores into numbers of buyers."""

    def __init__(
        self,
        model: Model,
        shop: Shop,
        user_batches: UserBatches,
        calibration: NewBundleCalibration | None,
        segment: Segment | None,
        of: int | None,
        count: int,
        progress: Progress,
    ) -> None:
        self.model, self.shop, self.of = model, shop, of
        self.calibration = calibration if calibration and calibration.reason is None else None
        self._count, self._progress = count, progress
        self._stage, self._done = "users", 0
        self.too_few = False
        """Whether the users that were scored are too few to say anything about all users."""
        contents = shop.interactions.bundle_item
        self._in_segment = None if segment is None else SegmentTest(segment, shop.item_shelf, contents)
        items = len(shop.dataset.items)
        self._everyone = Everyone(model, contents, items, user_batches, self._report)

    def _report(self) -> None:
        self._progress(self._stage, self._done, self._count and max(self._done, self._count))

    @property
    def threshold(self) -> float | None:
        """The chance above which a user belongs to the audience; None if there is no calibration."""
        return self.calibration.threshold if self.calibration else None

    @property
    def strangers(self) -> list[str]:
        """The users that the segment lists and that were not among those scored."""
        return [] if self._in_segment is None else sorted(self._in_segment.unseen)

    def check_segment(self, scored: _Scored) -> None:
        """Raises a `ConfigError` if no user is in the segment."""
        if self._in_segment is not None and not scored.inside.any():
            raise self._nobody()

    def _nobody(self) -> ConfigError:
        """The error if there are no users to score, or none of them is in the segment."""
        if self._in_segment is None:
            return ConfigError("the shop has no users, so a bundle has no audience")
        listed, strangers = self._in_segment.segment.users, self.strangers
        if listed is not None and len(strangers) == len(listed):
            names = ", ".join(map(repr, strangers[:NAMED]))
            more = f" and {len(strangers) - NAMED:,} more" if len(strangers) > NAMED else ""
            return ConfigError(
                f"no user is in the segment: none of the listed users is in the data ({names}{more})"
            )
        return ConfigError("no user is in the segment: see whether its conditions exclude each other")

    def worth(self, sums: Numbers) -> Numbers:
        """Numbers by which bundles are compared: the expected buyers if these tell bundles apart, else the
        sums of the users' probabilities."""  # [bundles]
        if self.calibration is not None and self.calibration.tells_apart:
            return self.calibration.expected(sums)
        worth: Numbers = sums[2]
        return worth

    def if_told_apart(self, worth: float) -> float | None:
        """The number if it is one of expected buyers."""
        known = self.calibration is not None and self.calibration.tells_apart and not self.too_few
        return float(worth) if known else None

    def scale(self, scored: _Scored) -> float:
        """How many users each scored user stands for."""
        return 1.0 if self.of is None else max(1.0, self.of / scored.users)

    def outlook(self, scored: _Scored, part: _Scored) -> _Outlook:
        """What the scores say about the first bundle. `part` has the users of the segment: `scored`, or users
        who were scored apart from a sample."""
        best = part.best
        if self.calibration is None or self.too_few:
            return _Outlook(None, None, None, None, [None] * len(best.ids))
        scale, calibration = self.scale(scored), self.calibration
        total = calibration.expected(scored.sums[:, :1] * scale)
        shift = float(shifts(scored.logits[:, None].numpy(), total / scale)[0])
        own = torch.sigmoid(best.logits + shift).tolist()
        chances, inside = torch.sigmoid(part.logits + shift).double().numpy(), part.inside
        above = int((chances > calibration.threshold)[inside].sum())
        if part is not scored:
            assert self.of is not None
            logits, of_part = scored.logits.numpy(), part.logits.numpy()[inside]
            found = buyers_among(scored.terms, logits, self.of, of_part, len(of_part), calibration)
            return _Outlook(*found, above, own)
        buying, counting = chances.sum(keepdims=True), (chances * inside).sum(keepdims=True)
        share = ratio(counting, buying)
        lacking = int((inside & np.isfinite(scored.logits.numpy())).sum())
        if scale == 1:
            low, high = calibration.interval(scored.sums[:, 0], share, lacking)
        else:
            assert self.of is not None
            if int(inside.sum()) < LEAST_SAMPLED:
                return _Outlook(None, None, None, None, own)
            columns = np.concatenate([scored.terms, chances[None], (chances * inside)[None]])
            possible = possible_sums(columns, self.of)
            shares = ratio(possible[4], possible[3])
            low, high = calibration.interval(possible[:3], shares, round(lacking * scale))
        return _Outlook(float((total * share)[0]), low, high, round(above * scale), own)

    def chances(self, scored: _Scored) -> Tensor:
        """The chances of all users to take the first bundle."""  # [users]
        assert self.calibration is not None
        shift = float(shifts(scored.logits[:, None].numpy(), self.calibration.expected(scored.sums)[:1])[0])
        return torch.sigmoid(scored.logits + shift)

    def score(self, bundles: Sequence[Sequence[int]], best: int, *, with_ids: bool = False) -> _Scored:
        """Scores all users for several bundles."""
        bundle_count = len(self.shop.interactions.bundle_item)
        # Without a calibration, only the sums of the probabilities are used.
        calibration = self.calibration or NewBundleCalibration(0, 0, "none")
        sums, leading = np.zeros((3, len(bundles))), None
        names, logits, inside, terms = list[str](), list[Tensor](), list[Mask](), [np.zeros((3, 0))]
        self._done = 0
        self._report()
        for batch in self._everyone.scores(bundles):
            ids, histories, logs, lacks = batch.ids, batch.histories, batch.logs, batch.lacks
            with torch.inference_mode():
                sums += calibration.sums(logs, histories, lacks, bundle_count)
                first = (
                    logs[:, :1] if self.calibration is None else calibration.logits(logs[:, :1], histories)
                )
                first = first.masked_fill(~lacks[:, :1], -torch.inf)[:, 0]
                logits.append(first.float().cpu())
                if self.of is not None:
                    terms.append(calibration.terms(logs[:, 0], histories, lacks[:, 0], bundle_count))
                among = None if self._in_segment is None else self._in_segment(ids, histories)
                inside.append(np.ones(len(ids), bool) if among is None else among)
                found = _Users(list(ids), first, logs[:, 0].exp(), histories).best(best, among)
                leading = found if leading is None else leading.with_more(found).best(best)
            if with_ids:
                names += ids
            self._done += len(ids)
            self._report()
        if leading is None:
            raise self._nobody()
        self._stage, self._count = "users, for a better item", self._done
        self.too_few = self.of is not None and self._done < min(LEAST_SAMPLED, self.of)
        everybody = np.concatenate(inside)
        return _Scored(names, sums, np.concatenate(terms, axis=1), torch.cat(logits), everybody, leading)


@dataclass(frozen=True)
class _Outlook:
    """What is forecast for the users of the segment. None: there is no calibration."""

    expected: float | None
    low: int | None
    high: int | None
    above: int | None
    chances: list[float] | list[None]
    """Of the best users."""


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
    scored = audience.score([(*rest, item) for item in tried], 1)
    found = audience.worth(scored.sums * audience.scale(scored))
    place = int(np.argmax(found))
    if found[place] <= worth:
        return None
    expected = audience.if_told_apart(found[place])
    return ForecastReplacement(**_named(shop.item_shelf, tried[place]), expected=expected)
