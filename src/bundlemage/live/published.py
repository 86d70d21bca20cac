"""Saved models as the store registers them."""

from __future__ import annotations

from pathlib import Path

from bundlemage.artifact.files import artifact_version, describe_artifact
from bundlemage.errors import ArtifactError
from bundlemage.recommender import Recommender
from bundlemage.store.records import ModelRecord


def record_of(path: Path) -> ModelRecord:
    """A saved model as the store registers it."""
    version, name, metrics = describe_artifact(path)
    return ModelRecord(version, str(path.resolve()), name, metrics)


def load_published(record: ModelRecord, device: str = "auto") -> Recommender:
    """A registered model, or a message where its folder holds something else by now."""
    path = Path(record.path)
    found = artifact_version(path)
    if found != record.version:
        raise ArtifactError(f"{path} no longer holds the model {record.version}: it was replaced by {found}")
    return Recommender.load(path, device=device)
