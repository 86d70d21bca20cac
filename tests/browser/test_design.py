"""The designer, as a person walks through it: limits set, bundles proposed, one taken and saved."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Locator, Page, Request, Route, ViewportSize, expect

from bundlemage.service.routes import forecasts
from tests.browser.conftest import DESKTOP, NARROWEST, PHONE, Service, Visit, visiting
from tests.browser.test_access import check_width, serious
from tests.browser.test_builder import inside
from tests.service.held import PAGE, Held
from tests.service.running import inside as in_this_process
from tests.waiting import wait_until

DESIGNER = "/builder?user=u0007&design=yes"


def proposals(page: Page) -> Locator:
    return page.locator(".proposal")


def items_of(proposal: Locator) -> list[str]:
    rows = proposal.locator(".proposed-item")
    return [row.get_attribute("data-item") or "" for row in rows.all()]


def design(page: Page, many: int = 3) -> list[list[str]]:
    page.get_by_role("button", name="Design", exact=True).click()
    expect(page.locator("#proposals:not([aria-busy]) .proposal")).to_have_count(many)
    return [items_of(each) for each in proposals(page).all()]


def tag_rule(page: Page, kind: str, many: int, tag: str) -> None:
    page.get_by_role("button", name="Add a rule on a tag").click()
    row = page.locator(".tag-rules li").last
    row.get_by_label("At least or at most").select_option(kind)
    row.get_by_label("How many items").fill(str(many))
    row.get_by_label("Tag").fill(tag)


def about(service: Service, items: list[str]) -> list[dict[str, Any]]:
    return [service.get(f"/v1/items/{item}") for item in items]


def asked(request: Request) -> Any:
    return json.loads(request.post_data or "null")


def test_bundles_within_a_budget_and_with_a_tag_are_proposed_explained_taken_and_saved(
    visit: Visit, service: Service
) -> None:
    page = visit.open("/builder?user=u0007")
    page.get_by_role("radio", name="Whole bundles").check()
    expect(page.locator("#suggest")).to_be_hidden()
    page.get_by_label("Price, at most", exact=True).fill("45")
    page.get_by_label("Discount, per cent", exact=True).fill("20")
    tag_rule(page, "at_least", 2, "Seafaring")
    tag_rule(page, "at_most", 0, "Horror")
    bundles = design(page)

    owned = {item["id"] for item in service.get("/v1/users/u0007")["items"]}
    for number, items in enumerate(bundles):
        known = about(service, items)
        listed = sum(item["price"] for item in known)
        assert 3 <= len(items) <= 5
        assert round(listed * 0.8, 2) <= 45
        assert sum("Seafaring" in item["tags"] for item in known) >= 2
        assert not any("Horror" in item["tags"] for item in known)
        assert all(item["stock"] > 0 for item in known)
        assert not owned & set(items)
        price = proposals(page).nth(number).locator(".price")
        expect(price.locator("s")).to_have_text(f"{listed:,.2f}")
        expect(price.locator(".off")).to_have_text("−20%")
        expect(price.locator("b")).to_have_text(f"{listed * 0.8:,.2f}")
    assert len({frozenset(items) for items in bundles}) == 3
    expect(page.locator("#proposed-title")).to_be_focused()
    expect(page.locator("#proposals-note")).to_contain_text("3 bundles for u0007, quick search")

    first = proposals(page).first.locator(".proposed-item").first
    question: dict[str, Any] = {"user_id": "u0007", "item": bundles[0][0], "items": []}
    question |= {"to": "shop", "details": True}
    why = service.api.post("/v1/explain", json=question).json()["explanations"][0]["why"]
    expect(first.locator(".model-why > p")).to_have_text(why["words"])
    expect(first.locator(".reasons")).to_be_hidden()
    first.locator("summary").click()
    strongest = why["details"]["reasons"][0]
    expect(first.locator(".reasons tbody tr").first).to_contain_text(strongest["title"])
    expect(first.locator(".reasons td").first).to_have_text(f"×{math.exp(strongest['effect']):.2f}")
    expect(first.locator(".gate .unseen")).to_have_text(
        f"items {why['details']['gate']:.0%}, bundles {1 - why['details']['gate']:.0%}"
    )

    page.get_by_role("button", name="Take proposal 2").click()
    expect(page.get_by_label("Title")).to_be_focused()
    assert inside(page) == bundles[1]
    expect(page.get_by_label("Discount, %")).to_have_value("20")
    page.keyboard.type("Designed at Sea")
    page.keyboard.press("Enter")
    expect(page.locator(".fit")).to_contain_text("“Designed at Sea” is saved")
    saved = service.get("/v1/bundles/designed-at-sea")
    assert [item["id"] for item in saved["items"]] == bundles[1]
    assert saved["price"] == round(sum(item["price"] for item in about(service, bundles[1])) * 0.8, 2)
    assert saved["discount"] == 0.2
    assert saved["recommendable"]
    service.api.delete("/v1/bundles/designed-at-sea").raise_for_status()


def test_what_is_given_stays_what_is_refused_goes_and_what_is_kept_is_in_all(visit: Visit) -> None:
    page = visit.open(f"{DESIGNER}&item=g0022")
    expect(page.locator("#design-start")).to_have_text("The 1 item of the bundle will be in every proposal.")
    bundles = design(page)
    assert all(items[0] == "g0022" for items in bundles)
    expect(proposals(page).first.locator(".badge").first).to_have_text("given")
    refused = bundles[0][1]
    with page.expect_request("**/v1/design") as sent:
        page.locator(f"[data-item={refused}]").first.get_by_text("Not this one").click()
    assert asked(sent.value)["forbid"] == [refused]
    expect(page.locator(f".proposal [data-item={refused}]")).to_have_count(0)
    expect(page.locator("#kept")).to_contain_text("In no bundle")

    kept = items_of(proposals(page).last)[1]
    page.locator(f"[data-item={kept}]").last.get_by_text("Keep", exact=True).click()
    expect(page.locator(f".proposal:has([data-item={kept}])")).to_have_count(3)
    page.get_by_role("button", name="from “In every bundle”").click()
    expect(page.locator("#kept")).not_to_contain_text("In every bundle")

    # Whoever took one goes on designing from what there was before.
    page.get_by_role("button", name="Take proposal 1").click()
    expect(page.locator("#design-start")).to_contain_text("before you took a proposal: 1 item")
    with page.expect_request("**/v1/design") as sent:
        design(page)
    assert asked(sent.value)["start"] == ["g0022"]


def test_a_proposal_says_who_would_buy_it_and_what_the_user_owns_of_it(
    visit: Visit, service: Service
) -> None:
    user = service.get("/v1/users/u0007")
    mine = {item["id"] for each in (user, *user["bundles"]) for item in each["items"]}
    sold_out = next(each for each in service.get("/v1/items?limit=500")["items"] if each["stock"] == 0)["id"]
    page = visit.open(f"{DESIGNER}&item={min(mine)}&item={sold_out}")
    with page.expect_response("**/v1/design") as answered:
        design(page)
    answer = answered.value.json()
    for bundle, shown in zip(answer["bundles"], proposals(page).all(), strict=True):
        expect(shown.locator(".buyers")).to_contain_text("buyers")
        expect(shown.locator(".to-pay")).to_have_count(0)  # this shop asks for the whole price
        for item, row in zip(bundle["items"], shown.locator(".proposed-item").all(), strict=True):
            labels = ["given"] * item["given"] + ["owned"] * item["owned"] + ["sold out"] * item["sold_out"]
            expect(row.locator(".badge")).to_have_text(labels)
            assert item["owned"] == (item["id"] in mine)
            assert item["sold_out"] == (item["id"] == sold_out)

    # In a shop where users pay for what is missing; with forecasts that differ, or that are all the same.
    same = False

    def changed(route: Route) -> None:
        told = route.fetch().json()
        for number, bundle in enumerate(told["bundles"]):
            expected = 240.4 if same else 12.34 + number
            bundle |= {"to_pay": 12.5, "expected_buyers": expected, "low": 8 + number, "high": 900}
        told["note"] = "Forecasts do not tell which sell better." if same else None
        route.fulfill(json=told)

    page.route("**/v1/design", changed)
    design(page)
    expect(page.locator(".proposal .to-pay")).to_have_text(["You pay 12.50"] * 3)
    expect(page.locator(".proposal .buyers")).to_have_text(
        [f"About {12 + number} buyers ({8 + number} to 900)." for number in range(3)]
    )
    expect(page.locator("#proposals-note")).not_to_contain_text("Forecasts do not tell")
    same = True
    design(page)
    expect(page.locator("#proposals-note")).to_contain_text("Forecasts do not tell")
    expect(page.locator(".proposal .buyers")).to_have_text(["About 240 buyers."] * 3)


def test_an_impossible_request_says_what_conflicts_and_each_way_out_works(visit: Visit) -> None:
    visit.refusals = 1
    page = visit.open(DESIGNER)
    page.get_by_label("Price, at most", exact=True).fill("5")
    page.get_by_role("button", name="Design", exact=True).click()
    problem = page.locator(".impossible")
    expect(problem).to_contain_text("These conditions exclude each other:")
    expect(problem.locator(".conflict li")).to_have_text(["at least 3 items", "a price of at most 5.00"])
    assert serious(page) == []
    way = problem.get_by_role("button", name=re.compile("a price of at most .* instead of 5.00"))
    price = re.search(r"at most ([\d.]+)", way.inner_text())
    assert price is not None
    way.click()
    expect(page.get_by_label("Price, at most", exact=True)).to_have_value(str(float(price[1])))
    expect(proposals(page).first).to_be_visible()
    expect(problem).to_have_count(0)


def test_what_is_wrong_is_said_before_anything_is_asked(visit: Visit) -> None:
    page = visit.open(DESIGNER)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    note = page.locator("#design-note")
    ask = page.get_by_role("button", name="Design", exact=True)
    page.get_by_label("Items, at least", exact=True).fill("6")
    ask.click()
    expect(note).to_have_text("Items: the minimum is above the maximum.")
    expect(page.get_by_label("Items, at least", exact=True)).to_be_focused()
    page.get_by_label("Items, at least, slider").fill("2")
    expect(page.get_by_label("Items, at least", exact=True)).to_have_value("2")
    tag_rule(page, "at_least", 1, "No such tag")
    ask.click()
    expect(note).to_have_text("No item has the tag “No such tag”. Upper and lower case differ.")
    expect(page.get_by_label("Tag", exact=True).last).to_be_focused()
    page.get_by_role("button", name="Remove this rule").click()
    page.get_by_label("Discount, per cent", exact=True).fill("150")
    ask.click()
    expect(note).to_have_text("Discount, per cent: a whole number from 0 to 99 is expected.")
    assert not [url for url in sent if url.endswith("/v1/design")]


def test_a_thorough_search_can_be_stopped(visit: Visit) -> None:
    page = visit.open("/builder?design=yes")
    page.get_by_label("Thorough").check()
    page.get_by_role("button", name="Design", exact=True).click()
    expect(page.locator("#design-wait")).to_contain_text("This may take some seconds")
    expect(page.locator("#proposals")).to_have_attribute("aria-busy", "true")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Design", exact=True)).to_be_visible()
    expect(page.locator("#proposed")).to_be_hidden()
    page.get_by_label("Quick").check()
    design(page)


def test_the_forecast_of_a_bundle_and_the_swap_of_its_weakest_item(visit: Visit, service: Service) -> None:
    items = ["g0022", "g0401", "g0100"]
    page = visit.open("/builder?" + "&".join(f"item={item}" for item in items))
    page.get_by_label("Discount, %").fill("10")
    page.get_by_role("button", name="Forecast its audience").click()
    told = service.api.post("/v1/bundles:score", json={"items": items, "discount": 0.1, "k": 5}).json()
    forecast = page.locator(".forecast")
    interval = f"({told['low']:,} to {told['high']:,})"
    expect(forecast.locator(".expected")).to_contain_text(
        f"of {told['asked']:,} users would buy it {interval}"
    )
    expect(forecast).to_contain_text(f"Takings at {told['price']:,.2f}: {told['expected_takings']:,.2f}")
    links = forecast.get_by_role("link")
    assert links.all_inner_texts() == [person["id"] for person in told["people"]]
    expect(links.first).to_have_attribute("href", f"/?user={told['people'][0]['id']}")
    expect(forecast).to_contain_text(told["nearest"][0]["title"])

    weakest, better = told["weakest"]["id"], told["replacement"]
    page.get_by_role("button", name="Swap them").click()
    swapped = [better["id"] if item == weakest else item for item in items]
    expect(page.locator(f"#bundle-items [data-item={better['id']}]")).to_be_visible()
    assert inside(page) == swapped
    again = service.api.post("/v1/bundles:score", json={"items": swapped, "discount": 0.1}).json()
    assert [item["id"] for item in again["items"]] == swapped
    expect(forecast).to_contain_text(f"Takings at {again['price']:,.2f}: {again['expected_takings']:,.2f}")
    # What was said of a bundle is not left standing beside another one.
    page.locator("#bundle-items li button").last.click()
    expect(forecast).to_have_count(0)


def test_a_long_forecast_shows_its_progress_and_can_be_cancelled(
    browser: Browser, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    with (
        in_this_process(model, f"sqlite:///{tmp_path}/shop.db") as running,
        running.client() as api,
        visiting(browser, Service(running.url, running.db, api, {})) as visit,
    ):
        try:
            page = visit.open("/builder?item=g0022&item=g0401")
            busy = iter([503])  # the first time the page asks how far it is

            def answer(route: Route) -> None:
                route.fulfill(status=503) if next(busy, None) else route.continue_()

            page.route("**/v1/work", answer)
            visit.refusals = 1
            button = page.locator("#forecast-ask")
            button.click()
            held.go.release(2)
            for _ in range(3):
                held.wait_for_a_batch()
            everybody = running.store.user_count()
            told = page.locator("#forecast-work")
            expect(told).to_contain_text(f"{2 * PAGE} of {everybody} users")
            bar = told.get_by_role("progressbar")
            assert (bar.get_attribute("value"), bar.get_attribute("max")) == (str(2 * PAGE), str(everybody))
            assert serious(page) == []
            told.get_by_role("button", name="Cancel").click()
            expect(told).to_be_empty()
            expect(button).to_have_text("Forecast its audience")
            expect(button).to_be_focused()
            left = 'route="/v1/bundles:score",status="499"'
            wait_until(lambda: left in api.get("/metrics").text, "the end of the request")
        finally:
            held.let_all_go()
        wait_until(lambda: not running.service.lanes.work(), "the end of the work")
        assert held.batches == 3
        button.click()  # a forecast that is not cancelled
        expect(page.locator(".forecast .expected")).to_be_visible(timeout=60_000)


def test_an_estimate_is_shown_before_the_exact_forecast_and_buyers_can_be_saved(
    browser: Browser, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    monkeypatch.setattr(forecasts, "SAMPLE", PAGE)
    with (
        in_this_process(model, f"sqlite:///{tmp_path}/shop.db") as running,
        running.client() as api,
        visiting(browser, Service(running.url, running.db, api, {})) as visit,
    ):
        try:
            page = visit.open("/builder?item=g0022&item=g0401")
            button, forecast = page.locator("#forecast-ask"), page.locator(".forecast")
            button.click()
            held.go.release()  # the estimate
            everybody = running.store.user_count()
            expect(forecast).to_contain_text(f"An estimate from {PAGE} of them. Counting on…")
            expect(forecast.locator(".expected")).to_contain_text(f"of {everybody} users would buy it (")
            told = page.locator("#forecast-work")
            expect(told.get_by_role("progressbar")).to_be_visible(timeout=60_000)
            expect(forecast.get_by_role("button", name="Save the list")).to_have_count(0)
            assert serious(page) == []
            told.get_by_role("button", name="Cancel").click()
            expect(told).to_be_empty()
            expect(forecast).not_to_contain_text("Counting on…")
            expect(forecast).to_contain_text("An estimate from")
        finally:
            held.let_all_go()
        wait_until(lambda: not running.service.lanes.work(), "the end of the work")
        button.click()
        expect(page.locator(".forecast[data-sampled=false]")).to_be_visible(timeout=60_000)
        with page.expect_download() as saved:
            page.get_by_role("button", name="Save the list of buyers").click()
        header, *rows = saved.value.path().read_text().splitlines()
        assert header == '"user_id","chance"'
        above = api.post("/v1/bundles:score", json={"items": ["g0022", "g0401"]}).json()["above"]
        assert len(rows) == above


def test_cards_of_the_shop_say_why_in_the_models_own_words(visit: Visit, service: Service) -> None:
    page = visit.open("/?user=u0007")
    expect(page.locator(".card .model-why")).to_have_count(12)
    shown = [card.get_attribute("data-bundle") for card in page.locator(".card[data-bundle]").all()]
    told = service.api.post(
        "/v1/explain", json={"user_id": "u0007", "bundles": shown, "details": True}
    ).json()
    for each in told["explanations"]:
        card = page.locator(f"[data-bundle={each['id']}]")
        expect(card.locator(".model-why > p")).to_have_text(each["why"]["words"])
        assert " they " not in each["why"]["words"]  # the card says "you" everywhere
    expect(page.locator(".card .why")).to_have_count(0)
    card = page.locator(".card").first
    card.get_by_text("In numbers").click()  # and not the card that opens when it is clicked elsewhere
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(card.locator(".reasons tbody tr").first).to_contain_text(
        told["explanations"][0]["why"]["details"]["reasons"][0]["title"]
    )
    # What is shown because it sells was not chosen for anything.
    page.get_by_role("button", name="Clear the user").click()
    expect(page.locator(".source").first).to_have_text("Popular")
    expect(page.locator(".reasons-slot")).to_have_count(0)


@pytest.mark.parametrize(
    ("viewport", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desktop", "phone"]
)
def test_axe_finds_nothing_serious_in_the_designer(
    browser: Browser, service: Service, viewport: ViewportSize, scheme: Literal["light", "dark"]
) -> None:
    with visiting(browser, service, viewport) as visit:
        page = visit.open(f"{DESIGNER}&item=g0022")
        page.emulate_media(color_scheme=scheme)
        tag_rule(page, "at_most", 3, "Seafaring")
        bundles = design(page)
        page.locator(f"[data-item={bundles[0][1]}]").first.get_by_text("Not this one").click()
        expect(page.locator("#kept .chip")).to_have_count(1)
        expect(page.locator("#proposals:not([aria-busy]) .proposal")).to_have_count(3)
        page.locator(".numbers summary").first.click()
        page.get_by_role("button", name="Take proposal 1").click()
        page.get_by_role("button", name="Forecast its audience").click()
        expect(page.locator(".forecast")).to_be_visible()
        assert serious(page) == []
        check_width(page)
        page.set_viewport_size(NARROWEST)
        check_width(page)
