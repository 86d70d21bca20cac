"""The builder, as a person walks through it."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.conftest import Service, Visit


def inside(page: Page) -> list[str]:
    rows = page.locator("#bundle-items li")
    return [row.get_attribute("data-item") or "" for row in rows.all()]


def suggested(page: Page) -> list[str]:
    return [row.get_attribute("data-item") or "" for row in page.locator("#suggestions li").all()]


def asked(service: Service, user: str, items: list[str], k: int) -> list[str]:
    question = {"user_id": user, "items": items, "k": k}
    answer = service.api.post("/v1/complete", json=question).json()
    return [item["id"] for item in answer["items"]]


def test_a_bundle_is_built_saved_and_recommended_at_once(visit: Visit, service: Service) -> None:
    page = visit.open("/builder")
    expect(page.locator("#suggest-source")).to_contain_text("What sells most")
    page.get_by_role("combobox", name="For whom?").click()
    page.keyboard.type("u0007")
    page.get_by_role("option", name=re.compile("u0007")).click()
    expect(page.locator("#suggest-source")).to_contain_text("u0007")

    page.get_by_label("Search the catalogue").fill("Glassreach")
    expect(page.locator(".tile-title").first).to_contain_text("Glassreach")
    page.locator(".tile").first.click()
    expect(page.locator("#bundle-items li")).to_have_count(1)
    expect(page.locator("#suggest-source")).to_contain_text("u0007 and the 1 item")
    assert suggested(page) == asked(service, "u0007", inside(page), 8)

    page.get_by_label("Complete to").fill("5")
    page.get_by_role("button", name="Complete", exact=True).click()
    expect(page.locator("#bundle-items li")).to_have_count(5)
    items = inside(page)
    for size in range(1, 5):  # each is the best for what was there before it
        assert asked(service, "u0007", items[:size], 1) == [items[size]]

    page.locator("#bundle-items li button").last.click()
    expect(page.locator("#bundle-items li")).to_have_count(4)
    items = items[:4]
    total = sum(service.get(f"/v1/items/{item}")["price"] for item in items)
    expect(page.locator("#sum")).to_have_text(f"{total:,.2f}")
    page.get_by_label("Discount, %").fill("25")
    expect(page.locator("#total")).to_have_text(f"{total * 0.75:,.2f}")

    page.get_by_role("button", name="Save bundle").click()
    expect(page.locator("#save-note")).to_contain_text("Enter a title first")
    page.get_by_label("Title").fill("Déjà vu: at Sea!")
    expect(page.get_by_label("Id", exact=True)).to_have_value("deja-vu-at-sea")
    page.get_by_role("button", name="Save bundle").click()
    expect(page.locator(".fit")).to_contain_text("is saved, and may be recommended from now on")
    saved = service.get("/v1/bundles/deja-vu-at-sea")
    assert [item["id"] for item in saved["items"]] == items
    assert saved["discount"] == 0.25
    assert saved["recommendable"]
    ranks = {b["id"]: b["rank"] for b in service.get("/v1/users/u0007/bundles", k=100)["bundles"]}
    expect(page.locator(".fit")).to_contain_text(f"Rank {ranks['deja-vu-at-sea']} for u0007")
    page.get_by_role("link", name="Open u0007's shop").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("For u0007")


def test_an_id_that_is_taken_is_not_replaced_unasked(visit: Visit, service: Service) -> None:
    visit.refusals = 1  # the service refuses to replace it
    before = service.get("/v1/bundles/b0030")
    page = visit.open("/builder?item=g0001&item=g0002")
    expect(page.locator("#bundle-items li")).to_have_count(2)
    page.get_by_label("Title").fill("B0030")
    page.get_by_role("button", name="Save bundle").click()
    expect(page.locator("#save-note")).to_contain_text("There is a bundle “b0030” already")
    assert service.get("/v1/bundles/b0030") == before
    page.get_by_role("button", name="Replace it").click()
    expect(page.locator(".fit")).to_contain_text("“B0030” is saved")
    assert [item["id"] for item in service.get("/v1/bundles/b0030")["items"]] == ["g0001", "g0002"]
    # Once it is saved, whoever is chosen is looked at.
    page.get_by_role("combobox", name="For whom?").click()
    page.keyboard.type("u0022")
    page.get_by_role("option", name=re.compile("u0022")).click()
    expect(page.locator(".fit")).to_contain_text(re.compile("Rank .* for u0022|Not among the first 100"))


def test_the_builder_works_with_the_keyboard_alone(visit: Visit) -> None:
    page = visit.open("/builder?user=u0023")
    expect(page.locator(".suggestion button").first).to_be_visible()
    first = suggested(page)[0]
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('.suggestion') !== null"):
            break
    for size in range(1, 4):  # Enter takes the best; the focus stays for the next
        expect(page.locator(".suggestion button").first).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#bundle-items li")).to_have_count(size)
        expect(page.locator("#suggest-source")).to_contain_text(re.compile(f"{size} items? in the bundle"))
    assert inside(page)[0] == first
    expect(page.locator("#live")).to_contain_text("3 items in the bundle")


def test_a_bundle_of_the_shop_opens_as_a_copy(visit: Visit, service: Service) -> None:
    bundle = service.get("/v1/bundles/b0031")
    page = visit.open("/builder?bundle=b0031")
    expect(page.locator("#bundle-items li")).to_have_count(len(bundle["items"]))
    assert inside(page) == [item["id"] for item in bundle["items"]]
    expect(page.get_by_label("Title")).to_have_value(f"{bundle['title']}, again")


def test_a_sum_that_is_not_known_is_not_made_up(visit: Visit, service: Service) -> None:
    service.api.put("/v1/items/unpriced", json={"title": "Something unpriced"}).raise_for_status()
    page = visit.open("/builder?item=g0001&item=unpriced")
    expect(page.locator("#bundle-items .number").last).to_have_text("—")
    expect(page.locator("#sum")).to_have_text("not known")
    expect(page.locator("#total")).to_have_text("not known")
    expect(page.locator("#price-note")).to_have_text(
        "1 item has no price, so the bundle is saved without one."
    )
    page.get_by_label("Title").fill("Half priced")
    page.get_by_role("button", name="Save bundle").click()
    expect(page.locator(".fit")).to_contain_text("is saved")
    assert service.get("/v1/bundles/half-priced")["price"] is None
    page.get_by_role("button", name="Take out Something unpriced").click()
    expect(page.locator("#sum")).to_have_text(f"{service.get('/v1/items/g0001')['price']:,.2f}")
    for path in ("/v1/bundles/half-priced", "/v1/items/unpriced"):
        service.api.delete(path).raise_for_status()


def test_an_item_that_is_not_there_is_said(visit: Visit, service: Service) -> None:
    visit.refusals = 1
    page = visit.open("/builder?item=no-such-item")
    said = service.api.get("/v1/items/no-such-item").json()["detail"]
    expect(page.locator(".problem")).to_contain_text(said)
