"""A run on disk: resumed to the very same end, and refused when it is not the same run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from bundlemage.data.splits import Split, SplitPlan
from bundlemage.errors import BundleMageError, CheckpointError
from bundlemage.models.base import Interactions, Matcher, Model, Sizes, require
from bundlemage.models.registry import build, make_config
from bundlemage.training.checkpoint import RunFolder
from bundlemage.training.history import EpochRecord, Observer
from bundlemage.training.loop import TrainingResult, train
from tests.small_shop import QUICK, small_shop

EPOCHS = 7


class Killed(BaseException):
    """The end of a process, as far as the loop can tell: nothing after it runs."""


class Killer(Observer):
    """Kills the run in the middle of an epoch, or right after one."""

    def __init__(self, epoch: int, *, during: bool = True) -> None:
        self.epoch, self.during = epoch, during
        self.finished = 0

    def on_step(self, phase: str) -> None:
        if self.during and self.finished == self.epoch - 1 and phase == "generation":
            raise Killed

    def on_epoch(self, record: EpochRecord) -> None:
        self.finished = record.epoch
        if not self.during and record.epoch == self.epoch:
            raise Killed


@pytest.fixture(scope="module")
def split() -> Split:
    return SplitPlan("paper").divide(small_shop())


def run(split: Split, folder: Path | None = None, **settings: Any) -> tuple[Model, TrainingResult]:
    options = {
        "resume": settings.pop("resume", False),
        "checkpoint_every": settings.pop("checkpoint_every", 1),
    }
    observers: Sequence[Observer] = settings.pop("observers", ())
    config = make_config("bundlemage", QUICK | {"epochs": EPOCHS, "learning_rate": 0.01} | settings)
    model = build("bundlemage", config, Sizes.of(split.dataset))
    return model, train(model, config, split, folder=folder, observers=observers, **options)


def killed(split: Split, folder: Path, epoch: int, during: bool = True, **settings: Any) -> None:
    with pytest.raises(Killed):
        run(split, folder, observers=[Killer(epoch, during=during)], **settings)


def assert_same_end(one: tuple[Model, TrainingResult], other: tuple[Model, TrainingResult]) -> None:
    first, second = one[0].state_dict(), other[0].state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    histories = [[replace(record, seconds=0) for record in result.history] for _, result in (one, other)]
    assert histories[0] == histories[1]
    assert one[1].best_epoch == other[1].best_epoch


class TestResume:
    @pytest.mark.parametrize("epoch", [2, 5])
    @pytest.mark.parametrize("during", [True, False])
    @pytest.mark.parametrize("weight_average", [0.0, 0.95])
    @pytest.mark.parametrize("every", [None, 1, 3])
    def test_a_killed_run_ends_as_one_that_was_not(
        self, split: Split, tmp_path: Path, epoch: int, during: bool, weight_average: float, every: int | None
    ) -> None:
        settings: dict[str, Any] = {"weight_average": weight_average, "checkpoint_every": every}
        killed(split, tmp_path / "run", epoch, during, **settings)
        resumed = run(split, tmp_path / "run", resume=True, **settings)
        whole = run(split, weight_average=weight_average)
        assert_same_end(resumed, whole)
        assert len(whole[1].history) == EPOCHS

    @pytest.mark.parametrize(
        "settings",
        [{"sampled_softmax": 20}, {"schedule": "cosine"}, {"pairs_per_bundle": 1}, {"masking": "row"}],
    )
    def test_every_way_of_learning_resumes(
        self, split: Split, tmp_path: Path, settings: dict[str, Any]
    ) -> None:
        killed(split, tmp_path / "run", 4, **settings)
        assert_same_end(run(split, tmp_path / "run", resume=True, **settings), run(split, **settings))

    def test_a_run_may_be_killed_again_and_again(self, split: Split, tmp_path: Path) -> None:
        for epoch in (2, 3, 6):
            killed(split, tmp_path / "run", epoch, resume=True)
        assert_same_end(run(split, tmp_path / "run", resume=True), run(split))

    @pytest.mark.parametrize("protocol", ["none", "full", "cold-bundles"])
    def test_other_protocols_resume_too(self, tmp_path: Path, protocol: str) -> None:
        split = SplitPlan(protocol).divide(small_shop())
        killed(split, tmp_path / "run", 4)
        assert_same_end(run(split, tmp_path / "run", resume=True), run(split))

    def test_resuming_goes_on_from_the_last_epoch_and_does_not_start_over(
        self, split: Split, tmp_path: Path
    ) -> None:
        killed(split, tmp_path / "run", 4)
        done: list[int] = []
        fresh: list[int] = []

        class Listener(Observer):
            def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
                fresh.append(len(done))

            def on_epoch(self, record: EpochRecord) -> None:
                done.append(record.epoch)

        run(split, tmp_path / "run", resume=True, observers=[Listener()])
        assert fresh == [3]
        assert done == [4, 5, 6, 7]

    def test_a_finished_run_is_finished(self, split: Split, tmp_path: Path) -> None:
        whole = run(split, tmp_path / "run")
        assert_same_end(run(split, tmp_path / "run", resume=True), whole)

    def test_more_epochs_go_on_where_fewer_ended(self, split: Split, tmp_path: Path) -> None:
        run(split, tmp_path / "run", epochs=4)
        assert_same_end(run(split, tmp_path / "run", resume=True), run(split))

    def test_under_a_schedule_the_number_of_epochs_is_part_of_the_run(
        self, split: Split, tmp_path: Path
    ) -> None:
        killed(split, tmp_path / "run", 3, schedule="cosine")
        with pytest.raises(CheckpointError, match="epochs was 7 and is 9"):
            run(split, tmp_path / "run", resume=True, schedule="cosine", epochs=9)

    def test_patience_counts_across_the_break(
        self, split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        value = {"value": 0.5}

        def constant(*_: object) -> dict[str, torch.Tensor]:
            return {"ndcg@5": torch.tensor([value["value"]])}

        monkeypatch.setattr("bundlemage.training.validation.MatchingEvaluator.metrics", constant)
        settings: dict[str, Any] = {"patience": 4, "select_by": "matching"}
        killed(split, tmp_path / "run", 3, **settings)
        _, result = run(split, tmp_path / "run", resume=True, **settings)
        assert (len(result.history), result.best_epoch) == (5, 1)

    def test_without_resume_a_run_starts_over(self, split: Split, tmp_path: Path) -> None:
        run(split, tmp_path / "run", seed=1)
        assert_same_end(run(split, tmp_path / "run"), run(split))

    def test_resume_without_a_run_starts_one(self, split: Split, tmp_path: Path) -> None:
        assert_same_end(run(split, tmp_path / "run", resume=True), run(split))

    def test_an_interrupted_run_can_be_resumed(self, split: Split, tmp_path: Path) -> None:
        class CtrlC(Killer):
            def on_step(self, phase: str) -> None:
                if self.finished == 2:
                    raise KeyboardInterrupt

        _, result = run(split, tmp_path / "run", observers=[CtrlC(3)])
        assert result.interrupted
        assert_same_end(run(split, tmp_path / "run", resume=True), run(split))

    def test_resume_without_a_folder_is_refused(self, split: Split) -> None:
        with pytest.raises(BundleMageError, match="folder"):
            run(split, None, resume=True)


class TestRefusal:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("embedding_dim", 32),
            ("learning_rate", 0.5),
            ("seed", 9),
            ("mask_items", 0.1),
            ("tasks", "matching"),
        ],
    )
    def test_other_settings_are_refused_by_name(
        self, split: Split, tmp_path: Path, name: str, value: Any
    ) -> None:
        killed(split, tmp_path / "run", 3)
        with pytest.raises(CheckpointError, match=name) as error:
            run(split, tmp_path / "run", resume=True, **{name: value})
        assert repr(value) in str(error.value)

    @pytest.mark.parametrize(
        ("other", "named"),
        [
            (SplitPlan("paper", seed=1).divide(small_shop()), "the training data is not the same"),
            (SplitPlan("full").divide(small_shop()), "protocol"),
            (SplitPlan("paper").divide(small_shop(seed=5)), "the training data is not the same"),
        ],
        ids=["seed", "protocol", "shop"],
    )
    def test_other_data_is_refused_by_name(
        self, split: Split, tmp_path: Path, other: Split, named: str
    ) -> None:
        killed(split, tmp_path / "run", 3)
        with pytest.raises(CheckpointError, match=named):
            run(other, tmp_path / "run", resume=True)

    def test_other_validation_cases_are_refused(self, split: Split, tmp_path: Path) -> None:
        killed(split, tmp_path / "run", 3)
        other = SplitPlan("paper", negatives=5).divide(small_shop())
        with pytest.raises(CheckpointError):
            run(other, tmp_path / "run", resume=True)

    def test_a_refused_run_is_left_as_it_was(self, split: Split, tmp_path: Path) -> None:
        killed(split, tmp_path / "run", 3)
        before = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}
        with pytest.raises(CheckpointError):
            run(split, tmp_path / "run", resume=True, seed=9)
        assert {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()} == before


class TestDamage:
    @pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
    @pytest.mark.parametrize("name", ["last.safetensors", "best-*.safetensors"])
    def test_a_cut_file_is_an_error_that_names_it(
        self, split: Split, tmp_path: Path, name: str, share: float
    ) -> None:
        killed(split, tmp_path / "run", 4)
        (file,) = (tmp_path / "run").glob(name)
        content = file.read_bytes()
        file.write_bytes(content[: int(len(content) * share)])
        with pytest.raises(CheckpointError, match=file.name):
            run(split, tmp_path / "run", resume=True)

    def test_what_another_version_wrote_is_an_error_that_names_it(self, split: Split, tmp_path: Path) -> None:
        killed(split, tmp_path / "run", 3)
        last = tmp_path / "run" / "last.safetensors"
        with safe_open(last, framework="pt") as file:
            metadata = file.metadata()
            tensors = {name.replace(".mean", ".exp_avg"): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        save_file(tensors, last, metadata=metadata)
        with pytest.raises(CheckpointError, match=r"run does not fit the model.*no 0\.exp_avg"):
            run(split, tmp_path / "run", resume=True)

    @pytest.mark.parametrize("name", ["run.json", "best-*.safetensors"])
    def test_a_missing_file_is_an_error_that_names_it(self, split: Split, tmp_path: Path, name: str) -> None:
        killed(split, tmp_path / "run", 4)
        (file,) = (tmp_path / "run").glob(name)
        file.unlink()
        with pytest.raises(CheckpointError, match=file.name):
            run(split, tmp_path / "run", resume=True)

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe"])
    def test_a_damaged_identity_is_an_error_that_names_it(
        self, split: Split, tmp_path: Path, content: bytes
    ) -> None:
        killed(split, tmp_path / "run", 4)
        (tmp_path / "run" / "run.json").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"run\.json"):
            run(split, tmp_path / "run", resume=True)


class TestFiles:
    def test_a_run_holds_its_identity_history_the_last_and_the_best_and_nothing_else(
        self, split: Split, tmp_path: Path
    ) -> None:
        _, result = run(split, tmp_path / "run")
        names = {file.name for file in (tmp_path / "run").iterdir()}
        best = f"best-{result.best_epoch:06d}.safetensors"
        assert names == {"run.json", "history.jsonl", "last.safetensors", best}
        lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
        assert tuple(map(EpochRecord.from_line, lines)) == result.history
        assert json.loads((tmp_path / "run" / "run.json").read_text())["embedding_dim"] == 16

    def test_rare_checkpoints_are_rare(self, split: Split, tmp_path: Path) -> None:
        killed(split, tmp_path / "run", 3, checkpoint_every=3)
        assert not (tmp_path / "run" / "last.safetensors").exists()
        killed(split, tmp_path / "run", 4, checkpoint_every=3)
        assert (tmp_path / "run" / "last.safetensors").exists()

    def test_a_write_that_fails_leaves_the_last_checkpoint_whole(
        self, split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        killed(split, tmp_path / "run", 4)
        with monkeypatch.context() as patch:

            def cut(tensors: object, path: Path, metadata: object = None) -> None:
                Path(path).write_bytes(b"half a fi")
                raise OSError("no space left on device")

            patch.setattr("bundlemage.training.checkpoint.save_file", cut)
            with pytest.raises(OSError, match="no space"):
                run(split, tmp_path / "run", resume=True)
        assert_same_end(run(split, tmp_path / "run", resume=True), run(split))

    @pytest.mark.parametrize("resume", [False, True])
    def test_a_folder_with_other_files_loses_none_of_them(
        self, split: Split, tmp_path: Path, resume: bool
    ) -> None:
        (tmp_path / "thesis.txt").write_text("three years of work")
        with suppress(BundleMageError):  # to refuse is fine too
            run(split, tmp_path, epochs=1, resume=resume)
        assert (tmp_path / "thesis.txt").exists()

    def test_training_on_the_data_of_a_run_needs_no_folder(self, split: Split) -> None:
        model, _ = run(split, None, epochs=1)
        data = Interactions.of(split.train, torch.device("cpu"))
        assert (
            require(model, Matcher).score_bundles(data.histories(torch.arange(2)), data.bundle_item).shape[0]
            == 2
        )


def test_what_a_kill_left_half_written_goes_with_the_run_and_nothing_else(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.begin({"model": "bpr"})
    for name in (
        ".run.json.1.tmp",
        ".history.jsonl.1.tmp",
        ".last.safetensors.1.tmp",
        ".best-000003.safetensors.1.tmp",
    ):
        (folder.path / name).write_bytes(b"half")
    (folder.path / "notes.txt").write_text("mine")
    folder.discard()
    assert [file.name for file in folder.path.iterdir()] == ["notes.txt"]
    with pytest.raises(CheckpointError, match="holds other files"):
        folder.begin({"model": "bpr"})
