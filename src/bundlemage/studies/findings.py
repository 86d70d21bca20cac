"""Measures everything that the report of a reproduction shows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bundlemage.data.splits import Split, SplitPlan
from bundlemage.data.statistics import dataset_table, popularity_bias, preference_similarity
from bundlemage.downloads.public_data import public_data
from bundlemage.errors import ArtifactError
from bundlemage.progress import for_people
from bundlemage.readers import pathak
from bundlemage.readers.load import SAMPLE, read
from bundlemage.recommender import Recommender
from bundlemage.studies import cases, plan
from bundlemage.studies.cells import Cell, fitted
from bundlemage.studies.comparison import CompareObserver, plan_cells, run_cells
from bundlemage.studies.outcome import Cache, Missing, Outcome
from bundlemage.studies.standings import DataFacts, ResultTable, Row, case_groups, make_table
from bundlemage.training.checkpoint import RunFolder
from bundlemage.training.history import EpochProgress

NOT_RUN = "not run"


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

    plan: plan.TablePlan
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
    missing: tuple[plan.MissingFiles, ...]
    outcomes: tuple[Outcome, ...]
    facts: tuple[DataFacts, ...]
    failures: Mapping[str, str]
    """What failed → why."""

    @property
    def partial(self) -> bool:
        """Whether the data is a reconstruction. Its results are then never compared with the paper's."""
        return any(facts.name == pathak.PARTIAL_NAME for facts in self.facts)

    @property
    def nothing(self) -> bool:
        """Whether the folder has no data that could be read."""
        return not self.facts and not self.statistics

    def machines(self, task: str) -> set[str]:
        """Returns the devices on which the results of a task were measured."""
        return {outcome.device for outcome in self.outcomes if getattr(outcome, task) is not None}


def gather(options: ReproduceOptions, observer: CompareObserver | None = None) -> Findings:
    """Read the data, train and test the models that are not in the cache, and return all findings."""
    plans = plan.without(plan.table_plans(options.dataset), options.skip)
    contenders = {  # an unknown model fails before anything is read
        one.key: [plan.contender(entry.name, one.recipes, options.epochs) for entry in one.entries]
        for one in plans
    }
    parts = plan.read_parts(options.dataset, options.folder)
    cache = Cache(options.cache)
    reasons = {one.key: plan.why_not(one, parts[one.part]) for one in plans}
    cells: list[Cell] = []
    for name, part in parts.items():
        possible = {
            contender.label: contender
            for one in plans
            if one.part == name and reasons[one.key] is None
            for contender in contenders[one.key]
        }
        if part.split is not None and possible:
            planned, _ = plan_cells([*possible.values()], [part.split], options.seeds)
            if options.only_cached:  # a contender is shown if all its seeds are in the cache
                unknown = {one.contender.label for one in planned if not cache.load(one.key, quiet=True)}
                planned = [one for one in planned if one.contender.label not in unknown]
            cells += planned
    outcomes: tuple[Outcome, ...] = ()
    failures: tuple[Missing, ...] = ()
    if cells:
        outcomes, failures = run_cells(cells, cache, options.device, observer, jobs=options.jobs)
    facts = {name: DataFacts.of(part.split) for name, part in parts.items() if part.split}
    tables = []
    for one in plans:
        split, table = parts[one.part].split, None
        if split is not None and reasons[one.key] is None:
            rows, groups = contenders[one.key], case_groups(split, one.task)
            table = make_table(facts[one.part], one.task, one.metric, rows, outcomes, failures, groups)
        tables.append(TableResult(one, table, reasons[one.key]))
    # The statistics are those of real data if there is any.
    readable = ((part.partial, name, part.split.dataset) for name, part in parts.items() if part.split)
    partial, source, dataset = min(readable, key=lambda part: part[0], default=(True, "", None))
    statistics = {} if dataset is None else dataset_table(dataset)
    if partial:  # a reconstructed matrix does not describe the data
        statistics = {name: one for name, one in statistics.items() if not name.startswith("user_item")}
    whole = None if partial else dataset
    return Findings(
        options=options,
        statistics=statistics,
        statistics_part=source,
        bias=popularity_bias(whole) if whole else None,
        cosines=preference_similarity(whole) if whole else None,
        tables=tuple(tables),
        cases=() if dataset is None or "cases" in options.skip else _case_studies(options, parts, cache),
        missing=plan.missing_files(options.dataset, parts, options.shown_folder),
        outcomes=outcomes,
        facts=tuple(facts.values()),
        failures={one.name: one.message for one in failures},
    )


def _case_studies(
    options: ReproduceOptions, parts: Mapping[str, plan.DataPart], cache: Cache
) -> tuple[CaseResult, ...]:
    """Case studies on the sample shop, and on Steam's named games if they are present."""
    sample = parts[SAMPLE].split if SAMPLE in parts else None
    studies = [_case(sample or SplitPlan("paper").divide(read(SAMPLE).dataset), SAMPLE, options, cache)]
    beside = options.folder.resolve().parent / "steam" / plan.NAMES_PART if options.folder else None
    games = None
    if plan.NAMES_PART in parts:
        games = parts[plan.NAMES_PART].split
    elif beside is not None and beside.is_dir():
        games = SplitPlan("paper").divide(read(beside).dataset)
    if games is not None:
        studies.append(_case(games, "steam", options, cache))
    elif options.dataset != SAMPLE:
        where = public_data("steam").pages[0]
        reason = (
            f"Not possible: the games' names (steam/{plan.NAMES_PART}/) are missing; published at {where}"
        )
        studies.append(CaseResult(pathak.PARTIAL_NAME, None, reason))
    return tuple(studies)


def _case(split: Split, recipes: str, options: ReproduceOptions, cache: Cache) -> CaseResult:
    split = cases.fair_split(split)
    cell = Cell(plan.contender("bundlemage", recipes, options.epochs), split, options.seeds[0])
    folder = cache.folder / "cases" / cell.key
    recommender = None
    with suppress(ArtifactError):  # if the saved model is damaged, it is trained again
        recommender = Recommender.load(folder, device=options.device) if folder.is_dir() else None
    if recommender is None and options.only_cached:
        return CaseResult(split.dataset.name, None, NOT_RUN)
    if recommender is None:
        with cache.working(f"case-{cell.key}") as run:
            with for_people() as shown:
                recommender = fitted(cell, options.device, run, [EpochProgress(shown)])
            recommender.save(folder, overwrite=folder.exists())
            RunFolder(run).discard()
    label = f"BundleMage, seed {cell.seed}, {len(recommender.history)} epochs"
    return CaseResult(split.dataset.name, cases.case_study(recommender.model, split, label))
