"""How prices are written in each country, and how the prices of designed bundles end."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bundlemage import ImpossibleDesignError, Recommender
from bundlemage.data.splits import SplitPlan
from bundlemage.designer.constraints import UNITS, price_of, to_pay
from bundlemage.errors import ConfigError
from bundlemage.wire.money import final_price, price_text
from bundlemage.wire.shop import ShopSettings
from tests.cli.run import run, run_json
from tests.small_shop import QUICK, small_shop

YEN = ShopSettings(currency="JPY", locale="ja_JP", price_ending=80)


LOCALES = [
    ("en_US", "USD", "$1,234,567.50"),
    ("en_GB", "GBP", "£1,234,567.50"),
    ("de_DE", "EUR", "1.234.567,50\xa0€"),
    ("de_CH", "CHF", "CHF\xa01’234’567.50"),
    ("fr_FR", "EUR", "1\u202f234\u202f567,50\xa0€"),
    ("es_ES", "EUR", "1.234.567,50\xa0€"),
    ("pt_BR", "BRL", "R$\xa01.234.567,50"),
    ("ja_JP", "JPY", "￥1,234,568"),
    ("ko_KR", "KRW", "₩1,234,568"),
    ("hi_IN", "INR", "₹12,34,567.50"),
    ("ar_EG", "EGP", "\u200f1,234,567.50\xa0ج.م.\u200f"),
    ("sv_SE", "SEK", "1\xa0234\xa0567,50\xa0kr"),
    ("en", "KWD", "KWD\xa01,234,567.500"),
    ("de_DE", "KWD", "1.234.567,500\xa0KWD"),
    ("nl_NL", "EUR", "€\xa01.234.567,50"),
    ("de_AT", "EUR", "€\xa01.234.567,50"),
]


@pytest.mark.parametrize(("locale", "currency", "text"), LOCALES)
def test_each_country_writes_prices_in_its_own_way(locale: str, currency: str, text: str) -> None:
    assert price_text(1_234_567.5, ShopSettings(locale=locale, currency=currency)) == text


@pytest.mark.parametrize(
    ("locale", "text"),
    [
        ("en", "1,234,567.50"),
        ("en_US", "1,234,567.50"),
        ("de_DE", "1.234.567,50"),
        ("fr_FR", "1\u202f234\u202f567,50"),
        ("hi_IN", "12,34,567.50"),
        ("ja_JP", "1,234,567.50"),
        ("fa_IR", "1,234,567.50"),
    ],
)
def test_without_a_currency_a_price_is_a_number_with_two_decimals(locale: str, text: str) -> None:
    assert price_text(1_234_567.5, ShopSettings(locale=locale)) == text


@pytest.mark.parametrize(
    ("given", "locale"),
    [("de-at", "de_AT"), ("DE_de", "de_DE"), ("de_DE.UTF-8", "de_DE"), ("zh_hant_tw", "zh_Hant_TW")],
)
def test_a_locale_has_the_name_that_browsers_know(given: str, locale: str) -> None:
    assert ShopSettings(locale=given).locale == locale


@pytest.mark.parametrize("name", ["xx", "root", "C", "de_DE@euro", "de_", ""])
def test_a_locale_that_browsers_do_not_know_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="there is no such locale"):
        ShopSettings.of({"locale": name})


def test_half_a_cent_is_rounded_up_as_browsers_do() -> None:
    euro = ShopSettings(currency="EUR")
    assert [price_text(price, euro) for price in (2.675, 0.125, 0.124)] == ["€2.68", "€0.13", "€0.12"]


@pytest.mark.parametrize(
    ("computed", "ending", "currency", "price"),
    [
        (23.40, 0.99, "EUR", 22.99),
        (22.99, 0.99, "EUR", 22.99),
        (0.50, 0.99, "EUR", 0.50),  # no lower price ends so
        (23.40, 0.09, "EUR", 23.39),
        (23.40, 0.5, "EUR", 22.5),
        (23.40, 9, "EUR", 19),
        (23.40, 9.99, "EUR", 19.99),
        (23.40, 0, "EUR", 23),
        (1312.0, 80, "JPY", 1280),
        (1279.4, 80, "JPY", 1180),
        (1279.5, 80, "JPY", 1280),  # it is rounded to whole yen first
        (1312.0, 980, "JPY", 980),
        (3.2345, 0.990, "KWD", 2.990),
        (23.456, None, "EUR", 23.46),
        (23.456, None, "JPY", 23),
        (23.4567, None, "KWD", 23.457),
    ],
)
def test_a_price_gets_its_ending(computed: float, ending: float | None, currency: str, price: float) -> None:
    assert final_price(computed, ShopSettings(currency=currency, price_ending=ending)) == price


@st.composite
def settings_with_ending(draw: st.DrawFn) -> ShopSettings:
    currency = draw(st.sampled_from(["EUR", "JPY", "KWD", None]))
    decimals = ShopSettings(currency=currency).decimals
    ending = draw(st.integers(0, 999 * 10**decimals)) / 10**decimals
    return ShopSettings(currency=currency, price_ending=ending)


@given(settings_with_ending(), st.integers(0, 10**7), st.integers(0, 10**6))
@example(ShopSettings(currency="EUR", price_ending=0.07), 8, 1)
def test_prices_are_never_above_have_the_ending_and_keep_their_order(
    settings: ShopSettings, cents: int, more: int
) -> None:
    computed = cents / 10**settings.decimals
    price = final_price(computed, settings)
    assert settings.price_ending is not None
    assert 0 <= price <= computed
    digits = f"{settings.price_ending:.{settings.decimals}f}".lstrip("0.").replace(".", "") or "0"
    written = f"{price:.{settings.decimals}f}".replace(".", "")
    if computed < settings.price_ending:
        assert price == computed
    elif settings.price_ending == 0:
        assert price == int(computed)
    else:
        assert written.endswith(digits)
        # The next price with this ending is one power of ten above, and would be too high.
        step = Decimal(10) ** (len(digits) - settings.decimals)
        assert Decimal(repr(price)) + step > Decimal(repr(computed))
    assert final_price((cents + more) / 10**settings.decimals, settings) >= price


@given(st.integers(0, 10**9), st.integers(0, 90))
def test_without_settings_prices_are_what_they_were_before_there_were_any(units: int, percent: int) -> None:
    exact = Decimal(units) / UNITS * (100 - percent) / 100
    assert abs(Decimal(repr(to_pay(units, percent / 100, ShopSettings()))) - exact) <= Decimal("0.005")


# ── The prices of designed bundles, the budget and what people read ──────────────────────────────


@pytest.fixture(scope="module")
def yen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = Recommender(**QUICK, shop=YEN.model_dump())
    model.fit(small_shop(), SplitPlan("none"), progress=False)
    return model.save(tmp_path_factory.mktemp("yen") / "model")


def test_budgets_are_for_the_final_price(yen: Path) -> None:
    model = Recommender.load(yen)
    model.shop_settings = YEN.changed({"price_ending": 9})
    user, ids = model.dataset.users[0], model.dataset.items.ids
    assert model.dataset.catalogue is not None
    prices = dict(zip(ids, model.dataset.catalogue.items["price"].to_pylist(), strict=True))

    def computed(items: list[str]) -> float | None:
        return price_of([prices[item] for item in items], 0.2, YEN.changed({"price_ending": None}))

    free = model.design(user, discount=0.2, n=3, method="exact", reasons=False)
    for bundle in free:
        full = computed([item.id for item in bundle.items])
        assert bundle.price is not None
        assert full is not None
        assert bundle.price <= full
        assert bundle.price == full or bundle.price % 10 == 9
    some = model.design(user, discount=0.2, budget=(39, 59), n=5, reasons=False)
    assert some.bundles
    assert all(bundle.price in (39, 49, 59) for bundle in some)
    # A bundle of 67 yen costs 59, so it is within this budget.
    assert any(
        (full := computed([item.id for item in bundle.items])) is not None and full > 59
        for bundle in model.design(user, discount=0.2, budget=(59, 59), n=20, reasons=False)
    )


def test_rules_and_changes_are_written_as_the_shop_writes_prices(yen: Path) -> None:
    model = Recommender.load(yen)
    with pytest.raises(ImpossibleDesignError) as found:
        model.design(model.dataset.users[0], size=5, budget=2)
    assert "a price of at most ￥2" in [rule.text for rule in found.value.conflict]
    assert any("with a price of at most ￥" in change.text for change in found.value.changes)
    model.shop_settings = ShopSettings(currency="EUR", locale="de_DE")
    with pytest.raises(ImpossibleDesignError, match="a price of at most 2,00\xa0€"):
        model.design(model.dataset.users[0], size=5, budget=2)


def test_the_command_line_and_the_card_write_yen_without_decimals(yen: Path) -> None:
    user = Recommender.load(yen).dataset.users[0]
    assert "Prices are in JPY and are written as ￥1,235 (locale `ja_JP`)." in (yen / "README.md").read_text()
    for command in (
        ["recommend", yen, "--user", user],
        ["complete", yen, "--user", user],
        ["design", yen, "--user", user, "--discount", "0.2", "-n", "1"],
    ):
        shown = run(*command).stdout
        assert "￥" in shown
        assert not [word for word in shown.split() if word.startswith("￥") and "." in word], shown
    (bundle,) = run_json("design", yen, "--user", user, "--discount", "0.2", "-n", "1")["bundles"]
    assert isinstance(bundle["price"], float)
