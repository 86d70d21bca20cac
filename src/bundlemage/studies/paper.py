"""The paper's numbers, read from `paper.toml`: tables, dataset statistics, and links to the data."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATASETS = ("youshu", "netease", "steam")
"""The columns of every table, in the paper's order."""

_CONTENT: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_name("paper.toml").read_text(encoding="utf-8")
)
AUTHORS_FILES: str = _CONTENT["authors_files"]
"""The address at which the authors publish their splits."""
SOURCES: Mapping[str, str] = _CONTENT["sources"]
"""Dataset → the address at which it was first published."""
STATISTICS: Mapping[str, Mapping[str, int | float]] = _CONTENT["statistics"]
"""Dataset → statistic → value in the paper's table of datasets. Densities are fractions, not percent."""
STATISTICS_TITLES: Mapping[str, str] = _CONTENT["statistics_titles"]
"""Name of a statistic → its title in a report."""
POPULARITY_BIAS: Mapping[str, float] = _CONTENT["popularity_bias"]
"""Dataset → mean popularity rank of the items in bundles, as a fraction of all items."""


@dataclass(frozen=True)
class PaperRow:
    """A row of one of the paper's tables, or of a table of published figures."""

    title: str
    """The model's name in the publication."""
    shown: str
    """The model's name in our reports."""
    contender: str
    """The name of the recipe or model that reproduces this row; empty if there is none."""
    printed: Mapping[str, Mapping[str, float]]
    """Dataset → metric → figure, for the datasets that have figures."""
    remark: str
    """Why a dataset has no figures, or the source of a published row."""

    def figures(self, dataset: str) -> Mapping[str, float]:
        """Returns metric → figure on a dataset; empty if the publication has no figures for it."""
        return self.printed.get(dataset, {})


METRICS: Mapping[str, tuple[str, ...]] = {
    key: tuple(table["metrics"]) for key, table in _CONTENT["tables"].items()
}
"""Key of a table → its metrics."""
TABLES: Mapping[str, tuple[PaperRow, ...]] = {
    key: tuple(
        PaperRow(
            row["title"],
            row.get("shown", row["title"]),
            row.get("contender", ""),
            {name: dict(zip(METRICS[key], row[name], strict=False)) for name in DATASETS if name in row},
            row.get("remark", ""),
        )
        for row in table["rows"]
    )
    for key, table in _CONTENT["tables"].items()
}
"""Key of a table → its rows, in the paper's order."""
