"""A shop whose customers buy the same things again, and pay for what is missing: cards and the dialog."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Service, serving, visiting
from tests.browser.test_money import GERMAN, make_shop
from tests.cli.run import BUNDLEMAGE, run


@pytest.fixture(scope="module")
def service(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("again")
    run("train", make_shop(folder / "shop", GERMAN, 9.0), "-o", folder / "model", *BUNDLEMAGE)
    settings = ("owned=show", "pays=missing", "stock=show")
    with serving(folder / "model", folder, *(f"--shop={each}" for each in settings)) as service:
        service.api.patch("/v1/bundles/b0", json={"image_url": None})  # it does not exist
        yield service


def test_a_bundle_that_the_user_has_can_be_bought_again(browser: Browser, service: Service) -> None:
    has = [bundle["id"] for bundle in service.get("/v1/users/u3")["bundles"]]
    with visiting(browser, service) as visit:
        page = visit.open("/?user=u3")
        for bundle in (has[0], has[0], has[1]):
            page.locator(f".card[data-bundle='{bundle}'] .card-open").click()
            dialog = page.get_by_role("dialog")
            expect(dialog).to_contain_text("Already in this history")
            dialog.get_by_role("button", name="Buy", exact=True).click()
            expect(dialog).to_have_count(0)
            expect(page.locator("#history h3").nth(0)).to_have_text(f"Bundles {len(has)}")
        assert [each["id"] for each in service.get("/v1/users/u3")["bundles"]] == has


def test_similar_bundles_are_labelled_if_they_are_sold_out(browser: Browser, service: Service) -> None:
    first, second, *_ = service.get("/v1/bundles/b1/similar", k=4, details=True)["bundles"]
    item = next(each["id"] for each in first["items"] if each not in second["items"])
    assert service.api.patch(f"/v1/items/{item}", json={"stock": 0}).status_code == 200
    similar = service.get("/v1/bundles/b1/similar", k=4)["bundles"]
    gone = [bool(bundle["sold_out"]) for bundle in similar]
    assert {True, False} == set(gone)
    with visiting(browser, service) as visit:
        page = visit.open("/?user=u4")
        page.locator(".card[data-bundle='b1'] .card-open").click()
        alike = page.get_by_role("dialog").locator(".alike li")
        expect(alike).to_have_count(len(similar))
        for place, sold_out in enumerate(gone):
            expect(alike.nth(place).locator(".badge")).to_have_count(int(sold_out))


def test_a_card_says_if_the_price_of_what_is_missing_is_not_known(browser: Browser, service: Service) -> None:
    assert service.api.patch("/v1/items/i5", json={"price": None}).status_code == 200
    bundles = service.get("/v1/users/u6/bundles", k=9)["bundles"]
    said = {
        bundle["id"]: bool(bundle["owned"]) and bundle["to_pay"] is None and bundle["price"] is not None
        for bundle in bundles
    }
    assert {True, False} == set(said.values())
    with visiting(browser, service) as visit:
        page = visit.open("/?user=u6")
        for bundle, is_said in said.items():
            card = page.locator(f".card[data-bundle='{bundle}']")
            expect(card.locator(".price b")).to_be_visible()
            told = card.get_by_text("The price of what is missing is not known")
            expect(told).to_have_count(int(is_said))


def test_a_shop_whose_bundles_have_no_prices_filters_by_those_of_their_items(
    browser: Browser, service: Service
) -> None:
    for item in range(12):  # also one that another test has removed
        service.api.patch(f"/v1/items/i{item}", json={"price": 1.0 + item})
    for bundle in range(9):
        service.api.patch(f"/v1/bundles/b{bundle}", json={"price": None})
    prices = [bundle["price"] for bundle in service.get("/v1/users/u7/bundles", k=9)["bundles"]]
    bound = sorted(prices)[4]
    with visiting(browser, service) as visit:
        page = visit.open(f"/?user=u7&max_price={bound}")
        cards = page.locator(".card[data-bundle]")
        expect(cards).to_have_count(sum(price <= bound for price in prices))
        page.get_by_label("Highest price").fill("")
        expect(cards).to_have_count(9)
