"""The engine that a command was asked to run on."""

from __future__ import annotations

from bundlemage.engines.base import Engine, engine
from bundlemage.errors import ConfigError


def chosen_engine(name: str, address: str | None, workers: int | None, doing: str) -> Engine:
    """For work that only a cluster divides among processes."""
    if name == "local" and workers is not None and workers > 1:
        raise ConfigError(
            f"here, {doing} is done by one process, and --workers says {workers}: add --engine ray, or leave "
            "it out"
        )
    return engine(name, address=address, workers=workers)
