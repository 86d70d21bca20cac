"""Whoever comes: with a weak key or none, on a phone, in the dark, with a screen reader."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlencode, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests.browser.conftest import DESKTOP, NARROWEST, PHONE, Service, Visit, visiting

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
READY = {
    "/?user=u0007": ".card[data-bundle]",
    "/?item=g0001": "#keep-name",
    "/builder?user=u0007&item=g0184": ".suggestion button",
    "/insights?user=u0007": ".split-bar",
}


def serious(page: Page) -> list[str]:
    """What axe finds serious or critical, with the elements."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {[node['html'][:120] for node in each['nodes'][:3]]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def check_width(page: Page) -> None:
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide == 0, "the page is wider than the screen"


def check_both_themes(page: Page, what: str) -> None:
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert serious(page) == [], f"{what}, {scheme}"
    page.emulate_media(color_scheme="light")


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing_serious(browser: Browser, service: Service, viewport: ViewportSize) -> None:
    with visiting(browser, service, viewport) as visit:
        for path, ready in READY.items():
            page = visit.open(path)
            page.wait_for_selector(ready)
            check_both_themes(page, path)
            check_width(page)
            if viewport == PHONE:
                page.set_viewport_size(NARROWEST)
                check_width(page)
                page.set_viewport_size(PHONE)


def test_axe_finds_nothing_serious_in_what_opens(visit: Visit) -> None:
    page = visit.open("/?user=u0007")
    page.locator(".card-open").first.click()
    page.wait_for_selector(".alike")
    check_both_themes(page, "the dialog")
    page.keyboard.press("Escape")
    page.get_by_role("combobox", name="User").click()
    page.wait_for_selector("[role=option]")
    check_both_themes(page, "the list of users")


def log_in(visit: Visit, role: str) -> None:
    visit.page.get_by_label("API key").fill(visit.service.keys[role])
    visit.page.get_by_role("button", name="Log in").click()


class TestWithKeys:
    def test_the_page_asks_for_a_key_and_then_goes_where_one_wanted_to(
        self, browser: Browser, locked: Service
    ) -> None:
        with visiting(browser, locked) as visit:
            page = visit.open("/insights?user=u0007")
            expect(page).to_have_url(re.compile(r"/login\?next="))
            assert serious(page) == []
            visit.refusals = 1
            page.get_by_label("API key").fill("bm_000000000000_wrong")
            page.get_by_role("button", name="Log in").click()
            said = locked.api.post("/v1/session", json={"key": "bm_000000000000_wrong"}).json()["detail"]
            expect(page.locator(".problem")).to_contain_text(said)
            log_in(visit, "admin")
            expect(page).to_have_url(f"{locked.url}/insights?user=u0007")
            expect(page.get_by_role("button", name="Look for a newer one")).to_be_visible()
            assert page.evaluate("document.cookie") == ""  # no script can read it
            page.get_by_role("button", name="Log out").click()
            expect(page).to_have_url(f"{locked.url}/login")
            visit.open("/")
            expect(page).to_have_url(re.compile("/login"))

    def test_a_read_key_sees_all_and_changes_nothing_and_is_told_why(
        self, browser: Browser, locked: Service
    ) -> None:
        with visiting(browser, locked) as visit:
            page = visit.open("/login?next=/%3Fuser%3Du0007")
            log_in(visit, "read")
            expect(page.get_by_role("heading", level=1)).to_have_text("For u0007")
            expect(page.locator(".card[data-bundle]")).to_have_count(12)
            expect(page.locator(".buy")).to_have_count(0)
            expect(page.locator("#known")).to_contain_text("This key may only read")
            visit.open("/builder?item=g0001")
            expect(page.locator("#save")).to_be_hidden()
            expect(page.locator("#save-note")).to_contain_text("needs a write key")
            page.locator("#forecast-ask").click()
            expect(page.locator(".forecast .expected")).to_contain_text("would buy it")
            expect(page.locator(".forecast")).to_contain_text("Most similar bundles of the shop")
            expect(page.locator(".forecast")).not_to_contain_text("Most likely buyers")
            visit.open("/insights")
            expect(page.locator("#models-note")).to_contain_text("needs an admin key")
            expect(page.locator("#models button")).to_have_count(0)

    def test_a_write_key_buys(self, browser: Browser, locked: Service) -> None:
        with visiting(browser, locked) as visit:
            page = visit.open("/login?next=//elsewhere.example/")
            log_in(visit, "write")
            expect(page).to_have_url(f"{locked.url}/")  # never to another host
            visit.open("/?user=u0051")
            page.locator(".buy").first.click()
            expect(page.locator(".toast")).to_contain_text("u0051 has")

    def test_a_login_leads_to_a_page_of_the_service_and_nowhere_else(
        self, browser: Browser, locked: Service
    ) -> None:
        own = urlsplit(locked.url).netloc
        tricks = (
            "/.//elsewhere.example/phish",
            "/builder/..//elsewhere.example/phish",
            "//elsewhere.example/phish",
            r"/\elsewhere.example/phish",
            r"\\elsewhere.example/phish",
            "/\t/elsewhere.example/phish",
            "https://elsewhere.example/phish",
            "https:elsewhere.example/phish",
            f"http://{own}@elsewhere.example/",
            f"http://someone@{own}//elsewhere.example/phish",
            f"blob:http://{own}/elsewhere",
            "javascript:document.title='taken'",
            "data:text/html,taken",
            "http://[",
            "/v1/users",
            "/login",
        )
        with visiting(browser, locked) as visit:
            page = visit.open("/login?next=/builder%3Fitem%3Dg0001")
            log_in(visit, "read")
            expect(page).to_have_url(f"{locked.url}/builder?item=g0001")
            for trick in tricks:  # whoever is logged in is sent on at once, by the same rule
                page.goto(f"{locked.url}/login?{urlencode({'next': trick})}")
                expect(page, trick).to_have_url(f"{locked.url}/")
                expect(page.get_by_role("heading", level=1)).to_be_visible()
