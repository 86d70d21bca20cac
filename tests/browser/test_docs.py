"""The page of the API: all routes, from the files of the service alone, and requests that are sent."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests.browser.conftest import DESKTOP, PHONE, Service, Visit, visiting
from tests.browser.test_access import check_width, log_in


def operations(service: Service) -> list[tuple[str, str]]:
    paths = service.get("/openapi.json")["paths"]
    return sorted((method.upper(), path) for path, methods in paths.items() for method in methods)


def shown(page: Page) -> list[tuple[str, str]]:
    page.wait_for_selector(".opblock")
    methods = page.locator(".opblock-summary-method").all_inner_texts()
    paths = page.locator(".opblock-summary-path").all_inner_texts()
    # There are characters of no width in a path, where it may be broken.
    return sorted(zip(methods, (path.replace("\u200b", "") for path in paths), strict=True))


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_route_is_shown(browser: Browser, service: Service, viewport: ViewportSize) -> None:
    with visiting(browser, service, viewport) as visit:  # it checks that no other host was asked
        page = visit.open("/docs")
        assert shown(page) == operations(service)
        expect(page.get_by_role("link", name="API", exact=True)).to_have_attribute("aria-current", "page")
        check_width(page)


def test_parameters_and_examples_are_shown_and_a_request_is_sent(visit: Visit) -> None:
    page = visit.open("/docs")
    page.locator(".opblock", has_text="/v1/recommend").locator(".opblock-summary-control").click()
    expect(page.locator(".opblock-body")).to_contain_text("u0007")
    expect(page).to_have_url(re.compile("/docs#/"))
    page.get_by_role("button", name="Try it out").click()
    page.locator("textarea.body-param__text").fill('{"user_id": "u0007", "k": 2}')
    page.get_by_role("button", name="Execute").click()
    answer = page.locator(".live-responses-table")
    expect(answer).to_contain_text("200")
    best = visit.service.get("/v1/users/u0007/bundles", k=2)["bundles"]
    for bundle in best:
        expect(answer).to_contain_text(bundle["id"])


def test_it_follows_the_theme(visit: Visit) -> None:
    page = visit.open("/docs")
    page.wait_for_selector(".opblock")
    root = page.locator("html")
    for scheme in ("dark", "light"):
        page.get_by_role("button", name=f"Use the {scheme} theme").click()
        expect(root).to_have_class("dark-mode" if scheme == "dark" else "")


def test_with_keys_it_asks_for_a_login_first(browser: Browser, locked: Service) -> None:
    with visiting(browser, locked) as visit:
        page = visit.open("/docs")
        expect(page).to_have_url(re.compile(r"/login\?next="))
        log_in(visit, "read")
        expect(page).to_have_url(f"{locked.url}/docs")
        assert shown(page) == operations(locked)
