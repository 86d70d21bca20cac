"""Training by two processes gives what one process gives, on either engine, tables laid out either way.

Sums are added up in another order, and Adam makes a step of its full size even where a slope is nearly zero,
so that weights differ by more than rounding: losses are held to 1e-4 of their size, scores to 1e-2.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
import torch

from benchmarks.scoring import command_of, family
from bundlemage import Recommender
from bundlemage.data.shards import write_layout
from bundlemage.data.splits import Split, SplitPlan
from bundlemage.engines.base import Engine, engine
from bundlemage.engines.training import TrainingJob
from bundlemage.errors import CheckpointError, ClusterError, ConfigError, DataError, UnsupportedError
from bundlemage.models.base import Completer, Interactions, Matcher, require
from bundlemage.readers.load import read
from bundlemage.recipe import Recipe
from bundlemage.training.checkpoint import RunFolder
from bundlemage.training.history import EpochRecord, Observer
from tests.leaking_shop import leaking_shop, uneven_shop
from tests.waiting import wait_until

SETTINGS = {"epochs": 5, "batch_size": 300, "embedding_dim": 32, "seed": 3, "device": "cpu"}
RECIPE = Recipe("bundlemage", SETTINGS)


@pytest.fixture(scope="module")
def split() -> Split:
    return SplitPlan().divide(read("sample").dataset)


@pytest.fixture(scope="module")
def one_process(split: Split) -> Recommender:
    return RECIPE.recommender().fit(split, progress=False)


@pytest.fixture(scope="module")
def layout(split: Split, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layout") / "sample"
    write_layout(split.dataset, folder, shard_rows=150)
    return folder


def trained(by: Engine, job: TrainingJob, split: Split, observers: tuple[Observer, ...] = ()) -> Recommender:
    vars(job)["split"] = split  # as if this process had read it
    return by.train(job, observers)


def scores(recommender: Recommender, split: Split) -> tuple[torch.Tensor, torch.Tensor]:
    """Of all bundles and all items, for the first hundred users."""
    data = Interactions.of(split.train, torch.device("cpu"))
    people = data.histories(torch.arange(100))
    with torch.inference_mode():
        items = require(recommender.model, Completer).score_items(
            people, data.bundle_item.rows(torch.arange(100)), data.bundle_item
        )
        return require(recommender.model, Matcher).score_bundles(people, data.bundle_item), items


def assert_same(found: Recommender, expected: Recommender, split: Split) -> None:
    assert len(found.history) == len(expected.history) > 0
    for mine, theirs in zip(found.history, expected.history, strict=True):
        assert mine.losses == pytest.approx(dict(theirs.losses), rel=1e-4)
        assert mine.validation == pytest.approx(dict(theirs.validation), abs=2e-3)
    for score, wanted in zip(scores(found, split), scores(expected, split), strict=True):
        torch.testing.assert_close(score, wanted, rtol=0, atol=1e-2 * float(wanted.std()))


class Seen(Observer):
    """What is seen of training from outside."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.ended = 0

    def on_epoch(self, record: EpochRecord) -> None:
        self.epochs.append(record.epoch)

    def on_end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize(
    ("where", "item_tables"),
    [
        ("local", "replicated"),
        ("local", "sharded"),
        # On Ray, `make test` trains once, sharded: the run below whose worker is killed.
        pytest.param("ray", "replicated", marks=pytest.mark.slow),
        pytest.param("ray", "sharded", marks=pytest.mark.slow),
    ],
)
def test_two_processes_learn_what_one_learns(
    where: str,
    item_tables: str,
    request: pytest.FixtureRequest,
    split: Split,
    one_process: Recommender,
    tmp_path: Path,
    layout: Path,
) -> None:
    if where == "ray":
        request.getfixturevalue("ray_cluster")
    # From a layout each process reads, of users' items, its own part alone.
    job = TrainingJob(str(layout), RECIPE, tmp_path / "run", item_tables=item_tables)
    seen = Seen()
    found = trained(engine(where, workers=2), job, split, (seen,))
    assert seen.epochs == [record.epoch for record in found.history]
    assert seen.ended == 1
    assert found.training is not None
    assert found.training.device == "2 × cpu"
    assert_same(found, one_process, split)


@pytest.mark.parametrize("item_tables", ["replicated", "sharded"])
def test_processes_agree_on_histories_that_give_answers_away(item_tables: str, tmp_path: Path) -> None:
    """A process that has half of the items rarely sees that a user has all eight items of a bundle."""
    split = SplitPlan().divide(leaking_shop(users=110, size=8))
    assert split.histories == "without held-out"
    write_layout(split.dataset, tmp_path / "layout", shard_rows=40)
    recipe = RECIPE.changed({"epochs": 2, "batch_size": 40}, {})
    job = TrainingJob(str(tmp_path / "layout"), recipe, tmp_path / "run", item_tables=item_tables)
    found = engine("local", workers=2).train(job)
    assert found.plan == SplitPlan()
    assert_same(found, recipe.recommender().fit(split, progress=False), split)
    # One process continues the run, so the training data has the same fingerprint.
    alone = engine("local").train(replace(job, resume=True, item_tables="auto"))
    assert alone.history == found.history


@pytest.mark.parametrize("item_tables", ["replicated", "sharded"])
@pytest.mark.parametrize("protocol", ["paper", "time"])
def test_processes_agree_on_weights_and_times(item_tables: str, protocol: str, tmp_path: Path) -> None:
    shop = uneven_shop()
    split = SplitPlan(protocol).divide(shop)
    write_layout(shop, tmp_path / "layout", shard_rows=40)
    recipe = RECIPE.changed({"epochs": 2, "batch_size": 40, "half_life": 30.0}, {"protocol": protocol})
    job = TrainingJob(str(tmp_path / "layout"), recipe, tmp_path / "run", item_tables=item_tables)
    found = engine("local", workers=2).train(job)
    assert_same(found, recipe.recommender().fit(split, progress=False), split)
    # One process continues the run, so the training data has the same fingerprint.
    alone = engine("local").train(replace(job, resume=True, item_tables="auto"))
    assert alone.history == found.history


def test_two_processes_train_the_members_of_an_ensemble_one_after_another(
    split: Split, tmp_path: Path, layout: Path
) -> None:
    recipe = replace(RECIPE, ensemble=2)
    job = TrainingJob(str(layout), recipe, tmp_path / "run")
    seen = Seen()
    found = trained(engine("local", workers=2), job, split, (seen,))
    assert seen.epochs == [1, 2, 3, 4, 5] * 2
    assert sorted(path.name for path in job.folder.iterdir()) == ["member-1", "member-2"]
    assert_same(found, recipe.recommender().fit(split, progress=False), split)


def test_a_run_goes_on_with_another_number_of_processes(
    split: Split, one_process: Recommender, tmp_path: Path
) -> None:
    """Files hold whole tables: begun by one process, gone on with by two that shard, ended by two that do
    not."""
    folder = tmp_path / "run"
    two = engine("local", workers=2)
    begun = RECIPE.changed({"epochs": 1}, {})
    begun.recommender().fit(split, progress=False, folder=folder, checkpoint_every=1)
    for epochs, item_tables in ((3, "sharded"), (5, "replicated")):
        recipe = RECIPE.changed({"epochs": epochs}, {})
        job = TrainingJob("sample", recipe, folder, resume=True, item_tables=item_tables)
        found = trained(two, job, split)
    assert_same(found, one_process, split)


class KillsOnce(Observer):
    """Kills one of Ray's workers, with a signal that nobody can catch, after some epochs."""

    def __init__(self, after: int) -> None:
        self.after, self.killed, self.starts = after, 0, 0

    def on_start(self, **_: Any) -> None:
        self.starts += 1

    def on_epoch(self, record: EpochRecord) -> None:
        if record.epoch >= self.after and not self.killed:
            self.killed = _a_worker()
            os.kill(self.killed, signal.SIGKILL)


def _a_worker() -> int:
    """A process that trains, by the name that Ray gives it."""
    workers: list[int] = []

    def look() -> bool:
        for entry in Path("/proc").iterdir():
            try:
                name = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
            except OSError:
                continue
            if b"RayTrainWorker" in name:
                workers.append(int(entry.name))
        return bool(workers)

    wait_until(look, "a process of Ray Train")
    return workers[0]


def test_a_worker_that_is_killed_is_replaced(
    ray_cluster: None, split: Split, one_process: Recommender, tmp_path: Path
) -> None:
    recipe = RECIPE.changed({"epochs": 12}, {})
    whole = recipe.recommender().fit(split, progress=False)
    killer = KillsOnce(after=4)
    job = TrainingJob("sample", recipe, tmp_path / "run", checkpoint_every=1, item_tables="sharded")
    found = trained(engine("ray", workers=2), job, split, (killer,))
    assert killer.killed
    assert killer.starts == 2
    # The very same run, as if nobody had been killed; much closer than seeds are to each other.
    mine, theirs = (model.history[-1].validation["ndcg@5"] for model in (found, whole))
    assert mine == pytest.approx(theirs, abs=5e-3)
    last = [model.history[-1].losses for model in (found, whole)]
    assert last[0] == pytest.approx(dict(last[1]), rel=2e-3)
    assert [record.epoch for record in found.history] == [*range(1, len(whole.history) + 1)]


def test_a_worker_that_dies_whenever_it_starts_is_not_replaced_without_end(
    ray_cluster: None, split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bundlemage.engines.ray import training

    assert training.REPLACED_AT_MOST == 3
    monkeypatch.setattr(training, "REPLACED_AT_MOST", 1)  # each start takes seconds
    killed: set[int] = set()
    over = threading.Event()

    def kill_each() -> None:
        """Kills each worker as soon as it has a name. Without a limit, training would end well after five."""
        while not over.wait(0.01) and len(killed) < 5:
            for process in set(family(os.getpid())) - killed:
                if "RayTrainWorker" in command_of(process):
                    killed.add(process)
                    os.kill(process, signal.SIGKILL)

    killer = threading.Thread(target=kill_each)
    killer.start()
    job = TrainingJob("sample", RECIPE.changed({"epochs": 1}, {}), tmp_path / "run")
    try:
        with pytest.raises(ClusterError, match=r"failed 2 times .* replaced at most 1 times\. --resume"):
            trained(engine("ray", workers=1), job, split)
    finally:
        over.set()
        killer.join()
    assert len(killed) == 2
    assert not (tmp_path / "run.ray").exists()


def test_a_local_process_that_is_killed_ends_training_with_a_word_and_can_be_resumed(
    split: Split, one_process: Recommender, tmp_path: Path
) -> None:
    class Kills(Observer):
        def on_epoch(self, record: EpochRecord) -> None:
            import multiprocessing

            if record.epoch == 2:
                first = next(child for child in multiprocessing.active_children() if child.daemon)
                os.kill(first.pid or 0, signal.SIGKILL)

    job = TrainingJob(
        "sample", RECIPE.changed({"epochs": 400, "patience": 400}, {}), tmp_path / "run", checkpoint_every=1
    )
    two = engine("local", workers=2)
    with pytest.raises(ClusterError, match=r"died \(SIGKILL\); --resume continues"):
        trained(two, job, split, (Kills(),))
    job = replace(job, recipe=RECIPE.changed({"patience": 400}, {}), resume=True)
    assert_same(trained(two, job, split), one_process, split)


def test_what_cannot_be_divided_says_so_before_anything_starts(split: Split, tmp_path: Path) -> None:
    for recipe, words in (
        (Recipe("bpr", {"epochs": 1}), "cannot be trained by several processes"),
        (RECIPE.changed({"sampled_softmax": 50}, {}), "sampled_softmax"),
    ):
        with pytest.raises(UnsupportedError, match=words):
            trained(engine("local", workers=2), TrainingJob("sample", recipe, tmp_path / "run"), split)


@pytest.mark.slow
def test_what_workers_cannot_do_is_told_at_once(ray_cluster: None, split: Split, tmp_path: Path) -> None:
    """The data is not where the workers look for it; new ones would not find it either."""
    job = TrainingJob("nowhere", RECIPE, tmp_path / "run")
    with pytest.raises(DataError, match="there is no such file or folder"):
        trained(engine("ray", workers=2), job, split)


def test_other_settings_are_refused_on_resume(split: Split, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    RECIPE.changed({"epochs": 1}, {}).recommender().fit(split, progress=False, folder=folder)
    other = RECIPE.changed({"embedding_dim": 16}, {})
    with pytest.raises(CheckpointError, match="embedding_dim was 32 and is 16"):
        trained(engine("local", workers=2), TrainingJob("sample", other, folder, resume=True), split)


class FailsInOne(Recipe):
    """As where shared storage is missing on one machine."""

    def plan(self) -> SplitPlan:
        if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
            raise ConfigError("only here")
        return super().plan()


def test_the_error_of_any_process_is_told(split: Split, tmp_path: Path) -> None:
    job = TrainingJob("sample", FailsInOne("bundlemage", SETTINGS), tmp_path / "run")
    with pytest.raises(ConfigError, match="only here"):
        trained(engine("local", workers=2), job, split)


def test_ctrl_c_keeps_the_best_model_so_far(split: Split, tmp_path: Path) -> None:
    class Interrupts(Observer):
        def on_epoch(self, record: EpochRecord) -> None:
            if record.epoch == 3:
                raise KeyboardInterrupt

    recipe = RECIPE.changed({"epochs": 400, "patience": 400}, {})
    job = TrainingJob("sample", recipe, tmp_path / "run", checkpoint_every=1)
    found = trained(engine("local", workers=2), job, split, (Interrupts(),))
    assert found.training is not None
    assert found.training.interrupted
    assert 3 <= len(found.history) < 400


def test_more_workers_than_there_is_room_for_are_refused(
    ray_cluster: None, split: Split, tmp_path: Path
) -> None:
    with pytest.raises(ClusterError, match=r"3 workers need a processor each.*room for 2"):
        trained(engine("ray", workers=3), TrainingJob("sample", RECIPE, tmp_path / "run"), split)


def test_item_tables_are_for_several_processes() -> None:
    with pytest.raises(ConfigError, match="add --workers"):
        engine().check(TrainingJob("nowhere", RECIPE, Path("run"), item_tables="sharded"))


def test_several_processes_need_a_checkpoint() -> None:
    with pytest.raises(ConfigError, match="leave --checkpoint-every out"):
        engine(workers=2).check(TrainingJob("nowhere", RECIPE, Path("run"), checkpoint_every=0))


def test_what_was_read_for_training_does_not_travel(split: Split, tmp_path: Path) -> None:
    job = TrainingJob("sample", RECIPE, tmp_path / "run")
    assert job.split.train.fingerprint() == split.train.fingerprint()
    assert len(pickle.dumps(job)) < 1000
    assert pickle.loads(pickle.dumps(job)) == job


def test_processes_end_with_the_command_that_started_them(tmp_path: Path) -> None:
    """`kill -9` of the command, and no process of it trains on beside whoever resumes it."""
    train = [sys.executable, "-m", "bundlemage", "train", "sample", "-o", str(tmp_path / "model")]
    endless = ["--epochs", "9000", "--set", "patience=9000", "--set", "embedding_dim=8"]
    every = ["--checkpoint-every", "1", "--device", "cpu", "--workers", "2"]
    command = subprocess.Popen([*train, *endless, *every], stdout=PIPE, stderr=PIPE)
    folder = RunFolder(tmp_path / "model.checkpoints")
    wait_until(lambda: folder.holds_progress() or command.poll() is not None, "a checkpoint")
    assert command.poll() is None
    children = _children(command.pid)
    assert len(children) >= 2
    command.kill()
    command.communicate()
    wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children), "the end of all")


def _children(parent: int) -> list[str]:
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [*found, *(below for child in found for below in _children(int(child)))]
