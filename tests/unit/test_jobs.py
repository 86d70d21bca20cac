"""Several cells or trials at a time: what they find is what one after another finds, whatever is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bundlemage.data.splits import Split, SplitPlan
from bundlemage.errors import ConfigError
from bundlemage.models.config import Between, OneOf
from bundlemage.sample.generate import write_shop
from bundlemage.studies import render
from bundlemage.studies.cells import Cell, Contender
from bundlemage.studies.comparison import CompareObserver, Comparison, compare
from bundlemage.studies.outcome import Cache, Outcome
from bundlemage.training.history import EpochRecord, Observer
from bundlemage.training.pool import Died, Pool
from bundlemage.tuning.session import Session, tune
from bundlemage.tuning.study import Search
from tests.multiplying import NO_ROOM, multiply
from tests.small_shop import small_shop

BPR = Contender("bpr", "bpr", {"embedding_dim": 8, "batch_size": 64, "epochs": 2})
TOO_FAST = replace(BPR, label="too fast").with_settings({"learning_rate": 1e30})
POPULARITY, EASE = (Contender(name, name) for name in ("popularity", "ease"))
KILLED = "the process that ran it died (SIGKILL): it may have run out of memory; use fewer --jobs"


@pytest.fixture(scope="module")
def split() -> Split:
    return SplitPlan().divide(small_shop())


def pool_processes() -> list[Any]:
    """The processes of pools that run now. Other tests may have started services, which are not daemons."""
    return [process for process in multiprocessing.active_children() if process.daemon]


@pytest.fixture(autouse=True)
def nobody_is_left_behind() -> Iterator[None]:
    yield
    assert pool_processes() == []


def kill_all() -> None:
    for process in pool_processes():
        os.kill(process.pid or 0, signal.SIGKILL)


# ── The pool ─────────────────────────────────────────────────────────────────────────────────────


def test_a_process_does_many_tasks_and_one_that_dies_is_replaced() -> None:
    seen: list[int] = []
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for task in range(6):
            taken.append(task)
            assert len(taken) - len(seen) <= 2  # no more are taken than there are processes for
            yield task

    def answer(task: int, pid: int) -> int:
        if task == 1:
            os.kill(pid, signal.SIGKILL)
        return 100

    found: dict[int, Any] = {}
    with Pool(2, multiply, 10) as pool:
        for task, result in pool.run(tasks(), answer):
            seen.append(task)
            found[task] = result
        assert found.pop(1) == Died(KILLED)
        assert {task: value for task, (value, _) in found.items()} == {0: 100, 2: 120, 3: 130, 4: 140, 5: 150}
        pids = {pid for _, pid in found.values()}
        assert 1 <= len(pids) <= 2
        assert os.getpid() not in pids
        # What the work raises is raised here.
        with pytest.raises(OSError, match="no room"):
            list(pool.run([NO_ROOM], answer))
        assert pool_processes()
    assert pool_processes() == []


def test_less_than_one_job_is_refused(split: Split, tmp_path: Path) -> None:
    for jobs in (0, -1):
        with pytest.raises(ConfigError, match=f"jobs is {jobs}; it must be at least 1"):
            compare([POPULARITY], [split], cache=Cache(tmp_path), device="cpu", jobs=jobs)
        with pytest.raises(ConfigError, match=f"jobs is {jobs}; it must be at least 1"):
            tune(Search("sample", tmp_path / "study"), lambda *_: None, jobs)
    assert not (tmp_path / "study").exists()


# ── Cells ────────────────────────────────────────────────────────────────────────────────────────


class Watch(CompareObserver):
    """Takes notes, and does something when the first cell begins, or when a training has come to an epoch."""

    def __init__(self, at_begin: Any = None, interrupt_at: int | None = None) -> None:
        self.at_begin, self.interrupt_at = at_begin, interrupt_at
        self.begun: list[tuple[str, str, int]] = []
        self.failed: dict[str, str] = {}
        self.resumed: list[int] = []

    def on_begin(self, cell: Cell) -> Sequence[Observer]:
        self.begun.append((cell.contender.label, cell.split.protocol, cell.seed))
        if self.at_begin is not None and len(self.begun) == 1:
            self.at_begin()
        return [Epochs(self)]

    def on_failure(self, cell: Cell, message: str) -> None:
        self.failed[cell.contender.label] = message


class Epochs(Observer):
    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
        self.watch.resumed.append(len(done))

    def on_epoch(self, record: EpochRecord) -> None:
        if record.epoch == self.watch.interrupt_at:
            raise KeyboardInterrupt


MEASURED = {"fit_seconds": 0.0, "evaluate_seconds": 0.0, "memory": None, "date": ""}


def without_times(found: Comparison) -> dict[str, Any]:
    """All that does not depend on the clock or on what ran beside."""
    content = found.to_json()
    for outcome in content["outcomes"]:
        outcome.update(MEASURED, jobs=1)
    for table in content["tables"]:
        for row in table["rows"]:
            row.update(fit_seconds=None, memory=None, jobs=())
    return content


def test_two_jobs_find_what_one_finds_whatever_was_killed_before(split: Split, tmp_path: Path) -> None:
    full = SplitPlan("full").divide(small_shop())
    asked: Any = ([POPULARITY, TOO_FAST, EASE, BPR], [split, full], [0, 1])
    one = compare(*asked, cache=Cache(tmp_path / "one"), device="cpu")

    # Two run, or are about to, when both processes are killed; another takes their place. After an epoch of
    # what it trains, somebody presses Ctrl-C.
    cache = Cache(tmp_path / "two")
    watch = Watch(at_begin=kill_all, interrupt_at=2)
    with pytest.raises(KeyboardInterrupt):
        compare([POPULARITY, EASE, BPR], [split], cache=cache, device="cpu", jobs=2, observer=watch)
    assert watch.failed == {"popularity": KILLED, "ease": KILLED}
    assert pool_processes() == []

    # What was being trained goes on from its checkpoint, and in the end nothing is different.
    watch = Watch()
    two = compare(*asked, cache=cache, device="cpu", jobs=2, observer=watch)
    assert max(watch.resumed) == 2
    assert without_times(two) == without_times(one)
    assert [missing.label for missing in two.failures] == ["too fast", "too fast"]  # one for each split
    assert "no longer finite" in two.failures[0].message
    for outcome, other in zip(two.outcomes, one.outcomes, strict=True):
        assert len(outcome.cases) == len(other.cases) > 0
        for name, values in other.cases.items():
            assert outcome.cases[name].tolist() == values.tolist()
    assert len(set(watch.begun)) == len(watch.begun)  # each was run once
    assert set(watch.failed) == {"too fast"}
    # The same files, which say how they were measured, and so do the tables.
    names = [sorted(file.name for file in (tmp_path / name).glob("*.json")) for name in ("one", "two")]
    assert names[0] == names[1]
    assert {outcome.jobs for outcome in one.outcomes} == {1}
    assert {outcome.jobs for outcome in two.outcomes} == {2}
    assert "measured with 2 runs at a time" in render.legend(two.tables[0])
    assert "at a time" not in render.legend(one.tables[0])
    assert Comparison.from_json(two.to_json()).tables == two.tables
    # What is known needs no process, and is the same with any number of jobs.
    again = Watch(at_begin=lambda: pytest.fail("it is in the cache"))
    known: Any = ([POPULARITY, EASE, BPR], [split, full], [0, 1])
    third = compare(*known, cache=Cache(tmp_path / "one"), device="cpu", jobs=7, observer=again)
    assert without_times(third)["outcomes"] == without_times(one)["outcomes"]


def test_an_outcome_of_before_had_one_job(split: Split, tmp_path: Path) -> None:
    outcome = compare([POPULARITY], [split], cache=Cache(tmp_path), device="cpu").outcomes[0]
    content = outcome.to_json()
    del content["jobs"]
    assert Outcome(**content).jobs == 1


# ── Trials ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> Search:
    folder = tmp_path_factory.mktemp("data")
    write_shop(small_shop(), folder / "shop", "csv")
    settings = {"embedding_dim": 8, "epochs": 3, "device": "cpu"}
    space: Any = {"learning_rate": Between(0.001, 0.1, log=True), "batch_size": OneOf(32, 64)}
    return Search(str(folder / "shop"), folder / "study", "bpr", settings, {}, space, trials=2)


def test_a_search_with_two_jobs_makes_every_trial_and_is_resumed(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs: list[str] = []

    def progress(stage: str, done: float, of: float, note: str = "") -> None:
        if "epoch 1" in note:
            epochs.append(note)
            if len(epochs) == 1:
                kill_all()

    first = tune(search, progress, jobs=2)
    assert [trial.reason for trial in first.trials] == [KILLED, KILLED]
    assert first.best is None

    # A trial in another process is stopped from here.
    heard: list[tuple[int, int]] = []

    def stops(_session: Session, number: int, epoch: int, _value: float) -> bool:
        heard.append((number, epoch))
        return number == 3

    monkeypatch.setattr(Session, "stops", stops)
    study = tune(replace(search, trials=5, resume=True), lambda *_: None, jobs=2)
    assert study.trials[:2] == first.trials
    assert sorted(heard) == [(2, 1), (2, 2), (2, 3), (3, 1), (4, 1), (4, 2), (4, 3)]
    states = ["failed", "failed", "complete", "pruned", "complete"]
    assert [trial.state for trial in study.trials] == states
    assert study.trials[3].epochs == 1
    assert study.best is not None
    assert study.best.value == max(trial.value or 0.0 for trial in study.trials)
    kept = tomllib.loads(study.recipe.read_text())["settings"]
    assert {name: kept[name] for name in study.best.settings} == study.best.settings
