"""A shop in euros with German texts and a shop in yen: prices and pictures on the page."""

from __future__ import annotations

import csv
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from bundlemage.wire.answers import ShopOut
from bundlemage.wire.money import final_price, price_text
from bundlemage.wire.shop import ShopSettings
from tests.browser.conftest import Service, serving, visiting
from tests.cli.run import BUNDLEMAGE, run
from tests.unit.test_money import LOCALES

GERMAN = ["Gießkanne", "Blumenkübel", "Rosenschere", "Gartenhandschuhe", "Düngestäbchen", "Pflanzerde"]
JAPANESE = ["緑茶", "急須", "湯呑み", "茶筅", "抹茶", "和菓子"]
OWN_PICTURE, BROKEN = "/static/favicon.svg", "/static/no-such-picture.png"
SHOTS = os.environ.get("BUNDLEMAGE_SHOTS")
"""A folder for pictures of the pages, for whoever wants to look at them."""


def make_shop(folder: Path, words: list[str], factor: float) -> Path:
    """Twelve items and nine bundles of four. Prices and costs are multiples of `factor`."""
    folder.mkdir()
    dice = random.Random(7)
    items = [f"{word} {size}" for word in words for size in ("S", "XL")]
    prices = [round(factor * (3.2 + 2.47 * place), 2) for place in range(len(items))]
    contents = [dice.sample(range(len(items)), 4) for _ in range(9)]
    tables: dict[str, tuple[tuple[str, ...], list[tuple[Any, ...]]]] = {
        "user_item": (
            ("user_id", "item_id"),
            [(f"u{user}", f"i{item}") for user in range(40) for item in dice.sample(range(len(items)), 2)],
        ),
        "user_bundle": (
            ("user_id", "bundle_id"),
            [(f"u{user}", f"b{bundle}") for user in range(40) for bundle in dice.sample(range(9), 2)],
        ),
        "bundle_item": (
            ("bundle_id", "item_id"),
            [(f"b{bundle}", f"i{item}") for bundle, inside in enumerate(contents) for item in inside],
        ),
        "items": (
            ("item_id", "title", "price", "cost", "tags", "picture"),
            [
                (f"i{n}", title, price, price / 2, words[n // 2], OWN_PICTURE if n == 0 else "")
                for n, (title, price) in enumerate(zip(items, prices, strict=True))
            ],
        ),
        "bundles": (
            ("bundle_id", "title", "price", "discount", "tags", "image_url"),
            [
                (
                    f"b{n}", f"{words[n % 6]} {n}", round(sum(prices[item] for item in inside) * 0.8, 2), 0.2,
                    words[n % 6], OWN_PICTURE if n % 2 else BROKEN if n == 0 else "",
                )
                for n, inside in enumerate(contents)
            ],
        ),
    }  # fmt: skip
    for name, (head, rows) in tables.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([head, *rows])
    return folder


@pytest.fixture(scope="module")
def euro(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("euro")
    shop = ("--shop", "currency=EUR", "--shop", "locale=de_DE", "--shop", "owned=show")
    run("train", make_shop(folder / "shop", GERMAN, 9.0), "-o", folder / "model", *BUNDLEMAGE, *shop)
    with serving(folder / "model", folder) as service:
        yield service


@pytest.fixture(scope="module")
def yen(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("yen")
    run("train", make_shop(folder / "shop", JAPANESE, 100.0), "-o", folder / "model", *BUNDLEMAGE)
    shop = ("--shop", "currency=JPY", "--shop", "locale=ja_JP", "--shop", "price_ending=80")
    with serving(folder / "model", folder, *shop, "--shop", "owned=show") as service:
        yield service


def shot(page: Page, name: str) -> None:
    if SHOTS:
        page.wait_for_load_state("networkidle")
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


def card_prices(page: Page) -> dict[str, str]:
    expect(page.locator(".card[data-bundle] .price b").first).to_be_visible()
    cards = page.locator(".card[data-bundle]").all()
    return {card.get_attribute("data-bundle") or "": card.locator(".price b").inner_text() for card in cards}


def test_a_german_shop_shows_euros_as_germans_write_them(browser: Browser, euro: Service) -> None:
    settings = ShopSettings(currency="EUR", locale="de_DE")
    bundles = {bundle["id"]: bundle for bundle in euro.get("/v1/bundles")["bundles"]}
    with visiting(browser, euro) as visit:
        visit.refusals = 1  # the picture that does not exist
        page = visit.open("/?user=u3")
        prices = card_prices(page)
        assert len(prices) >= 6
        for name, text in prices.items():
            assert text == price_text(bundles[name]["price"], settings)
            assert re.fullmatch(r"\d+,\d\d\xa0€", text)
        shot(page, "euro-shop")
        # Pictures of the service's own files are shown; instead of a broken one the cover is drawn.
        picture = page.locator(".card[data-bundle='b1'] img.cover-art")
        expect(picture).to_have_attribute("src", OWN_PICTURE)
        expect(picture).to_have_attribute("loading", "lazy")
        expect(picture).to_have_attribute("referrerpolicy", "no-referrer")
        picture.scroll_into_view_if_needed()
        assert picture.evaluate("image => image.decode().then(() => image.naturalWidth > 0)")
        broken = page.locator(".card[data-bundle='b0']")
        broken.scroll_into_view_if_needed()
        expect(broken.locator("svg.cover-art")).to_be_visible()
        expect(broken.locator("img")).to_have_count(0)
        page.locator(".card[data-bundle='b1'] .card-open").click()
        expect(page.get_by_role("dialog").locator(".lines")).to_contain_text("€")
        shot(page, "euro-dialog")


def test_a_japanese_shop_shows_yen_without_decimals_and_its_endings(browser: Browser, yen: Service) -> None:
    bundles = {bundle["id"]: bundle for bundle in yen.get("/v1/bundles")["bundles"]}
    settings = ShopSettings(currency="JPY", locale="ja_JP")
    with visiting(browser, yen) as visit:
        visit.refusals = 1
        page = visit.open("/?user=u3")
        for name, text in card_prices(page).items():
            assert text == price_text(bundles[name]["price"], settings)
            assert re.fullmatch(r"￥[\d,]+", text)
        page.locator(".card[data-bundle='b0']").scroll_into_view_if_needed()
        expect(page.locator(".card[data-bundle='b0'] svg.cover-art")).to_be_visible()
        shot(page, "yen-shop")
    with visiting(browser, yen) as visit:
        page = visit.open("/builder?user=u3&item=i1&item=i2&design=yes")
        expect(page.locator(".tile-price").first).to_have_text(re.compile(r"^￥[\d,]+$"))
        page.get_by_label("Discount, per cent", exact=True).fill("20")
        page.get_by_role("button", name=re.compile("^Design")).click()
        price = page.locator(".proposal .price b").first
        expect(price).to_have_text(re.compile(r"^￥[\d,]*80$"))
        shot(page, "yen-design")


def test_pages_write_and_end_prices_as_the_command_line_does(browser: Browser, euro: Service) -> None:
    with visiting(browser, euro) as visit:
        page = visit.open("/insights")
        for locale, currency, text in LOCALES:
            shop = ShopOut(locale=locale, currency=currency)
            script = """async ([shop, amount]) => {
                const money = await import("/static/money.js");
                money.writePricesAs(shop);
                return money.price(amount);
            }"""
            found = page.evaluate(script, [shop.model_dump(), 1_234_567.5])
            plain = ShopOut(locale=locale)
            found_plain = page.evaluate(script, [plain.model_dump(), 1_234_567.5])
            if locale != "de_AT":  # Babel groups the numbers of Austria like its prices, browsers do not
                assert found_plain.replace("'", "’") == price_text(1_234_567.5, plain), locale
            # The apostrophe of Switzerland depends on the version of the locale data.
            assert found.replace("'", "’") == text, locale
        # Some of these locales group only numbers of five digits and more, unless one asks for it.
        for locale in (*(locale for locale, *_ in LOCALES), "it_IT", "pl_PL", "pt_PT", "bg_BG"):
            for unit in ("EUR", None) if locale != "de_AT" else ("EUR",):
                shop = ShopOut(locale=locale, currency=unit)
                found = page.evaluate(script, [shop.model_dump(), 1_234.5])
                assert found.replace("'", "’") == price_text(1_234.5, shop), (locale, unit)
        endings = (("EUR", 0.99), ("EUR", 0.09), ("EUR", 9), ("EUR", 0), ("JPY", 80), (None, None))
        for unit, ending in endings:
            shop = ShopOut(currency=unit, price_ending=ending)
            amounts = [place * 0.37 for place in range(400)] + [22.99, 2.675, 80, 179.5, 1280]
            script = """async ([shop, amounts]) => {
                const money = await import("/static/money.js");
                money.writePricesAs(shop);
                return amounts.map(money.finalPrice);
            }"""
            found = page.evaluate(script, [shop.model_dump(), amounts])
            assert found == [final_price(round(amount, 9), shop) for amount in amounts], (unit, ending)
