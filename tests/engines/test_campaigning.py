"""Campaigns on both engines: the same files, and one may go on with what the other began."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bundlemage import Filter, Recommender
from bundlemage.engines.base import Engine, engine
from bundlemage.engines.jobs import CampaignJob
from bundlemage.errors import CheckpointError, ConfigError
from tests.small_shop import QUICK, small_shop

SETTINGS: dict[str, Any] = {
    "per_user": 2,
    "part_users": 24,
    "stock": True,
    "shown_at_most": 9,
    "budget": 60.0,
    "reserve": "expected",
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> CampaignJob:
    """Done here by the recommender itself."""
    folder = tmp_path_factory.mktemp("campaign")
    model = Recommender("bundlemage", **QUICK).fit(small_shop(), progress=False)
    model.save(folder / "model")
    job = CampaignJob(
        folder / "model", folder / "whole", where=Filter(max_price=500), settings=SETTINGS, device="cpu"
    )
    Recommender.load(job.model, device="cpu").campaign(job.output, where=job.where, **SETTINGS)
    return job


@pytest.fixture
def one_process(any_engine: Engine) -> Engine:
    """Each that Ray starts takes seconds; that there may be several is tested in test_pool.py."""
    return engine(any_engine.name, workers=1)


def contents(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_the_same_files(one_process: Engine, begun: CampaignJob, tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    job = replace(begun, output=tmp_path / "campaign")
    summary = one_process.campaign(job, lambda *step: steps.append(step))
    assert (summary.users, summary.parts) == (80, 4)
    assert summary.shown > 0
    assert contents(job.output) == contents(begun.output)
    assert steps[-1] == ("users", 80, 80)


def test_workers_in_another_folder(
    ray_cluster: None, begun: CampaignJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(begun.model.parent)
    engine("ray", workers=1).campaign(replace(begun, model=Path("model"), output=Path("relative")))
    assert contents(Path("relative")) == contents(begun.output)


def test_mistakes(one_process: Engine, begun: CampaignJob, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown setting 'per_users'; did you mean 'per_user'"):
        one_process.campaign(replace(begun, output=tmp_path / "c", settings={"per_users": 2}))
    with pytest.raises(CheckpointError, match="holds a campaign already"):
        one_process.campaign(begun)


@pytest.mark.parametrize("chosen", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_going_on_with_what_another_engine_began(
    chosen: str, request: pytest.FixtureRequest, begun: CampaignJob, tmp_path: Path
) -> None:
    if chosen == "ray":
        request.getfixturevalue("ray_cluster")
    job = replace(begun, output=tmp_path / "campaign")

    class CutError(Exception):
        pass

    def cut(what: str, done: float, of: float, note: str = "") -> None:
        if what == "users" and done > 48:
            raise CutError

    with pytest.raises(CutError):
        engine().campaign(job, cut)
    shutil.copy(begun.output / "plan.json", tmp_path)
    assert len(list((job.output / "parts").iterdir())) == 2
    engine(chosen).campaign(replace(job, resume=True))
    assert contents(job.output) == contents(begun.output)
