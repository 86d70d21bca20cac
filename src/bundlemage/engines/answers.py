"""Answers for everyone as a folder: cut off at any moment, it goes on, and nobody is there twice or missing.

`answers.json` says what the answers are to; `parts/part-00000.parquet` and so on hold them, each for a range
of users. A part has its name only when it is whole, so a part that is there is done. Answers that are to
replace others are made in `.new`, and take their place when all of them are there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bundlemage.data.folders import write_whole
from bundlemage.errors import CheckpointError, ConfigError, differences

ANSWERS, NEW = "answers.json", ".new"


class AnswersFolder:
    """Where parts are written, by whichever process."""

    def __init__(self, path: Path, replaces: AnswersFolder | None = None) -> None:
        self.path, self.parts, self.file = path, path / "parts", path / ANSWERS
        self.replaces = replaces

    def part(self, number: int) -> Path:
        return self.parts / f"part-{number:05d}.parquet"

    def open(self, identity: Mapping[str, Any], *, resume: bool, overwrite: bool) -> AnswersFolder:
        """Where to go on, or to begin. What is there already stays, or is to be replaced, or is an error."""
        if resume and overwrite:
            raise ConfigError(
                "answers are either gone on with (--resume) or replaced (--overwrite), not both"
            )
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file; name a folder for the answers")
        if not self.file.exists():
            self._check_empty()
            return self._begin(identity)
        new = AnswersFolder(self.path / NEW, replaces=self)
        if new.file.exists() and "done" in new._read():
            new._take_place(self)  # killed when it had only that left to do
        if resume:
            here = new if new.file.exists() and not new._differences(identity) else self
            here._check_same(identity)
            return here._begin(identity)
        if not any(self.parts.glob("part-*.parquet")):
            return self._begin(identity)
        if not overwrite:
            raise ConfigError(
                f"{self.path} holds answers already: add --resume to go on with them, --overwrite to replace "
                "them, or choose another folder"
            )
        shutil.rmtree(new.path, ignore_errors=True)
        return new._begin(identity)

    def rows(self, number: int) -> int | None:
        """How many answers a part holds; None where it is still to be done."""
        try:
            return int(pq.read_metadata(self.part(number)).num_rows)
        except (OSError, pa.ArrowException):  # not there; or damaged by others, and then it is done again
            return None

    def tries(self, number: int) -> int:
        """How often a part was begun in this run, with this time: a process that is lost cannot tell it."""
        if not self.parts.is_dir():
            return 0  # whoever goes on finds out
        with (self.parts / f".{self.part(number).name}.tries.tmp").open("ab") as counted:
            counted.write(b".")
            return counted.tell()

    def finish(self, identity: Mapping[str, Any], totals: Mapping[str, int]) -> None:
        self._remove_temporary()
        self._write({**identity, "done": dict(totals)})
        if self.replaces is not None:
            self._take_place(self.replaces)

    def forsake(self) -> None:
        """Nothing came of it: leave nothing behind. What others have put there stays."""
        if not any(self.parts.glob("part-*.parquet")):
            self._remove_temporary()
            self.file.unlink(missing_ok=True)
            for folder in (self.parts, self.path):
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()

    def _begin(self, identity: Mapping[str, Any]) -> AnswersFolder:
        self.parts.mkdir(parents=True, exist_ok=True)
        self._remove_temporary("tries.tmp")
        self._write(identity)
        return self

    def _remove_temporary(self, end: str = "tmp") -> None:
        for left in self.parts.glob(f".*.{end}"):
            left.unlink(missing_ok=True)

    def _take_place(self, of: AnswersFolder) -> None:
        """Killed in between, each step that is done stays done, and `open` does the others."""
        if self.parts.exists():
            if of.parts.exists():
                of.parts.rename(self.path / "old")
            self.parts.rename(of.parts)
        self.file.replace(of.file)
        shutil.rmtree(self.path)

    def _check_empty(self) -> None:
        others = [file for file in self.path.rglob("*") if file.is_file() and not file.name.endswith(".tmp")]
        if others:
            raise ConfigError(
                f"{self.path} is a folder with other files, such as {others[0].name}; name a folder of its "
                "own for the answers, or a file that ends in .parquet"
            )

    def _differences(self, identity: Mapping[str, Any]) -> list[str]:
        return differences({name: told for name, told in self._read().items() if name != "done"}, identity)

    def _check_same(self, identity: Mapping[str, Any]) -> None:
        if not any(self.parts.glob("part-*.parquet")):
            return  # nothing was done yet
        if different := self._differences(identity):
            raise ConfigError(
                f"{self.path} holds other answers: {'; '.join(different)}. Go on as they were begun, or "
                "choose another folder"
            )

    def _read(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.file} cannot be read ({error}). Choose another folder") from None
        return found

    def _write(self, content: Mapping[str, Any]) -> None:
        write_whole(self.file, (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode())
