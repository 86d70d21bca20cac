"""Everything that is wrong with a folder of tables, at once."""

from __future__ import annotations

from pathlib import Path

from bundlemage.data.readers import tables
from bundlemage.errors import Problem


def check(path: Path) -> list[Problem]:
    """Every error and warning, errors first. Bad data never raises; good data gives an empty list."""
    _, problems = tables.survey(path)
    return sorted(problems, key=lambda problem: problem.severity == "warning")
