"""A shop that has ids and nothing else: no titles, prices, tags or stock."""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests.browser.conftest import DESKTOP, NARROWEST, PHONE, Service, Visit, serving, visiting
from tests.browser.test_access import check_both_themes, check_width
from tests.cli.run import BUNDLEMAGE, run

ITEMS = [f"{name}/{number:02d}" for number in range(6) for name in ("Faß", "LÖFFEL", "soap 3+1", "z#ä")]
BUNDLES = [f"KIT-BAD/{number:02d}#ä" for number in range(1, 2011)]
"""More than a picture of them draws."""
USERS = [f"li+{number}@bücher.de" for number in range(1, 40)]


def write(path: Path, head: tuple[str, str], rows: list[tuple[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *rows])


@pytest.fixture(scope="module")
def plain(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("plain")
    shop = folder / "shop"
    shop.mkdir()
    dice = random.Random(5)
    inside = [(bundle, item) for bundle in BUNDLES for item in dice.sample(ITEMS, 4)]
    items = [(user, item) for user in USERS for item in dice.sample(ITEMS, 3)]
    bundles = [(user, bundle) for user in USERS for bundle in dice.sample(BUNDLES[:60], 3)]
    write(shop / "bundle_item.csv", ("bundle_id", "item_id"), inside)
    write(shop / "user_item.csv", ("user_id", "item_id"), items)
    write(shop / "user_bundle.csv", ("user_id", "bundle_id"), bundles)
    run("train", shop, "-o", folder / "model", *BUNDLEMAGE)
    with serving(folder / "model", folder) as service:
        yield service


@pytest.fixture
def visit(browser: Browser, plain: Service) -> Iterator[Visit]:
    with visiting(browser, plain) as visit:
        yield visit


def shop_of(user: str, **filters: str) -> str:
    return f"/?{urlencode({'user': user, **filters})}"


def bought(plain: Service, user: str, **thing: str) -> None:
    answer = plain.api.post("/v1/interactions", json={"interactions": [{"user_id": user, **thing}]})
    answer.raise_for_status()


def test_the_shop_offers_and_shows_only_what_there_is(visit: Visit, plain: Service) -> None:
    user = USERS[4]
    page = visit.open(shop_of(user))
    expect(page.locator(".card[data-bundle]")).to_have_count(12)
    for name in ("Lowest price", "Highest price", "All in stock"):
        expect(page.get_by_label(name)).to_be_hidden()
    expect(page.locator(".menu")).to_be_hidden()
    expect(page.locator(".price, .tags")).to_have_count(0)
    first = page.locator(".card-open").first
    title = first.inner_text()
    first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".lines li")).to_have_count(4)
    expect(dialog).not_to_contain_text("—")
    expect(dialog.locator(".price, .tags")).to_have_count(0)
    dialog.get_by_role("button", name="Buy").click()
    expect(page.locator(".toast")).to_contain_text(f"{user} has “{title}” now.")
    assert title in [bundle["id"] for bundle in plain.get("/v1/users/li+5@bücher.de")["bundles"]]


def test_a_filter_of_the_address_that_cannot_work_is_left_out_and_said(visit: Visit) -> None:
    page = visit.open(shop_of(USERS[0], min_price="5", in_stock="yes", tag="Bad"))
    expect(page.locator(".card[data-bundle]")).to_have_count(12)
    expect(page.locator("#filters").get_by_role("status")).to_have_text(
        "The address filters by tags, prices and stock, but the shop lacks them. The filters are ignored."
    )
    expect(page).to_have_url(re.compile(r"/\?user=[^&]+$"))
    expect(page.locator(".problem")).to_have_count(0)


def test_the_builder_leaves_out_what_is_not_there(visit: Visit, plain: Service) -> None:
    chosen = ["Faß/00", "z#ä/01"]
    page = visit.open(f"/builder?{urlencode({'user': USERS[1], 'item': chosen}, doseq=True)}")
    expect(page.locator(".suggestion button")).to_have_count(8)
    for name in ("Tag", "In stock", "Discount, %"):
        expect(page.get_by_label(name, exact=True).locator("visible=true")).to_have_count(0)
    expect(page.locator("#sums")).to_be_hidden()
    expect(page.locator("#price-note, #bundle-tags").locator("visible=true")).to_have_count(0)
    expect(page.locator("main")).not_to_contain_text("—")
    tile = page.locator(".tile").first.bounding_box()
    assert tile is not None
    assert tile["height"] < 50, "a tile of a name alone is not half empty"
    page.get_by_label("Title").fill("Bad & Küche")
    page.get_by_role("button", name="Save bundle").click()
    expect(page.locator(".fit")).to_contain_text("“Bad & Küche” is saved")
    saved = plain.get("/v1/bundles/bad-kuche")
    assert [item["id"] for item in saved["items"]] == chosen
    assert (saved["price"], saved["discount"], saved["tags"]) == (None, None, [])


def test_the_designer_asks_for_nothing_that_is_not_there(visit: Visit) -> None:
    page = visit.open(f"/builder?{urlencode({'user': USERS[1], 'item': ITEMS[3], 'design': 'yes'})}")
    expect(page.get_by_label("Items, at most", exact=True)).to_be_visible()
    for name in ("Price, at most", "Discount, per cent", "Weight of margin", "Only items in stock"):
        expect(page.get_by_label(name, exact=True).locator("visible=true")).to_have_count(0)
    expect(page.get_by_role("button", name="Add a rule on a tag")).to_have_count(0)
    expect(page.locator("#designer")).not_to_contain_text("their margin")
    page.get_by_label("How many", exact=True).fill("2")
    page.get_by_role("button", name="Design", exact=True).click()
    expect(page.locator(".proposal")).to_have_count(2)
    expect(page.locator(".proposal .price, .proposal s")).to_have_count(0)
    page.get_by_role("button", name="Take proposal 2").click()
    page.get_by_role("button", name="Forecast its audience").click()
    expect(page.locator(".forecast")).to_contain_text(f"{len(USERS)} users considered")
    expect(page.locator(".forecast")).to_contain_text("too little data")  # its bundles were hardly bought
    expect(page.locator("main")).not_to_contain_text("Takings")
    check_width(page)


@pytest.mark.parametrize("thing", [{"item_id": ITEMS[2]}, {"bundle_id": BUNDLES[3]}], ids=["item", "bundle"])
def test_a_single_chip_is_as_high_as_any(visit: Visit, plain: Service, thing: dict[str, str]) -> None:
    user = f"solo+{min(thing)}@bücher.de"
    bought(plain, user, **thing)
    page = visit.open(shop_of(user))
    expect(page.locator("#history .chip")).to_have_count(1)
    heading = page.locator("#history h3").bounding_box()
    chip = page.locator("#history .chip").bounding_box()
    assert heading is not None
    assert chip is not None
    assert chip["height"] <= 34
    assert chip["y"] - (heading["y"] + heading["height"]) <= 12
    assert heading["height"] <= 28


class TestTypingAnIdInAHurry:
    @pytest.fixture
    def page(self, visit: Visit) -> Page:
        """Answers take their time, so that what is listed is older than what is typed."""
        page = visit.open("/")
        expect(page.locator(".card[data-bundle]")).to_have_count(12)
        slow = {"offline": False, "latency": 300, "downloadThroughput": -1, "uploadThroughput": -1}
        page.context.new_cdp_session(page).send("Network.emulateNetworkConditions", slow)
        return page

    def test_enter_waits_for_the_list_of_what_was_typed(self, page: Page) -> None:
        page.get_by_role("combobox", name="User").click()
        page.keyboard.type(USERS[6])
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text(f"For {USERS[6]}")
        expect(page.get_by_role("listbox")).to_be_hidden()

    def test_enter_takes_nobody_from_an_older_list(self, page: Page) -> None:
        page.get_by_role("combobox", name="User").click()
        expect(page.get_by_role("option", name=re.compile(r"^li\+10@"))).to_be_visible()
        page.keyboard.type(USERS[7])
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text(f"For {USERS[7]}")

    def test_a_beginning_that_only_one_has_is_enough(self, page: Page) -> None:
        page.get_by_role("combobox", name="User").click()
        page.keyboard.type("li+8@")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("For li+8@bücher.de")

    def test_a_beginning_that_many_have_opens_their_list(self, page: Page) -> None:
        page.get_by_role("combobox", name="User").click()
        page.keyboard.type("li+2")
        page.keyboard.press("Enter")
        expect(page.get_by_role("option")).to_have_count(11)
        expect(page.get_by_role("option", selected=True)).to_contain_text("li+20@")
        expect(page.get_by_role("heading", level=1)).to_have_text("For anyone")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("For li+20@bücher.de")


def test_capitals_are_tried_both_ways(visit: Visit) -> None:
    page = visit.open("/")
    page.get_by_role("combobox", name="User").click()
    page.keyboard.type("LI+9@B")
    page.get_by_role("option", name=re.compile(r"^li\+9@")).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("For li+9@bücher.de")
    page.get_by_role("combobox", name="User").fill("Nobody")
    expect(page.get_by_role("option")).to_have_text(
        "No user's id begins with “Nobody”. Upper and lower case differ."
    )


def test_enter_on_who_is_chosen_already_chooses_nobody_else(visit: Visit) -> None:
    page = visit.open(shop_of(USERS[38]))
    expect(page.locator(".card[data-bundle]")).to_have_count(12)
    page.get_by_role("combobox", name="User").click()
    expect(page.get_by_role("option").first).to_be_visible()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"For {USERS[38]}")


def test_insights_say_which_bundles_are_left_out(visit: Visit, plain: Service) -> None:
    for user in USERS[:3]:
        plain.get(f"/v1/users/{user}/bundles")
    found = plain.get("/v1/insights")
    assert found["left_out"] >= 10
    page = visit.open("/insights")
    words = page.locator("#popularity > p")
    expect(words).to_contain_text(
        f"The chart shows the 2,000 bundles that sell or are shown most; {found['left_out']}"
    )
    never = sum(row["shown_share"] == 0 for row in plain.get("/v1/insights")["popularity"])
    expect(words).to_contain_text(f"{never:,} of these 2,000 were not shown yet.")


def test_labels_of_an_axis_differ_also_where_a_curve_hardly_rises(visit: Visit) -> None:
    page = visit.open("/insights")
    page.wait_for_selector("#training svg")
    for chart in page.locator("#training .plot").all():
        labels = chart.locator("text[text-anchor=end]:not(.axis, .best-label)").all_text_contents()
        assert len(labels) >= 2
        assert len(set(labels)) == len(labels), labels


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing_serious(browser: Browser, plain: Service, viewport: ViewportSize) -> None:
    pages = {
        shop_of(USERS[1]): ".card[data-bundle]",
        f"/?{urlencode({'item': ITEMS[3]})}": "#keep-name",
        f"/builder?{urlencode({'item': ITEMS[3]})}": ".suggestion button",
    }
    with visiting(browser, plain, viewport) as visit:
        for path, ready in pages.items():
            page = visit.open(path)
            page.wait_for_selector(ready)
            check_both_themes(page, path)
            check_width(page)
            page.set_viewport_size(NARROWEST)
            check_width(page)
            page.set_viewport_size(viewport)
