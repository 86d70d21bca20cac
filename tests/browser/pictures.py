"""The pictures of the docs: `python -m tests.browser.pictures URL` beside a running `make serve`.

They are of the sample shop with its usual model, after some people have been there.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from bundlemage.client import Client

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
VIEWS = {
    "shop": "/?user=u0007",
    "builder": "/builder?user=u0007&item=g0022&item=g0401",
    "builder-design": "/builder?user=u0007&item=g0022&design=yes",
    "insights": "/insights?user=u0007",
}

LONG = ("builder-design", "insights")


def visited(url: str) -> None:
    """Some hundred answers and a few purchases, so that there is something to show."""
    with Client(url) as shop:
        for number in range(400):
            user = f"u{number:04d}"
            answer = shop.recommend(user, k=10)
            if number % 40 == 1:
                shop.record(user, bundle=answer.bundles[0].id, request_id=answer.request_id)


def designed(page: Page) -> None:
    """Three bundles within a budget and with a tag, one of them taken and judged."""
    page.get_by_label("Price, at most", exact=True).fill("60")
    page.get_by_label("Discount, per cent", exact=True).fill("20")
    page.get_by_role("button", name="Add a rule on a tag").click()
    page.get_by_label("Tag", exact=True).last.fill("Seafaring")
    page.get_by_role("button", name="Design", exact=True).click()
    page.get_by_role("button", name="Take proposal 1").click()
    page.get_by_role("button", name="Forecast its audience").click()
    page.wait_for_selector(".forecast")
    page.set_viewport_size({"width": 1280, "height": 1500})  # the forecast is seen with what it is of
    page.evaluate("scrollTo(0, 0)")


def take(url: str) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("there is no chromium on the PATH: apt install chromium")
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        for theme in ("light", "dark"):
            for name, path in VIEWS.items():
                page = browser.new_page(
                    viewport={"width": 1280, "height": 800},
                    color_scheme="dark" if theme == "dark" else "light",
                    reduced_motion="reduce",
                )
                page.goto(url + path, wait_until="networkidle")
                if name == "builder-design":
                    designed(page)
                page.screenshot(path=FOLDER / f"{name}-{theme}.png", full_page=name in LONG)
                page.close()
        browser.close()


if __name__ == "__main__":
    visited(sys.argv[1])
    take(sys.argv[1])
