"""A study on disk: `study.json` says what is searched, `trials/` has a file for each trial that ended, and
`best.toml` is the recipe of the best.

Each file is written beside its name, flushed and renamed, so that a kill at any time leaves whole ones only.
A trial that was cut off has left nothing, and is done again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bundlemage.data.folders import write_whole
from bundlemage.errors import CheckpointError, differences
from bundlemage.training.checkpoint import CHECKSUMS
from bundlemage.tuning.study import Trial

FORMAT = 2


class StudyFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def begun(self) -> bool:
        return (self.path / "study.json").exists()

    def check(self, resume: bool) -> None:
        """Nothing that is stored is lost, and that is known before the data is read."""
        if self.begun:
            if not resume:
                raise CheckpointError(
                    f"{self.path} holds a study: add --resume to go on with it, or choose another folder"
                )
        elif self.path.exists() and not (self.path.is_dir() and {*self.path.iterdir()} <= {*self._left()}):
            raise CheckpointError(f"{self.path} holds other files: choose a folder of its own for the study")

    def open(self, identity: Mapping[str, Any]) -> list[Trial]:
        """Begin a study, or go on with the one that is here if it is the same; the trials it has."""
        # As it would be read again: tuples are lists there.
        asked = json.loads(json.dumps({"format": FORMAT, **identity}))
        if not self.begun:
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self.path / "study.json", json.dumps(asked, indent=2).encode())
            return []
        stored = self._read(self.path / "study.json")
        if different := differences(stored, asked, CHECKSUMS):
            raise CheckpointError(
                f"{self.path} was begun differently: {'; '.join(different)}. Resume with the same model, "
                "settings, space and data, or begin another study in another folder"
            )
        for left in self._left():
            left.unlink(missing_ok=True)
        files = sorted((self.path / "trials").glob("*.json"))
        return sorted((self._trial(file) for file in files), key=lambda trial: trial.number)

    def keep(self, trial: Trial) -> None:
        file = self.path / "trials" / f"{trial.number:05d}.json"
        file.parent.mkdir(exist_ok=True)
        write_whole(file, json.dumps(trial.to_json(), indent=2).encode())

    def keep_best(self, model: str, settings: Mapping[str, Any], split: Mapping[str, Any]) -> None:
        """A recipe, as `bundlemage train --recipe` takes it."""
        lines = [f"model = {_toml(model)}", "", "[settings]"]
        lines += [f"{name} = {_toml(value)}" for name, value in settings.items()]
        lines += ["", "[split]"]
        lines += [f"{name} = {_toml(value)}" for name, value in split.items() if value is not None]
        write_whole(self.path / "best.toml", ("\n".join(lines) + "\n").encode())

    def _left(self) -> list[Path]:
        """What a kill has left half written."""
        return [*self.path.glob(".*.tmp"), *self.path.glob("trials/.*.tmp")]

    def _trial(self, file: Path) -> Trial:
        content = self._read(file)
        try:
            return Trial.from_json(content)
        except (TypeError, KeyError) as error:
            raise _damaged(file, str(error)) from None

    def _read(self, file: Path) -> dict[str, Any]:
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise _damaged(file, str(error)) from None
        if not isinstance(found, dict):
            raise _damaged(file, "not an object")
        return found


def _damaged(file: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"cannot resume: {file} is damaged ({reason}). Remove a trial's file to have it done again; "
        "without study.json begin another study in another folder"
    )


def _toml(value: Any) -> str:
    """A plain value; JSON writes strings, numbers, booleans and lists of these as TOML does."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
