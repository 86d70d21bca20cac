"""The insights, as a person reads them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Service, Visit
from tests.waiting import wait_until


def test_the_figures_are_those_of_the_model_that_serves(visit: Visit, service: Service, model: Path) -> None:
    tests = json.loads((model / "metrics.json").read_text())["test"]
    page = visit.open("/insights")
    for place, task in enumerate(("matching", "generation")):
        panel = page.locator("#quality > section").nth(place)
        expect(panel.locator(".headline b")).to_have_text(f"{tests[0][task]['ndcg@5']:.3f}")
        rows = panel.locator("tbody tr")
        expect(rows).to_have_count(6)
        others = [test for test in tests[1:] if test[task]]
        best = max(others, key=lambda test: float(test[task]["ndcg@5"]))
        for row in rows.all():
            metric, mine, rival = re.split(r"\s+", row.inner_text().strip())
            values = [test[task][metric.lower()] for test in (tests[0], best)]
            assert [mine, rival] == [f"{value:.3f}" for value in values]
            drawn = row.locator(".cell-bar").evaluate_all(
                "all => all.map(each => each.firstChild.offsetWidth / each.offsetWidth)"
            )
            assert drawn == pytest.approx(values, abs=0.02)  # the whole width is 1, which is perfect
    expect(page.locator("#lead")).to_contain_text(service.get("/v1/models")["serving"])


def test_answer_lists_and_slices_are_shown_with_what_they_mean(visit: Visit, model: Path) -> None:
    metrics = json.loads((model / "metrics.json").read_text())
    lists, popular = (
        next(test["lists"] for test in metrics["test"] if test["model"] == name)
        for name in (metrics["test"][0]["model"], "Popularity")
    )
    page = visit.open("/insights")
    rows = page.locator("#answer-lists tbody tr")
    expect(rows).to_have_count(len(lists["bundles"]))
    for row, name in zip(rows.all(), lists["bundles"], strict=True):
        expect(row.locator("th b")).to_have_text(name)
        expect(row.locator("th p")).to_have_text(metrics["meaning"][name.split("@")[0]])
        values = [found[side][name] for found in (lists, popular) for side in ("bundles", "items")]
        expect(row.locator("td")).to_have_text(["—" if value is None else f"{value:.3f}" for value in values])
    panels = page.locator("#measures .slices")
    expect(panels).to_have_count(2)
    for panel, task in zip(panels.all(), ("matching", "generation"), strict=True):
        slices = [each for way in metrics["slices"][task] for each in way["slices"]]
        expect(panel.locator("tbody tr")).to_have_count(len(slices))
        for row, each in zip(panel.locator("tbody tr").all(), slices, strict=True):
            expect(row.locator("td").nth(0)).to_have_text(each["name"])
            expect(row.locator("td").nth(1)).to_have_text(f"{each['cases']} case{'s' * (each['cases'] != 1)}")
            expect(row.locator("td").nth(2)).to_contain_text(f"{each['metrics']['ndcg@5']['mean']:.3f}")
            expect(row.get_by_text("this says little")).to_have_count(int(each["little"]))


def test_purchases_are_shown_by_month(visit: Visit, service: Service) -> None:
    months = service.get("/v1/insights")["months"]
    page = visit.open("/insights")
    rows = page.locator("#months dl > div")
    expect(rows).to_have_count(len(months))
    for row, month in zip(rows.all(), months, strict=True):
        expect(row.locator("dd")).to_have_text(f"{month['purchases']:,}")
    if not months:
        expect(page.locator("#months")).to_contain_text("No purchase has a time yet")


def test_curves_can_be_read_by_arrow_keys_and_as_a_table(visit: Visit, model: Path) -> None:
    records = [json.loads(line) for line in (model / "history.jsonl").read_text().splitlines()]
    page = visit.open("/insights")
    expect(page.locator("#training .chart")).to_have_count(1 + len(records[0]["losses"]))
    chart = page.locator("#training .chart").first
    plot = chart.get_by_role("slider")
    plot.focus()
    page.keyboard.press("Home")
    expect(plot).to_have_attribute("aria-valuetext", re.compile("^epoch 1: "))
    page.keyboard.press("ArrowRight")
    expect(plot).to_have_attribute("aria-valuenow", "2")
    shown = float((plot.get_attribute("aria-valuetext") or "").split(": ")[1].split(",")[0])
    assert shown == pytest.approx(records[1]["validation"]["ndcg@5"], rel=1e-3)
    expect(chart.locator(".readout")).to_contain_text("epoch 2")
    best = max(record["epoch"] for record in records if record["improved"])
    expect(chart.locator(".best-label")).to_have_text(f"best: epoch {best}")
    chart.get_by_text("Show as a table").click()
    expect(chart.locator("tbody tr")).to_have_count(len(records))
    plot.hover(position={"x": 60, "y": 80})
    expect(chart.locator(".readout")).to_contain_text("epoch 1")


def test_the_gate_is_told_for_a_chosen_user(visit: Visit, service: Service) -> None:
    page = visit.open("/insights")
    expect(page.locator("#gate")).to_contain_text("Choose a user")
    page.get_by_role("combobox", name="User").click()
    page.keyboard.type("u0031")
    page.get_by_role("option", name=re.compile("u0031")).click()
    gate = service.get("/v1/users/u0031/gate")
    expect(page.locator("#gate .split-words p").first).to_contain_text(f"{round(gate['items'] * 100)}%")
    expect(page.locator("#gate")).to_contain_text("For u0031,")
    bars = page.locator("#gate .split-bar span").evaluate_all("all => all.map(each => each.offsetWidth)")
    assert bars[0] / sum(bars) == pytest.approx(gate["items"], abs=0.02)


def test_what_was_shown_and_taken_is_counted(visit: Visit, service: Service) -> None:
    for number in range(10):
        service.get(f"/v1/users/u004{number}/bundles", k=10)
    shown = service.get("/v1/users/u0040/bundles", k=1)["bundles"][0]
    before = service.get("/v1/insights")["served"]
    taken = [{"user_id": "u0040", "bundle_id": shown["id"]}]
    service.api.post("/v1/interactions", json={"interactions": taken}).raise_for_status()
    # A result is reused for a second.
    wait_until(lambda: service.get("/v1/insights")["served"]["taken"] > before["taken"], "newer insights")
    answers = service.get("/v1/insights")["served"]["answers"]
    page = visit.open("/insights")
    expect(page.locator("#served dd").nth(0)).to_have_text(f"{answers:,}")
    expect(page.locator("#served dd").nth(1)).to_have_text(str(before["taken"] + 1))
    expect(page.locator("#latency dd")).to_have_count(3)
    expect(page.locator("#latency dd").first).to_have_text(re.compile(r"^[\d.]+ ms$"))
    rows = service.get("/v1/insights")["popularity"]
    expect(page.locator("#popularity .spot")).to_have_count(len(rows))
    plot = page.locator("#popularity").get_by_role("slider")
    plot.focus()
    page.keyboard.press("Home")
    most = max(row["sales_share"] for row in rows)
    names = [row["title"] for row in rows if row["sales_share"] == most]
    said = plot.get_attribute("aria-valuetext") or ""
    assert any(said.startswith(f"{name}: ") for name in names), said


def test_a_model_can_be_looked_for(visit: Visit, service: Service) -> None:
    serving = service.get("/v1/models")["serving"]
    page = visit.open("/insights")
    expect(page.locator("#models tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Look for a newer one").click()
    expect(page.locator(".toast")).to_contain_text(f"Model {serving} serves already")
