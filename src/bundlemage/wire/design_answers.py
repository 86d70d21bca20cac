"""The answers about designed bundles, explanations, and bundles that do not exist yet."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Literal

from bundlemage.wire.answers import Answered, EntryOut, ForUser, Listing, Out, ProblemOut, WorkOut

_NOTICEABLE = 0.05
"""The smallest effect that is put into words: 5% more likely."""
_PHRASES = {"item": "they have", "bundle": "they have the bundle", "partial": "the bundle has"}


# ── Explanations ─────────────────────────────────────────────────────────────────────────────────


class Reason(Out):
    """An item or bundle that makes an answer more likely, or less likely."""

    kind: Literal["item", "bundle", "partial"]
    """'item' or 'bundle': something that the user has; 'partial': an item that is already in the bundle."""
    id: str
    title: str | None
    effect: float
    """How much lower the fit is without it: 'fit' minus 'without'."""
    without: float
    """The fit without this item or bundle."""


def in_words(reasons: Sequence[Reason], most: int = 2) -> str:
    """Returns a sentence with the strongest reasons, at most `most`."""
    if not any(abs(reason.effect) > 1e-6 for reason in reasons):
        return "Nothing that they have, or that is in the bundle, makes a difference."
    strongest = [reason for reason in reasons if reason.effect >= _NOTICEABLE][:most]
    if not strongest:
        return "No single item or bundle makes it much likelier."
    phrases = []
    for reason in strongest:
        times = exp(reason.effect)
        by = f"{times:.1f} times" if times >= 2 else f"by {times - 1:.0%}"
        phrases.append(f"{_PHRASES[reason.kind]} {reason.title or reason.id} ({by})")
    return f"Likelier because {' and '.join(phrases)}."


class Explanation(Out):
    """The reasons for an answer. The model scores the answer again without each item and bundle in turn."""

    fit: float
    """The score minus the mean score of all candidates: 0 is average, 0.69 is twice as likely."""
    gate: float | None
    """The weight of the item history, 0 to 1; the rest is the bundle history. Null: the model has no gate."""
    words: str
    """The strongest reasons in a sentence."""
    reasons: tuple[Reason, ...]
    """The strongest first. The service lists at most 10 for an item of a design, 100 in an explanation."""
    more: int = 0
    """The number of weaker reasons that are not listed."""
    not_asked: int = 0
    """The number of items and bundles of a very long history whose effect was not measured."""

    def shortened(self, most: int) -> Explanation:
        """Returns a copy with only the `most` strongest reasons."""
        more = max(0, len(self.reasons) - most)
        return self.model_copy(update={"reasons": self.reasons[:most], "more": more})


class Explained(Out):
    id: str
    title: str | None
    why: Explanation


class ExplanationsFor(ForUser, Listing[Explained]):
    """Explanations in the order of the request."""

    explanations: tuple[Explained, ...]


# ── Designs ──────────────────────────────────────────────────────────────────────────────────────


class DesignedItem(EntryOut):
    given: bool
    """Whether the item was in the bundle from the start."""
    score: float | None
    """The probability of the item when it was added; null if it was given."""
    why: Explanation | None = None
    """Null if the item was given, or if the request did not ask for reasons."""


class Terms(Out):
    """The parts of a bundle's value, each multiplied by its weight."""

    likelihood: float
    margin: float
    diversity: float


class Design(Out):
    rank: int
    items: tuple[DesignedItem, ...]
    """First the given items, then the added items, the most likely first."""
    price: float | None
    """The price after the discount; null if the price of an item is unknown."""
    list_price: float | None
    discount: float
    score: float
    """The geometric mean of the probabilities of the added items."""
    value: float
    """The number that the search maximised: the sum of 'terms'."""
    terms: Terms
    same_as: str | None
    """A bundle of the shop that has exactly these items."""

    @property
    def ids(self) -> list[str]:
        """The ids of its items."""
        return [item.id for item in self.items]


class Designs(Listing[Design]):
    """Designed bundles, the best first."""

    bundles: tuple[Design, ...]
    """The best first. There may be fewer than the request asked for."""
    method: str
    seconds: float
    complete: bool
    """False: time ran out. The bundles are the best so far, and some reasons may be missing."""
    proven: bool
    """True: no possible bundle has a higher value than the first."""


class DesignsFor(ForUser, Designs):
    """Bundles that were designed for a user, the best first."""


# ── Bundles that do not exist yet ────────────────────────────────────────────────────────────────


class ForecastItem(Out):
    id: str
    title: str | None
    price: float | None


class ForecastPerson(Out):
    """A user who may take the bundle."""

    id: str
    chance: float | None
    """The probability that the user ever buys the bundle; null if the model cannot tell."""
    score: float
    """The probability of the bundle among all bundles of the shop."""


class ForecastNeighbour(ForecastItem):
    """A similar bundle of the shop."""

    score: float
    """The cosine similarity of the two bundles."""


class ForecastWeakest(Out):
    """The item that contributes least to the bundle."""

    id: str
    title: str | None
    without: float | None
    """The expected number of buyers without this item. Null if forecasts do not tell bundles apart; 'note'
    says why."""


class ForecastReplacement(ForecastItem):
    """An item that would do better than the weakest one."""

    expected: float | None
    """The expected number of buyers with this item instead. Null if forecasts do not tell bundles apart."""


class BundleForecast(Out):
    """The forecast for a bundle that does not exist yet. The model ignores prices: a price only turns
    the expected number of buyers into expected takings."""

    items: tuple[ForecastItem, ...]
    price: float | None
    list_price: float | None
    discount: float | None
    asked: int
    """The number of users for whom the forecast was computed."""
    of: int
    """The number of users that the forecast is about. More than 'asked' if these are a sample."""
    sampled: bool
    """Whether the forecast is an estimate from a sample of the users."""
    in_segment: int | None = None
    """The number of users in the segment, estimated if 'sampled'. Null if the request names no segment."""
    expected: float | None
    """How many users of the segment, or of the shop, would ever buy the bundle. Users who have all its items
    do not count. Null: there is too little data to say, and 'note' says why."""
    low: int | None
    high: int | None
    """The number of buyers lies between 'low' and 'high' for nine of ten new bundles. If 'sampled', the
    interval is wider, because it includes the sampling error."""
    above: int | None
    """The number of users with a chance above the threshold."""
    threshold: float | None
    """The chance above which a user is counted in 'above'. It is learned on bundles held out of training."""
    expected_takings: float | None
    people: tuple[ForecastPerson, ...]
    """The users who like the bundle best, among those for whom the forecast was computed."""
    nearest: tuple[ForecastNeighbour, ...]
    """The bundles of the shop that are most similar."""
    weakest: ForecastWeakest | None
    """The item that contributes least. Null for a bundle of one item, and for a segment."""
    replacement: ForecastReplacement | None
    """An item that would do better than the weakest one; null if none of the tried items would."""
    note: str | None = None
    """What could not be forecast, and why."""


class ForecastOut(Answered, BundleForecast):
    """The forecast for a bundle that does not exist yet."""


class ForecastLine(Out):
    """A line of a streamed forecast. One of the fields is not null."""

    estimate: ForecastOut | None = None
    """The estimate from a sample: the first line, unless the sample has all users."""
    progress: WorkOut | None = None
    """How far the exact forecast is. Such lines follow about twice a second."""
    forecast: ForecastOut | None = None
    """The exact forecast: the last line."""
    problem: ProblemOut | None = None
    """Why there is no exact forecast: the last line instead of the forecast."""
