"""Removes the folders of models that earlier retrainings made and that nobody serves any more."""

from __future__ import annotations

import re
import shutil
from collections.abc import Container
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from bundlemage.artifact.files import artifact_version
from bundlemage.errors import ArtifactError
from bundlemage.store.records import ModelRecord
from bundlemage.store.repository import Store

STAMP = re.compile(r"-\d{8}T\d{6}(-\d+)?\Z")
"""The end of the name of a folder that a retraining made."""
IN_USE_FOR = timedelta(days=1)
"""A model that has answered within this time is in use."""
_REMOVED = ".{name}.removed"


class Swept(NamedTuple):
    """The folders that were removed, and those that could not be removed."""

    removed: tuple[Path, ...]
    stuck: tuple[Path, ...]


def sweep(store: Store, keep: int, needed: Container[str] = ()) -> Swept:
    """Remove all but the newest `keep` models that retrainings made, and return their folders.

    A model stays if it is selected for serving, if it has answered lately, or if its version is `needed`. Its
    record goes with the folder, so that nobody selects it. Only models in the store's records are removed, so
    other shops may keep theirs in the same folder.
    """
    in_use = store.models_in_use(datetime.now(UTC) - IN_USE_FOR)
    made = [record for record in store.models() if "retrain" in record.metrics and STAMP.search(record.path)]
    present = [record for record in made if _exists(Path(record.path))]
    removed, stuck = list[Path](), list[Path]()
    for record in made:
        path = Path(record.path)
        hidden = path.with_name(_REMOVED.format(name=path.name))
        stays = record in present[:keep] or record.version in in_use or record.version in needed
        try:
            if record not in present:
                if _exists(hidden) and store.forget_model(record.version):
                    shutil.rmtree(hidden)  # a retraining was killed before this
            elif not stays and _holds(path, record) and _remove(store, record, path, hidden):
                removed.append(path)
        except OSError:
            stuck.append(hidden if _exists(hidden) else path)
    return Swept(tuple(removed), tuple(stuck))


def _exists(path: Path) -> bool:
    with suppress(OSError):  # somebody else's folder
        return path.exists()
    return False


def _holds(path: Path, record: ModelRecord) -> bool:
    """Whether a folder still holds the model of a record, and not another one."""
    with suppress(ArtifactError, OSError):
        return artifact_version(path) == record.version
    return False


def _remove(store: Store, record: ModelRecord, path: Path, hidden: Path) -> bool:
    # The folder loses its name in one step. After a kill, the next retraining does the rest.
    path.rename(hidden)
    if not store.forget_model(record.version):  # it was selected just now
        hidden.rename(path)
        return False
    shutil.rmtree(hidden)
    return True
