"""Old models of retrainings are removed, and nothing else is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bundlemage import Recommender
from bundlemage.artifact.files import artifact_version
from bundlemage.data.splits import SplitPlan
from bundlemage.live import record_of
from bundlemage.retraining import sweep as sweeping
from bundlemage.retraining.run import retrain
from bundlemage.retraining.sweep import sweep
from bundlemage.store.records import Served
from bundlemage.store.repository import Store
from tests.growing_shop import late_shop


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store whose model was not made by a retraining."""
    opened = Store.open(f"sqlite:///{tmp_path}/shop.db")
    opened.import_dataset(late_shop())
    model = Recommender("popularity", device="cpu").fit(late_shop(), SplitPlan("none"), progress=False)
    opened.publish(record_of(model.save(tmp_path / "shop")))
    yield opened
    opened.close()


def retrained(store: Store, keep: int = 100) -> Path:
    outcome = retrain(store, force=True, keep=keep, seed=len(store.models()))
    assert outcome.path is not None
    return outcome.path


def folders(path: Path) -> set[str]:
    return {each.name for each in path.iterdir() if each.is_dir()}


def test_only_old_models_of_retrainings_are_removed(store: Store, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "shop", tmp_path / "shop-20200101T000000")  # somebody's copy, never published
    (tmp_path / "notes-20200101T000000").mkdir()
    paths = [retrained(store) for _ in range(5)]
    outcome = retrain(store, force=True, keep=3, seed=50)
    assert outcome.path is not None
    assert set(outcome.removed) == set(paths[:3])
    left = {"shop", "shop-20200101T000000", "notes-20200101T000000", *(path.name for path in paths[3:])}
    assert folders(tmp_path) == left | {outcome.path.name}
    assert {Path(record.path).name for record in store.models()} == {
        "shop",
        outcome.path.name,
        *(path.name for path in paths[3:]),
    }
    Recommender.load(outcome.path, device="cpu")


def test_a_model_in_use_stays(store: Store, tmp_path: Path) -> None:
    paths = [retrained(store) for _ in range(5)]
    versions = [artifact_version(path) for path in paths]
    store.publish(record_of(paths[0]))  # somebody went back to the oldest one
    now = datetime.now(UTC)
    store.add_served(
        [
            Served("r1", "bundles", None, versions[1], ("b1",), now - timedelta(hours=20)),
            Served("r2", "bundles", None, versions[2], ("b1",), now - timedelta(days=3)),
        ]
    )
    shutil.rmtree(paths[3])
    paths[3].mkdir()
    (paths[3] / "mine").write_text("another folder of the same name")
    # The record of the model that serves again is the newest one.
    assert sweep(store, 1, needed={versions[4]}) == ((paths[2],), ())
    assert folders(tmp_path) == {"shop", *(paths[number].name for number in (0, 1, 3, 4))}
    assert store.model(versions[2]) is None
    assert store.model(versions[3]) is not None


def test_a_model_that_is_selected_at_the_last_moment_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, _ = (retrained(store) for _ in range(2))

    def selected(path: Path) -> str:
        store.publish(record_of(path))
        return artifact_version(path)

    monkeypatch.setattr(sweeping, "artifact_version", selected)
    assert sweep(store, 1) == ((), ())
    assert store.state().model == artifact_version(old)


@pytest.mark.parametrize("step", ["rename", "rmtree"])
def test_a_folder_that_cannot_be_removed_is_reported(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    paths = [retrained(store) for _ in range(3)]
    hidden = paths[0].with_name(f".{paths[0].name}.removed")
    refused = paths[0] if step == "rename" else hidden
    whole: Any = Path.rename if step == "rename" else shutil.rmtree

    def only_others(path: Path, *given: Any, **named: Any) -> Any:
        if path == refused:
            raise PermissionError(13, "Permission denied")
        return whole(path, *given, **named)

    monkeypatch.setattr(Path if step == "rename" else shutil, step, only_others)
    outcome = retrain(store, force=True, keep=1, seed=60)
    assert outcome.published
    assert store.state().model == outcome.version
    assert outcome.removed == (paths[1],)
    assert outcome.not_removed == (refused,)
    assert outcome.warnings == (
        f"the folder {refused} of an old model cannot be removed. Remove it yourself",
    )
    assert refused.exists()


KILLED = """
import os, sys
from bundlemage.retraining import run
from bundlemage.store.repository import Store

store = Store.open(sys.argv[1])
if sys.argv[2] == "before the sweep":
    run.sweep = lambda *_, **__: os._exit(9)
elif sys.argv[2] == "before the record is deleted":
    store.forget_model = lambda _: os._exit(9)
else:
    forget_model = store.forget_model
    store.forget_model = lambda version: forget_model(version) and os._exit(9)
run.retrain(store, force=True, keep=1, seed=77)
"""


@pytest.mark.parametrize(
    "moment", ["before the sweep", "before the record is deleted", "before the folder is deleted"]
)
def test_a_kill_leaves_a_model_that_serves_and_the_next_retraining_sweeps(
    store: Store, tmp_path: Path, moment: str
) -> None:
    paths = [retrained(store) for _ in range(3)]
    code = [sys.executable, "-c", KILLED, f"sqlite:///{tmp_path}/shop.db", moment]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run(code, env=environment, capture_output=True, text=True)
    assert killed.returncode == 9, killed.stderr
    version = store.state().model
    assert version is not None
    served = store.model(version)
    assert served is not None
    assert Path(served.path) not in paths  # the new one was published
    Recommender.load(served.path, device="cpu")

    last = retrained(store, keep=1)
    present = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    named = {name for name in present if not name.startswith(".")}
    assert named == {"shop", Path(served.path).name, last.name}
    # Only the last kill leaves a hidden folder, which no record names.
    assert len(present - named) == (moment == "before the folder is deleted")
    assert {Path(record.path).name for record in store.models()} == named
