"""The settings of a shop: how answers treat what users own and what is sold out, and how prices are written.

They are saved with the model. `Recommender.shop_settings`, `train --shop` and `serve --shop` change them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bundlemage.errors import config_error

OwnedRule: TypeAlias = Literal["hide", "demote", "show"]
StockRule: TypeAlias = Literal["hide", "last", "show"]
Pays: TypeAlias = Literal["whole", "missing", "discount"]


class ShopSettings(BaseModel):
    """The settings of a shop. An unknown setting is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    owned: OwnedRule = "demote"
    """What happens to a bundle if the user owns its items, bought alone or inside a bundle. `demote`: a
    bundle that is wholly owned is left out, and one that is mostly owned is ranked by what it adds. `hide`:
    both are left out. `show`: nothing changes, as in shops whose customers buy the same things again."""
    mostly_owned: Annotated[float, Field(gt=0, le=1)] = 0.5
    """A bundle is mostly owned if the user owns at least this share of its items. Training chooses the share
    that is best on validation cases if there are enough of them and it is not set."""
    stock: StockRule = "last"
    """What happens to a bundle with a sold-out item: it is ranked after all others (`last`), left out
    (`hide`) or ranked like any other (`show`)."""
    pays: Pays = "whole"
    """What a user pays who owns some items of a bundle. `whole`: the price of the bundle. `missing`: the
    missing items' part of that price, as on Steam. `discount`: the prices of the missing items minus the
    discount of the bundle."""
    currency: str | None = None
    """The currency of all prices, as an ISO 4217 code such as EUR. None: prices are plain numbers."""
    locale: str = "en"
    """The language and region in which prices and sentences are written, such as en_US, de or ja_JP."""
    price_ending: Annotated[float, Field(ge=0, lt=1000)] | None = None
    """How the prices of designed bundles end: 0.99 turns 23.40 into 22.99. None: they are not changed."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Returns the settings. Raises a `ConfigError` that names every wrong one."""
        return cls().changed(values)

    def changed(self, values: Mapping[str, Any]) -> Self:
        """Returns a copy with other values. Raises a `ConfigError` that names every wrong one."""
        try:
            return self.model_validate({**self.model_dump(exclude_unset=True), **values})
        except ValidationError as error:
            raise config_error(error, values, type(self).model_fields) from None
