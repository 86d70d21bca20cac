"""What is shown of long work: to a person in a terminal, and in a log."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bundlemage.cli import texts
from bundlemage.progress import Shown


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds, which pass when a test says so."""
    now = [0.0]
    monkeypatch.setattr("bundlemage.progress.time.monotonic", lambda: now[0])
    return now


def console(terminal: bool) -> tuple[io.StringIO, Console]:
    stream = io.StringIO()
    return stream, Console(file=stream, force_terminal=terminal, width=120, highlight=False)


def test_a_log_has_a_line_now_and_then_with_the_time_that_is_left(clock: list[float]) -> None:
    log, here = console(False)
    with Shown(here, "shop") as progress:
        progress("reading", 0, 0)
        clock[0] = 11
        progress("reading", 0, 0)
        clock[0] = 20
        progress("writing", 40, 100)
        clock[0] = 30
        progress("writing", 60, 100, "[users]")
        clock[0] = 31
        progress("writing", 70, 100)
    # Twenty took ten seconds: what was done before took none.
    assert log.getvalue().splitlines() == ["reading", "writing: 60 of 100, 20 s left: [users]"]


def test_where_speed_matters_it_is_shown(clock: list[float]) -> None:
    log, here = console(False)
    with Shown(here) as progress:
        progress("users", 1000, 9000)
        clock[0] = 10
        progress("users", 5000, 9000)
    assert log.getvalue().splitlines() == ["users: 5,000 of 9,000, 400 a second, 10 s left"]


@pytest.mark.parametrize("terminal", [False, True])
def test_results_are_lines_that_stay(terminal: bool) -> None:
    log, here = console(terminal)
    with Shown(here, "tuning") as progress:
        progress("trials", 3, 9)
        progress("trials", 3, 9, "trial 4, epoch 1")
        progress("trial 4 of 9", 1, 1, "value [0.5]")
        progress("trials", 9, 9)
    assert "trial 4 of 9: value [0.5]" in log.getvalue()
    assert ("tuning: trials" in log.getvalue()) is terminal


@pytest.mark.parametrize("together", [False, True])
def test_a_terminal_has_a_bar_for_each_stage_under_way(together: bool) -> None:
    screen, here = console(True)
    with Shown(here, "a {shop} [red]", together=together) as progress:
        progress("{users} [b]", 3, 9)
        progress("bundles", 2, 4, "in stock")
        assert progress._bars is not None
        names = [task.description for task in progress._bars.tasks]
        assert names == ["a {shop} [red]: {users} [b]", "a {shop} [red]: bundles"][not together :]
        progress("bundles", 4, 4)
        assert len(progress._bars.tasks) == together
    for text in ("a {shop} [red]: {users} [b]", "3 of 9"):
        assert text in screen.getvalue()


def test_a_location_is_shown_without_its_secrets() -> None:
    assert texts.label("postgresql+psycopg://me:secret@server/shop") == "the database"
    assert texts.label("s3://key:secret@bucket/shop?region=x") == "the object store"
    for location in ("sample", "shops/mine", "sqlite:///shop.db", "file:///shops/mine"):
        assert texts.label(location) == location
