"""The request for designed bundles. Python, the command line, the API and the client all use this model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    FailFast,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from bundlemage.errors import BundleMageError, config_error
from bundlemage.wire.requests import (
    MOST_ITEMS,
    PYTHON,
    Audience,
    Body,
    BodyId,
    BodyPrice,
    Discount,
    Flag,
    Id,
    Language,
    Number,
    UserOrHistory,
)

SERVED_SECONDS = 30.0
"""Maximum time limit that the service accepts, in seconds."""
LONG_SECONDS = 600.0
"""How long a forecast may take, in seconds, if the service has no other setting."""
_MOST_TAGS = 1_000
_MOST_IDS = 1_000_000
_PART = 100

Method = Literal["beam", "greedy", "exact"]


def _short_form(convert: Callable[[Any], Any], example: str, *, optional: bool = False) -> BeforeValidator:
    """Returns a validator that lets Python code write a value in a short form.

    The API accepts only the long form, which its OpenAPI document describes: a list or an object as in
    `example`. `convert` turns a short form into the long form, and raises `ValueError` if a value has neither
    form. `optional`: None is allowed, too.
    """
    is_list = example.startswith("[")

    def before(value: Any, info: ValidationInfo) -> Any:
        if info.context == PYTHON:
            return convert(value)
        if value is None and optional:
            return None
        if not isinstance(value, list | tuple if is_list else Mapping | Body):
            raise ValueError(f"should be {'a list' if is_list else 'an object'}, such as {example}")  # noqa: TRY004
        return value

    return BeforeValidator(before)


def _range_of(value: Any, least: Any) -> Any:
    """Converts a short form of a range. A single number becomes the maximum, and `least` the minimum."""
    if value is None or isinstance(value, Mapping | Body):
        return value
    if not isinstance(value, list | tuple):
        return {"least": least, "most": value}
    if len(value) != 2:
        raise ValueError("write a number, or (least, most)")
    return {"least": value[0], "most": value[1]}


def _list_of(value: Any) -> list[Any]:
    try:
        values = None if isinstance(value, str | bytes | Mapping) else list(value)
    except TypeError:
        values = None
    if values is None:
        raise ValueError(f"a list is expected: write [{value!r}]")
    return [_text_of(each) for each in values]


def _text_of(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | Integral):
        raise ValueError(f"{value!r} is neither a text nor a whole number")  # noqa: TRY004
    return str(value)


def _dict_of(value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise ValueError("write {name: number}")
    return {str(name): number for name, number in (value or {}).items()}


def _tag_counts_of(value: Any) -> Any:
    if value is None or isinstance(value, Body):
        return value or {}
    names = [str(name).replace(" ", "_") for name in value] if isinstance(value, Mapping) else ["?"]
    if not set(names) <= set(TagCounts.model_fields):
        raise ValueError("write {'at least': {tag: number}, 'at most': {tag: number}}")
    return dict(zip(names, value.values(), strict=True))


def _in_parts(entries: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Checks a dict in parts, and stops after the first part with errors, because each error takes time."""
    if not isinstance(entries, dict):
        return check(entries)
    rest, checked = iter(entries.items()), dict[Any, Any]()
    while part := dict(islice(rest, _PART)):
        checked |= check(part)
    return checked


_InParts = WrapValidator(_in_parts)
_Unique = AfterValidator(lambda names: tuple(dict.fromkeys(names)))
Ids = Annotated[tuple[BodyId, ...], FailFast(), _short_form(_list_of, '["g0022"]'), _Unique]
TagName = Annotated[str, Field(min_length=1, max_length=500)]
TagNames = Annotated[
    tuple[TagName, ...],
    FailFast(),
    _short_form(lambda value: [value] if isinstance(value, str) else _list_of(value), '["brand:*"]'),
    _Unique,
]
Counts = Annotated[
    dict[TagName, Annotated[int, Field(ge=0, le=MOST_ITEMS), Number]],
    _InParts,
    Field(max_length=_MOST_TAGS),
    _short_form(_dict_of, '{"Horror": 1}'),
]
Costs = Annotated[
    dict[Id, BodyPrice], _InParts, Field(max_length=_MOST_IDS), _short_form(_dict_of, '{"g0022": 4.5}')
]
ItemCount = Annotated[int, Field(ge=1, le=MOST_ITEMS), Number]
Weight = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False), Number]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), Number]


class _Range(Body):
    @model_validator(mode="after")
    def _in_order(self) -> Self:
        least, most = getattr(self, "least", None), getattr(self, "most", None)
        if least is not None and most is not None and least > most:
            raise ValueError(f"from {least:g} to {most:g}: the minimum must come first")
        return self


class SizeRange(_Range):
    """The number of items in a bundle."""

    least: ItemCount
    most: ItemCount


class PriceRange(_Range):
    """The price of a bundle after the discount."""

    least: BodyPrice | None = None
    most: BodyPrice | None = None


class TagCounts(Body):
    """Limits on the number of items of a bundle that have a tag."""

    at_least: Counts = Field(default={})
    """For each tag: the minimum number of items that have it."""
    at_most: Counts = Field(default={})
    """For each tag: the maximum number of items that have it."""


class DesignRequest(Body):
    """The conditions and preferences for designed bundles. All fields are optional."""

    start: Ids = Field(default=(), max_length=MOST_ITEMS)
    """Items that are already in the bundle. Its size, price and tags include them."""
    size: Annotated[SizeRange, _short_form(lambda size: _range_of(size, size), '{"least": 3, "most": 5}')] = (
        SizeRange(least=3, most=5)
    )
    """Total number of items in a bundle."""
    budget: Annotated[
        PriceRange | None, _short_form(lambda most: _range_of(most, None), '{"most": 40}', optional=True)
    ] = None
    """Price of a bundle after the discount. With a budget, items without a price are not used."""
    must: Ids = Field(default=(), max_length=MOST_ITEMS)
    """Items that every bundle must contain."""
    forbid: Ids = Field(default=(), max_length=_MOST_IDS)
    """Items that no bundle may contain. Unknown ids are ignored."""
    tags: Annotated[TagCounts, _short_form(_tag_counts_of, '{"at_least": {"Horror": 1}}')] = TagCounts()
    """Minimum and maximum number of items with a tag."""
    one_per: TagNames = Field(default=(), max_length=_MOST_TAGS)
    """Tags that at most one item of a bundle may have. "brand:*" means all tags that begin with "brand:"."""
    in_stock: Flag | None = None
    """Whether to add only items in stock. The default is yes if the catalogue has stock numbers."""
    not_owned: Flag | None = None
    """Whether to add only items that the user does not have. The default is yes, and no in a shop whose rule
    for what users own is `show`. With no, a bundle that the user owns wholly is designed only if nothing else
    is possible, or if the rule is `show`."""
    discount: Discount = 0.0
    """Discount on the sum of the items' prices, as a fraction: 0.2 is 20% off."""
    matching: Weight = 8.0
    """Weight of how likely the user takes the whole bundle, beside how well each item fits to the others."""
    diversity: Weight = 0.0
    """Weight of the variety of the items in a bundle."""
    margin: Weight = 0.0
    """Weight of the margin of the items: their price after the discount minus their cost."""
    costs: Costs = Field(default={})
    """The cost of each item to the shop, only for the margin. Other items then cost nothing. The default is
    the catalogue's costs; the service uses those only for the roles write and admin."""
    n: Annotated[int, Field(ge=1, le=100), Number] = 5
    """Maximum number of bundles."""
    apart: Share = 0.5
    """Minimum share of the chosen items in which any two bundles differ. 0 means at least one item."""
    method: Method = "beam"
    """Search method: beam, greedy or exact (CP-SAT)."""
    seed: Annotated[int, Field(ge=0, lt=2**31), Number] = 0
    """Seed of the search."""
    time_limit: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False), Number] = 10.0
    """Seconds until the search stops and returns the best bundles so far."""
    reasons: Flag = True
    """Whether to give a reason for each added item."""
    language: Language | None = None
    """The language of the reasons, such as de. The default is that of the shop's locale."""
    to: Audience = "customer"
    """Who reads the reasons: the customer ("you have") or the shop ("the customer has")."""
    buyers: Flag = True
    """Whether to estimate how many users would buy each bundle."""

    @classmethod
    def of(cls, **wishes: Any) -> Self:
        """Build a request from Python values. Besides the fields' own types, these short forms are accepted:

        - `size=4` for exactly four items, or `size=(3, 5)`;
        - `budget=40` for at most 40, or `budget=(20, None)` for at least 20;
        - `tags={"at least": {"Horror": 1}}`, `one_per="brand:*"`, and ids as text or numbers.

        Raises a `ConfigError` that names every wrong field.
        """
        try:
            return cls.model_validate(wishes, context=PYTHON)
        except ValidationError as error:
            raise config_error(error, wishes, cls.model_fields) from None


class DesignIn(UserOrHistory, DesignRequest):
    """A user or a history, and the conditions and preferences for the bundles, which may be left out."""

    n: Annotated[int, Field(ge=1, le=20), Number] = 5
    """Maximum number of bundles."""
    time_limit: Annotated[float, Field(gt=0, le=SERVED_SECONDS), Number] = 10.0
    """Seconds until the search stops and returns the best bundles so far."""
    details: Flag = False
    """Whether the answer has the numbers behind each reason."""
    buyers: Flag = False
    """Whether to estimate how many users would buy each bundle. This reads the histories of up to 2,000 users
    from the store, so the service does it only if asked."""


# ── Why a request is impossible ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Rule:
    """One condition on a designed bundle. Each can be dropped independently of the others."""

    kind: str
    """`size_min`, `size_max`, `budget_min`, `budget_max`, `must`, `forbid`, `at_least`, `at_most`, `one_per`,
    `in_stock` or `not_owned`."""
    key: str | None
    """The item or tag of the condition, if a request may have several conditions of this kind."""
    text: str
    """The condition in words."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Step:
    """A new value for a condition, or its removal."""

    kind: str
    key: str | None
    value: float | None
    """The new number; None if the condition is removed."""


@dataclass(frozen=True)
class Change:
    """A change that makes an impossible request possible."""

    steps: tuple[Step, ...]
    text: str
    """The change in words."""

    def __str__(self) -> str:
        return self.text


class ImpossibleDesignError(BundleMageError):
    """No bundle meets all conditions of a request."""

    def __init__(self, conflict: Sequence[Rule], changes: Sequence[Change], smallest: bool = True) -> None:
        self.conflict = tuple(conflict)
        """Conditions that exclude each other. Without any one of them, the others can be met."""
        self.changes = tuple(changes)
        """Changes that each make the request possible, the smallest first."""
        self.smallest = smallest
        """Whether no conflict has fewer conditions. False if the time was too short to find out."""
        several = len(self.conflict) > 1
        reason = "These conditions exclude each other" if several else "This condition cannot be met"
        doubt = "" if smallest else " (there may be a smaller set)"
        lines = [f"no bundle is possible. {reason}{doubt}:", *(f"  {rule}" for rule in self.conflict)]
        if self.changes:
            one = len(self.changes) == 1
            which = "This change" if one else "Each of these changes"
            lines.append(f"{which} would make a bundle possible:")
        super().__init__("\n".join([*lines, *(f"  {change}" for change in self.changes)]))
