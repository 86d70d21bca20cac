"""Reports: each table there, page and Markdown saying the same, nothing half-written, nothing lost."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from bundlemage.errors import ConfigError
from bundlemage.models.registry import model_names
from bundlemage.readers import pathak
from bundlemage.readers.load import SAMPLE
from bundlemage.recipe import recipe_names
from bundlemage.studies import paper, report, reproduction
from bundlemage.studies.cells import Cell, Contender
from bundlemage.studies.render import Grid, rendered
from bundlemage.studies.report import banners, signed, summary, tone_of
from bundlemage.studies.reproduction import Findings, ReproduceOptions, gather
from bundlemage.training.history import EpochRecord, Observer
from tests.published_files import write_bgcn, write_generation, write_matching, write_pathak

KEPT = {"item-popularity", "popularity", "bundlemage", "bundlemage-paper", "random", "bpr"}
"""The models that the tests run: each table has one, and it takes seconds."""
VOID = {"meta", "br", "img", "hr", "link", "input"}


def every_name(dataset: str) -> set[str]:
    return {entry.name for one in reproduction.table_plans(dataset) for entry in one.entries}


def skipped(dataset: str, *more: str) -> tuple[str, ...]:
    return (*sorted(name for name in every_name(dataset) if name not in KEPT), *more)


def markdown(measured: Findings) -> str:
    return rendered("report", "markdown", **report.content(measured))


def grids(content: dict[str, Any]) -> list[Grid]:
    """The tables of numbers of a report."""
    every = [content["statistics"], content["bias"], *(part["grid"] for part in content["tables"])]
    measured = [grid for part in content["tables"] for each in part["measures"] for grid in each.grids]
    return [grid for grid in every if grid] + measured


def options(
    dataset: str, folder: Path | None, cache: Path, *skip: str, only_cached: bool = False
) -> ReproduceOptions:
    return ReproduceOptions(dataset, folder, (0, 1), cache, "cpu", 1, only_cached, skipped(dataset, *skip))


class Checker(HTMLParser):
    """Fails on tags that do not match; collects ids, tables and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if found := given.get("id"):
            self.ids.append(found)
        self.links += [value for name in ("href", "src") if (value := given.get(name))]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def youshu_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny files in the layouts of Youshu."""
    folder = tmp_path_factory.mktemp("data") / "youshu"
    write_matching(folder / "authors" / "mat")
    write_generation(folder / "authors" / "gen")
    write_bgcn(folder / "bgcn")
    return folder


@pytest.fixture(scope="module")
def sample(cache: Path) -> Findings:
    return gather(options(SAMPLE, None, cache))


@pytest.fixture(scope="module")
def youshu(youshu_data: Path, cache: Path) -> Findings:
    return gather(options("youshu", youshu_data, cache, "cases"))


@pytest.fixture(scope="module")
def youshu_report(youshu: Findings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports") / "youshu"
    report.write_report(youshu, folder)
    return folder


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at text alone: drawing takes most of the time of a report."""
    monkeypatch.setattr(report, "drawn_figures", lambda _: [])


# ── What a report holds ──────────────────────────────────────────────────────────────────────────


def test_the_page_is_sound_and_every_table_is_there(youshu_report: Path) -> None:
    page = (youshu_report / "index.html").read_text(encoding="utf-8")
    checked = Checker(page)
    assert len(checked.ids) == len(set(checked.ids)), "an id is there once"
    tables = {name.removeprefix("table-") for name in checked.ids if name.startswith("table-")}
    assert tables == {
        "statistics",
        "matching",
        "generation",
        "ablation-matching",
        "ablation-generation",
        "parts-matching",
        "parts-generation",
        "bias",
        "full-ranking",
        *(f"lists-{side}-matching" for side in ("bundles", "items")),
        *(f"slices-matching-{number}" for number in range(4)),
        *(f"slices-generation-{number}" for number in range(2)),
    }
    inside = {link[1:] for link in checked.links if link.startswith("#")}
    assert inside <= set(checked.ids)
    files = [link for link in checked.links if not link.startswith("#")]
    assert files
    assert all((youshu_report / link).is_file() for link in files), "nothing is loaded from elsewhere"
    assert "http" not in re.sub(r'https?://(www\.w3\.org|github\.com)[^\s"<]*', "", page)


@pytest.mark.usefixtures("no_pictures")
def test_page_and_markdown_say_the_same(youshu_report: Path, youshu: Findings) -> None:
    page = " ".join(Checker((youshu_report / "index.html").read_text(encoding="utf-8")).words)
    text = (youshu_report / "report.md").read_text(encoding="utf-8")
    tables = grids(report.content(youshu))
    assert len(tables) == text.count("\n| ---") == 9 + 8
    figures = [
        part
        for grid in tables
        for row in grid.rows
        for cell in row
        for part in (cell.text, cell.spread, cell.beside, cell.difference)
        if part
    ]
    assert len(figures) > 100
    flat = unescape(text.replace("\\", ""))
    assert [part for part in figures if part not in page or part not in flat] == []
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert {one.plan.title for one in youshu.tables} | {"Figures", "How it was made"} <= set(titles)
    assert all(title in page for title in titles)


def test_every_number_of_the_paper_is_beside_ours(youshu_report: Path) -> None:
    results = json.loads((youshu_report / "results.json").read_text(encoding="utf-8"))
    text = (youshu_report / "report.md").read_text(encoding="utf-8")
    tables = {table["key"]: table for table in results["tables"]}
    assert list(tables) == [one.key for one in reproduction.table_plans("youshu")]
    row = next(row for row in tables["matching"]["rows"] if row["name"] == "bpr")
    assert row["paper"]["ndcg@5"] == 0.3828
    assert set(row["ours"]) == set(paper.METRICS["matching"])
    assert row["seeds"] == [0, 1]
    difference = row["ours"]["ndcg@5"]["mean"] - 0.3828
    assert f".3828 {'▲' if difference > 0 else '▼'} {signed(difference)}" in text
    assert "BGCN: survey arXiv 2411.00341" in text
    assert ".2920" in text, "published, and not run here"


@pytest.mark.usefixtures("no_pictures")
def test_each_table_has_the_command_that_makes_it(youshu: Findings, youshu_data: Path) -> None:
    text = markdown(youshu)
    assert "bundlemage compare DATA/youshu/authors/mat --seeds 0,1 --epochs 1" in text
    assert "youshu/bundlemage-paper" in text
    assert text.count("```sh") == 9, "one for statistics, seven tables, and the report"
    assert str(youshu_data.parent) not in text, "where the data lies is nobody's business"


def test_a_trial_says_so(youshu: Findings, sample: Findings) -> None:
    assert "at most 1 epochs" in banners(youshu)[0]
    assert any("generated" in banner for banner in banners(sample))


def test_the_summary_is_made_from_the_numbers(youshu: Findings) -> None:
    lines = summary(youshu)
    table = next(found.table for found in youshu.tables if found.plan.key == "matching")
    assert table is not None
    best = max(row.metrics["ndcg@5"].mean for row in table.rows if row.metrics)
    assert f"{best:.4f}".lstrip("0") in lines[0]
    assert any(line.startswith("Furthest from the paper: ") for line in lines)


def test_the_sample_has_cases_and_figures(sample: Findings, tmp_path: Path) -> None:
    drawn = report.write_report(sample, tmp_path / "report")
    assert set(drawn) == {"ndcg", "similarity", "time"}
    assert [found.dataset for found in sample.cases] == [SAMPLE]
    assert sample.cases[0].study is not None
    names = {path.name for path in (tmp_path / "report" / "figures").iterdir()}
    assert names == {f"{name}.{kind}" for name in ("ndcg", "similarity", "time") for kind in ("svg", "png")}
    page = Checker((tmp_path / "report" / "index.html").read_text(encoding="utf-8"))
    assert len(page.ids) == len(set(page.ids))
    head = report.content(sample)["statistics"].head
    assert "the paper" not in head, "there is no figure of the paper to stand beside"


def test_what_is_known_is_not_run_again(sample: Findings, cache: Path) -> None:
    again = gather(options(SAMPLE, None, cache, only_cached=True))
    assert [outcome.date for outcome in again.outcomes] == [outcome.date for outcome in sample.outcomes]
    assert again.cases == sample.cases


@pytest.mark.usefixtures("no_pictures")
def test_nothing_is_trained_where_only_the_cache_is_asked(tmp_path: Path, youshu_data: Path) -> None:
    found = gather(options("youshu", youshu_data, tmp_path, only_cached=True))
    assert found.outcomes == ()
    text = markdown(found)
    assert "not run (.3828)" in text
    assert "no training was requested" in text
    assert not list(tmp_path.rglob("*.npz"))


def test_validation_curves_are_kept_with_the_results(youshu_data: Path, tmp_path: Path) -> None:
    others = sorted(every_name("youshu") - {"bundlemage"})
    asked = ReproduceOptions("youshu", youshu_data, (0,), tmp_path, "cpu", 3, False, (*others, "cases"))
    outcome = next(one for one in gather(asked).outcomes if one.label == "bundlemage")
    assert len(outcome.curve) == 3
    assert outcome.curve[outcome.best_epoch - 1] == max(outcome.curve)
    again = replace(asked, only_cached=True)
    kept = gather(again)
    assert next(one for one in kept.outcomes if one.label == "bundlemage").curve == outcome.curve
    assert "curves" in {figure.name for figure, _ in report.content(kept)["figures"]}


# ── What is missing ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("no_pictures")
def test_a_part_that_is_missing_is_named_with_its_place(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "youshu"
    write_matching(folder / "authors" / "mat")
    write_generation(folder / "authors" / "gen")
    (folder / "authors" / "gen" / "gen_neg.pkl").unlink()
    found = gather(options("youshu", folder, cache, "cases"))
    missing = {one.part: one for one in found.missing}
    assert set(missing) == {"authors/gen", "bgcn"}
    assert "authors/gen/gen_neg.pkl" in missing["authors/gen"].problems[0]
    assert paper.AUTHORS_FILES in missing["authors/gen"].where
    assert "bundlemage data get youshu" in missing["bgcn"].where
    text = markdown(found)
    assert "Not possible here: authors/gen/gen\\_neg.pkl" in text
    assert "| -- (.2078)" in text, "the paper's numbers are shown all the same"
    assert next(one.table for one in found.tables if one.plan.key == "matching") is not None


def test_with_nothing_the_papers_numbers_are_shown(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "netease").mkdir()
    found = gather(ReproduceOptions("netease", tmp_path / "netease", (0,), cache))
    assert found.no_data
    assert found.cases == ()
    text = markdown(found)
    assert ".4281" in text
    assert "1,778,838" in text
    assert "26.36%" in text
    assert "7 days" in text
    assert "https://github.com/cjx0525/BGCN" in text


def test_steam_without_its_items_is_called_partial_and_never_beside_the_paper(
    tmp_path: Path, cache: Path
) -> None:
    folder = tmp_path / "steam"
    for part, write in (("mat", write_matching), ("gen", write_generation)):
        write(folder / "authors" / part)
        (folder / "authors" / part / "user_item.pkl").unlink()
    found = gather(options("steam", folder, cache, "cases"))
    tables = {one.plan.key: one for one in found.tables}
    assert tables["matching"].table is None
    assert tables["partial-matching"].table is not None
    assert all(not entry.paper for entry in tables["partial-matching"].plan.entries)
    assert "user_item_pairs" not in found.statistics
    assert (found.bias, found.cosines) == (None, None)
    made = report.content(found)
    assert any(pathak.PARTIAL_NAME in banner for banner in made["banners"])
    grid = next(grid for grid in grids(made) if grid.key == "partial-matching")
    assert not any(cell.beside for row in grid.rows for cell in row)
    assert "user_item.pkl is missing" in found.missing[0].problems[0]
    assert all("on Steam" not in figure.title for figure, _ in made["figures"])


def test_named_games_beside_the_data_make_a_case(tmp_path: Path, cache: Path) -> None:
    write_matching(tmp_path / "youshu" / "authors" / "mat")
    write_pathak(tmp_path / "steam" / "pathak")
    found = gather(options("youshu", tmp_path / "youshu", cache))
    assert [one.dataset for one in found.cases] == [SAMPLE, pathak.PARTIAL_NAME]
    assert found.cases[1].study is not None
    assert any("Never compare" in note for note in found.cases[1].study.notes)


def test_unknown_things_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--skip bpt"):
        gather(ReproduceOptions("youshu", tmp_path, (0,), tmp_path, skip=("bpt",)))
    with pytest.raises(ConfigError, match="not a folder"):
        gather(options("youshu", tmp_path / "nowhere", tmp_path))


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("no_pictures")
def test_a_report_replaces_a_report_whole(youshu: Findings, tmp_path: Path) -> None:
    folder = tmp_path / "report"
    report.write_report(youshu, folder)
    (folder / "old.txt").write_text("of the old one")
    report.write_report(youshu, folder)
    assert not (folder / "old.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["report"], "nothing is left beside it"


@pytest.mark.usefixtures("no_pictures")
def test_a_report_that_cannot_be_finished_leaves_the_old_one(
    youshu: Findings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "report"
    report.write_report(youshu, folder)
    before = (folder / "index.html").read_bytes()

    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report, "rendered", full)
    with pytest.raises(OSError, match="No space"):
        report.write_report(youshu, folder)
    assert (folder / "index.html").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


@pytest.mark.parametrize("content", ["notes.txt", "results.json"])
def test_what_is_not_a_report_is_never_replaced(content: str, youshu: Findings, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    report.check_writable(folder)  # an empty folder may be used
    (folder / content).write_text("{}")
    with pytest.raises(ConfigError, match="not a report"):
        report.write_report(youshu, folder)
    assert [path.name for path in folder.iterdir()] == [content]


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="not a report"):
        report.check_writable(tmp_path / "file")


# ── Parts ────────────────────────────────────────────────────────────────────────────────────────


def test_text_that_is_not_ours_stays_text(youshu: Findings) -> None:
    evil = '<script>alert("1")</script> | `x` *y*'
    tables = [
        replace(found, plan=replace(found.plan, title=evil, intro=evil, entries=tuple(
            replace(entry, title=evil, remark=evil) for entry in found.plan.entries
        )))
        for found in youshu.tables
    ]  # fmt: skip
    poisoned = replace(
        youshu,
        options=replace(youshu.options, note=evil),
        tables=tuple(tables),
        failures={evil: evil},
        missing=(reproduction.MissingFiles(evil, (evil,), evil),),
    )
    made = report.content(poisoned)
    page = rendered("report", "html", **made)
    checked = Checker(page)
    assert page.count("<script>") == 1, "ours"
    assert " ".join(checked.words).count(evil) > 20
    text = rendered("report", "markdown", **made)
    assert "<script>" not in text
    for grid in grids(made):
        assert text.count(f"| {' | '.join(grid.head)} |") >= 1
    tables_of_text = [line for line in text.splitlines() if line.startswith("| ")]
    widths = {len(grid.head) + 1 for grid in grids(made)}
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in tables_of_text} == widths


def test_a_difference_is_near_within_a_twentieth_or_noise() -> None:
    assert tone_of(0.49, 0.5) == "near"
    assert tone_of(0.47, 0.5) == "below"
    assert tone_of(0.53, 0.5) == "above"
    assert tone_of(0.012, 0.008) == "near"
    assert (signed(-0.0125), signed(0.5), signed(-0.00001)) == ("−.0125", "+.5000", ".0000")


def test_every_row_can_be_run() -> None:
    """By a recipe or a registered model, for every dataset."""
    for dataset in reproduction.STUDIES:
        for one in reproduction.table_plans(dataset):
            for entry in one.entries:
                made = reproduction.contender(entry.name, one.recipes, 7)
                assert made.model in model_names()
                if "epochs" in made.config().model_dump():
                    assert made.settings["epochs"] == 7
                able = made.abilities()
                assert able.matches if one.task == "matching" else able.generates


def test_recipes_go_before_defaults() -> None:
    assert reproduction.recipe_of("bundlemage", "youshu") == "youshu/bundlemage"
    assert reproduction.recipe_of("ablation-avg", "netease") == "youshu/ablation-avg", (
        "the paper has one set for all"
    )
    assert reproduction.recipe_of("popularity", "nowhere") is None
    assert "youshu/bundlemage" in recipe_names()


def test_a_row_shares_its_result_with_compare(youshu_data: Path) -> None:
    """The key of a cell does not know what the row is called."""
    split = reproduction.read_parts("youshu", youshu_data)[reproduction.MATCHING_PART].split
    assert split is not None
    ours = reproduction.contender("bundlemage", "youshu")
    theirs = Contender.parse("youshu/bundlemage")
    assert Cell(ours, split, 0).key == Cell(theirs, split, 0).key


def test_the_model_of_a_case_study_goes_on_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = skipped("sample", "matching", "generation", "ablations")
    asked = ReproduceOptions(SAMPLE, None, (0,), tmp_path, "cpu", 13, False, everything)

    class Watch(Observer):
        done: Sequence[EpochRecord] = ()

        def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
            self.done = done

    class Stop(Observer):
        def on_epoch(self, record: EpochRecord) -> None:
            if record.epoch == 12:
                raise KeyboardInterrupt

    monkeypatch.setattr(reproduction, "EpochProgress", lambda _: Stop())
    with pytest.raises(KeyboardInterrupt):
        gather(asked)
    watch = Watch()
    monkeypatch.setattr(reproduction, "EpochProgress", lambda _: watch)
    assert gather(asked).cases[0].study is not None
    assert 1 <= len(watch.done) <= 12, "from a checkpoint: the first epoch has one, the 13th was not reached"
    assert not list(tmp_path.glob("*.run"))
