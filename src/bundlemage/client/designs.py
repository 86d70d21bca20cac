"""What the service answers about designs, reasons and audiences, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bundlemage.client.answers import Answered, Known, Part, Several


@dataclass(frozen=True)
class Reason:
    """One thing that speaks for an answer, or against it."""

    kind: Literal["item", "bundle", "partial"]
    """`item` or `bundle`: something that they have; `partial`: an item of the bundle."""
    id: str
    title: str | None
    effect: float
    """How much lower the fit is without it."""
    without: float
    """The fit when this one is left out, and nothing else."""


@dataclass(frozen=True)
class Why:
    """Reasons, the strongest first."""

    fit: float
    """The logarithm of how many times likelier it is than the average."""
    gate: float | None
    """How far item history speaks, 0 to 1, and not bundle history; None where the model has no gate."""
    words: str
    reasons: tuple[Reason, ...]
    more: int
    """How many weaker reasons are not listed."""
    not_asked: int
    """How many things of a very long history were not left out in turn."""


@dataclass(frozen=True)
class DesignedItem(Part):
    given: bool
    """Whether it was in the bundle from the start."""
    score: float | None
    """Its probability when it was added; None if given."""
    why: Why | None


@dataclass(frozen=True)
class Terms:
    """What adds up to a bundle's value, each with its weight."""

    likelihood: float
    margin: float
    diversity: float


@dataclass(frozen=True)
class Design:
    """A whole bundle."""

    rank: int
    items: tuple[DesignedItem, ...]
    """First what was given, then what was added, the likeliest first."""
    price: float | None
    """After the discount; None where an item's price is not known."""
    list_price: float | None
    discount: float
    score: float
    """The geometric mean of the probabilities of what was added."""
    value: float
    terms: Terms
    same_as: str | None
    """A bundle that the shop has already, of exactly these items."""


@dataclass(frozen=True)
class Designs(Answered, Several[Design]):
    """Bundles that were designed for someone, the best first."""

    user_id: str | None
    history: Known
    bundles: tuple[Design, ...]
    method: str
    seconds: float
    complete: bool
    """False: time ran out, and these are the best that were found until then."""
    proven: bool
    """True: no bundle at all has a higher value than the first."""

    @property
    def _all(self) -> tuple[Design, ...]:
        return self.bundles


@dataclass(frozen=True)
class Explained:
    id: str
    title: str | None
    why: Why


@dataclass(frozen=True)
class Explanations(Answered, Several[Explained]):
    """Why some things are for someone, in the order in which they were asked for."""

    user_id: str | None
    history: Known
    explanations: tuple[Explained, ...]

    @property
    def _all(self) -> tuple[Explained, ...]:
        return self.explanations


@dataclass(frozen=True)
class ForecastItem:
    id: str
    title: str | None
    price: float | None


@dataclass(frozen=True)
class ForecastPerson:
    """Someone who may take the bundle."""

    id: str
    chance: float | None
    """None where the model cannot say."""
    score: float
    """The probability of the bundle among all of the shop's."""


@dataclass(frozen=True)
class ForecastNeighbour(ForecastItem):
    """A bundle of the shop that is like it."""

    score: float
    """The cosine between the two."""


@dataclass(frozen=True)
class ForecastWeakest:
    """The item that the bundle would miss least."""

    id: str
    title: str | None
    without: float | None
    """The expected audience of the bundle without it."""


@dataclass(frozen=True)
class ForecastReplacement(ForecastItem):
    """What to put in the place of the weakest item."""

    expected: float | None
    """The expected audience of the bundle with it instead."""


@dataclass(frozen=True)
class Forecast(Answered):
    """What the model says of a bundle that does not exist yet."""

    items: tuple[ForecastItem, ...]
    price: float | None
    list_price: float | None
    discount: float | None
    asked: int
    """How many people there are."""
    expected: float | None
    """How many would take it; None where the model cannot say."""
    above: int | None
    """How many have a chance above the threshold."""
    threshold: float | None
    expected_takings: float | None
    people: tuple[ForecastPerson, ...]
    nearest: tuple[ForecastNeighbour, ...]
    weakest: ForecastWeakest | None
    replacement: ForecastReplacement | None
    note: str | None
    """What could not be told, and why."""
