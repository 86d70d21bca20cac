"""A thousand small campaigns reach the optimum, or come near it without OR-Tools."""

from __future__ import annotations

import pytest

from tests.campaign_cases import check, no_solver


@pytest.mark.slow
def test_the_optimum_with_or_tools() -> None:
    check(range(1000), 0.9999, 0.999)


@pytest.mark.slow
def test_near_the_optimum_without_or_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bundlemage.campaigns.exact.cp", no_solver)
    check(range(1000), 0.995, 0.9)
