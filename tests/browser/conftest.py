"""A real service, on the sample shop if nothing else is said, and a real browser before it."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from tests.cli.run import run, run_json
from tests.forked import start_forked

DESKTOP: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 844}
NARROWEST: ViewportSize = {"width": 360, "height": 740}
ROLES = ("read", "write", "admin")
MOST_MS = 60_000
"""How long a browser test waits for anything, so that none depends on the speed of the machine."""
expect.set_options(timeout=MOST_MS)
EXPECTED = re.compile(r"Failed to load resource")
"""What Chromium writes of every answer that is not 2xx; a test that wants one says so."""


@dataclass(frozen=True)
class Service:
    url: str
    db: str
    api: httpx.Client
    keys: dict[str, str]
    """Of each role one, or none where the service has no keys."""

    def get(self, path: str, **query: Any) -> Any:
        answer = self.api.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()


@dataclass
class Visit:
    """A page that is open, and what must not have happened on it."""

    page: Page
    service: Service
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    refusals: int = 0
    """How many answers of the service that are errors the test expects."""

    def open(self, path: str) -> Page:
        self.page.goto(self.service.url + path)
        self.page.wait_for_selector("#top nav", state="attached")
        return self.page

    def check(self) -> None:
        refused = [text for text in self.complaints if EXPECTED.search(text)]
        assert len(refused) == self.refusals, self.complaints
        assert [text for text in self.complaints if text not in refused] == []
        assert self.hosts == {urlsplit(self.service.url).netloc}, "the page asked another host"


@pytest.fixture(scope="session")
def chromium() -> str:
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("there is no chromium on the PATH: apt install chromium")
    return found


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory, chromium: str) -> Path:
    folder = tmp_path_factory.mktemp("browser") / "model"
    small = ["--set", "embedding_dim=32", "--set", "batch_size=64", "--epochs", "12", "--device", "cpu"]
    run("train", "sample", "--model", "bundlemage", "-o", folder, *small, "--seed", "3")
    return folder


@contextmanager
def serving(model: Path, folder: Path, *options: str) -> Iterator[Service]:
    """`bundlemage serve` in a process of its own, on a free port."""
    db = f"sqlite:///{folder}/store.db"
    command = ["serve", model, "--db", db, "--port", 0, *options]
    wide = {**os.environ, "COLUMNS": "200"}
    with (folder / "stderr.log").open("w") as stderr:
        process = start_forked(command, environment=wide, stdout=PIPE, stderr=stderr.fileno())
    try:
        assert process.stdout is not None
        found = next((m for line in process.stdout if (m := re.search(r"at (http://\S+)/", line))), None)
        assert found, (folder / "stderr.log").read_text()
        with httpx.Client(base_url=found[1], timeout=20) as api:
            yield Service(found[1], db, api, {})
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="session")
def service(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One for all tests: each has users of its own."""
    with serving(model, tmp_path_factory.mktemp("service")) as service:
        yield service


@pytest.fixture(scope="module")
def locked(service: Service) -> Iterator[Service]:
    """The same service while it has keys, one of each role."""
    made = [run_json("keys", "create", "--role", role, "--db", service.db) for role in ROLES]
    keys = dict(zip(ROLES, (each["key"] for each in made), strict=True))
    _wait_for_login(service, required=True)
    with httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {keys['admin']}"}) as api:
        yield Service(service.url, service.db, api, keys)
    for each in made:
        run("keys", "revoke", each["id"], "--db", service.db)
    _wait_for_login(service, required=False)


def _wait_for_login(service: Service, *, required: bool) -> None:
    """The service looks for keys every few seconds."""
    for _ in range(100):
        if service.get("/v1/session")["login_required"] is required:
            return
        time.sleep(0.1)
    pytest.fail("the service did not notice its keys")


# Not for the whole session: while Playwright's loop runs, other tests of this process cannot start one.
@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium)
        yield started
        started.close()


@contextmanager
def visiting(browser: Browser, service: Service, viewport: ViewportSize = DESKTOP) -> Iterator[Visit]:
    """A fresh visitor: nothing stored, and checked at the end for what nobody should see."""
    context = browser.new_context(viewport=viewport, reduced_motion="reduce")
    context.set_default_timeout(MOST_MS)
    visit = Visit(context.new_page(), service)
    visit.page.on(
        "console",
        lambda said: visit.complaints.append(said.text) if said.type in ("error", "warning") else None,
    )
    visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    visit.page.on("request", lambda request: visit.hosts.add(urlsplit(request.url).netloc))
    try:
        yield visit
        visit.check()
    finally:
        context.close()


@pytest.fixture
def visit(browser: Browser, service: Service) -> Iterator[Visit]:
    with visiting(browser, service) as visit:
        yield visit
