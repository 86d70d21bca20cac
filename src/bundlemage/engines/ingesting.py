"""Ingesting: tables to the sharded layout, or only what is wrong with them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bundlemage.data.dataset import fingerprint
from bundlemage.data.shards import SHARD_ROWS, Layout, check_output, write_layout
from bundlemage.engines.base import Progress, in_silence
from bundlemage.errors import Problem
from bundlemage.readers.load import check, read


@dataclass(frozen=True)
class IngestJob:
    """What to read, and where the layout goes; without an output the data is only checked."""

    location: str
    output: Path | None = None
    shard_rows: int = SHARD_ROWS
    overwrite: bool = False
    tables: Mapping[str, str] = field(default_factory=dict)
    """For a database: which table or query is `user_item`, and so on."""


@dataclass(frozen=True)
class Ingested:
    """What was done. Of data that was only checked, nothing is told but its problems."""

    problems: tuple[Problem, ...]
    """Errors first. Where a layout was written there are only warnings."""
    seconds: float
    output: Path | None = None
    name: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    pairs: Mapping[str, int] = field(default_factory=dict)
    files: int = 0
    fingerprint: str = ""

    @classmethod
    def layout(cls, layout: Layout, problems: tuple[Problem, ...], seconds: float) -> Ingested:
        return cls(
            problems,
            seconds,
            layout.folder,
            layout.name,
            layout.sizes,
            layout.pairs,
            len(layout.files),
            fingerprint(layout.digests),
        )


def ingest(job: IngestJob, progress: Progress = in_silence) -> Ingested:
    """On this machine, all of it in memory."""
    began = time.monotonic()
    if job.output is None:
        progress("checking", 0, 0)
        return Ingested(tuple(check(job.location, job.tables)), time.monotonic() - began)
    check_output(job.output, job.shard_rows, overwrite=job.overwrite)
    progress("reading", 0, 0)
    source = read(job.location, job.tables)
    layout = write_layout(
        source.dataset,
        job.output,
        job.shard_rows,
        overwrite=job.overwrite,
        written=lambda done, of: progress("writing", done, of),
    )
    return Ingested.layout(layout, source.warnings, time.monotonic() - began)
