"""The speed bench runs on tiny sizes: every measurement has its rows, and a failing one is seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from benchmarks.clocks import FirstSteps
from benchmarks.figures import Figure, Growth, grown, medians
from benchmarks.measurements import MEASUREMENTS, NAMES
from benchmarks.products import LAYOUTS, Layout, Softmax, Step
from benchmarks.speed import app
from benchmarks.training import softmaxes
from bundlemage.models.registry import make_config
from bundlemage.sample.generate import sample_shop


def bench(*options: object) -> Result:
    return CliRunner().invoke(app, ["--device", "cpu", "--tiny", *map(str, options)])


def outcomes(file: Path) -> dict[str, Any]:
    found = json.loads(file.read_text(encoding="utf-8"))
    return {outcome["name"]: outcome for outcome in found["measurements"]}


EXPECTED = {
    "epoch": {
        "training, a full epoch",
        "training, an epoch by default",
        "validation",
        "training / bare products",
    },
    "memory": {"peak memory"},
    "accuracy": {"cold start to a tested model", "its test nDCG@5", "peak memory"},
    "whole": {"matching: training and test", "full ranking: test recall@20", "generation: test ndcg@5"},
    "bulk": {"all users", "throughput", "peak memory"},
    "request": {"p50", "p99", "peak memory"},
    "change": {"a new bundle, p50", "a new bundle, p99", "an item is withdrawn, p50"},
    "forecast": {"forecast", "forecast, CPU time", "estimate", "peak memory"},
    "netease": {"training", "peak memory"},
    "sampled": {"training", "peak memory"},
    "items": {"training", "peak memory", "bulk", "one request, p50"},
    "users": {"training", "peak memory", "bulk", "one request, p50"},
}


def test_every_measurement_has_its_rows(tmp_path: Path) -> None:
    result = bench("--in-process", "--json", tmp_path / "bench.json")
    assert result.exit_code == 0, result.output
    found = outcomes(tmp_path / "bench.json")
    assert list(found) == list(NAMES) == list(EXPECTED)
    for measurement in MEASUREMENTS:
        outcome = found[measurement.name]
        assert outcome["status"] == "measured", outcome["reason"]
        assert {figure["name"] for figure in outcome["figures"]} >= EXPECTED[measurement.name]
        for figure in outcome["figures"]:
            values = figure["values"] if measurement.points else [figure["value"]]
            assert all(value > 0 for value in values if figure["unit"]), figure
            assert len(values) == max(1, len(measurement.tiny_points))
        assert measurement.title.split()[0] in result.stdout
    machine = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))["machine"]
    assert machine["threads"] == 1
    assert machine["torch"] in result.stdout


def test_a_measurement_has_a_process_of_its_own_and_a_failing_one_is_shown(tmp_path: Path) -> None:
    (tmp_path / "authors" / "mat").mkdir(parents=True)  # a folder without data in it
    options = ["--only", "memory", "--only", "request", "--data", tmp_path, "--json", tmp_path / "bench.json"]
    result = bench(*options)
    assert result.exit_code == 1
    found = outcomes(tmp_path / "bench.json")
    assert found["memory"]["status"] == "failed"
    assert "DataError" in found["memory"]["reason"]
    assert "DataError" in result.stdout
    assert "Traceback" in result.stderr
    assert found["request"]["status"] == "measured"
    assert found["request"]["peak_bytes"] > 50e6  # a process with torch in it


def test_without_youshu_its_rows_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.setting import Setting
    from benchmarks.worker import answer

    monkeypatch.setenv("BUNDLEMAGE_DATA", str(tmp_path))
    setting = Setting("cpu", 1, False, None, None, str(tmp_path))
    found = answer({"function": "training:memory", "setting": setting.to_json(), "sizes": []})
    assert found["status"] == "skipped"
    assert "--data" in found["reason"]


def test_the_list_and_a_wrong_name() -> None:
    listed = bench("--list")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(NAMES)
    wrong = bench("--only", "nothing")
    assert wrong.exit_code == 2
    assert "nothing" in wrong.output


def test_a_file_that_cannot_be_written_is_known_before_the_work(tmp_path: Path) -> None:
    result = bench("--json", tmp_path)  # a folder
    assert result.exit_code == 2
    assert "written" in result.output


def test_slopes_and_what_is_wanted() -> None:
    linear = Growth("training", "s", (10, 100, 1000), (1.0, 1.0, 10.0), bounded=True)
    assert linear.slopes == pytest.approx((0.0, 1.0))
    assert linear.met
    assert Growth("training", "s", (10, 100), (1.0, 20.0), bounded=True).met is False
    assert Growth("bulk", "users/s", (10, 100), (1.0, 20.0)).met is None
    assert Figure("ratio", 1.5, wanted="≤ 1.5").met
    assert Figure("p99", 15.0, wanted="< 15").met is False
    assert Figure("ndcg", 0.5, wanted="≥ 0.505").met is False
    assert Figure("p50", 15.0).met is None


def test_repeated_runs_become_medians_and_sizes_become_growth() -> None:
    runs = [[Figure("training", value, "s", note="warm")] for value in (3.0, 1.0, 2.0)]
    assert medians(runs) == [Figure("training", 2.0, "s", note="warm; median of 3: 1 … 3")]
    assert grown((1, 2, 3), runs, ["training"]) == [
        Growth("training", "s", (1, 2, 3), (3.0, 1.0, 2.0), True, "warm")
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bare_products_are_those_of_a_softmax_loss(layout: Layout) -> None:
    task = Softmax(rows=7, catalogue=11, batch_size=5, dim=3)
    assert task.batches == [5, 2]
    assert task.operations == 6 * 7 * 11 * 3
    step = Step(task, layout, torch.device("cpu"), torch.float32)
    for rows in task.batches:
        step(rows)
        by_row = (rows, 11) if layout == "batch × catalogue" else (11, rows)
        logits, difference = (part[: rows * 11].view(by_row) for part in (step.logits, step.difference))
        if layout != "batch × catalogue":
            logits, difference = logits.T, difference.T
        z = step.z[:rows]
        torch.testing.assert_close(logits, z @ step.table.T)
        torch.testing.assert_close(step.z_gradient[:rows], difference @ step.table)
        torch.testing.assert_close(step.table_gradient, difference.T @ z)


def test_products_follow_the_steps_that_an_epoch_had() -> None:
    data = sample_shop().dataset
    config = make_config("bundlemage", {"batch_size": 500, "embedding_dim": 8})
    pairs = data.user_bundle.nnz
    matching, generation = softmaxes(config, data, {"matching": 2, "generation": -(-pairs // 500)})
    assert (matching.rows, matching.catalogue) == (len(data.users), len(data.bundles))
    assert (generation.rows, generation.catalogue) == (pairs, len(data.items))
    assert softmaxes(config, data, {"generation": 3})[0].rows == 1500


def test_the_first_steps_are_scaled_to_an_epoch() -> None:
    clock = FirstSteps("generation", 3)
    clock.on_start(epochs=1, steps_per_epoch=12, done=())
    clock.seconds = {"matching": [9.0, 1.0], "generation": [9.0, 2.0, 4.0]}
    assert clock.epoch_seconds == pytest.approx(2 * 1.0 + 10 * 3.0)
    assert clock.made == "first 5 of 12 steps, scaled"


def test_two_checkouts_are_compared(tmp_path: Path) -> None:
    from benchmarks.setting import ROOT
    from benchmarks.unchanged import app as unchanged

    written = tmp_path / "unchanged.json"
    arguments = ["--source", str(ROOT), "--epochs", "1", "--dim", "8", "--users", "5", "--repeat", "1"]
    ended = CliRunner().invoke(unchanged, [*arguments, "--json", str(written)])
    assert ended.exit_code == 0, ended.output
    assert all(json.loads(written.read_text())["same"].values())
    ended = CliRunner().invoke(unchanged, ["--source", str(tmp_path), "--repeat", "1"])
    assert ended.exit_code == 2
