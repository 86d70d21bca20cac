"""The settings of a shop: how answers treat what users own and what is sold out, and how prices are written.

They are saved with the model. `Recommender.shop_settings`, `train --shop` and `serve --shop` change them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal, Self, TypeAlias, TypedDict

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo

from bundlemage.errors import config_error

OwnedRule: TypeAlias = Literal["hide", "demote", "show"]
StockRule: TypeAlias = Literal["hide", "last", "show"]
Pays: TypeAlias = Literal["whole", "missing", "discount"]
Weight: TypeAlias = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class ItemRules(TypedDict, total=False):
    """The rules of a shop that one question for items may change. None: as the shop has set it."""

    owned: OwnedRule | None
    stock: StockRule | None


class BundleRules(ItemRules, total=False):
    """The rules of a shop that one question for bundles may change. None: as the shop has set it."""

    diversity: float | None
    match_popularity: float | None


@cache
def _currencies() -> frozenset[str]:
    from babel.core import get_global  # late: the command line starts faster without Babel

    used = get_global(
        "territory_currencies"
    ).values()  # for each: the code, its years, whether it is paid with
    return frozenset(code for each in used for code, _, end, paid in each if end is None and paid)


def _checked_currency(code: str) -> str:
    if code.upper() not in _currencies():
        hint = _hint(code.upper(), _currencies())
        raise ValueError(f"there is no such currency: give an ISO 4217 code such as EUR.{hint}")
    return code.upper()


def _checked_locale(name: str) -> str:
    from babel import Locale, UnknownLocaleError, parse_locale
    from babel.core import get_locale_identifier
    from babel.localedata import locale_identifiers

    name = name.replace("-", "_")
    try:
        language, region, script, variant, *modifier = parse_locale(name)
        # As browsers and the catalogues of messages know it: de_DE, and neither de_de nor de_DE.UTF-8.
        known = get_locale_identifier((language, region, script, variant))
        Locale.parse(known)
        is_valid = not modifier and language != "root"
    except (UnknownLocaleError, ValueError):
        is_valid = False
    if not is_valid:
        languages = {title.casefold(): code for code, title in Locale("en").languages.items()}
        code = languages.get(name.casefold())  # of the English name, such as German
        hint = f" Did you mean {code!r}?" if code else _hint(name, locale_identifiers())
        raise ValueError(
            f"there is no such locale: give a language, or a language and a region, as in de or en_US.{hint}"
        )
    return known


def _hint(text: str, known: Iterable[str]) -> str:
    close = get_close_matches(text, sorted(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _decimals(currency: str | None) -> int:
    if currency is None:
        return 2
    from babel.numbers import get_currency_precision

    return get_currency_precision(currency)


def _checked_ending(ending: float | None, info: ValidationInfo) -> float | None:
    currency = info.data.get("currency")
    if ending is not None and round(ending, _decimals(currency)) != ending:
        prices = f"prices in {currency}" if currency else "prices without a currency"
        decimals = _decimals(currency)
        raise ValueError(
            f"{prices} have {decimals or 'no'} decimals: give an ending such as {0.99 if decimals else 80}"
        )
    return ending


class ShopSettings(BaseModel):
    """The settings of a shop. An unknown setting is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    owned: OwnedRule = "demote"
    """What happens to a bundle if the user owns its items, bought alone or inside a bundle. `demote`: a
    bundle that is wholly owned is left out, and one that is mostly owned is ranked by what it adds. `hide`:
    both are left out. `show`: nothing changes, as in shops whose customers buy the same things again."""
    mostly_owned: Annotated[float, Field(gt=0, le=1)] = 1.0
    """A bundle is mostly owned if the user owns at least this share of its items. With 1, only wholly owned
    bundles are. Training chooses the share that is best on validation cases if there are enough of them and
    it is not set."""
    stock: StockRule = "last"
    """What happens to a bundle with a sold-out item: it is ranked after all others (`last`), left out
    (`hide`) or ranked like any other (`show`)."""
    diversity: Weight = 0.0
    """How much a list of bundles is varied, from 0 (not at all) to 1. With 0.3, a bundle that is like one
    before it in the list gives way to a less likely one that is not."""
    match_popularity: Weight = 0.0
    """How much the mix of best sellers and rarely sold bundles in a list follows that of the bundles that the
    user has, from 0 (not at all) to 1. Lists of users without a bundle do not change."""
    pays: Pays = "whole"
    """What a user pays who owns some items of a bundle. `whole`: the price of the bundle. `missing`: the
    missing items' part of that price, as on Steam. `discount`: the prices of the missing items minus the
    discount of the bundle."""
    currency: Annotated[str, AfterValidator(_checked_currency)] | None = None
    """The currency of all prices, as an ISO 4217 code such as EUR. None: prices are plain numbers."""
    locale: Annotated[str, AfterValidator(_checked_locale)] = "en"
    """The language and region in which prices and sentences are written, such as en_US, de or ja_JP."""
    price_ending: Annotated[
        Annotated[float, Field(ge=0, lt=1000)] | None, AfterValidator(_checked_ending)
    ] = None
    """How the prices of designed bundles end. 0.99 turns 23.40 into 22.99, and 80 turns 1,312 into 1,280:
    the highest price with this ending that is not above the computed one. A computed price below the ending
    is not changed. None: no price is changed."""

    @property
    def decimals(self) -> int:
        """The number of decimals of a price: those of the currency, or 2 without a currency."""
        return _decimals(self.currency)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Returns the settings. Raises a `ConfigError` that names every wrong one."""
        return cls().changed(values)

    def changed(self, values: Mapping[str, Any]) -> Self:
        """Returns a copy with other values. Raises a `ConfigError` that names every wrong one."""
        together = {**self.model_dump(), **values}
        try:
            return self.model_validate({**self.model_dump(exclude_unset=True), **values})
        except ValidationError as error:
            raise config_error(error, together, type(self).model_fields) from None
