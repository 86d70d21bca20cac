"""The answers about designed bundles, explanations, and bundles that do not exist yet."""

from __future__ import annotations

from typing import Literal, TypeAlias

from bundlemage.wire.answers import Answered, EntryOut, ForUser, Listing, Out, ProblemOut, WorkOut

Code: TypeAlias = Literal[
    "has_item",
    "has_bundle",
    "seen_item",
    "seen_bundle",
    "bundle_has",
    "owns_part",
    "tag_share",
    "has_this",
    "whole_history",
    "seen_history",
    "popular",
    "nothing",
]

# ── Explanations ─────────────────────────────────────────────────────────────────────────────────


class Evidence(Out):
    """A fact that speaks for an answer. Which of the other fields are given depends on the code."""

    code: Code
    """'has_item', 'has_bundle': the user has this item or bundle. 'seen_item', 'seen_bundle': the user did
    not buy it, but a weaker event, such as a view, tells of an interest in it. 'bundle_has': the bundle that
    is completed has this item. 'owns_part': the user has 'count' of the 'of' items of the bundle.
    'tag_share': 'count' of the user's 'of' items have 'tag'. 'has_this': the user already has what is
    explained. 'whole_history': the history as a whole speaks for it, but nothing in it alone. 'seen_history':
    the same for a user who bought nothing. 'popular': 'count' users have bought it. 'nothing': there is no
    reason that stands out."""
    id: str | None = None
    """The item or bundle; null for a bundle without an id in the history of a visitor."""
    title: str | None = None
    tag: str | None = None
    count: int | None = None
    of: int | None = None


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


class Details(Out):
    """The numbers of an explanation. The model scores again without each item and bundle in turn."""

    fit: float
    """The score minus the mean score of all candidates: 0 is average, 0.69 is twice as likely."""
    history: float | None
    """The effect of the whole history: how much lower the fit is for a user without one. Null: the model
    knows users by id only."""
    gate: float | None
    """The weight of the item history, 0 to 1; the rest is the bundle history. Null: the model has no gate."""
    reasons: tuple[Reason, ...]
    """The strongest first. The service lists at most 10 for an item of a design, 100 in an explanation."""
    more: int = 0
    """The number of weaker reasons that are not listed."""
    not_asked: int = 0
    """The number of items and bundles of a very long history whose effect was not measured."""


class Explanation(Out):
    """Why an answer fits a user."""

    words: str
    """The evidence in one sentence. Empty for a customer if no reason stands out."""
    evidence: tuple[Evidence, ...]
    """The evidence of the sentence, at most two facts, the strongest first."""
    details: Details | None = None
    """The numbers behind it. The service gives them only with details=true."""

    def shortened(self, most: int) -> Explanation:
        """Returns a copy with only the `most` strongest reasons in its details; for 0 without details."""
        if self.details is None or not most:
            return self.model_copy(update={"details": None})
        reasons = self.details.reasons
        kept = {"reasons": reasons[:most], "more": self.details.more + max(0, len(reasons) - most)}
        return self.model_copy(update={"details": self.details.model_copy(update=kept)})


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
    owned: bool | None
    """Whether the user owns the item, bought alone or inside a bundle. Null: the bundle is for several
    users."""
    sold_out: bool
    """Whether its stock is known and 0."""


class Terms(Out):
    """The parts of a bundle's value, each multiplied by its weight."""

    matching: float
    """The logarithm of the probability that the user takes the bundle, among all bundles of the shop."""
    likelihood: float
    """The mean logarithm of the probabilities of the added items."""
    margin: float
    diversity: float


class Design(Out):
    rank: int
    items: tuple[DesignedItem, ...]
    """First the given items, then the added items, the most likely first."""
    price: float | None
    """The price after the discount; null if the price of an item is unknown."""
    to_pay: float | None
    """What the user pays, who may own some of the items: the shop's settings say how. Null if a needed price
    is unknown. For several users it is the price."""
    list_price: float | None
    discount: float
    score: float
    """The geometric mean of the probabilities of the added items."""
    value: float
    """The number that the search maximised: the sum of 'terms'."""
    terms: Terms
    same_as: str | None
    """A bundle of the shop that has exactly these items."""
    expected_rank: int | None = None
    """The rank that the bundle would have in the user's recommendations if the shop had it. Null: it would
    not be recommended, because of what the user owns or because it is sold out; the user has no history; the
    bundle is for several users; or the model ranks by sales alone or only completes bundles."""
    expected_buyers: float | None = None
    """How many users would ever buy the bundle: all users of the shop, or those it was designed for. It is
    estimated from at most 2,000 of them. Null: not asked for, or 'note' says why it is not known."""
    low: int | None = None
    high: int | None = None
    """The number of buyers lies between 'low' and 'high' for nine of ten new bundles."""

    @property
    def ids(self) -> list[str]:
        """The ids of its items."""
        return [item.id for item in self.items]


class BetterExisting(Out):
    """A bundle of the shop that satisfies the request and has a higher value than every designed one."""

    id: str
    title: str | None
    price: float | None
    """The bundle's own price; if it has none, the sum of its items' prices minus the discount."""
    value: float
    expected_rank: int | None
    """The rank of the bundle for the user, among the bundles that the user does not have."""


class Designs(Listing[Design]):
    """Designed bundles, the best first."""

    bundles: tuple[Design, ...]
    """The best first. There may be fewer than the request asked for."""
    better_existing: BetterExisting | None = None
    """The best bundle that the shop already has, if its value is higher than that of the first designed one.
    Null: the shop has none that the request allows, or the first design is at least as good."""
    note: str | None = None
    """What is not known about the bundles, and why."""
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
    do not count. Null: there is too little data to say, or too few users of the segment are in the sample;
    'note' says why."""
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
    """The users who like the bundle best, among those for whom the forecast was computed. The service gives
    them only to keys of the role 'write' or 'admin'."""
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
