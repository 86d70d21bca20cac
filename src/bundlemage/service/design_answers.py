"""The JSON that comes out of designing, explaining and judging bundles."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from bundlemage.campaigns.forecasts import BundleForecast
from bundlemage.designer.design import Design, DesignedItem, Designs
from bundlemage.designer.explain import Explanation, Reason
from bundlemage.service.answers import ANSWERED, FOR, Answered, ForSomeone, Out, Part, shown

IN_A_DESIGN = 10
"""The most reasons for each item of a design; there may be many items."""
IN_AN_EXPLANATION = 100

# What the examples are made of: things of the sample shop.
_CORSAIRS = {"id": "g0401", "title": "Glassreach Corsairs II", "price": 19.99}
_GIVEN = {"id": "g0022", "title": "Glassreach: The Ancient Privateers", "price": 14.99}
_REASON = {"kind": "item", "id": "g0066", "title": "Glassreach Corsairs", "effect": 0.793, "without": 2.11}
_WORDS = "Likelier because they have Glassreach Corsairs (2.2 times)."
_WHY = {"fit": 2.903, "gate": 0.37, "words": _WORDS, "reasons": [_REASON], "more": 20, "not_asked": 0}
_DESIGN = {
    "rank": 1,
    "items": [
        {**_GIVEN, "tags": ["Seafaring"], "given": False, "score": 0.281, "why": _WHY},
        {**_CORSAIRS, "tags": ["Seafaring"], "given": False, "score": 0.281, "why": _WHY},
    ],
    "price": 27.98,
    "list_price": 34.98,
    "discount": 0.2,
    "score": 0.281,
    "value": -1.269,
    "terms": {"likelihood": -1.269, "margin": 0.0, "diversity": 0.0},
    "same_as": "b0036",
}
_FORECAST = {
    "items": [_GIVEN, _CORSAIRS],
    "price": 27.98,
    "list_price": 34.98,
    "discount": 0.2,
    "asked": 800,
    "expected": 31.5,
    "above": 44,
    "threshold": 0.113,
    "expected_takings": 881.37,
    "people": [{"id": "u0077", "chance": 0.41, "score": 0.047}],
    "nearest": [{"id": "b0192", "title": "Glassreach Anthology", "score": 0.944, "price": 78.71}],
    "weakest": {"id": "g0022", "title": _GIVEN["title"], "without": 29.8},
    "replacement": {"id": "g0066", "title": "Glassreach Corsairs", "price": 2.99, "expected": 33.2},
}


class ReasonOut(Out):
    kind: Literal["item", "bundle", "partial"] = Field(
        description="'item' or 'bundle': something that they have; 'partial': something in the bundle."
    )
    id: str
    title: str | None
    effect: float = Field(description="How much lower the fit is without it: fit less 'without'.")
    without: float = Field(description="The fit when this one is left out, and nothing else.")


class Why(Out):
    """What speaks for something, found by leaving out each thing in turn and asking the model again."""

    fit: float = Field(description="The logarithm of how many times likelier it is than the average.")
    gate: float | None = Field(
        description="How far item history speaks, 0 to 1, and not bundle history; null: there is no gate."
    )
    words: str = Field(description="The strongest reasons in a sentence.")
    reasons: list[ReasonOut] = Field(
        description=f"The strongest first: at most {IN_A_DESIGN} for an item of a design, and "
        f"{IN_AN_EXPLANATION} where they are asked for by themselves."
    )
    more: int = Field(description="How many reasons, weaker ones, are not listed.")
    not_asked: int = Field(description="How many things of a very long history were not left out in turn.")


class DesignedItemOut(Part):
    given: bool = Field(description="Whether it was in the bundle from the start.")
    score: float | None = Field(description="Its probability when it was added; null if given.")
    why: Why | None = Field(description="Null if given, or if no reasons were asked for.")


class Terms(Out):
    """What adds up to a bundle's value, each with its weight."""

    likelihood: float
    margin: float
    diversity: float


class DesignOut(Out):
    rank: int
    items: list[DesignedItemOut] = Field(
        description="First what was given, then what was added, the likeliest first."
    )
    price: float | None = Field(description="After the discount; null where an item's price is not known.")
    list_price: float | None
    discount: float
    score: float = Field(description="The geometric mean of the probabilities of what was added.")
    value: float = Field(description="What the search made as high as possible: the sum of 'terms'.")
    terms: Terms
    same_as: str | None = Field(description="A bundle that the shop has already, of exactly these items.")


class DesignsFor(ForSomeone):
    model_config = shown(**FOR, bundles=[_DESIGN], method="beam", seconds=0.05, complete=True, proven=False)

    bundles: list[DesignOut] = Field(description="The best first; fewer than asked for if there are no more.")
    method: str
    seconds: float
    complete: bool = Field(description="False: time ran out, and these are the best found until then.")
    proven: bool = Field(description="True: no bundle at all has a higher value than the first.")


class Explained(Out):
    id: str
    title: str | None
    why: Why


class ExplanationsFor(ForSomeone):
    model_config = shown(**FOR, explanations=[{"id": "g0401", "title": _CORSAIRS["title"], "why": _WHY}])

    explanations: list[Explained] = Field(description="In the order in which they were asked for.")


class ForecastItem(Out):
    id: str
    title: str | None
    price: float | None


class ForecastPerson(Out):
    id: str
    chance: float | None = Field(description="That they take it; null if the model cannot say.")
    score: float = Field(description="The probability of the bundle among all of the shop's.")


class ForecastNeighbour(ForecastItem):
    score: float = Field(description="The cosine between the two.")


class ForecastWeakest(Out):
    id: str
    title: str | None
    without: float | None = Field(description="The expected audience of the bundle without it.")


class ForecastReplacement(ForecastItem):
    expected: float | None = Field(description="The expected audience of the bundle with it instead.")


class ForecastOut(Answered):
    """What the model says of a bundle that does not exist yet. It does not know of prices: a price turns
    buyers into takings, and changes nobody's mind."""

    model_config = shown(**ANSWERED, **_FORECAST)

    items: list[ForecastItem]
    price: float | None
    list_price: float | None
    discount: float | None
    asked: int = Field(description="How many people there are.")
    expected: float | None = Field(
        description="How many would take it; whoever has all its items does not count. Null: it cannot say."
    )
    above: int | None = Field(description="How many have a chance above the threshold.")
    threshold: float | None = Field(
        description="The chance from which someone counts as audience, learned on validation."
    )
    expected_takings: float | None
    people: list[ForecastPerson] = Field(description="Those who like it best, of those the shop has now.")
    nearest: list[ForecastNeighbour] = Field(description="The bundles of the shop that are most like it.")
    weakest: ForecastWeakest | None = Field(description="The item that it would miss least.")
    replacement: ForecastReplacement | None = Field(
        description="What would do better than the weakest item; null: nothing that was tried."
    )
    note: str | None = Field(default=None, description="What could not be told, and why.")


# ── From what the designer says ──────────────────────────────────────────────────────────────────


def designs_out(found: Designs, about: dict[str, Any]) -> DesignsFor:
    return DesignsFor(
        **about,
        bundles=[_design(each) for each in found],
        method=found.method,
        seconds=found.seconds,
        complete=found.complete,
        proven=found.proven,
    )


def _design(found: Design) -> DesignOut:
    return DesignOut(
        rank=found.rank,
        items=[_item(item) for item in found.items],
        price=found.price,
        list_price=found.list_price,
        discount=found.discount,
        score=found.score,
        value=found.value,
        terms=Terms(**found.terms),
        same_as=found.same_as,
    )


def _item(item: DesignedItem) -> DesignedItemOut:
    return DesignedItemOut(
        id=item.id,
        title=item.title,
        price=item.price,
        tags=list(item.tags),
        given=item.given,
        score=item.score,
        why=None if item.why is None else why_out(item.why, IN_A_DESIGN),
    )


def why_out(found: Explanation, most: int) -> Why:
    return Why(
        fit=found.fit,
        gate=found.gate,
        words=found.words(),
        reasons=[_reason(reason) for reason in found.reasons[:most]],
        more=max(0, len(found.reasons) - most),
        not_asked=found.not_asked,
    )


def _reason(reason: Reason) -> ReasonOut:
    return ReasonOut(
        kind=reason.kind,
        id=reason.id,
        title=reason.title,
        effect=reason.effect,
        without=reason.without,
    )


def forecast_out(found: BundleForecast, about: dict[str, Any]) -> ForecastOut:
    return ForecastOut(**about, **found.to_json())
