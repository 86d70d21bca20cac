"""The JSON that goes in."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
    model_validator,
)

from bundlemage.core.filters import Filter
from bundlemage.store.checks import LONGEST_ID, fault_of_id
from bundlemage.store.records import Owned


def _id(given: str) -> str:
    """By the store's own rule: what passes here must not be refused later."""
    fault = fault_of_id(given)
    if fault is not None:
        raise ValueError(fault)
    return given


_IN_IDS = r"[^\x00-\x1f\x7f-\x9f]"
AN_ID = rf"{_IN_IDS}*[^\s\x00-\x1f\x7f-\x9f]{_IN_IDS}*"
"""The rule as a pattern, for the API's document."""
Id = Annotated[
    str,
    AfterValidator(_id),
    Field(
        description=f"An id as the shop writes it: 1 to {LONGEST_ID} characters, not only spaces, and no "
        "control character.",
        json_schema_extra={"minLength": 1, "maxLength": LONGEST_ID, "pattern": f"^{AN_ID}$"},
    ),
]
Text = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00]*$")]
Tag = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
Price = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
MANY = 10_000
"""The most ids in one list."""
K = Annotated[int, Field(ge=1, le=100, description="How many answers are wanted.")]


def _number(given: Any) -> Any:
    """In a body a number is a number: a stock of `false` must not become 0. (A query has only text.)"""
    if isinstance(given, bool | str):
        raise ValueError("should be a number")  # noqa: TRY004  (pydantic passes a TypeError on)
    return given


ANumber = BeforeValidator(_number)
Flag = Annotated[bool, Strict()]


class Body(BaseModel):
    """A request: a key that is not known is a mistake, and is said."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Where(Body):
    """What may be shown. Every condition that is given must hold."""

    tags: list[Tag] = Field(default=[], max_length=100, description="At least one of these.")
    min_price: Annotated[Price, ANumber] | None = None
    max_price: Annotated[Price, ANumber] | None = None
    in_stock: Flag = Field(
        default=False, description="Only what can be sold: of a bundle, every item has stock."
    )
    exclude: list[Id] = Field(default=[], max_length=MANY, description="None of these.")
    among: list[Id] | None = Field(default=None, max_length=MANY, description="Only these.")

    def to_filter(self) -> Filter | None:
        """None where nothing is asked for, so that all such questions are alike."""
        return None if self == EVERYTHING else Filter(**self.model_dump())


EVERYTHING = Where()


class History(Body):
    """What someone has whom the shop does not know."""

    items: list[Id] = Field(default=[], max_length=MANY)
    bundles: list[Id] = Field(default=[], max_length=MANY)


class Person(Body):
    """Someone whom the service knows, or whose history comes along."""

    user_id: Id | None = Field(default=None, description="A user whose history the service keeps.")
    history: History | None = Field(default=None, description="In place of a user: what they have.")

    @model_validator(mode="after")
    def _one_of_two(self) -> Person:
        if (self.user_id is None) == (self.history is None):
            raise ValueError("give either 'user_id' or 'history', and not both")
        return self

    @property
    def owned(self) -> Owned | None:
        if self.history is None:
            return None
        unique = (tuple(dict.fromkeys(names)) for names in (self.history.items, self.history.bundles))
        return Owned(*unique)


class Someone(Person):
    include_owned: Flag = Field(default=False, description="Whether to show what they have already, too.")
    where: Where = EVERYTHING


class RecommendIn(Someone):
    k: Annotated[K, ANumber] = 10
    details: Flag = Field(default=False, description="Whether each bundle comes with its items.")

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"history": {"items": ["g0022"], "bundles": ["b0013"]}, "k": 3, "where": {"max_price": 40}},
                {"user_id": "u0007", "k": 3},
            ]
        }
    )


class CompleteIn(Someone):
    items: list[Id] = Field(default=[], max_length=1000, description="What is in the bundle already.")
    k: Annotated[K, ANumber] = 5

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"user_id": "u0007", "items": ["g0022", "g0401"], "k": 3}]}
    )


class InteractionIn(Body):
    """A user took an item, or a bundle."""

    user_id: Id
    item_id: Id | None = None
    bundle_id: Id | None = None
    at: AwareDatetime | None = Field(
        default=None, description="When, with a time zone; now if it is not said."
    )
    request_id: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9._-]{1,64}$", description="The answer from which it was taken."
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> InteractionIn:
        if (self.item_id is None) == (self.bundle_id is None):
            raise ValueError("give either 'item_id' or 'bundle_id', and not both")
        return self


class InteractionsIn(Body):
    interactions: list[InteractionIn] = Field(min_length=1, max_length=MANY)

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "interactions": [
                        {"user_id": "u0007", "bundle_id": "b0166"},
                        {"user_id": "u0008", "item_id": "g0022", "at": "2026-11-15T12:00:00Z"},
                    ]
                }
            ]
        }
    )


class ItemIn(Body):
    title: Text | None = None
    price: Annotated[Price, ANumber] | None = None
    tags: list[Tag] = Field(default=[], max_length=100)
    stock: Annotated[int, Field(ge=0, lt=2**53), ANumber] | None = Field(
        default=None, description="Not known if left out."
    )

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"title": "Glassreach Tides", "price": 19.99, "tags": ["Seafaring"], "stock": 12}]
        }
    )


class BundleIn(Body):
    items: list[Id] = Field(min_length=1, max_length=1000)
    title: Text | None = None
    price: Annotated[Price, ANumber] | None = None
    discount: Annotated[float, Field(ge=0, le=1), ANumber] | None = Field(
        default=None, description="0.2 is 20% off."
    )
    tags: list[Tag] = Field(default=[], max_length=100)
    expected_sales: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False), ANumber] | None = Field(
        default=None,
        description="How often it is expected to sell. While it is newer than the model, it is ranked so; "
        "left out, it is ranked by what the model credits every new bundle with.",
    )
    sells_like: Id | None = Field(
        default=None, description="In place of a number: a bundle that sells as often."
    )

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "title": "Spring at sea",
                    "items": ["g0004", "g0022", "g0401"],
                    "price": 24.99,
                    "discount": 0.3,
                    "tags": ["Seafaring"],
                }
            ]
        }
    )

    @model_validator(mode="after")
    def _one_expectation(self) -> BundleIn:
        if self.expected_sales is not None and self.sells_like is not None:
            raise ValueError("give either 'expected_sales' or 'sells_like', and not both")
        return self


class ItemChange(ItemIn):
    """What is to be changed of an item; what is left out stays."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"price": 14.99}, {"stock": 0}]})


class BundleChange(BundleIn):
    """What is to be changed of a bundle; what is left out stays."""

    items: list[Id] = Field(default=[], min_length=1, max_length=1000)

    model_config = ConfigDict(json_schema_extra={"examples": [{"price": 19.99, "discount": 0.4}]})


class ReloadIn(Body):
    version: str | None = Field(
        default=None,
        max_length=64,
        description="A version that GET /v1/models lists. Left out: what the served folder holds now.",
    )

    model_config = ConfigDict(json_schema_extra={"examples": [{}, {"version": "3f9a1c0b77de"}]})
