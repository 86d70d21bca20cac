"""Recommendations for all users as a folder: `parts/part-00000.parquet` and so on, each for a range of users.

New answers that replace old ones are built in `.new` and take their place when all of them are finished.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bundlemage.data.folders import ResumableFolder
from bundlemage.errors import ConfigError

ANSWERS, NEW = "answers.json", ".new"
DONE = "done"
"""The key of `answers.json` with the totals of answers that are finished."""


class AnswersFolder(ResumableFolder):
    """Where any process writes its parts. `replaces` are the old answers, if these will replace them."""

    kind = "set of answers"
    file = ANSWERS
    part_name = "parts/part-{:05d}.parquet"

    def __init__(self, path: Path, replaces: AnswersFolder | None = None) -> None:
        super().__init__(path)
        self.parts, self.replaces = path / "parts", replaces

    def open(self, identity: Mapping[str, Any], *, resume: bool, overwrite: bool) -> AnswersFolder:
        """Begin or continue, and return the folder for the new parts: this one, or one that replaces it."""
        if resume and overwrite:
            raise ConfigError("answers are either continued (--resume) or replaced (--overwrite), not both")
        new = AnswersFolder(self.path / NEW, replaces=self)
        if self.begun and new.begun and DONE in new.stored():
            new._take_place(self)  # a kill had left only this to do
        self.check(resume=resume or not self.finished_parts(), overwrite=overwrite)
        if resume and new.begun and not new.differences(identity, {DONE}):
            new.resume(identity, {DONE})
            return new
        if not self.finished_parts():
            self.begin(identity)
        elif resume:
            self.resume(identity, {DONE})
        else:
            shutil.rmtree(new.path, ignore_errors=True)
            new.begin(identity)
            return new
        return self

    def rows(self, number: int) -> int | None:
        """The number of answers in a part; None if the part is missing or damaged, and so still to do."""
        try:
            return int(pq.read_metadata(self.part(number)).num_rows)
        except (OSError, pa.ArrowException):
            return None

    def finish(self, identity: Mapping[str, Any], totals: Mapping[str, int]) -> None:
        """All parts are finished: say so, and replace the old answers."""
        self.begin(identity, **{DONE: dict(totals)})
        if self.replaces is not None:
            self._take_place(self.replaces)

    def give_up(self) -> None:
        """Leave nothing behind if no part was finished. Files of others stay."""
        if not self.finished_parts():
            self.discard()

    def _take_place(self, of: AnswersFolder) -> None:
        """After a kill in between, the finished steps stay done, and `open` does the others."""
        if self.parts.exists():
            if of.parts.exists():
                of.parts.rename(self.path / "old")
            self.parts.rename(of.parts)
        self.file_path.replace(of.file_path)
        shutil.rmtree(self.path)
