"""Files and folders take their names whole, and nothing that was there is lost on the way."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bundlemage.data import folders
from bundlemage.data.folders import ResumableFolder, beside, differences, swap_in, write_whole
from bundlemage.errors import BundleMageError, CheckpointError


def folder(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "file").write_text(content)
    return path


def failing(monkeypatch: pytest.MonkeyPatch, fails: Callable[[Path, Path], bool]) -> None:
    """Some renames fail, and names cannot be swapped in one step."""
    rename = Path.rename

    def renamed(source: Path, target: Path) -> Path:
        if fails(source, Path(target)):
            raise OSError(5, "the disk is gone")
        return rename(source, target)

    monkeypatch.setattr(folders, "_exchange", lambda *_: False)
    monkeypatch.setattr(Path, "rename", renamed)


class TestSwappingFolders:
    def test_without_an_exchange_the_new_one_takes_the_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = folder(tmp_path / "model", "old")
        failing(monkeypatch, lambda *_: False)
        with beside(old) as building:
            (building / "file").write_text("new")
        assert (old / "file").read_text() == "new"
        assert [*tmp_path.iterdir()] == [old]

    def test_if_both_renames_fail_the_old_one_is_kept_and_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old, new = folder(tmp_path / "model", "old"), folder(tmp_path / "new", "new")
        failing(monkeypatch, lambda _, target: target == old)
        with pytest.raises(BundleMageError, match="the disk is gone") as told:
            swap_in(new, old)
        (kept,) = tmp_path.glob(".model.old.*/model")
        assert (kept / "file").read_text() == "old"
        assert f"It is complete in {kept}" in str(told.value)

    @pytest.mark.parametrize("which", ["old", "new"])
    def test_if_one_rename_fails_all_is_as_it_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
    ) -> None:
        old, new = folder(tmp_path / "old", "old"), folder(tmp_path / "new", "new")
        failing(monkeypatch, lambda source, _: source == tmp_path / which)
        with pytest.raises(OSError, match="the disk is gone"):
            swap_in(new, old)
        assert (old / "file").read_text() == "old"
        assert {*tmp_path.iterdir()} == {old, new}


class TestFlushing:
    @pytest.mark.parametrize("exists", [False, True])
    def test_files_are_flushed_before_the_rename_and_the_parent_after_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
    ) -> None:
        model = folder(tmp_path / "model", "old") if exists else tmp_path / "model"
        flushed: list[tuple[Path, str]] = []
        real = os.fsync

        def spy(handle: int) -> None:
            real(handle)
            file = model / "file"
            flushed.append(
                (Path(f"/proc/self/fd/{handle}").readlink(), file.read_text() if file.exists() else "")
            )

        monkeypatch.setattr("os.fsync", spy)
        with beside(model) as building:
            (building / "file").write_text("new")
            (building / "inner").mkdir()
            (building / "inner" / "deep").write_text("new")
        before = "old" if exists else ""
        assert flushed == [
            (building / "file", before),
            (building, before),
            (building / "inner" / "deep", before),
            (building / "inner", before),
            (tmp_path, "new"),
        ]


BUILDS = """
import sys
from pathlib import Path
from bundlemage.data.folders import beside

with beside(Path(sys.argv[1])) as building:
    (building / "file").write_text("new")
    print(building, flush=True)
    sys.stdin.read()
"""


@contextmanager
def building(path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process that builds `path` until its input is closed, and the folder in which it builds."""
    command = [sys.executable, "-c", BUILDS, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


class TestKilledProcesses:
    def test_the_folder_of_a_killed_process_is_removed_by_the_next_one(self, tmp_path: Path) -> None:
        with building(tmp_path / "data") as (process, left):
            process.kill()
            process.wait(60)
            assert (left / "file").exists()
        with beside(tmp_path / "data") as following:
            assert [*tmp_path.iterdir()] == [following]

    def test_the_folder_of_a_living_process_stays(self, tmp_path: Path) -> None:
        with building(tmp_path / "data") as (process, other):
            with beside(tmp_path / "data") as own:
                (own / "file").write_text("mine")
            assert (other / "file").exists()
            process.communicate(timeout=60)
        assert (tmp_path / "data" / "file").read_text() == "new"
        assert [*tmp_path.iterdir()] == [tmp_path / "data"]

    def test_folders_of_other_names_and_links_stay(self, tmp_path: Path) -> None:
        others = [
            folder(tmp_path / name, "mine")
            for name in (".data.backup_1", ".data.building.mine", ".data.old.building.abcdefgh", "elsewhere")
        ]
        (tmp_path / ".data.building.abcdefgh").symlink_to("elsewhere")
        with beside(tmp_path / "data"):
            pass
        assert all((each / "file").exists() for each in others)

    def test_where_folders_cannot_be_locked_nothing_is_removed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def cannot(*_: object) -> None:
            raise OSError(9, "not here")

        other = folder(tmp_path / ".data.building.abcdefgh", "left")
        monkeypatch.setattr("fcntl.flock", cannot)
        with beside(tmp_path / "data"):
            pass
        assert {*tmp_path.iterdir()} == {other, tmp_path / "data"}

    @pytest.mark.parametrize(("owner", "name"), [(os, "open"), (fcntl, "flock")])
    def test_a_folder_that_was_removed_before_it_was_locked_is_made_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
    ) -> None:
        taken: list[Path] = []
        real = getattr(owner, name)

        def late(*arguments: Any, **options: Any) -> Any:
            if not taken:  # another process takes it for abandoned
                taken.extend(tmp_path.glob(".data.building.*"))
                shutil.rmtree(taken[0])
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, late)
        with beside(tmp_path / "data") as own:
            (own / "file").write_text("new")
        assert own != taken[0]
        assert (tmp_path / "data" / "file").read_text() == "new"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "study.json"
    write_whole(file, b"one")
    flushed: list[int] = []
    monkeypatch.setattr("os.fsync", flushed.append)
    write_whole(file, b"two")
    assert file.read_bytes() == b"two"
    assert len(flushed) == 2, "the file, and the folder that has its name"

    def full(handle: int) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_whole(file, b"three")
    assert file.read_bytes() == b"two"
    assert [*tmp_path.iterdir()] == [file]


def test_only_what_differs_is_told() -> None:
    was = {"epochs": 7, "data": "ab12", "users": "34", "space": {"a": [1], "b": [2]}, "gone": "x", "same": 1}
    now = {"epochs": 9, "data": "cd56", "users": "78", "space": {"a": [1], "b": [3]}, "same": 1}
    assert differences(was, now, {"data", "users"}) == [
        "epochs was 7 and is 9",
        "the data is not the same",
        "the users are not the same",
        'space was {"b": [2]} and is {"b": [3]}',
        "gone was 'x' and is None",
    ]
    assert differences(now, dict(now)) == []


class Walk(ResumableFolder):
    kind = "walk"
    file = "walk.json"
    part_name = "steps/step-{:05d}.txt"
    others = ("map.txt",)
    checksums = frozenset({"path"})


class LaterWalk(Walk):
    version = 2


class Swim(Walk):
    kind = "swim"


class TestResumableFolders:
    def test_work_goes_on_with_what_is_finished(self, tmp_path: Path) -> None:
        walk = Walk(tmp_path / "walk")
        walk.check(resume=False)
        walk.begin({"to": ("sea", 3), "path": "ab12"}, plan="slowly")
        write_whole(walk.part(1), b"two")
        write_whole(walk.part(0), b"one")
        (walk.path / "steps" / ".step-00002.txt.1.tmp").write_bytes(b"thr")
        again = Walk(tmp_path / "walk")
        again.check(resume=True)
        assert again.resume({"to": ("sea", 3), "path": "ab12"}, but={"plan"})["plan"] == "slowly"
        assert [file.read_bytes() for file in again.finished_parts()] == [b"one", b"two"]
        assert len([*walk.path.rglob("*.tmp")]) == 0
        with pytest.raises(
            CheckpointError, match="holds a walk already: add --resume to continue it, or choose"
        ):
            again.check(resume=False)
        with pytest.raises(
            CheckpointError, match="add --resume to continue it, --overwrite to replace it, or"
        ):
            again.check(resume=False, overwrite=False)
        again.check(resume=False, overwrite=True)

    def test_other_work_is_refused_and_left_as_it_was(self, tmp_path: Path) -> None:
        walk = Walk(tmp_path / "walk")
        walk.begin({"to": "sea", "path": "ab12"})
        left = walk.path / "steps" / ".step-00002.txt.1.tmp"
        left.write_bytes(b"thr")
        with pytest.raises(CheckpointError, match="to was 'sea' and is 'wood'; the path is not the same"):
            walk.resume({"to": "wood", "path": "cd34"})
        for other in (LaterWalk, Swim):
            with pytest.raises(CheckpointError, match=r"holds bundlemage walk, version 1, but this program"):
                other(walk.path).check(resume=True)
            with pytest.raises(CheckpointError, match=r"holds bundlemage walk, version 1, but this program"):
                other(walk.path).resume({"to": "sea", "path": "ab12"})
        walk.file_path.write_text('{"to": "sea"}')
        with pytest.raises(CheckpointError, match="holds work of another program or version"):
            walk.check(resume=True)
        assert left.exists()

    def test_only_files_of_the_work_are_discarded(self, tmp_path: Path) -> None:
        walk = Walk(tmp_path / "walk")
        walk.begin({})
        for name in ("map.txt", ".map.txt.1.tmp", "steps/step-00000.txt"):
            (walk.path / name).write_text("mine")
        (walk.path / "steps" / "diary.txt").write_text("dear diary")
        walk.discard()
        assert [file.name for file in walk.path.rglob("*") if file.is_file()] == ["diary.txt"]
        with pytest.raises(CheckpointError, match=r"holds other files, such as diary\.txt"):
            walk.check(resume=True)
        (walk.path / "steps" / "diary.txt").unlink()
        walk.discard()
        assert not walk.path.exists()
