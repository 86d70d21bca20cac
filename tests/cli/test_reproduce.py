"""`bundlemage reproduce` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bundlemage.readers.load import SAMPLE
from tests.cli.run import run
from tests.published_files import write_matching
from tests.unit.test_report import skipped


def quick(dataset: str, *more: str) -> list[str]:
    return ["--epochs", "1", "--seeds", "0", "--device", "cpu", "--skip", ",".join(skipped(dataset, *more))]


def test_the_sample_in_one_command(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    result = run("reproduce", SAMPLE, "-o", folder, "--cache", tmp_path / "cache", *quick(SAMPLE, "cases"))
    assert "Bundle matching: " in result.stdout
    assert "at most 1 epochs" in result.stdout
    assert {path.name for path in folder.iterdir()} == {"index.html", "report.md", "results.json", "figures"}
    again = run(
        "reproduce", SAMPLE, "-o", folder, "--cache", tmp_path / "cache", *quick(SAMPLE, "cases"), "--json"
    )
    content = json.loads(again.stdout)
    assert content["dataset"] == SAMPLE
    assert content["report"] == str(folder)


def test_missing_files_are_named_and_the_rest_is_done(tmp_path: Path) -> None:
    data = write_matching(tmp_path / "youshu" / "authors" / "mat").parents[1]
    where = ["-o", tmp_path / "report", "--cache", tmp_path / "cache"]
    result = run("reproduce", "youshu", "--data", data, *where, *quick("youshu", "cases"))
    assert "the folder authors/gen/ is not there" in result.stderr
    assert f"bundlemage data get youshu -o {data}" in result.stderr
    assert "Written to" in result.stdout


def test_without_a_report_everything_is_kept_for_one(tmp_path: Path) -> None:
    where = ["--cache", tmp_path / "cache"]
    result = run("reproduce", SAMPLE, *where, *quick(SAMPLE, "cases"))
    assert "The results are in" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    later = run(
        "reproduce", SAMPLE, *where, *quick(SAMPLE, "cases"), "--only-cached", "-o", tmp_path / "report"
    )
    assert result.stdout.splitlines()[:-1] == later.stdout.splitlines()[:-1]


def test_a_folder_with_nothing_in_it_exits_with_2_and_still_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "netease").mkdir()
    where = ["-o", tmp_path / "report", "--cache", tmp_path / "cache"]
    result = run("reproduce", "netease", "--data", tmp_path / "netease", *where, *quick("netease"), code=2)
    assert "has no files of netease" in result.stderr
    assert ".4281" in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["yoosho", "--data", "."], "unknown data set 'yoosho'"),
        (["youshu"], "--data: no folder is given"),
        (["youshu", "--data", "nowhere"], "nowhere is not a folder"),
        (["sample", "--data", "."], "built in"),
        (["youshu", "--data", ".", "--seeds", "a"], "--seeds"),
        (["youshu", "--data", ".", "--skip", "nobody"], "no such model or section"),
        (["youshu", "--data", ".", "--device", "toaster"], "toaster"),
    ],
)
def test_wrong_wishes_are_one_message(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = run("reproduce", *arguments, "-o", tmp_path / "report", "--cache", tmp_path / "cache", code=2)
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "report").exists()


def test_another_folder_is_left_alone_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    result = run("reproduce", SAMPLE, "-o", tmp_path, "--cache", tmp_path / "cache", code=2)
    assert "is not a report" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
