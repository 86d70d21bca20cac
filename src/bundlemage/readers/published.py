"""Functions that all readers of published data use."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bundlemage.errors import Problem

LARGEST = 10_000_000
"""Maximum number of users, bundles or items. A file with more is damaged and could fill the memory.

The largest published data set of bundles has a few hundred thousand of each.
"""

_LAYOUT_FOLDERS = {"authors", "bgcn", "gen", "mat", "pathak"}


def missing_files(folder: Path, names: Iterable[str], fix: str) -> list[Problem]:
    """Returns a problem for each file that is not in the folder."""
    return [
        Problem("missing-file", str(folder / name), "the file is missing", fix)
        for name in names
        if not (folder / name).exists()
    ]


def too_large(where: Path | str, size: int, kind: str) -> Problem:
    """Returns the problem of a file with `size` ids, more than `LARGEST`. `kind` is `users`, `items`, …"""
    message = f"it has {size:,} {kind}, but no published data has over {LARGEST:,}"
    return Problem(
        "size-out-of-range", str(where), message, "Correct it, or download it again.", value=str(size)
    )


def data_name(folder: Path) -> str:
    """Returns the data's name: the nearest folder that is no layout, `youshu` for youshu/authors/mat."""
    resolved = folder.resolve()
    for candidate in (resolved, *resolved.parents):
        if candidate.name and candidate.name not in _LAYOUT_FOLDERS:
            return candidate.name
    return "dataset"
