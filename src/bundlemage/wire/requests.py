"""The bodies of requests, and the limits on their values."""

from __future__ import annotations

import json
import unicodedata
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic_core import InitErrorDetails

from bundlemage.wire.images import ImageUrl
from bundlemage.wire.shop import OwnedRule, StockRule, Weight

LONGEST_ID: Final = 200
MANY: Final = 10_000
"""Maximum number of ids in one list."""
MOST_ITEMS: Final = 100
"""Maximum number of items in a bundle that is designed or scored."""
LONGEST_VECTOR: Final = 8192
"""Maximum number of numbers in an item's vector."""
HEAVIEST: Final = 1e6
"""The largest weight of an interaction."""
LEAST_SAMPLED: Final = 30
"""The fewest users from which the buyers of all users are estimated."""
MOST_SAMPLED: Final = 1_000_000
"""Maximum number of users in a sample."""
MOST_OFF: Final = 0.99
"""Maximum discount on a bundle that is designed or scored."""
MOST_ERRORS: Final = 20
"""About as many errors are found in a body before its check stops. Each error takes time, and a body of a
megabyte could have half a million. So lists of ids stop at their first error (`fail_fast`)."""
FUTURE: Final = timedelta(days=1)
"""An interaction may be dated this far ahead of the clock. A later time is an error."""
PYTHON: Final = "python"
"""The validation context for values from Python code. Ids may then contain any characters, because the data
of the shop decide which ids exist."""
_NOT_IN_AN_ID: Final = ("Cc", "Cs")  # control characters, and lone surrogates, which UTF-8 cannot encode


def fault_of_id(name: str) -> str | None:
    """Returns what is wrong with an id, in words; None if it is valid. The store uses the same check."""
    if not name or name.isspace():
        return "is empty"
    if len(name) > LONGEST_ID:
        return f"has {len(name):,} characters; {LONGEST_ID} are allowed"
    if not name.isprintable() and any(unicodedata.category(letter) in _NOT_IN_AN_ID for letter in name):
        return "has a control character, such as a line break"
    return None


def _checked_id(name: str, info: ValidationInfo) -> str:
    fault = None if info.context == PYTHON else fault_of_id(name)
    if fault is not None:
        raise ValueError(fault)
    return name


def _text_of_id(name: Any, info: ValidationInfo) -> Any:
    """Turns a whole number into text. Refuses a float, whose text may differ from what the shop writes."""
    if isinstance(name, int) and not isinstance(name, bool):
        return str(name)
    if not isinstance(name, str) and info.context != PYTHON:
        raise ValueError('should be an id: a text such as "7", or a whole number')
    return name


def _checked_number(value: Any) -> Any:
    """Refuse texts and booleans as numbers: a stock of `false` must not become 0. Used for bodies only."""
    if isinstance(value, bool | str | bytes) or type(value).__name__ == "bool":  # also NumPy's
        raise ValueError("should be a number")
    return value


_IN_IDS = r"[^\x00-\x1f\x7f-\x9f]"
ID_PATTERN: Final = rf"{_IN_IDS}*[^\s\x00-\x1f\x7f-\x9f]{_IN_IDS}*"
"""The rule for ids as a regular expression, for the OpenAPI document."""
_LENGTHS = {"minLength": 1, "maxLength": LONGEST_ID, "pattern": f"^{ID_PATTERN}$"}
_IN_WORDS = (
    f"An id as the shop writes it: 1 to {LONGEST_ID} characters, not only spaces, and no control character."
)
Id = Annotated[str, AfterValidator(_checked_id), Field(description=_IN_WORDS, json_schema_extra={**_LENGTHS})]
BodyId = Annotated[
    str,
    BeforeValidator(_text_of_id),
    AfterValidator(_checked_id),
    WithJsonSchema(
        {
            "anyOf": [{"type": "string", **_LENGTHS}, {"type": "integer"}],
            "description": f"{_IN_WORDS} A whole number stands for its text.",
        }
    ),
]
"""An id in a request body. JSON has numbers, so 7 is accepted for the id "7"."""
Text = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00]*$")]
Description = Annotated[str, StringConstraints(max_length=10_000, pattern=r"^[^\x00]*$")]
Tag = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
Price = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
K = Annotated[int, Field(ge=1, le=100, description="The number of answers.")]
Number = BeforeValidator(_checked_number)
BodyPrice = Annotated[Price, Number]
VectorNumber = Annotated[float, Field(ge=-3e38, le=3e38, allow_inf_nan=False), Number]
Discount = Annotated[float, Field(ge=0, le=MOST_OFF), Number]
Flag = Annotated[bool, Strict()]
EventType = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
HowManyOwned = Annotated[int, Field(ge=0, le=1_000_000), Number]
Audience: TypeAlias = Literal["customer", "shop"]
"""Who reads a sentence: the customer ("you have") or the shop ("the customer has")."""
Language = Annotated[str, StringConstraints(min_length=1, max_length=50, pattern=r"^[A-Za-z0-9_-]+$")]


@cache
def _examples() -> dict[str, list[Any]]:
    """Examples of requests and answers, by class. They show items and bundles of the sample shop."""
    return dict(json.loads((files("bundlemage.wire") / "examples.json").read_text(encoding="utf-8")))


def add_examples(schema: dict[str, Any], kind: type[BaseModel]) -> None:
    """Add the examples of a class, if it has any, to its part of the OpenAPI document."""
    if kind.__name__ in _examples():
        schema["examples"] = _examples()[kind.__name__]


class Body(BaseModel):
    """A request body. An unknown field is an error, because it is most likely a typing mistake."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, json_schema_extra=add_examples
    )

    @model_validator(mode="before")
    @classmethod
    def _few_unknown(cls, fields: Any) -> Any:
        """If there are many fields, drops all unknown ones but the first 20, because each one is an error."""
        if not isinstance(fields, dict) or len(fields) <= 2 * MOST_ERRORS:
            return fields
        unknown = islice((name for name in fields if name not in cls.model_fields), MOST_ERRORS)
        kept = {*cls.model_fields, *unknown}
        return {name: value for name, value in fields.items() if name in kept}


def _few_errors(values: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Checks a list with `check`, which stops at the first wrong element. If there is one, goes on after it,
    until about 20 errors are found."""
    faults: list[InitErrorDetails] = []
    start, rest = 0, values
    while len(faults) < MOST_ERRORS:
        try:
            checked = check(rest)
        except ValidationError as error:
            found = error.errors()
            if not found[0]["loc"]:  # the list itself is wrong, such as an empty one
                if not faults:
                    raise
                break
            start += int(found[0]["loc"][0])
            faults += (
                InitErrorDetails(
                    type=each["type"],
                    loc=(start, *each["loc"][1:]),
                    input=each["input"],
                    ctx=each.get("ctx", {}),
                )
                for each in found
            )
            start += 1
            rest = values[start : start + MANY]
        else:
            if not faults:
                return checked
            break
    raise ValidationError.from_exception_data("list", faults)


def _exactly_one(first: str, second: str) -> Any:
    """Returns a validator: a body must have either the field `first` or the field `second`."""

    def check(body: Body) -> Body:
        if (getattr(body, first) is None) == (getattr(body, second) is None):
            raise ValueError(f"give either {first!r} or {second!r}, and not both")
        return body

    return model_validator(mode="after")(check)


# ── Users, histories, filters ────────────────────────────────────────────────────────────────────


class Where(Body):
    """Which items or bundles an answer may contain. They must meet all conditions."""

    tags: list[Tag] = Field(default=[], max_length=100, fail_fast=True)
    """Only items or bundles with at least one of these tags."""
    min_price: BodyPrice | None = None
    """Only items or bundles whose price, as in answers, is at least this. A bundle without a price of its own
    costs the sum of its items' prices, minus its discount."""
    max_price: BodyPrice | None = None
    """Only items or bundles whose price, as in answers, is at most this."""
    in_stock: Flag = False
    """Only items in stock. A bundle is in stock if all its items are."""
    exclude: list[BodyId] = Field(default=[], max_length=MANY, fail_fast=True)
    """Leave out the items or bundles with these ids."""
    among: Annotated[list[BodyId], Field(fail_fast=True)] | None = Field(default=None, max_length=MANY)
    """Only items or bundles with these ids."""


class HistoryOf(Body):
    """The history of a user whom the shop does not know."""

    items: list[BodyId] = Field(default=[], max_length=MANY, fail_fast=True)
    bundles: list[BodyId] = Field(default=[], max_length=MANY, fail_fast=True)


class UserOrHistory(Body):
    """The user of an answer: either a known user, or a history in the request."""

    user_id: BodyId | None = None
    """The id of a user. The service has the user's history."""
    history: HistoryOf | None = None
    """Instead of an id: the items and bundles that the user has."""

    _one_of_two = _exactly_one("user_id", "history")


class Filtered(UserOrHistory):
    owned: OwnedRule | None = None
    """What happens to what the user owns, alone or inside a bundle. `demote`: bundles that are wholly owned
    are left out, and mostly owned ones rank lower. `hide`: both are left out. `show`: nothing changes, and
    bundles that the user has may be shown. Items that complete a bundle are left out if owned, unless `show`.
    null: as the shop has set it."""
    stock: StockRule | None = None
    """What happens to sold-out items, and to bundles with such an item. `last`: they rank after all others.
    `hide`: they are left out. `show`: nothing changes. null: as the shop has set it."""
    where: Where = Where()


# ── Recommendations and explanations ─────────────────────────────────────────────────────────────


class RecommendIn(Filtered):
    diversity: Annotated[Weight, Number] | None = None
    """How much the list is varied, from 0 (not at all) to 1. With 0.3, a bundle that is like one before it in
    the list gives way to a less likely one that is not. null: as the shop has set it."""
    match_popularity: Annotated[Weight, Number] | None = None
    """How much the mix of best sellers and rarely sold bundles in the list follows that of the bundles that
    the user has, from 0 (not at all) to 1. null: as the shop has set it."""
    k: Annotated[K, Number] = 10
    details: Flag = False
    """Whether each bundle in the answer lists its items."""


class CompleteIn(Filtered):
    items: list[BodyId] = Field(default=[], max_length=1000, fail_fast=True)
    """The items that are already in the bundle."""
    k: Annotated[K, Number] = 5


class ExplainIn(UserOrHistory):
    """Which bundles, or which item, to explain."""

    bundles: Annotated[list[BodyId], Field(fail_fast=True)] | None = Field(
        default=None, min_length=1, max_length=50
    )
    """The bundles to explain."""
    item: BodyId | None = None
    """Instead of bundles: the item to explain."""
    items: list[BodyId] = Field(default=[], max_length=1000, fail_fast=True)
    """With an item: the items that are already in the bundle."""
    language: Language | None = None
    """The language of the sentences, such as 'de'. The default is that of the shop's locale."""
    to: Audience = "customer"
    """Who reads the sentences: the customer ("you have") or the shop ("the customer has")."""
    details: Flag = False
    """Whether the answer has the numbers behind each sentence."""

    _bundles_or_item = _exactly_one("bundles", "item")

    @model_validator(mode="after")
    def _items_with_item(self) -> ExplainIn:
        if self.items and self.item is None:
            raise ValueError("'items' lists the bundle that 'item' is added to: give 'item' as well")
        return self


class SegmentIn(Body):
    """A part of the users: those who meet all conditions. At least one condition is needed."""

    tag: Tag | None = None
    """Only users who own an item with this tag, alone or in a bundle."""
    least_items: HowManyOwned | None = None
    """Only users with at least this many items of their own. Items in bundles do not count."""
    most_items: HowManyOwned | None = None
    """Only users with at most this many items of their own."""
    least_bundles: HowManyOwned | None = None
    """Only users with at least this many bundles."""
    most_bundles: HowManyOwned | None = None
    """Only users with at most this many bundles."""
    users: Annotated[list[BodyId], Field(fail_fast=True)] | None = Field(default=None, max_length=MANY)
    """Only users with these ids. Ids of users without a history are ignored."""


class ScoreIn(Body):
    """A bundle that does not exist yet."""

    items: list[BodyId] = Field(min_length=1, max_length=MOST_ITEMS, fail_fast=True)
    price: BodyPrice | None = None
    """The price of the bundle. The default is the sum of the items' prices minus the discount."""
    discount: Discount | None = None
    """Instead of a price: the discount as a fraction. 0.2 is 20% off."""
    k: Annotated[K, Number] = Field(
        default=10, description="The number of users, and the number of similar bundles, in the answer."
    )
    segment: SegmentIn | None = None
    """The part of the users whose purchases are forecast. The default is all users."""
    sample: Annotated[int, Field(ge=LEAST_SAMPLED, le=MOST_SAMPLED), Number] | None = None
    """Estimate from a sample of this many users, which takes a second or two. The default is the exact
    forecast of all users. With `stream=true`, it is the sample of the estimate that comes first, 2,000
    users by default."""


class BuyersIn(Body):
    """A bundle that does not exist yet, and which of its likely buyers to list."""

    items: list[BodyId] = Field(min_length=1, max_length=MOST_ITEMS, fail_fast=True)
    segment: SegmentIn | None = None
    """Only users of this part. The default is all users."""
    least_chance: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), Number] | None = None
    """Only users with at least this chance. The default is the 'threshold' of the forecast."""


# ── The shop ─────────────────────────────────────────────────────────────────────────────────────


def _not_in_the_future(at: datetime) -> datetime:
    if at > datetime.now(UTC) + FUTURE:
        raise ValueError(
            "is more than a day in the future; give the time at which it happened, or leave it out"
        )
    return at


class InteractionIn(Body):
    """A user took an item or a bundle, only looked at it, or rejected it. Without `event`, `weight` and
    `rejected` it is a purchase; give at most one of them."""

    user_id: BodyId
    item_id: BodyId | None = None
    bundle_id: BodyId | None = None
    at: Annotated[AwareDatetime, AfterValidator(_not_in_the_future)] | None = None
    """The time of the interaction in ISO 8601, with a time zone, at most a day ahead. The default is now. It
    orders the user's history and decides which purchases test a retrained model."""
    request_id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,64}$")
    """The request id of the answer that recommended the item or bundle."""
    event: EventType | None = None
    """The type of event, such as `view` or `return`. The serving model has learned the types and their
    weights (`train --events view=0.2,buy=1,return=-1`); another type is refused."""
    weight: Annotated[float, Field(gt=0, le=HEAVIEST, allow_inf_nan=False), Number] | None = None
    """Instead of a type: the strength. 1 or more is a purchase. Less, such as 0.2 for a view, tells of an
    interest, but the user owns nothing by it."""
    rejected: Flag = False
    """Instead of a type: the user returned or dislikes it. It is not recommended to this user any more, and
    neither is a bundle that holds such an item."""

    _one_of_two = _exactly_one("item_id", "bundle_id")

    @model_validator(mode="after")
    def _one_strength(self) -> InteractionIn:
        given = [name for name in ("event", "weight") if getattr(self, name) is not None]
        given += ["rejected"] if self.rejected else []
        if len(given) > 1:
            raise ValueError(f"has {' and '.join(map(repr, given))}, which say the same: give only one")
        return self


class InteractionsIn(Body):
    interactions: Annotated[
        list[InteractionIn],
        Field(min_length=1, max_length=MANY, fail_fast=True),
        WrapValidator(_few_errors),
    ]


class ItemIn(Body):
    title: Text | None = None
    price: BodyPrice | None = None
    tags: list[Tag] = Field(default=[], max_length=100, fail_fast=True)
    stock: Annotated[int, Field(ge=0, lt=2**53), Number] | None = None
    """The number in stock. It is unknown if left out."""
    cost: BodyPrice | None = None
    """What the shop pays for the item. Answers show it only to the roles write and admin."""
    image_url: ImageUrl | None = None
    """The address of an image: `https://…`, `http://…`, or a path at the address of the service."""
    description: Description | None = None
    """What the shop says about the item. A model that reads texts learns from it."""
    vector: (
        Annotated[list[VectorNumber], Field(min_length=1, max_length=LONGEST_VECTOR, fail_fast=True)] | None
    ) = None
    """Numbers from a text or image model that describe the item. The vectors of all items have one length."""


class BundleIn(Body):
    items: list[BodyId] = Field(min_length=1, max_length=1000, fail_fast=True)
    title: Text | None = None
    price: BodyPrice | None = None
    discount: Annotated[float, Field(ge=0, le=1), Number] | None = None
    """The discount as a fraction: 0.2 is 20% off."""
    tags: list[Tag] = Field(default=[], max_length=100, fail_fast=True)
    expected_sales: BodyPrice | None = None
    """The expected number of sales. A model that is older than the bundle uses this number to rank it. If
    left out, the model uses one number for all new bundles."""
    sells_like: BodyId | None = None
    """Instead of a number: the id of a bundle that sells equally often."""
    image_url: ImageUrl | None = None
    """The address of an image: `https://…`, `http://…`, or a path at the address of the service."""

    @model_validator(mode="after")
    def _one_expectation(self) -> BundleIn:
        if self.expected_sales is not None and self.sells_like is not None:
            raise ValueError("give either 'expected_sales' or 'sells_like', and not both")
        return self


class ItemChange(ItemIn):
    """The fields of an item to change. Fields that are left out stay as they are."""


class BundleChange(BundleIn):
    """The fields of a bundle to change. Fields that are left out stay as they are."""

    items: list[BodyId] = Field(default=[], min_length=1, max_length=1000, fail_fast=True)


class ReloadIn(Body):
    version: str | None = Field(default=None, max_length=64)
    """A version from GET /v1/models. The default is the model that is now in the served folder."""
