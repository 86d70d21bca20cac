"""The settings of a campaign, and the summary of its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, ValidationError

from bundlemage.core.filters import Filter
from bundlemage.data.row_files import Format
from bundlemage.errors import config_error
from bundlemage.wire.shop import OwnedRule

Count: TypeAlias = Annotated[int, Field(ge=1)]


def _by_text(values: Any) -> Any:
    """Returns a mapping with its ids as text; anything else as it is, for a message of pydantic."""
    if not isinstance(values, Mapping):
        return values
    by_text = {str(name): value for name, value in values.items()}
    if len(by_text) < len(values):
        raise ValueError("should not have the same id twice, as text and as a number")
    return by_text


def _new_bundles(bundles: Any) -> Any:
    """Returns ids as text and items as lists; anything else as it is, for a message of pydantic."""
    bundles = _by_text(bundles)
    if not isinstance(bundles, Mapping):
        return bundles
    return {
        name: list(map(str, items)) if isinstance(items, list | tuple) else items
        for name, items in bundles.items()
    }


class Campaign(BaseModel):
    """The settings of a campaign. It chooses bundles for many users, within limits that all of them share."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    per_user: Count = 1
    """Maximum number of bundles that a user is shown."""
    where: InstanceOf[Filter] = Filter()
    """A filter: only bundles that pass it are shown."""
    stock: bool = False
    """Whether each item's stock is a limit."""
    sold_out: Literal["hide", "show"] = "hide"
    """Whether bundles with a sold-out item are left out or may be shown."""
    owned: OwnedRule | None = None
    """What happens to bundles whose items the user owns. The default is the shop's setting. With `demote`,
    a mostly owned bundle is shown only to users for whom it is among the `per_user` bundles that they would
    be recommended first."""
    shown_at_most: Count | None = None
    """Maximum number of users that a bundle is shown to."""
    different_at_most: Count | None = None
    """Maximum number of different bundles in the whole campaign."""
    budget: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Maximum cost of all discounts. A shown bundle costs the sum of its items' prices times its discount."""
    reserve: Literal["shown", "expected"] = "shown"
    """How much stock and budget a shown bundle uses. shown: one unit of each item and the whole discount, so
    no more is sold than is in stock. expected: the same amounts times the probability of a
    purchase."""
    value: Literal["sales", "takings"] = "sales"
    """What the campaign maximises: expected sales, or takings (expected sales times what the user pays)."""
    new_bundles: Annotated[dict[str, list[str]], BeforeValidator(_new_bundles)] = Field(default_factory=dict)
    """Bundles that the shop does not have yet, such as designs, as further candidates: id → ids of the items.
    They are scored with the sales of the median bundle. One with the same items as an earlier candidate is
    left out."""
    new_prices: Annotated[
        dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]], BeforeValidator(_by_text)
    ] = Field(default_factory=dict)
    """Prices of new bundles, by id. By default, a new bundle costs the sum of its items' prices."""
    format: Format = "parquet"
    """Format of the result files: parquet, csv or jsonl."""
    part_users: Count = 8192
    """Number of users in a result file. An interrupted campaign loses at most the work on one file."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed for the sample of users from which each limit's Lagrange multiplier is learned."""

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """Returns the settings. Raises a `ConfigError` that names every wrong value."""
        try:
            return cls(**settings)
        except ValidationError as error:
            raise config_error(error, settings, cls.model_fields) from None

    def to_json(self) -> dict[str, Any]:
        """Returns the settings as JSON values."""
        return {**dict(self), "where": self.where.to_json()}


@dataclass(frozen=True)
class CampaignSummary:
    """The result of a campaign. Values are sums over all users and the bundles that they are shown."""

    users: int
    with_nothing: int
    """Number of users who are shown nothing."""
    by_popularity: int
    """Number of users without a history. For them the chance of a bundle is its share of all sales."""
    shown: int
    value: float
    """The total that the campaign maximises: `sales` or `takings`."""
    sales: float
    takings: float | None
    """The sum of the probabilities times what the users pay. None if that is unknown for a shown bundle."""
    unconstrained: float
    """The value if every user were shown their best bundles, without any limit."""
    bound: float
    """An upper bound: no choice of bundles within the limits has a higher value."""
    share_of_unconstrained: float | None
    share_of_bound: float | None
    chances: Literal["calibrated", "softmax"]
    """`softmax`: the model has no calibration, so chances are its softmax over all bundles."""
    left_out: int
    """Number of bundles that were left out because their price or discount is unknown."""
    same_items: dict[str, str]
    """New bundles that were left out because an earlier candidate has the same items: id → id of that one."""
    different: int
    """Number of different bundles that are shown."""
    limits: dict[str, dict[str, Any]]
    """Name of a limit → how much of it is used."""
    worth_more: list[dict[str, Any]]
    """For each limit that is used up: what about a tenth more of it would bring. Each entry has the fields of
    `campaigns.what_if.WhatIf`. At most three items are named."""
    parts: int
    settings: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Returns the summary as JSON values."""
        return asdict(self)
