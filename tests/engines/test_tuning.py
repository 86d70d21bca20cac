"""Tuning on both engines: the planted answer is found, bad trials end early, and a study outlives its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bundlemage.engines.base import Engine, engine
from bundlemage.models.config import Between, OneOf
from bundlemage.recipe import Recipe
from bundlemage.sample.generate import write_shop
from bundlemage.tuning.study import Search, Study, Trial
from tests.small_shop import dataset_of

EPOCHS = 8
GOOD, IDLE, WILD = 0.05, 1e-7, 1e30
"""Rates with which BPR learns, stays as it begins, and diverges."""


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Sixty people of four tastes, who take the bundles of their own taste and no others."""
    folder = tmp_path_factory.mktemp("tuning") / "shop"
    people = range(60)
    bundles = [
        [number % 12 + 10 * (number % 4) for number in range(4 * one, 4 * one + 3)] for one in range(32)
    ]
    taken = [{8 * (person % 4) + (person + step) % 8 for step in range(6)} for person in people]
    write_shop(dataset_of([[person % 50] for person in people], taken, bundles, 50), folder)
    return str(folder)


def search(shop: str, output: Path, **others: Any) -> Search:
    fixed = {"embedding_dim": 8, "batch_size": 16, "epochs": EPOCHS, "device": "cpu", "negatives": 1}
    space = {"learning_rate": Between(IDLE, 1.0), "weight_decay": OneOf(0.0, 0.0001)}
    return Search(shop, output, **{"model": "bpr", "settings": fixed, "space": space, **others})


def seen(trials: Sequence[Trial]) -> list[Any]:
    """All of a trial but its time."""
    return [{**asdict(trial), "seconds": None} for trial in trials]


def test_the_planted_answer_is_found_and_bad_trials_end_early(
    any_engine: Engine, shop: str, tmp_path: Path
) -> None:
    # With this seed the first ten, which do not depend on one another, have all three rates, and two that are
    # idle after five that are complete.
    rates = OneOf(IDLE, GOOD, WILD)
    settings = {**search(shop, tmp_path).settings, "weight_decay": 0.0}
    asked = search(
        shop, tmp_path / "study", settings=settings, space={"learning_rate": rates}, trials=10, seed=6
    )
    told: list[tuple[Any, ...]] = []
    study = any_engine.tune(asked, lambda *step: told.append(step))

    by_rate: dict[float, list[Trial]] = {rate: [] for rate in (IDLE, GOOD, WILD)}
    for trial in study.trials:
        by_rate[trial.settings["learning_rate"]].append(trial)
    assert all(by_rate.values()), "each of the three was tried"
    assert study.best is not None
    assert study.best.settings == {"learning_rate": GOOD}
    assert study.best.value == max(study.best.curve) > 2 * max(by_rate[IDLE][0].curve)
    assert [trial.state for trial in by_rate[GOOD]] == ["complete"] * len(by_rate[GOOD])
    assert all(trial.epochs == EPOCHS for trial in by_rate[GOOD])
    for trial in by_rate[WILD]:
        assert (trial.state, trial.value) == ("failed", None)
        assert "no longer finite" in str(trial.reason)
    pruned = [trial for trial in study.trials if trial.state == "pruned"]
    assert pruned, "no trial was stopped early"
    assert all(trial.settings["learning_rate"] == IDLE for trial in pruned)
    assert all(2 <= trial.epochs < EPOCHS for trial in pruned)
    assert told[-1][:3] == ("trials", 10, 10)
    assert "best ndcg@5" in told[-2][3]
    check_files(study, settings)


def check_files(study: Study, settings: dict[str, Any]) -> None:
    """Nothing but the study's own files, and the best of them is a recipe."""
    names = {file.name for file in study.folder.iterdir()}
    assert names == {"study.json", "trials", "best.toml"}
    assert len([*(study.folder / "trials").iterdir()]) == len(study.trials)
    recipe = Recipe.load(study.recipe)
    where = {"device": settings["device"]}
    assert {**recipe.settings, **where} == {**settings, "learning_rate": GOOD, "seed": 6}
    recipe.recommender()


def test_a_study_goes_on_on_either_engine_with_the_same_trials(
    any_engine: Engine, shop: str, tmp_path: Path
) -> None:
    """One after another, both engines make the same trials; what was made is kept as it is."""
    one_by_one = engine(any_engine.name, workers=1)
    whole = engine().tune(search(shop, tmp_path / "whole", trials=6))
    begun = engine().tune(search(shop, tmp_path / "study", trials=3))
    files = {file: file.read_bytes() for file in (begun.folder / "trials").iterdir()}
    (begun.folder / "best.toml").unlink()  # as a kill between two files leaves it
    late = one_by_one.tune(search(shop, tmp_path / "study", trials=6, resume=True, timeout=1e-9))
    assert late.trials == begun.trials, "a trial began though the time was up"
    study = one_by_one.tune(search(shop, tmp_path / "study", trials=6, resume=True))
    assert len(files) == 3
    assert {file: file.read_bytes() for file in files} == files
    assert seen(study.trials) == seen(whole.trials)
    assert study.recipe.read_bytes() == whole.recipe.read_bytes()
    again = one_by_one.tune(search(shop, tmp_path / "study", trials=6, resume=True))
    assert again.trials == study.trials


def test_one_trial_is_made_however_short_the_time(shop: str, tmp_path: Path) -> None:
    study = engine().tune(search(shop, tmp_path / "study", trials=500, timeout=1e-9))
    assert len(study.trials) == 1
    assert study.best is not None


def processes() -> list[tuple[int, int, str]]:
    """(id, parent, name) of every process that can be seen."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines())
            name = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (OSError, ValueError):  # it has ended meanwhile
            continue
        found.append((int(folder.name), int(status["PPid"]), name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to find Ray's processes")
def test_a_trial_whose_process_is_killed_is_made_again(ray_cluster: None, shop: str, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill(stage: str, done: float, of: float, note: str = "") -> None:
        if killed or not note.startswith("trial 2, epoch 4"):
            return
        mine = {number for number, parent, name in processes() if parent == os.getpid() and "raylet" in name}
        workers = [
            number for number, parent, name in processes() if parent in mine and "ray::_Process" in name
        ]
        os.kill(workers[0], signal.SIGKILL)
        killed.append(workers[0])

    study = engine("ray", workers=1).tune(search(shop, tmp_path / "study", trials=4), kill)
    assert len(killed) == 1
    assert seen(study.trials) == seen(engine().tune(search(shop, tmp_path / "whole", trials=4)).trials)
