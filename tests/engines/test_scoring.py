"""Everyone's best bundles as a folder, on both engines. A job on Ray takes seconds, so there are few."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy import sparse

from benchmarks.scoring import command_of, family
from bundlemage import Filter, Recommender, read
from bundlemage.data.dataset import BundleDataset
from bundlemage.data.shards import write_layout
from bundlemage.engines import scoring
from bundlemage.engines.base import Engine, engine
from bundlemage.engines.scoring import (
    ANSWERS,
    NEW,
    ModelUsers,
    PartScorer,
    Ready,
    ScoredUsers,
    ScoringJob,
    Work,
    make_ready,
    spread,
)
from bundlemage.errors import (
    ArtifactError,
    BundleMageError,
    CheckpointError,
    ClusterError,
    ConfigError,
    UnknownIdError,
    UnsupportedError,
)
from bundlemage.progress import in_silence
from tests.cli.run import run, run_json, stopped
from tests.real_data import real_data
from tests.small_shop import QUICK, dataset_of, small_shop

WITHOUT_HISTORY = [0, 1, 29, 30, 50, 78, 79]
"""First, last and in the middle, so that parts begin and end with them."""


def shop() -> BundleDataset:
    whole = small_shop()
    kept = np.ones(80)
    kept[WITHOUT_HISTORY] = 0
    return whole.with_interactions(
        user_item=sparse.diags(kept) @ whole.user_item, user_bundle=sparse.diags(kept) @ whole.user_bundle
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(shop(), tmp_path_factory.mktemp("models") / "model", **QUICK)


def trained(data: Any, folder: Path, name: str = "bundlemage", **settings: Any) -> Path:
    return Recommender(name, **settings).fit(data, progress=False).save(folder)


def job_of(model: Path, output: Path, **others: Any) -> ScoringJob:
    settings: dict[str, Any] = {"k": 4, "part_users": 30, "device": "cpu"}
    return ScoringJob(model, output, **(settings | others))


def answers(folder: Path) -> list[dict[str, Any]]:
    files = sorted((folder / "parts").iterdir())
    assert [file.name for file in files] == [f"part-{number:05d}.parquet" for number in range(len(files))]
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def contents(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def expected(model: Path, **asked: Any) -> list[dict[str, Any]]:
    loaded = Recommender.load(model, device="cpu")
    rows: list[dict[str, Any]] = pa.Table.from_batches(loaded.recommend_all(4, **asked)).to_pylist()
    return rows


def assert_same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    names = ("user_id", "rank", "bundle_id", "source")
    assert [[row[name] for name in names] for row in found] == [
        [row[name] for name in names] for row in wanted
    ]
    # Parts are asked in other batches than everyone at once, which may show in the last place.
    assert [row["score"] for row in found] == pytest.approx([row["score"] for row in wanted], rel=1e-5)


class TestAnswers:
    def test_they_are_those_of_recommend_all(self, any_engine: Engine, model: Path, tmp_path: Path) -> None:
        steps: list[tuple[Any, ...]] = []
        job = job_of(model, tmp_path / "answers")
        done = any_engine.recommend_all(job, lambda *step: steps.append(step))
        wanted = expected(model)
        assert done == ScoredUsers(users=80, rows=len(wanted), parts=3, kept=0)
        assert_same(answers(tmp_path / "answers"), wanted)
        popular = {row["user_id"] for row in wanted if row["source"] == "popular"}
        assert len(popular) == len(WITHOUT_HISTORY)
        counted = [step for step in steps if step[0] == "users"]
        assert [counted[0], counted[-1]] == [("users", 0, 80), ("users", 80, 80)]
        told = json.loads((tmp_path / "answers" / "answers.json").read_text())
        assert told["done"] == {"rows": len(wanted), "parts": 3}
        assert (told["k"], told["part_users"], told["users"]) == (4, 30, 80)

    @pytest.mark.parametrize("name", ["popularity", "bpr"])
    def test_models_that_know_only_users_of_training(self, name: str, tmp_path: Path) -> None:
        folder = trained(
            shop(), tmp_path / "model", name, device="cpu", **({"epochs": 1} if name == "bpr" else {})
        )
        engine().recommend_all(job_of(folder, tmp_path / "answers", part_users=7))
        assert_same(answers(tmp_path / "answers"), expected(folder))

    def test_users_of_a_layout(self, model: Path, tmp_path: Path) -> None:
        """The model's own as another file has them, and others of the same shop."""
        own = write_layout(shop(), tmp_path / "own", 13)
        engine().recommend_all(job_of(model, tmp_path / "answers", users=own.folder))
        assert_same(answers(tmp_path / "answers"), expected(model))
        turned = shop().with_interactions(
            user_item=shop().user_item[::-1], user_bundle=shop().user_bundle[::-1]
        )
        other = write_layout(turned, tmp_path / "turned", 13)
        engine().recommend_all(job_of(model, tmp_path / "others", users=other.folder))
        ids = [row["bundle_id"] for row in answers(tmp_path / "others") if row["user_id"] == turned.users[77]]
        assert ids == [row["bundle_id"] for row in expected(model) if row["user_id"] == turned.users[2]]
        bpr = trained(shop(), tmp_path / "bpr", "bpr", device="cpu", epochs=1)
        with pytest.raises(UnsupportedError, match="knows only the users it was trained on"):
            engine().recommend_all(job_of(bpr, tmp_path / "bpr answers", users=other.folder))
        engine().recommend_all(job_of(bpr, tmp_path / "bpr answers", users=own.folder))
        assert_same(answers(tmp_path / "bpr answers"), expected(bpr))
        elsewhere = write_layout(small_shop(items=91), tmp_path / "elsewhere", 13)
        with pytest.raises(ConfigError, match="the items differ"):
            engine().recommend_all(job_of(model, tmp_path / "no", users=elsewhere.folder))

    def test_an_index_is_measured_with_users_that_are_read_for_it(self, tmp_path: Path) -> None:
        pytest.importorskip("faiss", reason="faiss is not installed: pip install 'bundlemage[index]'")
        random = np.random.default_rng(0)
        many = dataset_of(
            random.integers(0, 60, (300, 6)).tolist(),
            random.integers(0, 21_000, (300, 2)).tolist(),
            random.integers(0, 60, (21_000, 3)).tolist(),
            60,
        )
        folder = trained(many, tmp_path / "model", embedding_dim=8, epochs=1, device="cpu")
        job = job_of(folder, tmp_path / "answers", least_recall=0.8, part_users=200)
        ready = make_ready(job, in_silence)
        scorer = PartScorer(ready)
        assert scorer.model._index is not None
        done = Work(ready).follow(map(scorer, range(2)), in_silence)
        assert "recall@10" in str(done.about_index)
        found, wanted = (
            {(row["user_id"], row["bundle_id"]) for row in rows}
            for rows in (answers(job.output), expected(folder))
        )
        assert len(found) == len(wanted) == 1200
        assert 0.7 * len(wanted) < len(found & wanted)
        assert json.loads((job.output / "answers.json").read_text())["least_recall"] == 0.8

    def test_those_who_measure_an_index_keep_their_numbers(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """BR looks people up by them: another number is another person."""
        some = spread(ModelUsers(model), 10, ranges=5)
        assert some.users is not None
        assert some.users.tolist() == [0, 1, 19, 20, 39, 40, 58, 59, 78, 79]
        folder = trained(shop(), tmp_path / "model", "br", device="cpu", epochs=1)
        seen: list[tuple[list[int], list[int]]] = []

        def look(self: Recommender, least_recall: float) -> str:
            found = self.shop.interactions.histories(torch.tensor([7, 3]))
            assert found.users is not None
            seen.append((found.users.tolist(), found.items.values.tolist()))
            return "measured"

        monkeypatch.setattr(scoring, "INDEX_USERS", 10)
        monkeypatch.setattr(Recommender, "use_index", look)
        engine().recommend_all(job_of(folder, tmp_path / "answers", least_recall=0.9))
        everyone = Recommender.load(folder, device="cpu").shop.everyone()
        (users, items), *_ = seen
        assert users != [7, 3]
        assert items == everyone.rows(torch.tensor(users)).items.values.tolist()

    @pytest.mark.slow
    def test_on_youshu(self, ray_cluster: None, tmp_path: Path) -> None:
        folder = trained(read(real_data("youshu/bgcn")), tmp_path / "model", epochs=1, device="cpu")
        for name in ("local", "ray"):
            engine(name).recommend_all(job_of(folder, tmp_path / name, part_users=1500))
        assert contents(tmp_path / "local") == contents(tmp_path / "ray")
        assert_same(answers(tmp_path / "ray"), expected(folder))


def engine_made(job: ScoringJob) -> Path:
    engine().recommend_all(job)
    return job.output


def cut_at(here: Path, real: Any) -> Any:
    def step(self: Path, *to: Any) -> Any:
        if self == here:
            raise KeyboardInterrupt
        return real(self, *to)

    return step


class TestGoingOn:
    def test_what_is_whole_stays_and_the_rest_is_done(
        self, any_engine: Engine, model: Path, tmp_path: Path
    ) -> None:
        """Begun on one engine and ended on any: the same bytes as without a break."""
        job = job_of(model, tmp_path / "whole", where=Filter(max_price=60), owned="show")
        engine().recommend_all(job)
        assert_same(answers(job.output), expected(model, where=job.where, owned="show"))
        folder = shutil.copytree(job.output, tmp_path / "answers")
        parts = folder / "parts"
        (parts / "part-00001.parquet").unlink()
        (parts / ".part-00001.parquet.99999999.tmp").write_bytes(b"PAR1 half of it")
        (parts / ".part-00000.parquet.1.tmp").write_bytes(b"of a process that seems to run")
        kept = (parts / "part-00000.parquet").stat().st_mtime_ns
        again = replace(job, output=folder, resume=True)
        assert any_engine.recommend_all(again).kept == 2
        assert (parts / "part-00000.parquet").stat().st_mtime_ns == kept
        assert contents(folder) == contents(job.output)
        assert any_engine.recommend_all(again).kept == 3
        assert contents(folder) == contents(job.output)

    def test_a_part_that_somebody_has_damaged_is_done_again(self, model: Path, tmp_path: Path) -> None:
        job = job_of(model, tmp_path / "answers")
        engine().recommend_all(job)
        before = contents(job.output)
        (job.output / "parts" / "part-00002.parquet").write_bytes(b"PAR1")
        assert engine().recommend_all(replace(job, resume=True)).kept == 2
        assert contents(job.output) == before

    def test_another_question_is_refused(self, any_engine: Engine, model: Path, tmp_path: Path) -> None:
        job = job_of(model, tmp_path / "answers")
        engine().recommend_all(job)
        before = contents(tmp_path / "answers")
        with pytest.raises(CheckpointError, match="holds another set of answers: k was 4 and is 5"):
            any_engine.recommend_all(replace(job, k=5, resume=True))
        with pytest.raises(CheckpointError, match="part_users was 30 and is 20"):
            any_engine.recommend_all(replace(job, part_users=20, resume=True))
        with pytest.raises(CheckpointError, match="add --resume to continue it, --overwrite"):
            any_engine.recommend_all(job)
        assert contents(tmp_path / "answers") == before

    def test_on_request_answers_are_replaced(self, model: Path, tmp_path: Path) -> None:
        job = job_of(model, tmp_path / "answers", part_users=10)
        engine().recommend_all(job)
        assert engine().recommend_all(replace(job, k=5, part_users=30, overwrite=True)).rows == 400
        assert len(answers(tmp_path / "answers")) == 400

    @pytest.mark.parametrize(
        "mistake",
        [{"k": 0}, {"least_recall": 2.0}, {"where": Filter(among=["b9999"])}, {"users": Path("nowhere")}],
    )
    def test_a_mistake_replaces_nothing(self, model: Path, tmp_path: Path, mistake: dict[str, Any]) -> None:
        job = job_of(model, tmp_path / "answers")
        engine().recommend_all(job)
        before = contents(job.output)
        with pytest.raises(BundleMageError):
            engine().recommend_all(replace(job, overwrite=True, **mistake))
        assert contents(job.output) == before

    def test_cut_off_while_answers_are_replaced(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The old ones are there until all the new ones are; and it goes on, wherever it was cut."""
        job = job_of(model, tmp_path / "answers")
        engine().recommend_all(job)
        before = contents(job.output)
        other = replace(job, k=5, overwrite=True)

        def cut(what: str, done: float, of: float, note: str = "") -> None:
            if what == "users" and done > 30:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            engine().recommend_all(other, cut)
        after = contents(job.output)
        assert {name: after[name] for name in before} == before
        again = replace(other, overwrite=False, resume=True)
        wanted = contents(engine_made(replace(job, k=5, output=tmp_path / "wanted")))
        for step, file in (("rename", "parts"), ("replace", ANSWERS)):  # the last steps are cut, too
            with monkeypatch.context() as patched:
                patched.setattr(Path, step, cut_at(job.output / NEW / file, getattr(Path, step)))
                with pytest.raises(KeyboardInterrupt):
                    engine().recommend_all(again)
            assert (job.output / NEW / ANSWERS).exists()
        assert engine().recommend_all(again).kept == 3
        assert contents(job.output) == wanted

    def test_users_that_were_replaced_meanwhile(self, model: Path, tmp_path: Path) -> None:
        write_layout(shop(), tmp_path / "users", 13)
        ready = make_ready(job_of(model, tmp_path / "answers", users=tmp_path / "users"), in_silence)
        Work(ready)
        PartScorer(ready)(0)
        turned = shop().with_interactions(
            user_item=shop().user_item[::-1], user_bundle=shop().user_bundle[::-1]
        )
        write_layout(turned, tmp_path / "users", 13, overwrite=True)
        with pytest.raises(ConfigError, match="was replaced by other data during the run"):
            PartScorer(ready)(1)

    def test_workers_that_write_elsewhere(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scoring, "SECONDS_TO_APPEAR", 0.0)
        work = Work(make_ready(job_of(model, tmp_path / "answers"), in_silence))
        elsewhere = PartScorer(replace(work.ready, folder=tmp_path / "elsewhere"))
        with pytest.raises(
            ClusterError, match=r"a worker does not see the folder .*: choose a folder on storage"
        ):
            work.follow(map(elsewhere, work.left), in_silence)
        work = Work(make_ready(job_of(model, tmp_path / "answers"), in_silence))
        (tmp_path / "elsewhere" / "parts").mkdir(parents=True)
        with pytest.raises(
            ClusterError, match=r"part-00000\.parquet, but this process does not see it: choose a folder"
        ):
            work.follow(map(elsewhere, work.left), in_silence)
        assert not (tmp_path / "answers").exists()

    def test_workers_in_another_folder(
        self, ray_cluster: None, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They were started before, in the folder of whoever started them."""
        monkeypatch.chdir(tmp_path)
        shutil.copytree(model, "model")
        write_layout(shop(), Path("users"), 13)
        job = job_of(Path("model"), Path("answers"), users=Path("users"))
        assert engine("ray").recommend_all(job).parts == 3
        assert_same(answers(tmp_path / "answers"), expected(model))

    def test_mistakes_leave_nothing(self, any_engine: Engine, model: Path, tmp_path: Path) -> None:
        job = job_of(model, tmp_path / "answers", part_users=80)
        with pytest.raises(UnknownIdError, match="unknown bundle id 'b9999'"):  # found by a worker
            any_engine.recommend_all(replace(job, where=Filter(among=["b9999"])))
        with pytest.raises(ArtifactError, match="no such folder"):
            any_engine.recommend_all(replace(job, model=tmp_path / "nowhere"))
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "diary.txt").write_text("dear diary")
        with pytest.raises(CheckpointError, match=r"holds other files, such as diary\.txt"):
            any_engine.recommend_all(replace(job, output=tmp_path, overwrite=True))

    def test_an_altered_model_is_refused(self, any_engine: Engine, model: Path, tmp_path: Path) -> None:
        folder = shutil.copytree(model, tmp_path / "model")
        file = folder / "user_item.parquet"
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        with pytest.raises(ArtifactError, match=r"user_item\.parquet was altered"):
            any_engine.recommend_all(job_of(folder, tmp_path / "answers"))

    def test_killed_in_the_middle(self, model: Path, tmp_path: Path) -> None:
        folder, whole = tmp_path / "killed", tmp_path / "whole"
        stopped("part-*.parquet", 4, "recommend-all", model, "--part-users", 1, "-o", folder)
        done = len(list((folder / "parts").glob("part-*")))
        assert done == 4
        assert "done" not in json.loads((folder / "answers.json").read_text())
        job = job_of(model, folder, k=5, part_users=1)
        assert engine().recommend_all(replace(job, resume=True)).kept == done
        engine().recommend_all(replace(job, output=whole))
        assert contents(folder) == contents(whole)


def test_one_file(any_engine: Engine, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts of a few users, which are joined here."""
    monkeypatch.setattr(scoring, "FILE_ROWS", 40)
    steps: list[tuple[Any, ...]] = []
    file = tmp_path / "answers.parquet"
    done = any_engine.recommend_all(job_of(model, file), lambda *step: steps.append(step))
    assert done.users == 80
    assert done.parts > 5
    rows = pq.read_table(file).to_pylist()
    assert done.rows == len(rows)
    assert_same(rows, expected(model))
    assert steps[-1] == ("users", 80, 80)
    assert [path.name for path in tmp_path.iterdir()] == ["answers.parquet"]


class TestCommand:
    def test_a_folder_is_named_and_told(self, model: Path, tmp_path: Path) -> None:
        folder = tmp_path / "answers"
        done = run_json("recommend-all", model, "-o", folder, "-k", 4, "--part-users", 30)
        assert done["folder"] == str(folder)
        assert (done["users"], done["parts"], done["kept"]) == (80, 3, 0)
        assert_same(answers(folder), expected(model))
        (folder / "parts" / "part-00002.parquet").unlink()
        again = ["recommend-all", model, "-o", folder, "--part-users", 30]
        assert "2 of 3 parts kept" in run(*again, "-k", 4, "--resume").stdout
        assert "k was 4 and is 3" in run(*again, "-k", 3, "--resume", code=2).stderr

    def test_what_the_index_is(self, model: Path, tmp_path: Path) -> None:
        pytest.importorskip("faiss", reason="faiss is not installed: pip install 'bundlemage[index]'")
        told = run("recommend-all", model, "-o", tmp_path / "answers", "--index").stderr
        assert "so the search stays exact" in told

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["-o", "a.parquet", "--resume"], "--resume is for a folder of files"),
            (["-o", "a.parquet", "--part-users", "9"], "--part-users is for a folder of files"),
            (["-o", "a", "--engine", "spark"], "unknown engine 'spark'"),
            (["-o", "a", "--address", "auto"], "add --engine ray"),
            (["-o", "a", "--workers", "2"], "recommending uses one process"),
            (["-o", "a", "--resume", "--overwrite"], "not both"),
            (["-o", "a", "-k", "0"], "k is 0"),
            (["-o", "a", "--least-recall", "0.9"], "add --index"),
        ],
    )
    def test_mistakes(
        self,
        model: Path,
        arguments: list[str],
        message: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert message in run("recommend-all", model, *arguments, code=2).stderr
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_process_that_dies_is_replaced(ray_cluster: None, model: Path, tmp_path: Path) -> None:
    """Killed from outside while it works: its part is done again, and everyone is there once."""
    job = job_of(model, tmp_path / "answers", part_users=1)
    killed: list[int] = []

    def kill_one(what: str, done: float, of: float, note: str = "") -> None:
        if what == "users" and done >= 10 and not killed:
            workers = [process for process in family(os.getpid()) if "ray::_Process" in command_of(process)]
            killed.append(workers[0])
            os.kill(workers[0], signal.SIGKILL)

    engine("ray").recommend_all(job, kill_one)
    assert killed
    assert_same(answers(tmp_path / "answers"), expected(model))


@pytest.mark.slow
def test_a_part_that_kills_again_and_again_is_given_up(
    ray_cluster: None, model: Path, tmp_path: Path
) -> None:
    from bundlemage.engines.ray.pool import RayWorkers, Resources

    work = Work(make_ready(job_of(model, tmp_path / "answers", part_users=80), in_silence))
    ready = _Deadly(**vars(work.ready))
    with pytest.raises(ClusterError, match=r"lost 3 times at the same piece of work: .* more memory"):
        work.follow(RayWorkers(Resources(1, 1)).each(PartScorer, ready, work.left), in_silence)


class _Deadly(Ready):
    """As one that takes more memory than there is."""

    def users_of(self, number: int) -> range:
        os._exit(1)
