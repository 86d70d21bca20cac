"""What the readers of published data share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bundlemage.errors import Problem

LARGEST = 10_000_000
"""Maximum number of users, bundles or items. More means a damaged file, and each id takes memory.

The largest published bundle data has some hundred thousand of each.
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
    """The problem of a file with more than `LARGEST` ids; `kind` is what they number."""
    message = f"it has {size:,} {kind}, but no published data has over {LARGEST:,}"
    return Problem(
        "size-out-of-range", str(where), message, "Correct it, or download it again.", value=str(size)
    )


def data_name(folder: Path) -> str:
    """Returns the name of the nearest folder that is not a layout: `youshu` for youshu/authors/mat."""
    resolved = folder.resolve()
    for candidate in (resolved, *resolved.parents):
        if candidate.name and candidate.name not in _LAYOUT_FOLDERS:
            return candidate.name
    return "dataset"
