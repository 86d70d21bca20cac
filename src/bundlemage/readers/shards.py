"""The sharded layout that `bundlemage data ingest` writes."""

from __future__ import annotations

from pathlib import Path

from bundlemage.data.shards import LAYOUT, Layout
from bundlemage.readers.source import Source


def matches(path: Path) -> bool:
    return (path / LAYOUT).is_file()


def read(path: Path) -> Source:
    return Source(Layout.open(path).dataset())
