"""The shop, as a person walks through it."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Page, expect

from tests.browser.conftest import Service, Visit


def titles(page: Page) -> list[str]:
    return page.locator(".card-open").all_inner_texts()


def query(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def choose(page: Page, user: str) -> None:
    page.get_by_role("combobox", name="User").click()
    page.keyboard.type(user)
    page.get_by_role("option", name=re.compile(f"^{user}")).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"For {user}")


def test_before_anyone_is_chosen_the_page_shows_what_sells_and_says_so(visit: Visit) -> None:
    page = visit.open("/")
    expect(page.locator(".card .source").first).to_have_text("Popular")
    expect(page.locator("#heading-note")).to_contain_text("What sells most")
    expect(page.locator(".score").first).to_contain_text("of all bundle sales")
    page.locator("#history .chip").first.click()  # the users to begin with
    expect(page.get_by_role("heading", level=1)).to_have_text("For u0001")


def test_a_known_user_gets_the_services_own_ranking(visit: Visit, service: Service) -> None:
    page = visit.open("/")
    choose(page, "u0011")
    expect(page.locator(".card[data-bundle]")).to_have_count(12)
    answer = service.get("/v1/users/u0011/bundles", k=12)
    assert titles(page) == [bundle["title"] for bundle in answer["bundles"]]
    first, card = answer["bundles"][0], page.locator(".card").first
    expect(card.locator(".price b")).to_have_text(f"{first['price']:,.2f}")
    expect(card.locator(".off")).to_have_text(f"−{round(first['discount'] * 100)}%")
    expect(card.locator(".score")).to_contain_text("of the score of all bundles")
    history = service.get("/v1/users/u0011")
    expect(page.locator("#history h3").nth(0)).to_have_text(f"Bundles {len(history['bundles'])}")
    expect(page.locator("#history h3").nth(1)).to_have_text(f"Items {len(history['items'])}")
    assert query(page) == {"user": ["u0011"]}
    before = titles(page)
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("For u0011")
    expect(page.locator(".card[data-bundle]")).to_have_count(12)
    assert titles(page) == before


def test_what_was_only_viewed_or_returned_is_shown_as_such(visit: Visit, service: Service) -> None:
    told = [
        {"user_id": "looker", "item_id": "g0022"},
        {"user_id": "looker", "item_id": "g0401", "weight": 0.2},
        {"user_id": "looker", "bundle_id": "b0013", "rejected": True},
    ]
    assert service.api.post("/v1/interactions", json={"interactions": told}).is_success
    page = visit.open("/?user=looker")
    expect(page.locator(".card[data-bundle]")).to_have_count(12)
    chips = page.locator("#history .chip")
    expect(chips).to_have_count(3)
    expect(chips.filter(has_text="returned or disliked")).to_have_count(1)
    expect(chips.filter(has_text="not bought")).to_have_count(1)
    assert "b0013" not in [card.get_attribute("data-bundle") for card in page.locator(".card").all()]


def test_buying_changes_the_recommendations_at_once(visit: Visit, service: Service) -> None:
    page = visit.open("/?user=u0012")
    expect(page.locator(".card[data-bundle]")).to_have_count(12)
    before = titles(page)
    bought = page.locator(".card").nth(1).get_attribute("data-bundle")
    page.get_by_role("button", name=f"Buy {before[1]}").click()
    expect(page.locator(".toast")).to_contain_text(f"u0012 has “{before[1]}” now. Recommendations: ")
    expect(page.locator("#live")).to_contain_text(before[1])
    expect(page.locator("#history .chip").first).to_have_text(before[1])
    assert bought in [bundle["id"] for bundle in service.get("/v1/users/u0012")["bundles"]]
    after = titles(page)
    assert before[1] not in after
    assert after == [bundle["title"] for bundle in service.get("/v1/users/u0012/bundles", k=12)["bundles"]]
    # Badges say what happened to each card that is there.
    for place, title in enumerate(after):
        badge = page.locator(".card").nth(place).locator(".moved")
        if title not in before:
            expect(badge).to_have_text("New")
        elif (moved := before.index(title) - place) != 0:
            expect(badge).to_contain_text(f"{'↑' if moved > 0 else '↓'} {abs(moved)}")
        else:
            expect(badge).to_have_count(0)


def true_facts(bundle: dict[str, Any], history: dict[str, Any], contents: dict[str, Any]) -> set[str]:
    """Every sentence that may stand on a card, counted here from the service's data alone."""
    bundles = history["bundles"]
    inside = [part for other in bundles for part in other["items"]]
    items = list({item["id"]: item for item in [*history["items"], *inside]}.values())
    parts = [part["id"] for part in contents["items"]]
    facts = set()
    for tag in {tag for item in items for tag in item["tags"]}:
        have = sum(tag in item["tags"] for item in items)
        words = f"{have} of your {len(items)} items {'is' if have == 1 else 'are'} {tag}, like "
        facts.add(words)
    for tag in bundle["tags"]:
        alike = [other for other in bundles if tag in other["tags"]]
        facts.add(f"{len(alike)} of your {len(bundles)} bundles are tagged {tag} too")
        facts.update(f"You have “{other['title']}”, also tagged {tag}" for other in alike)
    apart = sum(part["price"] for part in contents["items"])
    facts.add(f"{apart - contents['price']:,.2f} less than its {len(parts)} items one by one")
    return facts


def test_what_a_card_says_without_reasons_is_true(visit: Visit, service: Service) -> None:
    """It counts items as the model's reasons do, which replace it: alone or in a bundle."""
    said, visit.refusals = 0, 2
    refusal = {"title": "Not with this model", "status": 409, "detail": "no reasons"}
    visit.page.route("**/v1/explain", lambda route: route.fulfill(status=409, json=refusal))
    for user in ("u0007", "u0013"):
        page = visit.open(f"/?user={user}")
        expect(page.locator("#reasons-note")).to_contain_text("This model gives no reasons.")
        expect(page.locator(".card[data-bundle]")).to_have_count(12)
        expect(page.locator(".reasons-slot")).to_have_count(0)
        history = service.get(f"/v1/users/{user}")
        for bundle in service.get(f"/v1/users/{user}/bundles", k=12)["bundles"]:
            true = true_facts(bundle, history, service.get(f"/v1/bundles/{bundle['id']}"))
            for fact in page.locator(f"[data-bundle={bundle['id']}] .why li").all_inner_texts():
                assert any(fact.startswith(each) for each in true), fact
                said += 1
    assert said >= 12


def test_a_card_says_what_is_owned_missing_and_sold_out(visit: Visit, service: Service) -> None:
    page = visit.open("/?user=u0013")
    expect(page.locator(".card[data-bundle]")).to_have_count(12)
    bundles = service.get("/v1/users/u0013/bundles", k=12, details=True)["bundles"]
    assert any(bundle["owned"] for bundle in bundles)
    for bundle in bundles:
        card = page.locator(f'.card[data-bundle="{bundle["id"]}"]')
        expect(card.locator(".sold-out")).to_have_count(int(bool(bundle["sold_out"])))
        expect(card.locator(".owned")).to_have_count(int(bool(bundle["owned"])))
        if bundle["owned"]:
            names = {part["id"]: part["title"] for part in bundle["items"]}
            said = f"You own {len(bundle['owned'])} of its {len(names)} items. Missing: "
            expect(card.locator(".owned")).to_contain_text(said + names[bundle["missing"][0]])


def test_the_same_title_always_has_the_same_cover(visit: Visit) -> None:
    def drawn(page: Page) -> dict[str, str]:
        expect(page.locator(".card[data-bundle]")).to_have_count(12)
        covers = page.locator(".card .cover-art").evaluate_all("all => all.map(each => each.outerHTML)")
        return dict(zip(titles(page), (re.sub(r"ground-\d+", "", each) for each in covers), strict=True))

    page = visit.open("/?user=u0007")
    first = drawn(page)
    assert len(set(first.values())) == 12
    page.reload()
    assert drawn(page) == first


def test_someone_new_is_made_of_clicks_and_can_be_kept(visit: Visit, service: Service) -> None:
    page = visit.open("/")
    page.get_by_role("radio", name="New visitor").check()
    page.get_by_label("Items they own").fill("Glassreach")
    expect(page.locator(".tile-title").first).to_contain_text("Glassreach")
    for place in (0, 2, 3):
        page.locator(".tile").nth(place).click()
    expect(page.locator("#history .chip")).to_have_count(3)
    expect(page.locator(".tile[aria-pressed=true]")).to_have_count(3)
    expect(page.get_by_role("heading", level=1)).to_have_text("For this visitor")
    expect(page.locator("#heading-note")).to_contain_text("Ranked from 3 items and 0 bundles")
    expect(page.locator(".card .source")).to_have_count(0)
    page.locator("#history .chip button").first.click()
    expect(page.locator("#history .chip")).to_have_count(2)
    page.reload()
    expect(page.locator("#history .chip")).to_have_count(2)  # the address has them

    page.get_by_label("Save as a user").fill("u0007")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="There is a user u0007 already")).to_be_visible()
    page.get_by_label("Save as a user").fill("Ada/Łódź & co")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("For Ada/Łódź & co")
    found = service.get("/v1/users", search="Ada")["users"]
    assert found == [{"id": "Ada/Łódź & co", "items": 2, "bundles": 0}]


def test_filters_hold_and_stay_in_the_address(visit: Visit, service: Service) -> None:
    page = visit.open("/?user=u0007")
    page.locator(".menu summary").click()
    page.get_by_label("Find a tag").fill("puz")
    page.locator(".tag-list label").filter(has_text="Puzzle").click()
    page.locator(".menu summary").click()
    page.get_by_label("Highest price").fill("80")
    expect(page).to_have_url(re.compile("tag=Puzzle&max_price=80"))
    expect(page.locator(".card .tags").filter(has_not_text="Puzzle")).to_have_count(0)
    answer = service.get("/v1/users/u0007/bundles", k=12, tags="Puzzle", max_price=80)["bundles"]
    expect(page.locator(".card-open")).to_have_text([bundle["title"] for bundle in answer])
    page.reload()
    expect(page.locator(".card-open")).to_have_text([bundle["title"] for bundle in answer])

    page.get_by_label("Lowest price").fill("90")
    expect(page.locator("#filters [role=alert]")).to_contain_text("above the highest")
    page.get_by_label("Lowest price").fill("79.9")
    expect(page.locator(".empty")).to_contain_text("No bundle passes these filters")
    page.get_by_role("button", name="Clear all filters").click()
    expect(page.locator(".card[data-bundle]")).to_have_count(12)
    assert query(page) == {"user": ["u0007"]}


def test_details_show_every_item_and_lead_to_similar_bundles(visit: Visit, service: Service) -> None:
    page = visit.open("/?user=u0007")
    bundles = service.get("/v1/users/u0007/bundles", k=12)["bundles"]
    place = max(range(12), key=lambda place: len(bundles[place]["owned"]))
    opener = page.locator(".card-open").nth(place)
    answer, bundle = bundles[place], bundles[place]["id"]
    assert answer["owned"]
    opener.click()
    dialog = page.get_by_role("dialog")
    items = [item["title"] for item in service.get(f"/v1/bundles/{bundle}")["items"]]
    shown = dialog.locator(".lines li > span:first-child")
    expect(shown).to_have_count(len(items))
    assert [text.replace("owned", "").strip() for text in shown.all_inner_texts()] == items
    expect(dialog.locator(".lines .badge", has_text="owned")).to_have_count(len(answer["owned"]))
    expect(dialog.locator(".price")).to_contain_text(f"{answer['price']:.2f}")
    alike = [each["title"] for each in service.get(f"/v1/bundles/{bundle}/similar", k=4)["bundles"]]
    expect(dialog.locator(".alike button")).to_have_text(alike)
    dialog.locator(".alike button").first.click()
    expect(dialog.get_by_role("heading", level=2)).to_have_text(alike[0])
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(opener).to_be_focused()


def test_the_shop_works_with_the_keyboard_alone(visit: Visit, service: Service) -> None:
    page = visit.open("/")
    expect(page.locator(".card[data-bundle]")).to_have_count(12)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the recommendations")).to_be_focused()
    combobox = page.get_by_role("combobox", name="User")
    for _ in range(12):
        if combobox.evaluate("each => each === document.activeElement"):
            break
        page.keyboard.press("Tab")
    page.keyboard.type("u001")
    expect(page.get_by_role("option")).to_have_count(10)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("option", selected=True)).to_contain_text("u0013")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("For u0014")
    expect(page.locator(".buy").first).to_be_visible()
    title = titles(page)[0]
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('buy')"):
            break
    page.keyboard.press("Enter")
    expect(page.locator(".toast")).to_contain_text(f"u0014 has “{title}” now.")
    # The button is gone with its card; the keyboard must not be thrown back to the top of the page.
    assert page.evaluate("document.activeElement.closest('#cards') !== null")
    assert title in [bundle["title"] for bundle in service.get("/v1/users/u0014")["bundles"]]


def test_a_problem_is_told_in_the_services_own_words(visit: Visit, service: Service) -> None:
    visit.refusals = 1
    page = visit.open("/?user=nobody-of-that-name")
    said = service.api.get("/v1/users/nobody-of-that-name").json()["detail"]
    expect(page.locator("#history .problem")).to_contain_text(said)


def test_the_page_waits_for_a_service_that_is_away(visit: Visit) -> None:
    page = visit.open("/?user=u0007")
    expect(page.locator(".card[data-bundle]")).to_have_count(12)
    page.context.set_offline(True)
    page.get_by_label("All in stock").check()
    expect(page.locator("#lost")).to_contain_text("cannot be reached")
    page.context.set_offline(False)
    expect(page.locator("#lost")).to_be_hidden()
    expect(page).to_have_url(re.compile("in_stock=yes"))
    expect(page.locator(".toast")).to_contain_text("answers again")
    expect(page.locator(".card[data-bundle]").first).to_be_visible()
    visit.refusals = len(visit.complaints)  # Chromium tells of every attempt


def test_a_chosen_theme_stays(visit: Visit) -> None:
    page = visit.open("/")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.get_by_role("button", name="Use the dark theme").click()
    dark = page.evaluate(paper)
    assert dark != light
    visit.open("/builder")
    assert page.evaluate(paper) == dark
    page.get_by_role("button", name="Use the light theme").click()
    assert page.evaluate(paper) == light
