"""The JSON that goes in to have bundles designed, explained and judged."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from bundlemage.designer.brief import MOST_ITEMS, Brief, Method
from bundlemage.designer.money import MOST_OFF
from bundlemage.service.questions import MANY, ANumber, Body, Flag, Id, K, Person, Price, Tag

MOST_DESIGNS = 20
LONGEST = 30.0
"""The most seconds that a search may take."""
MOST_EXPLAINED = 50
"""Bundles in one request."""

ItemCount = Annotated[int, Field(ge=1, le=MOST_ITEMS), ANumber]
TagCount = Annotated[int, Field(ge=0, le=MOST_ITEMS), ANumber]
Weight = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False), ANumber]
Discount = Annotated[float, Field(ge=0, le=MOST_OFF, description="0.2 is 20% off."), ANumber]
APrice = Annotated[Price, ANumber]
_WHO = {"user_id", "history"}


class SizeIn(Body):
    """How many items a bundle has in all."""

    least: ItemCount
    most: ItemCount


class BudgetIn(Body):
    """What a bundle costs after the discount."""

    least: APrice | None = None
    most: APrice | None = None


class TagsIn(Body):
    """How many items have a tag."""

    at_least: dict[Tag, TagCount] = Field(default={}, max_length=100)
    at_most: dict[Tag, TagCount] = Field(default={}, max_length=100)


class DesignIn(Person):
    """For whom bundles are designed, and what must hold. What is left out is as the designer has it."""

    start: list[Id] = Field(
        default=[], max_length=MOST_ITEMS, description="What is in the bundle already; it counts in all else."
    )
    size: SizeIn = SizeIn(least=Brief.size[0], most=Brief.size[1])
    budget: BudgetIn | None = Field(
        default=None, description="What it costs after the discount. Items without a price are then left out."
    )
    must: list[Id] = Field(default=[], max_length=MOST_ITEMS, description="Items that are in every bundle.")
    forbid: list[Id] = Field(
        default=[], max_length=MANY, description="Items that are in none. Ids that are not known do no harm."
    )
    tags: TagsIn = TagsIn()
    one_per: list[Tag] = Field(
        default=[],
        max_length=100,
        description="Tags of which at most one item is in a bundle; 'brand:*' is every tag that begins so.",
    )
    in_stock: Flag | None = Field(
        default=Brief.in_stock, description="Only what is in stock; null: if the catalogue tells any stock."
    )
    not_owned: Flag = Field(default=Brief.not_owned, description="Only what they do not have.")
    discount: Discount = Brief.discount
    diversity: Weight = Field(default=Brief.diversity, description="The weight of how different items are.")
    margin: Weight = Field(default=Brief.margin, description="The weight of what items earn.")
    costs: dict[Id, APrice] = Field(
        default={}, max_length=MANY, description="What items cost the shop; without, nothing."
    )
    n: Annotated[int, Field(ge=1, le=MOST_DESIGNS), ANumber] = Field(
        default=Brief.n, description="How many bundles at most."
    )
    apart: Annotated[float, Field(ge=0, le=1), ANumber] = Field(
        default=Brief.apart, description="Any two differ in this share of what was chosen, and in one item."
    )
    method: Method = Brief.method
    seed: Annotated[int, Field(ge=0, lt=2**31), ANumber] = Brief.seed
    time_limit: Annotated[float, Field(gt=0, le=LONGEST), ANumber] = Field(
        default=Brief.time_limit, description="Seconds, after which the best that was found is the answer."
    )
    reasons: Flag = Field(default=Brief.reasons, description="Whether to say of each added item why.")

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "user_id": "u0007",
                    "size": {"least": 3, "most": 4},
                    "budget": {"most": 40},
                    "tags": {"at_least": {"Seafaring": 2}},
                    "discount": 0.1,
                    "n": 3,
                }
            ]
        }
    )

    def brief(self) -> Brief:
        """Checked by the designer, from what was said alone."""
        given: dict[str, Any] = {name: getattr(self, name) for name in self.model_fields_set - _WHO}
        if "size" in given:
            given["size"] = (self.size.least, self.size.most)
        if self.budget is not None:
            given["budget"] = (self.budget.least, self.budget.most)
        if "tags" in given:
            given["tags"] = self.tags.model_dump()
        return Brief.of(**given)


class ExplainIn(Person):
    """Why bundles, or why an item."""

    bundles: list[Id] | None = Field(
        default=None, min_length=1, max_length=MOST_EXPLAINED, description="Why each of these bundles."
    )
    item: Id | None = Field(default=None, description="In place of bundles: why this item.")
    items: list[Id] = Field(
        default=[], max_length=1000, description="With an item: what is in the bundle already."
    )

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"user_id": "u0007", "bundles": ["b0013", "b0166"]},
                {"user_id": "u0007", "item": "g0401", "items": ["g0022"]},
            ]
        }
    )

    @model_validator(mode="after")
    def _bundles_or_item(self) -> ExplainIn:
        if (self.bundles is None) == (self.item is None):
            raise ValueError("give either 'bundles' or 'item', and not both")
        if self.items and self.item is None:
            raise ValueError("'items' is what an 'item' is to be added to: give it with one")
        return self


class ScoreIn(Body):
    """A bundle that does not exist yet."""

    items: list[Id] = Field(min_length=1, max_length=MOST_ITEMS)
    price: APrice | None = Field(
        default=None, description="Left out: the sum of the items' prices, less the discount."
    )
    discount: Discount | None = Field(default=None, description="In place of a price: 0.2 is 20% off.")
    k: Annotated[K, ANumber] = Field(default=10, description="How many people, and how many bundles like it.")

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"items": ["g0022", "g0401"], "discount": 0.2, "k": 3}]}
    )
