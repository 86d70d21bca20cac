"""The JSON that goes in to have bundles designed."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from bundlemage.designer.brief import Brief, Method
from bundlemage.wire.requests import (
    MANY,
    MOST_ITEMS,
    Body,
    BodyPrice,
    Discount,
    Flag,
    Id,
    Number,
    Tag,
    UserOrHistory,
)

MOST_DESIGNS = 20
LONGEST = 30.0
"""The most seconds that a search may take."""

ItemCount = Annotated[int, Field(ge=1, le=MOST_ITEMS), Number]
TagCount = Annotated[int, Field(ge=0, le=MOST_ITEMS), Number]
Weight = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False), Number]
_WHO = {"user_id", "history"}


class SizeIn(Body):
    """How many items a bundle has in all."""

    least: ItemCount
    most: ItemCount


class BudgetIn(Body):
    """What a bundle costs after the discount."""

    least: BodyPrice | None = None
    most: BodyPrice | None = None


class TagsIn(Body):
    """How many items have a tag."""

    at_least: dict[Tag, TagCount] = Field(default={}, max_length=100)
    at_most: dict[Tag, TagCount] = Field(default={}, max_length=100)


class DesignIn(UserOrHistory):
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
    discount: Discount = Field(default=Brief.discount, description="0.2 is 20% off.")
    diversity: Weight = Field(default=Brief.diversity, description="The weight of how different items are.")
    margin: Weight = Field(default=Brief.margin, description="The weight of what items earn.")
    costs: dict[Id, BodyPrice] = Field(
        default={}, max_length=MANY, description="What items cost the shop; without, nothing."
    )
    n: Annotated[int, Field(ge=1, le=MOST_DESIGNS), Number] = Field(
        default=Brief.n, description="How many bundles at most."
    )
    apart: Annotated[float, Field(ge=0, le=1), Number] = Field(
        default=Brief.apart, description="Any two differ in this share of what was chosen, and in one item."
    )
    method: Method = Brief.method
    seed: Annotated[int, Field(ge=0, lt=2**31), Number] = Brief.seed
    time_limit: Annotated[float, Field(gt=0, le=LONGEST), Number] = Field(
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
