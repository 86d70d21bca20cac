"""The settings of a campaign, and the summary of its result."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, ValidationError

from bundlemage.core.filters import Filter
from bundlemage.errors import config_error

Format: TypeAlias = Literal["parquet", "jsonl"]
Count: TypeAlias = Annotated[int, Field(ge=1)]


class Campaign(BaseModel):
    """Bundles for many users at once, under limits that all of them share."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    per_user: Count = 1
    """The most bundles that one user is shown."""
    where: InstanceOf[Filter] = Filter()
    """The bundles that may be shown."""
    stock: bool = False
    """Whether each item's stock is a limit."""
    shown_at_most: Count | None = None
    """The most users that one bundle is shown to."""
    different_at_most: Count | None = None
    """The most different bundles that are shown, all users together."""
    budget: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """The most that discounts may cost: the items' list price times the discount, for each bundle shown."""
    reserve: Literal["shown", "expected"] = "shown"
    """What a shown bundle takes of stock and budget. shown: a whole unit and the whole discount, so nothing
    is sold that is not in stock. expected: these times the chance that it is bought."""
    value: Literal["sales", "takings"] = "sales"
    """What the campaign maximises: expected sales, or takings, which are expected sales times price."""
    format: Format = "parquet"
    """Format of the parts: parquet or jsonl."""
    part_users: Count = 8192
    """The number of users in one file. An interrupted campaign loses at most the work on one file."""
    seed: Annotated[int, Field(ge=0)] = 0
    """The seed of the sample of users on which prices are learned."""

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """The settings by name. Raises `ConfigError`, which names every wrong one."""
        try:
            return cls(**settings)
        except ValidationError as error:
            raise config_error(error, settings, cls.model_fields) from None

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return {**dict(self), "where": self.where.to_json()}


@dataclass(frozen=True)
class CampaignSummary:
    """The result of a campaign. Values are sums over all that is shown."""

    users: int
    with_nothing: int
    """Users who are shown nothing."""
    by_popularity: int
    """Users with no history. For them the chance of a bundle is its share of all sales."""
    shown: int
    value: float
    """The sum of what the campaign maximises: `sales` or `takings`."""
    sales: float
    takings: float | None
    """None if the price of a shown bundle is unknown."""
    unconstrained: float
    """The value if every user were shown their best bundles, without any limit."""
    bound: float
    """No plan within the limits has a higher value."""
    share_of_unconstrained: float | None
    share_of_bound: float | None
    chances: Literal["calibrated", "softmax"]
    """`softmax`: the model has no calibration, so chances are its probabilities among all bundles."""
    left_out: int
    """Bundles that were left out because their price or discount is unknown."""
    different: int
    """The number of different bundles that are shown."""
    limits: dict[str, dict[str, Any]]
    """How far each limit of the campaign is used."""
    parts: int
    settings: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The summary as JSON values."""
        return asdict(self)
