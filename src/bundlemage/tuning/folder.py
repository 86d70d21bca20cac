"""A study on disk: `study.json` says what is searched, `trials/` has a file for each trial that ended, and
`best.toml` is the recipe of the best.

Each file is written beside its name, flushed and renamed, so that a kill at any time leaves whole ones only.
A trial that was cut off has left nothing, and is done again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bundlemage.errors import CheckpointError
from bundlemage.tuning.study import Trial

FORMAT = 1
SAY_NOTHING = frozenset({"training data", "validation data"})
"""Parts of a study's identity whose values say nothing to a person."""


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
        elif self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise CheckpointError(f"{self.path} holds other files: choose a folder of its own for the study")

    def open(self, identity: Mapping[str, Any]) -> list[Trial]:
        """Begin a study, or go on with the one that is here if it is the same; the trials it has."""
        # As it would be read again: tuples are lists there.
        asked = json.loads(json.dumps({"format": FORMAT, **identity}))
        if not self.begun:
            (self.path / "trials").mkdir(parents=True, exist_ok=True)
            _write(self.path / "study.json", json.dumps(asked, indent=2))
            return []
        stored = self._read(self.path / "study.json")
        different = [
            f"the {key} is not the same" if key in SAY_NOTHING else f"{key} {_change(stored, asked, key)}"
            for key in sorted(stored.keys() | asked.keys())
            if stored.get(key) != asked.get(key)
        ]
        if different:
            raise CheckpointError(
                f"{self.path} was begun differently: {'; '.join(different)}. Resume with the same model, "
                "settings, space and data, or begin another study in another folder"
            )
        files = sorted((self.path / "trials").glob("*.json"))
        return sorted((self._trial(file) for file in files), key=lambda trial: trial.number)

    def keep(self, trial: Trial) -> None:
        file = self.path / "trials" / f"{trial.number:05d}.json"
        _write(file, json.dumps(trial.to_json(), indent=2))

    def keep_best(self, model: str, settings: Mapping[str, Any], split: Mapping[str, Any]) -> None:
        """A recipe, as `bundlemage train --recipe` takes it."""
        lines = [f"model = {_toml(model)}", "", "[settings]"]
        lines += [f"{name} = {_toml(value)}" for name, value in settings.items()]
        lines += ["", "[split]"]
        lines += [f"{name} = {_toml(value)}" for name, value in split.items() if value is not None]
        _write(self.path / "best.toml", "\n".join(lines) + "\n")

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


def _change(stored: Mapping[str, Any], asked: Mapping[str, Any], key: str) -> str:
    was, now = stored.get(key), asked.get(key)
    if isinstance(was, dict) and isinstance(now, dict):  # of several things only those that differ
        names = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
        was, now = ({name: side[name] for name in names if name in side} for side in (was, now))
    return f"was {json.dumps(was)} and is {json.dumps(now)}"


def _toml(value: Any) -> str:
    """A plain value; JSON writes strings, numbers, booleans and lists of these as TOML does."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def _write(file: Path, text: str) -> None:
    temporary = file.with_name(file.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(file)
