"""Files and folders that survive a kill at any moment.

A file or folder is written under a temporary name and renamed at the end, so it is complete or absent. A
`ResumableFolder` holds long work in parts: after a kill, the work continues with the parts that are missing.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from bundlemage.errors import BundleMageError, CheckpointError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Yield an empty folder to build in. It becomes `path` at the end, or is removed after an error.

    Folders that killed processes left when they built the same path are removed first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    building, lock = locked_folder(path.parent, f".{path.name}.building.")
    building.chmod(0o755)
    try:
        yield building
        swap_in(building, path)
    finally:
        shutil.rmtree(building, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def locked_folder(parent: Path, prefix: str) -> tuple[Path, int | None]:
    """Make a new folder. Its descriptor is locked until it is closed or the process ends.

    Returns no descriptor if the system cannot lock a folder. Folders of this prefix that killed processes
    left are removed first.
    """
    _remove_abandoned(parent, prefix)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        if fcntl is None:
            return folder, None
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue  # another process took it for abandoned, because it was not locked yet
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:  # such as NFS
            os.close(lock)
            return folder, None
        if folder.exists():
            return folder, lock
        os.close(lock)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the folders of this prefix that no living process has locked."""
    for folder in parent.glob(f"{glob.escape(prefix)}{'[a-z0-9_]' * 8}"):  # as mkdtemp names them
        if fcntl is None:
            return
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # it is gone already, or it is not a folder of this user
            continue
        with suppress(OSError):  # a living process has locked it, or folders cannot be locked here
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def swap_in(building: Path, path: Path) -> None:
    """Give the folder `building` the name `path`. If `path` exists, that folder is replaced.

    All files and both names are flushed to the disk, so that a power cut leaves the old or the new folder.
    """
    for folder, _, files in os.walk(building):
        for name in (*files, ""):
            _flush(Path(folder, name))
    _rename(building, path)
    _flush(path.parent)


def _rename(building: Path, path: Path) -> None:
    if not path.exists():
        building.rename(path)
        return
    if _exchange(building, path):
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    try:
        path.rename(old / path.name)
        building.rename(path)
    except BaseException:
        kept = old / path.name
        try:
            if kept.exists():
                kept.rename(path)
        except OSError as error:  # the old folder stays where it is, as there is no other copy
            raise BundleMageError(
                f"{path} could not be replaced, and the old folder could not get its name back "
                f"({error.strerror}). It is complete in {kept}: rename it to {path}"
            ) from error
        old.rmdir()
        raise
    shutil.rmtree(old)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step, so that both exist at every moment; False if the system cannot do this."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # not Linux, or an old version of it
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield the name of a temporary file. At the end it replaces `path`; after an error it is removed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        into_place(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file. A kill leaves the old content or the new one, never a part of it."""
    with whole_file(path) as temporary:
        temporary.write_bytes(content)


def into_place(temporary: Path, path: Path) -> None:
    """Flush a file to the disk and rename it, so that a power cut leaves the old or the new file."""
    _flush(temporary)
    temporary.replace(path)
    _flush(path.parent)


def _flush(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    windows = sys.platform == "win32"  # it flushes only files that are open for writing, and no folders
    if windows and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def json_bytes(value: Any) -> bytes:
    """JSON as this package writes it to files."""
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()


HOLDS = "holds"
"""A key in the JSON file of a resumable folder. Its value names the kind of work and the version."""


class ResumableFolder:
    """A folder for work that may be killed at any moment and continued later.

    Its JSON file is written first. It holds the work's identity: everything its results depend on, such as
    settings and checksums of the data. Every other file is written whole, so a part that exists is finished.
    A subclass sets the class attributes for its kind of work.
    """

    kind: ClassVar[str]
    """The kind of work in one or two words, such as `campaign`."""
    version: ClassVar[int] = 1
    """The version of the file format. Work of another version cannot be continued."""
    file: ClassVar[str]
    """The name of the JSON file."""
    part_name: str | None = None
    """The path of a part, such as `parts/part-{:05d}.parquet`; None if the work has no numbered parts."""
    others: ClassVar[tuple[str, ...]] = ()
    """Patterns of the further files that belong to the work."""
    checksums: ClassVar[frozenset[str]] = frozenset()
    """Keys of the identity whose values are checksums, which messages do not show."""
    anew: ClassVar[str] = "start again in another folder"
    """The advice in an error message if the work cannot be continued."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def begun(self) -> bool:
        """Whether the folder holds work, finished or not."""
        return self.file_path.exists()

    @property
    def file_path(self) -> Path:
        """The path of the JSON file, which may not exist yet."""
        return self.path / self.file

    def check(self, *, resume: bool, overwrite: bool | None = None) -> None:
        """Raise `CheckpointError` if the work must not use this folder. Call this before the work begins.

        `resume` or `overwrite` allows a folder that holds such work already. `overwrite` is None if this kind
        of work cannot be overwritten. A folder with other files is always refused.
        """
        if self.path.exists() and not self.path.is_dir():
            raise CheckpointError(f"{self.path} is a file; name a folder for the {self.kind}")
        if self.begun:
            self.stored()
            if not (resume or overwrite):
                replace = "" if overwrite is None else "--overwrite to replace it, "
                raise CheckpointError(
                    f"{self.path} holds a {self.kind} already: add --resume to continue it, {replace}or "
                    "choose another folder"
                )
            return
        leftovers = {*self._files(temporary=True)}
        for file in self.path.rglob("*"):
            if file.is_file() and file not in leftovers:
                raise CheckpointError(
                    f"{self.path} holds other files, such as {file.name}; choose a new folder for the "
                    f"{self.kind}"
                )

    def begin(self, identity: Mapping[str, Any], **more: Any) -> None:
        """Create the folder and write its JSON file, which holds the identity and the values in `more`."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self.part_name is not None:
            self.part(0).parent.mkdir(exist_ok=True)
        self.tidy()
        write_whole(self.file_path, json_bytes({HOLDS: self._holds, **identity, **more}))

    def resume(self, identity: Mapping[str, Any], but: Container[str] = ()) -> dict[str, Any]:
        """Continue the work, and return the content of its JSON file.

        Raises `CheckpointError`, and changes nothing, if the folder holds another kind of work, or work that
        began with another identity. Keys in `but` may differ.
        """
        if different := self.differences(identity, but):
            raise CheckpointError(
                f"{self.path} holds another {self.kind}: {'; '.join(different)}. Continue with the same "
                f"settings and data, or {self.anew}"
            )
        self.tidy()
        return self.stored()

    def differences(self, identity: Mapping[str, Any], but: Container[str] = ()) -> list[str]:
        """How the stored identity differs from `identity`, in words; keys in `but` are left out."""
        stored_form = json.loads(json_bytes(identity))  # tuples become lists
        was, now = (
            {key: value for key, value in side.items() if key != HOLDS and key not in but}
            for side in (self.stored(), stored_form)
        )
        return differences(was, now, self.checksums)

    def stored(self) -> dict[str, Any]:
        """The content of the JSON file. Raises `CheckpointError` if it is of another kind or version."""
        content = self.read(self.file_path)
        if content.get(HOLDS) != self._holds:
            raise CheckpointError(
                f"{self.path} holds {content.get(HOLDS, 'work of another program or version')}, but this "
                f"program can only continue a {self._holds}; {self.anew}"
            )
        return content

    def part(self, number: int) -> Path:
        """The path of a part, which may not exist yet."""
        assert self.part_name is not None
        return self.path / self.part_name.format(number)

    def finished_parts(self) -> list[Path]:
        """The parts that are finished, in order."""
        return sorted(self.path.glob(_pattern(self.part_name))) if self.part_name else []

    def read(self, file: Path) -> dict[str, Any]:
        """The content of a JSON file in the folder. Raises `CheckpointError` if it is missing or damaged."""
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise self.damaged(file, error) from None
        if not isinstance(content, dict):
            raise self.damaged(file, "not an object")
        return content

    def damaged(self, file: Path, reason: object) -> CheckpointError:
        """The error to raise if a file of the work cannot be used."""
        return CheckpointError(f"cannot resume: {file} is missing or damaged ({reason}); {self.anew}")

    def tidy(self) -> None:
        """Remove the unfinished files that a kill has left."""
        for file in self._files(temporary=True):
            file.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove all files of the work, its JSON file last, and the folders that are empty then."""
        self.tidy()
        for file in self._files():
            file.unlink(missing_ok=True)
        folders = {(self.path / pattern).parent for pattern in self._patterns()}
        for folder in sorted(folders, reverse=True):  # the inner ones first
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    @property
    def _holds(self) -> str:
        return f"bundlemage {self.kind}, version {self.version}"

    def _patterns(self) -> list[str]:
        parts = [] if self.part_name is None else [_pattern(self.part_name)]
        return [*parts, *self.others, self.file]

    def _files(self, *, temporary: bool = False) -> list[Path]:
        """The finished files of the work, or the temporary files that are not finished."""
        files: list[Path] = []
        for pattern in self._patterns():
            folder, _, name = pattern.rpartition("/")
            files += (self.path / folder).glob(f".{name}.*.tmp" if temporary else name)
        return files


def _pattern(part_name: str) -> str:
    return part_name.replace("{:05d}", "*")


def differences(was: Mapping[str, Any], now: Mapping[str, Any], checksums: Container[str] = ()) -> list[str]:
    """How two identities differ, a sentence for each key. The values of `checksums` are not shown."""
    sentences = []
    for key in {**now, **was}:
        before, after = was.get(key), now.get(key)
        if before == after:
            continue
        if key in checksums:
            sentences.append(f"the {key} {'are' if key.endswith('s') else 'is'} not the same")
        elif isinstance(before, Mapping) and isinstance(after, Mapping):
            # Show only the entries that differ.
            names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
            sides = [{name: side[name] for name in names if name in side} for side in (before, after)]
            sentences.append(f"{key} was {json.dumps(sides[0])} and is {json.dumps(sides[1])}")
        else:
            sentences.append(f"{key} was {before!r} and is {after!r}")
    return sentences
