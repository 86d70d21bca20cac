"""The plan of a reproduction: its tables, their models, and the data files that they need."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from bundlemage.data.splits import Split, SplitPlan
from bundlemage.downloads.public_data import public_data
from bundlemage.errors import ConfigError, DataError
from bundlemage.readers import pathak
from bundlemage.readers.load import SAMPLE, read
from bundlemage.recipe import recipe_names
from bundlemage.studies import paper
from bundlemage.studies.cells import Contender

Group = Literal["ours", "paper", "beyond"]
"""The groups of models: our own, those of the paper, and those beyond the paper."""
DATASET_TITLES = {"youshu": "Youshu", "netease": "NetEase", "steam": "Steam", SAMPLE: "the sample shop"}
STUDIES = (*paper.DATASETS, SAMPLE)
MATCHING_PART, GENERATION_PART, FULL_PART, NAMES_PART = "authors/mat", "authors/gen", "bgcn", "pathak"
SECTIONS = ("matching", "generation", "ablations", "parts", "full-ranking", "cases")
"""The sections of a report that `--skip` can leave out. It can leave out single models too."""
ENSEMBLE = "bundlemage-ensemble"
_PAPERS_OWN = "bundlemage-paper"
_PAPERS_RECIPES = "youshu"
"""The folder of recipes with the paper's own settings. The paper uses the same ones for all datasets."""


@dataclass(frozen=True)
class Entry:
    """A row of a table: one model."""

    name: str
    """The name of a recipe in the table's folder of recipes; if there is none, the name of a model."""
    title: str
    group: Group
    paper: Mapping[str, float] = field(default_factory=dict)
    """Metric → the published figure that is shown beside ours."""
    remark: str = ""


@dataclass(frozen=True)
class TablePlan:
    """A table of the report: its data, task, metrics and models. `tables.toml` explains the fields."""

    key: str
    title: str
    section: str
    part: str
    task: str
    recipes: str
    metrics: tuple[str, ...]
    metric: str
    entries: tuple[Entry, ...]
    intro: str
    beside: str
    partial: bool


_CONTENT = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))
SHORT_NAMES: Mapping[str, str] = _CONTENT["short_names"]
"""Name of a row → a short name for figures, for rows with a long title."""


def table_plans(dataset: str) -> tuple[TablePlan, ...]:
    """Returns the tables of a dataset's report, in the paper's order."""
    real = dataset != SAMPLE
    return tuple(
        TablePlan(
            key=table["key"],
            title=table["title"],
            section=table["section"],
            part=table["part"] if real else SAMPLE,
            task=table["task"],
            recipes=table.get("recipes", "{dataset}").format(dataset=dataset),
            metrics=paper.METRICS[table.get("metrics_of", table["key"])],
            metric=table.get("metric", "ndcg@5"),
            entries=tuple(_entries(table, dataset)),
            intro=f"{table['intro']} {table.get('intro_of_real_data', '') if real else ''}".rstrip(),
            beside=table.get("beside", "the paper") if real else "",
            partial=table.get("partial", False),
        )
        for table in _CONTENT["table"]
        if dataset in table["datasets"]
    )


def _entries(table: Mapping[str, Any], dataset: str) -> Iterable[Entry]:
    printed = {row.contender: row for row in paper.TABLES.get(table["key"], ())}
    if table.get("paper_rows"):
        for row in printed.values():
            figures = row.figures(dataset)
            group: Group = "ours" if row.title.startswith("BundleMage") else "paper"
            remark = row.remark if dataset in paper.DATASETS and not figures else ""
            yield Entry(row.contender, row.shown, group, figures, remark)
    groups: tuple[tuple[str, Group], ...] = (("rivals", "paper"), ("ours", "ours"), ("beyond", "beyond"))
    for rows, group in groups:
        for name, title in table.get(rows, {}).items():
            beside = printed.get(name, printed.get(_PAPERS_OWN) if group == "ours" else None)
            if dataset == "youshu" or name not in table.get("youshu_only", ()):
                yield Entry(name, title, group, beside.figures(dataset) if beside else {})


def recipe_of(name: str, recipes: str) -> str | None:
    """Returns the recipe of a row; None for a model with its default settings.

    `recipes` is the table's folder of recipes. The paper's own settings are in one folder for all data.
    """
    candidates = [f"{recipes}/{name}"]
    if name in (_PAPERS_OWN, ENSEMBLE) or name.startswith("ablation-"):
        candidates.append(f"{_PAPERS_RECIPES}/{name}")
    return next((candidate for candidate in candidates if candidate in recipe_names()), None)


def contender(name: str, recipes: str, epochs: int | None = None) -> Contender:
    """Returns the model and settings of a row. `epochs` replaces the model's number of epochs, if any."""
    recipe = recipe_of(name, recipes)
    chosen = replace(Contender.parse(recipe or name), label=name)
    if epochs is not None and "epochs" in chosen.known_settings:
        return chosen.with_settings({"epochs": epochs})
    return chosen


def without(plans: Iterable[TablePlan], skipped: Collection[str]) -> tuple[TablePlan, ...]:
    """Returns the plans without the skipped models and sections. Raises ConfigError for an unknown name."""
    known = {entry.name for plan in table_plans("steam") + table_plans("youshu") for entry in plan.entries}
    for name in skipped:
        if name not in known and name not in SECTIONS:
            raise ConfigError(
                f"--skip {name}: there is no such model or section here. Sections: {', '.join(SECTIONS)}; "
                f"models: {', '.join(sorted(known))}"
            )
    kept = (
        replace(plan, entries=tuple(entry for entry in plan.entries if entry.name not in skipped))
        for plan in plans
        if plan.section not in skipped
    )
    return tuple(plan for plan in kept if plan.entries)


@dataclass(frozen=True)
class DataPart:
    """One folder of a dataset: its split, or the problems if it could not be read."""

    name: str
    split: Split | None
    problems: tuple[str, ...] = ()

    @property
    def partial(self) -> bool:
        """Whether the user-item matrix is a reconstruction."""
        return self.split is not None and self.split.dataset.name == pathak.PARTIAL_NAME


@dataclass(frozen=True)
class MissingFiles:
    """Files of one part that are missing or damaged."""

    part: str
    problems: tuple[str, ...]
    where: str
    """Where the files are published, and how to get them."""

    def __str__(self) -> str:
        return f"{self.part}: {'; '.join(dict.fromkeys(self.problems))} — {self.where}"


def read_parts(dataset: str, folder: Path | None) -> dict[str, DataPart]:
    """Returns every part of a dataset by name. A missing or damaged part has problems instead of a split."""
    if dataset == SAMPLE:
        return {SAMPLE: DataPart(SAMPLE, SplitPlan("paper").divide(read(SAMPLE).dataset))}
    names = (MATCHING_PART, GENERATION_PART, NAMES_PART if dataset == "steam" else FULL_PART)
    if folder is None or not folder.is_dir():
        problem = "no folder is named" if folder is None else f"{folder} is not a folder"
        raise ConfigError(f"--data: {problem}; give the one that holds {', '.join(names)} of {dataset}")
    return {name: _read_part(name, folder / name) for name in names}


def _read_part(name: str, folder: Path) -> DataPart:
    if not folder.is_dir() or not any(folder.iterdir()):
        return DataPart(name, None, (f"the folder {name}/ is not there",))
    try:
        source = read(folder)
    except DataError as error:
        problems = (str(problem).replace(f"{folder}/", f"{name}/") for problem in error.problems)
        return DataPart(name, None, tuple(problems))
    if name == NAMES_PART:
        return DataPart(name, SplitPlan("paper").divide(source.dataset))
    if source.ready is None:
        problem = f"{name}/ defines no split: its files for training and testing are missing"
        return DataPart(name, None, (problem,))
    return DataPart(name, source.ready)


def missing_files(dataset: str, parts: Mapping[str, DataPart], folder: str) -> tuple[MissingFiles, ...]:
    """Returns the published files that are missing or damaged in `parts`. `folder` is the folder to show."""
    if dataset == SAMPLE:
        return ()
    missing = []
    for name, part in parts.items():
        problems = part.problems
        where = _published(dataset, name, folder)
        if part.partial and name in (MATCHING_PART, GENERATION_PART):
            problems = (f"{name}/user_item.pkl is missing: who owns which item",)
            where += "; whether this file is among those is not known"
        if problems:
            missing.append(MissingFiles(name, problems, where))
    return tuple(missing)


def _published(dataset: str, part: str, folder: str) -> str:
    known = public_data(dataset)
    if part == known.folder:
        return f"published at {known.pages[0]}; fetch with: bundlemage data get {dataset} -o {folder}"
    for entry in known.by_hand:
        if part in entry.put:
            return f"published at {entry.page}; put into {folder}/{part}"
    if part in (MATCHING_PART, GENERATION_PART):
        return f"published at {paper.AUTHORS_FILES}; put into {folder}/{part}"
    return f"the data was first published at {paper.SOURCES[dataset]}; no address of this part is known"


def why_not(plan: TablePlan, part: DataPart) -> str | None:
    """Returns the reason why a table cannot be made from a part of the data; None if it can be made."""
    if part.split is None:
        return "; ".join(part.problems)
    if part.partial and not plan.partial:
        return f"{part.name}/user_item.pkl is missing, and the paper did not use the reconstruction"
    if plan.partial and not part.partial:
        return "the real data is present, so the reconstruction is not needed"
    cases = part.split.test if plan.task == "matching" else part.split.generation
    if not cases:
        return f"{part.name}/ has no test cases for {plan.task}"
    return None
