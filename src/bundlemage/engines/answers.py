"""Answers for everyone as a folder: cut off at any moment, it goes on, and nobody is there twice or missing.

`answers.json` says what the answers are to; `parts/part-00000.parquet` and so on hold them, each for a range
of users. A part has its name only when it is whole, so a part that is there is done.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bundlemage.data.download import into_place
from bundlemage.errors import CheckpointError, ConfigError

ANSWERS = "answers.json"


class AnswersFolder:
    """Where parts are written, by whichever process."""

    def __init__(self, path: Path) -> None:
        self.path, self.parts, self.file = path, path / "parts", path / ANSWERS

    def part(self, number: int) -> Path:
        return self.parts / f"part-{number:05d}.parquet"

    def open(self, identity: Mapping[str, Any], *, resume: bool, overwrite: bool) -> None:
        """Ready to go on, or to begin. What is there already stays, or is asked to go, or is an error."""
        if resume and overwrite:
            raise ConfigError(
                "answers are either gone on with (--resume) or replaced (--overwrite), not both"
            )
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file; name a folder for the answers")
        begun = self._read() if self.file.exists() else None
        if begun is None:
            self._check_empty()
        elif any(self.parts.glob("part-*.parquet")):
            if resume:
                self._check_same(begun, identity)
            elif overwrite:
                # The parts first: killed here, what is left is still what the file says.
                shutil.rmtree(self.parts)
            else:
                raise ConfigError(
                    f"{self.path} holds answers already: add --resume to go on with them, --overwrite to "
                    "replace them, or choose another folder"
                )
        self.parts.mkdir(parents=True, exist_ok=True)
        self._write(identity)

    def rows(self, number: int) -> int | None:
        """How many answers a part holds; None where it is still to be done."""
        try:
            return int(pq.read_metadata(self.part(number)).num_rows)
        except (OSError, pa.ArrowException):  # not there; or damaged by others, and then it is done again
            return None

    def finish(self, identity: Mapping[str, Any], totals: Mapping[str, int]) -> None:
        for left in self.parts.glob(".*.tmp"):
            left.unlink(missing_ok=True)
        self._write({**identity, "done": dict(totals)})

    def forsake(self) -> None:
        """Nothing came of it: leave nothing behind. What others have put there stays."""
        if not any(self.parts.glob("part-*.parquet")):
            self.file.unlink(missing_ok=True)
            for folder in (self.parts, self.path):
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()

    def _check_empty(self) -> None:
        others = [file for file in self.path.rglob("*") if file.is_file() and not file.name.endswith(".tmp")]
        if others:
            raise ConfigError(
                f"{self.path} is a folder with other files, such as {others[0].name}; name a folder of its "
                "own for the answers, or a file that ends in .parquet"
            )

    def _check_same(self, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        different = [
            f"{name} was {was.get(name)!r} and is {given!r}"
            for name, given in now.items()
            if was.get(name) != given
        ]
        if different:
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
        temporary = self.file.with_name(f".{self.file.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        into_place(temporary, self.file)
