"""The settings of a shop: their checks, and that they stay with the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bundlemage import Recommender
from bundlemage.data.splits import SplitPlan
from bundlemage.errors import ConfigError
from bundlemage.recipe import Recipe
from bundlemage.wire.shop import ShopSettings
from tests.small_shop import small_shop


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"currency": "EUT"}, r"'currency' is 'EUT'; there is no such currency.* Did you mean 'EUR'\?"),
        (
            {"currency": "€"},
            r"'currency' is '€'; there is no such currency: give an ISO 4217 code such as EUR\.",
        ),
        ({"locale": "de_DEE"}, r"'locale' is 'de_DEE'; there is no such locale.* Did you mean 'de_DE'\?"),
        ({"locale": "German"}, r"'locale' is 'German'; there is no such locale.* Did you mean 'de'\?"),
        ({"locale": ""}, r"'locale' is ''; there is no such locale"),
        ({"curency": "EUR"}, r"unknown setting 'curency'; did you mean 'currency'\? the settings are: owned"),
        ({"pays": "half"}, r"'pays' is 'half'; it should be 'whole', 'missing' or 'discount'"),
        ({"price_ending": "abc"}, r"'price_ending' is 'abc', which is not a number"),
        ({"mostly_owned": 50}, r"'mostly_owned' is 50; it must be at most 1; for 50% write 0.5"),
        ({"price_ending": 1000}, r"'price_ending' is 1000; it must be less than 1,000"),
        ({"price_ending": 0.995}, r"'price_ending' is 0.995; prices without a currency have 2 decimals"),
        ({"currency": "JPY", "price_ending": 0.99}, r"0.99; prices in JPY have no decimals.* such as 80"),
        ({"currency": "X", "locale": "xx_X"}, r"'currency' is 'X'.*; 'locale' is 'xx_X'"),
    ],
)
def test_a_wrong_setting_is_one_clear_message(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ShopSettings.of(values)


def test_names_are_accepted_as_browsers_and_people_write_them() -> None:
    settings = ShopSettings.of({"currency": "eur", "locale": "de-AT"})
    assert (settings.currency, settings.locale) == ("EUR", "de_AT")


def test_an_ending_must_fit_to_a_new_currency() -> None:
    settings = ShopSettings.of({"price_ending": 0.99})
    with pytest.raises(ConfigError, match=r"'price_ending' is 0\.99; prices in JPY have no decimals"):
        settings.changed({"currency": "JPY"})


def test_settings_stay_with_the_model(tmp_path: Path) -> None:
    split = SplitPlan("full").divide(small_shop())
    model = Recommender("bundlemage", ensemble=2, epochs=1, embedding_dim=4, shop={"currency": "JPY"})
    model.fit(split, calibrate=False, progress=False)
    assert model.refit(split, progress=False).shop_settings.currency == "JPY"
    model.save(tmp_path / "model")
    assert Recommender.load(tmp_path / "model").shop_settings == ShopSettings(currency="JPY")
    other = Recommender.load(tmp_path / "model", shop={"locale": "ja_JP"}).shop_settings
    assert other == ShopSettings(currency="JPY", locale="ja_JP")


def test_a_recipe_has_a_shop_and_options_override_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('model = "popularity"\n[shop]\ncurrency = "EUR"\nlocale = "de_DE"\n')
    recipe = Recipe.find(str(file)).changed({}, {}, {"locale": "fr_FR"})
    assert recipe.recommender().shop_settings == ShopSettings(currency="EUR", locale="fr_FR")
    file.write_text('[shop]\ncurency = "EUR"\n')
    with pytest.raises(ConfigError, match="did you mean 'currency'"):
        Recipe.find(str(file)).recommender()
