"""What the readers of published layouts share: files that must be there, sizes that can be, names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bundlemage.errors import Problem

LARGEST = 10_000_000
"""More users, bundles or items than this is a damaged file, not data: each id takes memory at once.

The largest published bundle data has some hundred thousand of anything.
"""

_LAYOUT_FOLDERS = {"authors", "bgcn", "gen", "mat", "pathak"}


def missing_files(folder: Path, names: Iterable[str], fix: str) -> list[Problem]:
    return [
        Problem("missing-file", str(folder / name), "the file is missing", fix)
        for name in names
        if not (folder / name).exists()
    ]


def too_large(where: Path | str, size: int, kind: str) -> Problem:
    message = f"it speaks of {size:,} {kind}, where no published data has over {LARGEST:,}"
    return Problem(
        "size-out-of-range", str(where), message, "Correct it, or download it again.", value=str(size)
    )


def data_name(folder: Path) -> str:
    """`youshu` for youshu/authors/mat: the nearest folder that is named after data, not a layout."""
    resolved = folder.resolve()
    for candidate in (resolved, *resolved.parents):
        if candidate.name and candidate.name not in _LAYOUT_FOLDERS:
            return candidate.name
    return "dataset"
