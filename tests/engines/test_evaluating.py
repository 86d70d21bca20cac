"""A saved model on the test cases of its data: the figures are the same on both engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from bundlemage import Recommender
from bundlemage.data.shards import write_layout
from bundlemage.data.splits import SplitPlan
from bundlemage.engines.base import Engine, engine, with_absolute_paths
from bundlemage.engines.jobs import Chunk, EvaluationJob, Task, _cut
from bundlemage.errors import ArtifactError, ConfigError
from bundlemage.evaluation import PerCase
from bundlemage.scorecard import scorecard
from tests.small_shop import QUICK, small_shop


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> EvaluationJob:
    folder = tmp_path_factory.mktemp("evaluating")
    dataset = small_shop()
    write_layout(dataset, folder / "data")
    Recommender("bundlemage", **QUICK).fit(dataset, progress=False).save(folder / "model")
    return EvaluationJob(folder / "model", str(folder / "data"), device="cpu")


@pytest.fixture
def one_process(any_engine: Engine) -> Engine:
    """Each that Ray starts takes seconds; that there may be several is tested in test_pool.py."""
    return engine(any_engine.name, workers=1)


def test_the_figures_are_those_of_the_model_and_of_closed_forms(
    one_process: Engine, job: EvaluationJob
) -> None:
    steps: list[tuple[str, int, int]] = []
    fresh = EvaluationJob(job.model, job.location, device="cpu")
    rows = one_process.evaluate(fresh, lambda *step: steps.append(step)).rows
    loaded = Recommender.load(job.model, device="cpu")
    assert rows == scorecard(loaded, loaded.plan.divide(small_shop())).rows
    assert rows[0].model == "BundleMage"
    assert {"Popularity", "Share of items owned", "ItemKNN", "EASE", "Item co-occurrence"} < {
        row.model for row in rows
    }
    assert rows[0].matching
    assert rows[0].generation
    assert steps
    assert not fresh.data_changed


@pytest.mark.parametrize("protocol", ["paper", "full"])
def test_chunks_together_are_the_whole(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "bundlemage.evaluation.SCORES_AT_A_TIME", 400
    )  # ten cases of matching, four of generation
    dataset = small_shop()
    plan = SplitPlan(protocol)
    Recommender("bundlemage", **QUICK).fit(dataset, plan, progress=False).save(tmp_path / "model")
    write_layout(dataset, tmp_path / "data")
    job = EvaluationJob(tmp_path / "model", str(tmp_path / "data"), device="cpu")
    chunks = job.chunks(2)
    assert len([chunk for chunk in chunks if chunk.model == 0]) > 2
    for number, model in enumerate(job.models):
        split = job.split
        found: dict[Task, list[PerCase]] = {}
        for chunk in chunks:
            if chunk.model == number:
                found.setdefault(chunk.task, []).append(job.measure(chunk))
        whole = {task: job.measure(Chunk(number, task, range(_cases(split, task)))) for task in found}
        if number == 0:
            assert set(whole) == ({"matching", "generation"} if split.generation else {"matching"})
        for task, parts in found.items():
            for name, values in whole[task].items():
                joined = [value for part in parts for value in part[name].tolist()]
                assert joined == pytest.approx(values.tolist(), nan_ok=True), (model.model.name, task, name)


def _cases(split: object, task: str) -> int:
    return len(getattr(split, "test" if task == "matching" else "generation"))


@pytest.mark.parametrize(
    ("count", "batch", "pieces"), [(0, 5, 4), (1, 5, 4), (23, 5, 2), (23, 5, 40), (20, 5, 2)]
)
def test_cut(count: int, batch: int, pieces: int) -> None:
    cut = _cut(count, batch, pieces)
    assert [case for some in cut for case in some] == list(range(count))
    assert len(cut) <= pieces
    assert all(some.start % batch == 0 for some in cut)


def test_mistakes(one_process: Engine, job: EvaluationJob, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no such folder"):
        one_process.evaluate(EvaluationJob(tmp_path / "nowhere", job.location))
    with pytest.raises(ConfigError, match="no data to evaluate on"):
        one_process.evaluate(EvaluationJob(_with_another_name(tmp_path)))
    other = write_layout(small_shop(users=81), tmp_path / "other")
    with pytest.raises(ConfigError, match="other users than the model was trained on"):
        one_process.evaluate(EvaluationJob(job.model, str(other.folder)))


def test_workers_in_another_folder_and_with_another_device(
    ray_cluster: None, job: EvaluationJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(job.model.parent)
    relative = EvaluationJob(Path("model"), "data", device="cpu")
    assert engine("ray", workers=1).evaluate(relative) == engine().evaluate(job)
    there = EvaluationJob(Path("model"), "data", device="cuda:9")  # which is not here
    there.load("cpu")
    assert there.source.dataset.fingerprint() == there.recommender.dataset.fingerprint()
    assert not there.data_changed


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for location, whole in [
        ("data", str(tmp_path / "data")),
        ("sample", "sample"),
        ("s3://bucket/data", "s3://bucket/data"),
        ("sqlite:///shop.db?timeout=3", f"sqlite:///{tmp_path}/shop.db?timeout=3"),
        (f"sqlite:///{tmp_path}/shop.db", f"sqlite:///{tmp_path}/shop.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("postgresql:///shop", "postgresql:///shop"),
    ]:
        found = with_absolute_paths(EvaluationJob(Path("model"), location))
        assert (found.model, found.location) == (tmp_path / "model", whole)


def _with_another_name(folder: Path) -> Path:
    from dataclasses import replace

    dataset = replace(small_shop(), name="mine")
    return Recommender("popularity", device="cpu").fit(dataset, progress=False).save(folder / "mine")


def test_what_was_read_does_not_travel(job: EvaluationJob) -> None:
    import pickle

    engine().evaluate(job)
    assert len(pickle.dumps(job)) < 1000
    assert pickle.loads(pickle.dumps(job)) == job
