"""Studies: cells and their cache, tables over seeds, significance, and how a comparison is written."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from scipy.stats import ttest_rel
from torch import Tensor

from bundlemage.data.splits import Split, SplitPlan
from bundlemage.errors import ConfigError
from bundlemage.evaluation import holm, paired_p
from bundlemage.models import registry
from bundlemage.models.base import Histories, Interactions, Matcher, Sizes
from bundlemage.models.config import ModelConfig
from bundlemage.models.ragged import Ragged
from bundlemage.studies import render
from bundlemage.studies.cells import Cell, Contender, abilities, every_model, find, run
from bundlemage.studies.comparison import CompareObserver, Comparison, compare
from bundlemage.studies.outcome import METRICS, Cache, CacheWarning, Outcome
from bundlemage.studies.standings import DataFacts, ResultTable, make_table
from bundlemage.training.history import EpochRecord, Observer
from tests.small_shop import QUICK, small_shop

SETTINGS = {key: value for key, value in QUICK.items() if key != "device"}
SMALL = Contender("small", "bundlemage", SETTINGS)
POPULARITY = Contender("popularity", "popularity")
FORMS: tuple[render.Form, ...] = ("html", "markdown")


@pytest.fixture(scope="module")
def split() -> Split:
    return SplitPlan().divide(small_shop())


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


class Watch(Observer):
    """Counts trainings and epochs; may press Ctrl-C."""

    def __init__(self, stop_after: int = 10**9) -> None:
        self.starts, self.epochs, self.resumed, self.stop_after = 0, 0, 0, stop_after

    def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
        self.starts, self.resumed = self.starts + 1, len(done)

    def on_epoch(self, record: EpochRecord) -> None:
        self.epochs += 1
        if record.epoch >= self.stop_after:
            raise KeyboardInterrupt


class Quiet(CompareObserver):
    """Notes which cells were run, found, or failed."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int, str]] = []

    def on_begin(self, cell: Cell) -> Sequence[Observer]:
        self.log.append((cell.contender.label, cell.seed, "run"))
        return ()

    def on_done(self, cell: Cell, outcome: Outcome, from_cache: bool) -> None:
        if from_cache:
            self.log.append((cell.contender.label, cell.seed, "found"))

    def on_failure(self, cell: Cell, message: str) -> None:
        self.log.append((cell.contender.label, cell.seed, "failed"))


def run_cell(
    contender: Contender,
    split: Split,
    seed: int,
    cache: Cache,
    device: str,
    observers: Sequence[Observer] = (),
    *,
    fresh: bool = False,
) -> Outcome:
    """A cell's outcome from the cache, or else by running it."""
    cell = Cell(contender, split, seed)
    known = None if fresh else find(cell, cache)
    return known or run(cell, cache, device, lambda: observers, fresh=fresh)[0]


def same_figures(one: Outcome, other: Outcome) -> bool:
    arrays = all(np.array_equal(values, other.cases[name]) for name, values in one.cases.items())
    fields = ("matching", "generation", "validation", "best_epoch", "epochs", "settings")
    return arrays and all(getattr(one, name) == getattr(other, name) for name in fields)


# ── Contenders and keys ──────────────────────────────────────────────────────────────────────────


def test_a_contender_is_a_model_or_a_recipe(tmp_path: Path) -> None:
    assert Contender.parse("popularity") == Contender("popularity", "popularity", {})
    (tmp_path / "wide.toml").write_text('model = "bundlemage"\n[settings]\nembedding_dim = 7\n')
    assert Contender.parse(str(tmp_path / "wide.toml")) == Contender(
        "wide", "bundlemage", {"embedding_dim": 7}
    )
    built_in = Contender.parse("youshu/bundlemage-paper")
    assert (built_in.label, built_in.model) == ("youshu/bundlemage-paper", "bundlemage")
    for unknown in ("bundelmage", "youshu/nothing"):
        with pytest.raises(ConfigError, match="unknown"):
            Contender.parse(unknown)


def test_the_key_holds_what_the_result_follows_from(split: Split) -> None:
    key = Cell(SMALL, split, 0).key
    assert Cell(replace(SMALL, label="other"), split, 0).key == key
    # A default that is written out is the same setting.
    assert Cell(SMALL.with_settings({"mixer": "gate"}), split, 0).key == key
    assert SplitPlan().divide(small_shop()).key == split.key
    assert split.test is not None
    assert split.validation is not None
    assert split.generation is not None
    generation = replace(split.generation, users=split.generation.users[::-1].copy())
    others = [
        Cell(SMALL.with_settings({"dropout": 0.2}), split, 0),
        Cell(SMALL, split, 1),
        Cell(SMALL, SplitPlan(seed=1).divide(small_shop()), 0),
        Cell(SMALL, replace(split, test=split.validation), 0),
        Cell(SMALL, replace(split, validation=split.test), 0),
        Cell(SMALL, replace(split, generation=generation), 0),
        Cell(SMALL, replace(split, generation=None), 0),
        Cell(SMALL, replace(split, train=split.dataset), 0),
        Cell(POPULARITY, split, 0),
    ]
    assert len({key, *(cell.key for cell in others)}) == len(others) + 1


# ── Cells and their cache ────────────────────────────────────────────────────────────────────────


def test_a_cell_is_run_once(split: Split, cache: Cache) -> None:
    watch = Watch()
    first = run_cell(SMALL, split, 0, cache, "cpu", [watch])
    assert (watch.starts, first.epochs) == (1, 3)
    again = run_cell(replace(SMALL, label="renamed"), split, 0, cache, "cpu", [watch])
    assert watch.starts == 1
    assert again == replace(first, label="renamed")
    assert same_figures(again, first)
    assert first.matching is not None
    assert set(first.matching) == set(METRICS)
    assert len(first.cases) == 6, "three metrics of each task"
    for name, values in first.cases.items():
        task, metric = name.split(".")
        assert values.dtype == np.float32
        assert len(values) == getattr(first, f"{task}_cases")
        assert np.nanmean(values) == pytest.approx(getattr(first, task)[metric], abs=1e-6)
    assert first.settings["seed"] == 0
    assert first.settings["embedding_dim"] == 16
    assert first.memory is None or first.memory >= 0
    run_cell(SMALL, split, 0, cache, "cpu", [watch], fresh=True)
    assert watch.starts == 2
    assert {file.suffix for file in cache.folder.iterdir()} == {".json", ".npz"}


def test_outcomes_survive_json(split: Split, cache: Cache) -> None:
    outcome = run_cell(POPULARITY, split, 3, cache, "cpu")
    assert Outcome(**json.loads(json.dumps(outcome.to_json()))) == outcome
    assert outcome.seeded is False
    assert outcome.validation == {}


def damage_json(json_file: Path, npz: Path) -> None:
    json_file.write_bytes(json_file.read_bytes()[:-40])


def damage_npz(json_file: Path, npz: Path) -> None:
    npz.write_bytes(npz.read_bytes()[:100])


def lose_npz(json_file: Path, npz: Path) -> None:
    npz.unlink()


def cases_of_another(json_file: Path, npz: Path) -> None:
    with npz.open("wb") as file:
        other: Any = {"matching.ndcg@5": np.zeros(3, np.float32)}
        np.savez(file, **other)


def foreign_json(json_file: Path, npz: Path) -> None:
    json_file.write_text('["something", "else"]')


def other_fields(json_file: Path, npz: Path) -> None:
    content = json.loads(json_file.read_text())
    del content["outcome"]["model"]
    json_file.write_text(json.dumps(content))


def pickled_cases(json_file: Path, npz: Path) -> None:
    import hashlib

    with npz.open("wb") as file:
        objects: Any = {"matching.ndcg@5": np.array([{"an": "object"}], object)}
        np.savez(file, **objects)
    content = json.loads(json_file.read_text())
    content["cases"] = hashlib.sha256(npz.read_bytes()).hexdigest()
    json_file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "damage", [damage_json, damage_npz, lose_npz, cases_of_another, foreign_json, other_fields, pickled_cases]
)
def test_what_is_damaged_is_done_again(damage: Any, split: Split, cache: Cache) -> None:
    first = run_cell(POPULARITY, split, 0, cache, "cpu")
    key = Cell(POPULARITY, split, 0).key
    damage(cache.folder / f"{key}.json", cache.folder / f"{key}.npz")
    with pytest.warns(CacheWarning, match="computed again") as warned:
        second = run_cell(POPULARITY, split, 0, cache, "cpu")
    assert len(warned) == 1
    assert same_figures(first, second)
    assert cache.load(key) == second


def test_many_writers_never_leave_a_torn_result(split: Split, cache: Cache) -> None:
    outcome = run_cell(POPULARITY, split, 0, cache, "cpu")
    stop = threading.Event()

    def write(number: int) -> None:
        mine = Cache(cache.folder)
        while not stop.is_set():
            with mine.working("shared"):
                mine.save("shared", replace(outcome, seed=number))

    pool = ThreadPoolExecutor(3)
    writers = [pool.submit(write, number) for number in range(3)]
    seen = set()
    try:
        for _ in range(20):
            with cache.working("shared"):  # as `run_cell` looks
                found = cache.load("shared")
            if found is not None:
                seen.add(found.seed)
    finally:
        stop.set()
        pool.shutdown()
    for writer in writers:
        writer.result()  # a writer that failed fails the test
    assert seen
    assert seen <= {0, 1, 2}
    assert not list(cache.folder.glob("*.tmp"))
    assert not list(cache.folder.glob("*.lock"))


def test_two_at_a_time_train_once(split: Split, cache: Cache) -> None:
    watch, found = Watch(), []

    def work() -> None:
        found.append(run_cell(SMALL, split, 0, Cache(cache.folder), "cpu", [watch]))

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert watch.starts == 1
    assert found[0] == found[1]


def test_an_interrupted_cell_goes_on_where_it_was(split: Split, cache: Cache, tmp_path: Path) -> None:
    longer = SMALL.with_settings({"epochs": 24})
    whole = run_cell(longer, split, 0, Cache(tmp_path / "undisturbed"), "cpu")
    with pytest.raises(KeyboardInterrupt):
        run_cell(longer, split, 0, cache, "cpu", [Watch(stop_after=13)])
    key = Cell(longer, split, 0).key
    assert cache.load(key) is None
    assert (cache.folder / f"{key}.run").is_dir()
    watch = Watch()
    resumed = run_cell(longer, split, 0, cache, "cpu", [watch])
    assert 1 <= watch.resumed <= 13
    assert watch.resumed + watch.epochs == 24
    assert same_figures(resumed, whole)
    assert not (cache.folder / f"{key}.run").exists()


def test_a_damaged_checkpoint_costs_the_checkpoint_alone(split: Split, cache: Cache) -> None:
    longer = SMALL.with_settings({"epochs": 12})
    with pytest.raises(KeyboardInterrupt):
        run_cell(longer, split, 0, cache, "cpu", [Watch(stop_after=11)])
    run = cache.folder / f"{Cell(longer, split, 0).key}.run"
    (run / "last.safetensors").write_bytes(b"torn")
    watch = Watch()
    assert run_cell(longer, split, 0, cache, "cpu", [watch]).epochs == 12
    assert watch.epochs == 12


def test_ctrl_c_before_the_first_epoch_is_no_failure_of_the_model(split: Split, cache: Cache) -> None:
    class Impatient(Observer):
        def on_step(self, phase: str) -> None:
            raise KeyboardInterrupt

    class Watching(CompareObserver):
        ended = False

        def on_begin(self, cell: Cell) -> Sequence[Observer]:
            return [Impatient()]

        def on_end(self) -> None:
            self.ended = True

    watch = Watching()
    with pytest.raises(KeyboardInterrupt):
        compare([SMALL], [split], cache=cache, device="cpu", observer=watch)
    assert watch.ended


# ── Models of other people ───────────────────────────────────────────────────────────────────────


class Dice(Matcher):
    """Random and does not learn, so every seed counts."""

    name: ClassVar[str] = "test-dice"
    title: ClassVar[str] = "Dice"

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.register_buffer("scores", torch.rand(sizes.bundles))

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        return self.get_buffer("scores").expand(len(histories), -1)


class Broken(Dice):
    name: ClassVar[str] = "test-broken"

    def observe(self, data: Interactions) -> None:
        raise ZeroDivisionError("its author forgot something")


class Hungry(Dice):
    name: ClassVar[str] = "test-hungry"

    def observe(self, data: Interactions) -> None:
        torch.empty(2**60)


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        registry, "MODELS", {**registry.MODELS, **{toy.name: toy for toy in (Dice, Broken, Hungry)}}
    )


def test_abilities(toys: None) -> None:
    assert abilities("popularity").seeded is False
    assert abilities("bundlemage").seeded is True
    assert abilities("test-dice").seeded is True
    able = abilities("bundlemage", {"tasks": "generation"})
    assert (able.matches, able.generates, able.learns) == (False, True, True)
    listed = {facts.name: facts for facts in every_model()}
    assert listed["bundlemage"].publication
    assert listed["test-dice"].learns is False


def test_seeds_where_they_matter(toys: None, split: Split, cache: Cache) -> None:
    watch = Quiet()
    found = compare(
        [POPULARITY, Contender("dice", "test-dice")],
        [split],
        [4, 5],
        cache=cache,
        device="cpu",
        observer=watch,
    )
    assert watch.log == [("popularity", 4, "run"), ("dice", 4, "run"), ("dice", 5, "run")]
    table = found.tables[0]
    metrics = table.row("popularity").metrics
    assert metrics is not None
    assert metrics["ndcg@5"].sd == 0
    assert table.row("popularity").seeds == (4,)
    assert table.row("dice").seeds == (4, 5)
    one = compare([SMALL], [split], [0], cache=cache, device="cpu").tables[0].rows[0]
    assert one.metrics is not None
    assert one.metrics["ndcg@5"].sd is None


def test_a_contender_that_fails_keeps_its_row(toys: None, split: Split, cache: Cache) -> None:
    wild = Contender("wild", "bundlemage", {**SETTINGS, "learning_rate": 1e30})
    contenders = [wild, Contender("broken", "test-broken"), Contender("hungry", "test-hungry"), POPULARITY]
    watch = Quiet()
    found = compare(contenders, [split], [0, 1], cache=cache, device="cpu", observer=watch)
    assert [missing.label for missing in found.failures] == ["wild", "broken", "hungry"]
    assert ("wild", 1, "run") not in watch.log
    table = found.tables[0]
    assert [row.label for row in table.rows] == ["wild", "broken", "hungry", "popularity"]
    assert "learning_rate" in str(table.row("wild").failure)
    assert "ZeroDivisionError: its author forgot something" in str(table.row("broken").failure)
    traceback = next(cache.folder.glob("*.error.txt")).read_text()
    assert "in observe" in traceback
    assert "out of memory" in str(table.row("hungry").failure)
    assert table.row("popularity").leads
    assert table.ranked().rows[0].label == "popularity"
    for form in FORMS:
        assert "its author forgot something" in render.comparison_page(found, form)


def test_what_cannot_be_asked_is_not_trained(cache: Cache) -> None:
    full = SplitPlan("full").divide(small_shop())
    generator = SMALL.with_settings({"tasks": "generation"})
    watch = Quiet()
    found = compare([generator, POPULARITY], [full], cache=cache, device="cpu", observer=watch)
    assert watch.log == [("popularity", 0, "run")]
    assert [missing.label for missing in found.skipped] == ["small"]
    assert not found.failures
    assert "small" in render.comparison_page(found, "markdown")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"contenders": [SMALL, SMALL]}, "given twice"),
        ({"seeds": [1, 1]}, "given twice"),
        ({"contenders": []}, "at least one model"),
        ({"contenders": [SMALL.with_settings({"epochs": 0})]}, "small: setting 'epochs'"),
        ({"metric": "ndcg@7"}, "stored for each case"),
        ({"splits": [SplitPlan("none").divide(small_shop())]}, "nothing is held out"),
    ],
)
def test_impossible_comparisons(change: dict[str, Any], message: str, split: Split, cache: Cache) -> None:
    asked: dict[str, Any] = {"contenders": [SMALL], "splits": [split], "seeds": [0], **change}
    with pytest.raises(ConfigError, match=message):
        compare(cache=cache, device="cpu", **asked)


# ── Tables ───────────────────────────────────────────────────────────────────────────────────────


def made(label: str, seed: int, value: float, cases: Sequence[float], **others: Any) -> Outcome:
    return Outcome(
        **{
            "label": label,
            "model": "bundlemage",
            "settings": {},
            "dataset": "shop",
            "protocol": "paper",
            "split": "s",
            "seed": seed,
            "seeded": True,
            "matching": dict.fromkeys(METRICS, value),
            "matching_cases": len(cases),
            "generation": None,
            "generation_cases": 0,
            "validation": {},
            "epochs": 1,
            "best_epoch": 1,
            "fit_seconds": 2.0 + seed,
            "evaluate_seconds": 1.0,
            "memory": 100 + seed,
            "device": "a machine",
            "version": "1",
            "torch": "2",
            "date": "2026-01-01T00:00:00+00:00",
            "cases": {"matching.ndcg@5": np.array(cases, np.float32)},
            **others,
        }
    )


FACTS = DataFacts("shop", "paper", "s", 1, 1, 1, 1, 1, 1, 1, 1, 4, 0, ())


def table_of(*outcomes: Outcome) -> ResultTable:
    labels = list(dict.fromkeys(outcome.label for outcome in outcomes))
    contenders = [Contender(label, "bundlemage") for label in labels]
    table = make_table(FACTS, "matching", "ndcg@5", contenders, outcomes, [])
    assert table is not None
    return table


def test_mean_and_deviation_over_seeds() -> None:
    nothing = [0.0] * 4
    table = table_of(*(made("a", seed, value, nothing) for seed, value in enumerate((0.1, 0.2, 0.6))))
    row = table.rows[0]
    assert row.metrics is not None
    assert row.metrics["ndcg@5"].mean == pytest.approx(0.3)
    # Squares of -.2, -.1 and .3 are .14 in all, divided by 3 - 1.
    assert row.metrics["ndcg@5"].sd == pytest.approx(math.sqrt(0.07))
    assert row.seeds == (0, 1, 2)
    assert row.fit_seconds == pytest.approx(3.0)
    assert row.memory == 102
    assert make_table(FACTS, "generation", "ndcg@5", [SMALL], [], []) is None


def test_significance_is_over_cases_averaged_over_seeds() -> None:
    table = table_of(
        made("best", 0, 0.9, [0.9, 0.8, 1.0, 0.7]),
        made("best", 1, 0.9, [0.7, 0.8, 0.8, 0.9]),  # averaged: .8 .8 .9 .8
        made("near", 0, 0.8, [0.9, 0.7, 0.9, 0.8]),
        made("far", 0, 0.1, [0.1, 0.0, 0.1, 0.1]),
        made("same", 0, 0.7, [0.8, 0.8, 0.9, 0.8]),
    )
    assert table.row("best").leads
    assert table.row("best").p is None
    assert table.row("best").best == METRICS
    # near: differences -.1 .1 0 0, t = 0. far: .7 .8 .8 .7, t = .75 / (.0577 / 2) = 25.98 with 3 degrees.
    assert table.row("near").p == pytest.approx(1.0, abs=1e-4)
    assert table.row("far").p == pytest.approx(3 * 0.000125, rel=0.02)
    assert [row.distinguishable for row in table.rows] == [True, False, True, False]
    assert [row.label for row in table.ranked().rows] == ["best", "near", "same", "far"]


def test_a_paired_test_by_hand() -> None:
    # Differences 1 2 3 4: mean 2.5, sd 1.29099, t = 2.5 / (1.29099 / 2) = 3.87298; two-sided p .030466.
    leading, other = np.array([2.0, 4.0, 6.0, 8.0]), np.array([1.0, 2.0, 3.0, 4.0])
    assert paired_p(leading, other) == pytest.approx(0.030466, abs=1e-6)
    assert paired_p(np.append(leading, np.nan), np.append(other, 5.0)) == paired_p(leading, other)
    assert paired_p(leading, leading) == 1
    assert paired_p(leading, leading - 1) == 0
    assert paired_p(leading[:1], other[:1]) is None


def test_holm_by_hand() -> None:
    # Sorted .01 .02 .03 .04: times 4, 3, 2, 1 gives .04 .06 .06 .04, and no one below the one before.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


# ── On paper ─────────────────────────────────────────────────────────────────────────────────────


class Page(HTMLParser):
    """Checks that every element that is opened is closed, and keeps the text."""

    EMPTY = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data


NASTY = '<script>alert("1")</script> & | *x* `y`'


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    shop = replace(small_shop(), name="shop <i> & co", notes=("a note <u>",))
    return compare(
        [replace(SMALL, label=NASTY), POPULARITY],
        [SplitPlan().divide(shop)],
        [0, 1],
        cache=Cache(tmp_path_factory.mktemp("cache")),
        device="cpu",
    )


def test_comparisons_survive_json(comparison: Comparison) -> None:
    assert Comparison.from_json(json.loads(json.dumps(comparison.to_json()))) == comparison


def measured_grids(comparison: Comparison) -> list[tuple[render.MeasuresPart, render.Grid]]:
    parts = [
        part
        for table in comparison.tables
        for part in render.measures_parts("0", table, {row.label: row.label for row in table.rows})
    ]
    return [(part, grid) for part in parts for grid in part.grids]


def test_the_page(comparison: Comparison) -> None:
    text = render.comparison_page(comparison, "html", "bundlemage compare 'a & b'")
    page = Page(text)
    for shown in (
        NASTY,
        "popularity",
        "shop <i> & co, some-users: matching",
        "a note <u>",
        "'a & b'",
        "embedding_dim",
    ):
        assert shown in page.text
    assert "80 users" in page.text
    assert comparison.outcomes[0].device in page.text
    assert page.seen.count("script") == 1  # ours
    assert not {"u", "img", "link"} & set(page.seen)
    assert "http" not in text  # nothing is fetched from anywhere
    grids = [grid for _, grid in measured_grids(comparison)]
    assert len(grids) == 2 + 4 + 2, "bundles and items, and slices of both tasks"
    assert page.seen.count("tr") == 6 + sum(1 + len(grid.rows) for grid in grids), "two tables of two models"
    for part, grid in measured_grids(comparison):
        assert part.title in page.text
        assert all(sentence in page.text for sentence in part.points)
        assert all(cell.text in page.text for row in grid.rows for cell in row)
    row = comparison.tables[0].row("popularity")
    assert row.metrics is not None
    assert render.figure(row.metrics["ndcg@10"].mean) in page.text


def test_markdown(comparison: Comparison) -> None:
    text = render.comparison_page(comparison, "markdown", columns=["ndcg@5", "recall@40"])
    lines = [line for line in text.splitlines() if line.startswith("|")][:4]
    assert lines[0] == "| model | ndcg@5 | recall@40 | seeds | fit | memory |"
    plain = [line.replace("\\\\", "").replace("\\|", "") for line in lines]
    assert {line.count("|") for line in plain} == {7}
    assert "<script" not in text
    assert "**" in lines[2] + lines[3]
    assert "±" in lines[2]
    assert "±" not in lines[3]


def test_figures_are_short() -> None:
    assert [render.figure(value) for value in (0.50734, 0.0, 1.0)] == [".5073", ".0000", "1.0000"]
    assert [render.duration(value) for value in (None, 0.01, 2.345, 61, 150, 9000)] == [
        "–",
        "<0.1 s",
        "2.3 s",
        "61 s",
        "2 min",
        "2 h 30",
    ]
    assert [render.size(value) for value in (None, 5, 2**21, 3 * 2**30)] == ["–", "<1 MB", "2 MB", "3.0 GB"]


class TestGroupsOfCases:
    def test_without_groups_it_is_the_textbooks_paired_t_test(self) -> None:
        random = np.random.default_rng(0)
        one, other = random.normal(0.1, 1, 50), random.normal(0, 1, 50)
        assert paired_p(one, other) == pytest.approx(float(ttest_rel(one, other).pvalue))
        assert paired_p(one, other, np.arange(50)) == pytest.approx(float(ttest_rel(one, other).pvalue))

    def test_asking_the_same_again_proves_nothing_more(self) -> None:
        random = np.random.default_rng(1)
        one, other = random.normal(0.3, 1, 40), random.normal(0, 1, 40)
        again = np.repeat(np.arange(40), 20)
        alone = paired_p(one, other)
        assert alone is not None
        assert paired_p(one[again], other[again], again) == pytest.approx(alone)
        many = paired_p(one[again], other[again])
        assert many is not None
        assert many < alone / 10, "as independent cases they would seem to"

    def test_one_group_is_no_test(self) -> None:
        assert paired_p(np.array([1.0, 2.0]), np.array([0.0, 0.5]), np.array([7, 7])) is None


def test_the_same_division_twice_is_refused(split: Split, cache: Cache) -> None:
    again = replace(split, protocol="another name for it")
    with pytest.raises(ConfigError, match="the same split of the same data is given twice"):
        compare([POPULARITY], [split, again], cache=cache, device="cpu")
