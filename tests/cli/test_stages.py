"""What is said of long work: to a person in a terminal, and in a log."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from bundlemage.cli import options, show, stages

Told = Callable[[bool], io.StringIO]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds, which pass when a test says so."""
    now = [0.0]
    monkeypatch.setattr("bundlemage.cli.stages.time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    def begin(terminal: bool) -> io.StringIO:
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=terminal, width=120, highlight=False)
        monkeypatch.setattr(show, "notes", console)
        return stream

    return begin


def test_a_log_has_a_line_now_and_then_with_the_time_that_is_left(clock: list[float], told: Told) -> None:
    said = told(False)
    with stages.watched("shop") as progress:
        progress("reading", 0, 0)
        clock[0] = 11
        progress("reading", 0, 0)
        clock[0] = 20
        progress("writing", 40, 100)
        clock[0] = 30
        progress("writing", 60, 100)
        clock[0] = 31
        progress("writing", 70, 100)
    # Twenty took ten seconds: what was there before took none.
    assert said.getvalue().splitlines() == ["reading", "writing 60 of 100, 20 s left"]


def test_where_speed_matters_it_is_told(clock: list[float], told: Told) -> None:
    said = told(False)
    with stages.watched("recommending", speed=True) as progress:
        progress("users", 1000, 9000)
        clock[0] = 10
        progress("users", 5000, 9000)
    assert said.getvalue().splitlines() == ["5,000 of 9,000 users, 400 a second, 10 s left"]


def test_a_status_is_a_line_for_each_that_is_done(told: Told) -> None:
    said = told(False)
    with stages.watched("tuning", status=True) as progress:
        progress("3 of 9 trials are done", 3, 9)
        progress("trial 4, epoch 1", 3, 9)
        progress("trial 4: [0.5]", 4, 9)
        progress("trial 5, epoch 1", 4, 9)
    assert said.getvalue().splitlines() == ["trial 4: [0.5]"]


@pytest.mark.parametrize("how", [{}, {"speed": True}, {"status": True}])
def test_a_terminal_has_a_bar_for_any_name(how: dict[str, bool], told: Told) -> None:
    said = told(True)
    with stages.watched("a {shop} [red]", **how) as progress:
        progress("{users} [b]", 3, 9)
    shown = said.getvalue()
    assert "a {shop} [red]" in shown
    assert "{users} [b]" in shown
    assert ("3/9" in shown) is not how.get("status", False)
    assert (how.get("speed", False)) is ("/s" in shown.replace("3/9", ""))


def test_a_location_is_shown_without_its_secrets() -> None:
    assert options.label("postgresql+psycopg://me:secret@server/shop") == "the database"
    assert options.label("s3://key:secret@bucket/shop?region=x") == "the object store"
    for location in ("sample", "shops/mine", "sqlite:///shop.db", "file:///shops/mine"):
        assert options.label(location) == location
