"""A study on disk: `study.json` says what is searched, `trials/` has a file for each finished trial, and
`best.toml` is the recipe of the best one. A trial that was cut off has left no file, and runs again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bundlemage.data.folders import ResumableFolder, json_bytes, write_whole
from bundlemage.errors import CheckpointError
from bundlemage.training.checkpoint import CHECKSUMS
from bundlemage.tuning.study import Trial


class StudyFolder(ResumableFolder):
    """Where a study is written."""

    kind = "study"
    file = "study.json"
    part_name = "trials/{:05d}.json"
    others = ("best.toml",)
    checksums = CHECKSUMS
    anew = "begin another study in another folder"

    def open(self, identity: Mapping[str, Any]) -> list[Trial]:
        """Begin a study, or continue the same one, and return the trials that are finished."""
        if not self.begun:
            self.begin(identity)
            return []
        self.resume(identity)
        return [self._trial(file) for file in self.finished_parts()]

    def keep(self, trial: Trial) -> None:
        """Write a finished trial."""
        write_whole(self.part(trial.number), json_bytes(trial.to_json()))

    def keep_best(self, model: str, settings: Mapping[str, Any], split: Mapping[str, Any]) -> None:
        """Write the recipe of the best trial, for `bundlemage train --recipe`."""
        lines = [f"model = {_toml(model)}", "", "[settings]"]
        lines += [f"{name} = {_toml(value)}" for name, value in settings.items()]
        lines += ["", "[split]"]
        lines += [f"{name} = {_toml(value)}" for name, value in split.items() if value is not None]
        write_whole(self.path / "best.toml", ("\n".join(lines) + "\n").encode())

    def damaged(self, file: Path, reason: object) -> CheckpointError:
        again = "" if file == self.file_path else ", or remove this file to run the trial again"
        return CheckpointError(f"{super().damaged(file, reason)}{again}")

    def _trial(self, file: Path) -> Trial:
        try:
            return Trial.from_json(self.read(file))
        except (TypeError, KeyError) as error:
            raise self.damaged(file, error) from None


def _toml(value: Any) -> str:
    """A plain value; JSON writes strings, numbers, booleans and lists of these as TOML does."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
