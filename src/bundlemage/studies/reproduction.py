"""A reproduction: the plan of its tables, models and data files, and the results for its report."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bundlemage.data.splits import Split, SplitPlan
from bundlemage.data.statistics import dataset_table, popularity_bias, preference_similarity
from bundlemage.downloads.public_data import public_data
from bundlemage.errors import ArtifactError, ConfigError, DataError
from bundlemage.measures.slices import case_groups, slicings
from bundlemage.progress import stderr_display
from bundlemage.readers import pathak
from bundlemage.readers.load import SAMPLE, read
from bundlemage.recipe import recipe_names
from bundlemage.recommender import Recommender
from bundlemage.studies import cases, paper
from bundlemage.studies.cells import Cell, Contender, fitted
from bundlemage.studies.comparison import CompareObserver, plan_cells, run_cells
from bundlemage.studies.outcome import Cache, Missing, Outcome
from bundlemage.studies.standings import DataFacts, ResultTable, Row, make_table
from bundlemage.training.checkpoint import RunFolder
from bundlemage.training.history import EpochProgress

Group = Literal["ours", "paper", "beyond"]
"""The groups of models: our own, those of the paper, and those beyond the paper."""
DATASET_TITLES = {"youshu": "Youshu", "netease": "NetEase", "steam": "Steam", SAMPLE: "the sample shop"}
STUDIES = (*paper.DATASETS, SAMPLE)
MATCHING_PART, GENERATION_PART, FULL_PART, NAMES_PART = "authors/mat", "authors/gen", "bgcn", "pathak"
SECTIONS = ("matching", "generation", "ablations", "parts", "full-ranking", "cases")
"""The sections of a report that `--skip` can leave out. It can leave out single models too."""
MEASURED = ("matching", "generation")
"""The sections whose tables also show answer lists and slices."""
ENSEMBLE = "bundlemage-ensemble"
NOT_RUN = "not run"
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
        problem = "no folder is given" if folder is None else f"{folder} is not a folder"
        raise ConfigError(f"--data: {problem}; give the folder with {', '.join(names)} of {dataset}")
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
            problems = (f"{name}/user_item.pkl is missing: it says which user owns which item",)
            where += "; it is not known whether this file is published there"
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
    held_out = part.split.test if plan.task == "matching" else part.split.generation
    return None if held_out else f"{part.name}/ has no test cases for {plan.task}"


@dataclass(frozen=True)
class ReproduceOptions:
    """What to reproduce, on which data, and how."""

    dataset: str
    folder: Path | None
    seeds: tuple[int, ...]
    cache: Path
    device: str = "auto"
    epochs: int | None = None
    only_cached: bool = False
    skip: tuple[str, ...] = ()
    note: str = ""
    """A sentence about this run that is printed in the report."""
    jobs: int = 1
    """Number of models that are trained at a time."""

    @property
    def shown_folder(self) -> str:
        """The data's folder as a report shows it, without its path on this machine."""
        return SAMPLE if self.folder is None else f"DATA/{self.folder.resolve().name}"

    @property
    def shown_seeds(self) -> str:
        """The seeds as they are written in a command."""
        return ",".join(map(str, self.seeds))

    def shown_part(self, part: str) -> str:
        """A part of the data as it is written in a command."""
        return SAMPLE if part == SAMPLE else f"{self.shown_folder}/{part}"


@dataclass(frozen=True)
class TableResult:
    """A table of the report with its results."""

    plan: TablePlan
    table: ResultTable | None = None
    """None if the table could not be made, or if none of its models was run."""
    reason: str | None = None
    """Why the table could not be made."""

    def row(self, name: str) -> Row | None:
        """Returns the results of a model of the plan by its name; None if it was not run."""
        rows = self.table.rows if self.table else ()
        return next((row for row in rows if row.label == name), None)


@dataclass(frozen=True)
class CaseResult:
    """The case studies on one dataset, or the reason why they are missing."""

    dataset: str
    study: cases.CaseStudy | None
    reason: str = ""


@dataclass(frozen=True)
class Findings:
    """Everything that was measured for a report."""

    options: ReproduceOptions
    statistics: Mapping[str, int | float]
    """The result of `dataset_table`, without the statistics that reconstructed data cannot give."""
    statistics_part: str
    bias: float | None
    cosines: npt.NDArray[np.float64] | None
    tables: tuple[TableResult, ...]
    cases: tuple[CaseResult, ...]
    missing: tuple[MissingFiles, ...]
    outcomes: tuple[Outcome, ...]
    facts: tuple[DataFacts, ...]
    failures: Mapping[str, str]
    """What failed → why."""

    @property
    def partial(self) -> bool:
        """Whether the data is a reconstruction. Its results are then never compared with the paper's."""
        return any(facts.name == pathak.PARTIAL_NAME for facts in self.facts)

    @property
    def no_data(self) -> bool:
        """Whether no data could be read."""
        return not self.facts and not self.statistics

    def machines(self, task: str) -> set[str]:
        """Returns the devices on which the results of a task were measured."""
        return {outcome.device for outcome in self.outcomes if getattr(outcome, task) is not None}


def gather(options: ReproduceOptions, observer: CompareObserver | None = None) -> Findings:
    """Read the data, train and test the models that are not in the cache, and return all findings."""
    plans = without(table_plans(options.dataset), options.skip)
    contenders = {  # an unknown model fails before anything is read
        plan.key: [contender(entry.name, plan.recipes, options.epochs) for entry in plan.entries]
        for plan in plans
    }
    parts = read_parts(options.dataset, options.folder)
    cache = Cache(options.cache)
    reasons = {plan.key: why_not(plan, parts[plan.part]) for plan in plans}
    cells: list[Cell] = []
    for name, part in parts.items():
        possible = {
            contender.label: contender
            for plan in plans
            if plan.part == name and reasons[plan.key] is None
            for contender in contenders[plan.key]
        }
        if part.split is not None and possible:
            planned, _ = plan_cells([*possible.values()], [part.split], options.seeds)
            if options.only_cached:  # a contender is shown if all its seeds are in the cache
                unknown = {cell.contender.label for cell in planned if not cache.load(cell.key, quiet=True)}
                planned = [cell for cell in planned if cell.contender.label not in unknown]
            cells += planned
    outcomes: tuple[Outcome, ...] = ()
    failures: tuple[Missing, ...] = ()
    if cells:
        outcomes, failures = run_cells(cells, cache, options.device, observer, jobs=options.jobs)
    facts = {name: DataFacts.of(part.split) for name, part in parts.items() if part.split}
    tables = []
    for plan in plans:
        split, table = parts[plan.part].split, None
        if split is not None and reasons[plan.key] is None:
            rows, groups = contenders[plan.key], case_groups(split, plan.task)
            ways = slicings(split).get(plan.task, ()) if plan.section in MEASURED else ()
            results = (rows, outcomes, failures)
            table = make_table(facts[plan.part], plan.task, plan.metric, *results, groups, ways)
        tables.append(TableResult(plan, table, reasons[plan.key]))
    # The statistics are those of real data if there is any.
    readable = ((part.partial, name, part.split.dataset) for name, part in parts.items() if part.split)
    partial, source, dataset = min(readable, key=lambda part: part[0], default=(True, "", None))
    statistics = {} if dataset is None else dataset_table(dataset)
    if partial:  # a reconstructed matrix does not describe the data
        statistics = {name: value for name, value in statistics.items() if not name.startswith("user_item")}
    real = None if partial else dataset
    return Findings(
        options=options,
        statistics=statistics,
        statistics_part=source,
        bias=popularity_bias(real) if real else None,
        cosines=preference_similarity(real) if real else None,
        tables=tuple(tables),
        cases=() if dataset is None or "cases" in options.skip else _case_studies(options, parts, cache),
        missing=missing_files(options.dataset, parts, options.shown_folder),
        outcomes=outcomes,
        facts=tuple(facts.values()),
        failures={missing.name: missing.message for missing in failures},
    )


def _case_studies(
    options: ReproduceOptions, parts: Mapping[str, DataPart], cache: Cache
) -> tuple[CaseResult, ...]:
    """Returns case studies on the sample shop, and on Steam's named games if they are present."""
    sample = parts[SAMPLE].split if SAMPLE in parts else None
    studies = [_case(sample or SplitPlan("paper").divide(read(SAMPLE).dataset), SAMPLE, options, cache)]
    beside = options.folder.resolve().parent / "steam" / NAMES_PART if options.folder else None
    games = None
    if NAMES_PART in parts:
        games = parts[NAMES_PART].split
    elif beside is not None and beside.is_dir():
        games = SplitPlan("paper").divide(read(beside).dataset)
    if games is not None:
        studies.append(_case(games, "steam", options, cache))
    elif options.dataset != SAMPLE:
        where = public_data("steam").pages[0]
        reason = f"Not possible: the games' names (steam/{NAMES_PART}/) are missing; published at {where}"
        studies.append(CaseResult(pathak.PARTIAL_NAME, None, reason))
    return tuple(studies)


def _case(split: Split, recipes: str, options: ReproduceOptions, cache: Cache) -> CaseResult:
    cell = Cell(contender("bundlemage", recipes, options.epochs), split, options.seeds[0])
    folder = cache.folder / "cases" / cell.key
    recommender = None
    with suppress(ArtifactError):  # if the saved model is damaged, it is trained again
        recommender = Recommender.load(folder, device=options.device) if folder.is_dir() else None
    if recommender is None and options.only_cached:
        return CaseResult(split.dataset.name, None, NOT_RUN)
    if recommender is None:
        with cache.working(f"case-{cell.key}") as run:
            with stderr_display() as shown:
                recommender = fitted(cell, options.device, run, [EpochProgress(shown)])
            recommender.save(folder, overwrite=folder.exists())
            RunFolder(run).discard()
    label = f"BundleMage, seed {cell.seed}, {len(recommender.history)} epochs"
    return CaseResult(split.dataset.name, cases.case_study(recommender.model, split, label))
