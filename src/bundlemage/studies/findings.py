"""All that a reproduction measures, before any of it is written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import Split, SplitPlan
from bundlemage.data.statistics import dataset_table, dissimilarity, popularity_bias
from bundlemage.downloads.public_data import public_data
from bundlemage.errors import ArtifactError
from bundlemage.readers import pathak
from bundlemage.readers.load import SAMPLE, read
from bundlemage.recommender import Recommender
from bundlemage.studies import cases, plan
from bundlemage.studies.cache import Cache
from bundlemage.studies.cells import Cell, Contender, fitted
from bundlemage.studies.comparison import Asked, CompareObserver, Comparison, compare_together
from bundlemage.studies.outcome import Outcome
from bundlemage.studies.standings import DataFacts, Table, case_groups, make_table
from bundlemage.training.checkpoint import RunFolder
from bundlemage.training.progress import bar_for_people

NOT_RUN = "not run"


@dataclass(frozen=True)
class Wishes:
    """What was asked for."""

    dataset: str
    folder: Path | None
    seeds: tuple[int, ...]
    cache: Path
    device: str = "auto"
    epochs: int | None = None
    only_cached: bool = False
    skip: tuple[str, ...] = ()
    note: str = ""
    """What a reader should know of this run."""
    jobs: int = 1
    """How many models are trained at a time."""


@dataclass(frozen=True)
class FoundTable:
    plan: plan.TablePlan
    table: Table | None = None
    """None where it could not be made, or nothing of it was run."""
    reason: str | None = None
    """Why it could not be made."""


@dataclass(frozen=True)
class ValidationCurve:
    label: str
    epochs: tuple[int, ...]
    values: tuple[float, ...]
    best_epoch: int


@dataclass(frozen=True)
class FoundCase:
    dataset: str
    study: cases.CaseStudy | None
    reason: str = ""
    """Why there is none."""


@dataclass(frozen=True)
class Findings:
    wishes: Wishes
    statistics: Mapping[str, int | float]
    """As `dataset_table` gives them, without what reconstructed data cannot tell; empty without data."""
    statistics_part: str
    bias: float | None
    cosines: npt.NDArray[np.float64] | None
    tables: tuple[FoundTable, ...]
    curves: tuple[ValidationCurve, ...]
    cases: tuple[FoundCase, ...]
    missing: tuple[plan.MissingFiles, ...]
    outcomes: tuple[Outcome, ...]
    facts: tuple[DataFacts, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def partial(self) -> bool:
        """Whether the data is a reconstruction, so that nothing of it stands beside the paper's figures."""
        return any(facts.name == pathak.PARTIAL_NAME for facts in self.facts)

    @property
    def nothing(self) -> bool:
        """Whether the folder held nothing at all."""
        return not self.facts and not self.statistics


def gather(wishes: Wishes, observer: CompareObserver | None = None) -> Findings:
    """Read, run and measure. What the cache knows is not run again."""
    plans = plan.without(plan.table_plans(wishes.dataset), wishes.skip)
    for one in plans:  # an unknown model fails before anything is read
        for entry in one.entries:
            plan.contender(entry.name, one.recipes, wishes.epochs)
    parts = plan.read_parts(wishes.dataset, wishes.folder)
    shown = "DATA" if wishes.folder is None else f"DATA/{wishes.folder.resolve().name}"
    cache = Cache(wishes.cache)
    comparisons = _compared(plans, parts, wishes, cache, observer)
    tables = tuple(_found_table(one, parts[one.part], comparisons.get(one.part), wishes) for one in plans)
    dataset, source = _described_by(parts)
    whole = dataset is not None and dataset.name != pathak.PARTIAL_NAME
    nothing = dataset is None
    return Findings(
        wishes=wishes,
        statistics=_statistics(dataset) if dataset else {},
        statistics_part=source,
        bias=popularity_bias(dataset) if dataset and whole else None,
        cosines=dissimilarity(dataset) if dataset and whole else None,
        tables=tables,
        curves=_curves(tables, comparisons, wishes.seeds[0]),
        cases=() if nothing or "cases" in wishes.skip else _case_studies(wishes, parts, cache),
        missing=plan.missing_files(wishes.dataset, parts, shown),
        outcomes=tuple(outcome for found in comparisons.values() for outcome in found.outcomes),
        facts=tuple(DataFacts.of(part.split) for part in parts.values() if part.split),
        failures={
            f"{missing.label} on {missing.dataset}, {missing.protocol}": missing.message
            for found in comparisons.values()
            for missing in found.failures
        },
    )


# ── Tables ───────────────────────────────────────────────────────────────────────────────────────


def _compared(
    plans: Sequence[plan.TablePlan],
    parts: Mapping[str, plan.DataPart],
    wishes: Wishes,
    cache: Cache,
    observer: CompareObserver | None,
) -> dict[str, Comparison]:
    """Every model of each part's tables, each once. Parts of which nothing is to be run are left out."""
    asked = {
        name: one
        for name, part in parts.items()
        if (one := _asked([table for table in plans if table.part == name], part, wishes, cache))
    }
    found = compare_together(
        [*asked.values()], cache=cache, device=wishes.device, observer=observer, jobs=wishes.jobs
    )
    return dict(zip(asked, found, strict=True))


def _asked(
    plans: Sequence[plan.TablePlan], part: plan.DataPart, wishes: Wishes, cache: Cache
) -> Asked | None:
    if part.split is None:
        return None
    possible = [one for one in plans if plan.why_not(one, part) is None]
    names = {entry.name: one.recipes for one in possible for entry in one.entries}
    contenders = [plan.contender(name, recipes, wishes.epochs) for name, recipes in names.items()]
    if wishes.only_cached:
        contenders = [one for one in contenders if _cached(one, part.split, wishes.seeds, cache)]
    return Asked(contenders, [part.split], wishes.seeds) if contenders else None


def _cached(contender: Contender, split: Split, seeds: Sequence[int], cache: Cache) -> bool:
    wanted = seeds if contender.abilities().seeded else seeds[:1]
    return all(cache.load(Cell(contender, split, seed).key, quiet=True) is not None for seed in wanted)


def _found_table(
    one: plan.TablePlan, part: plan.DataPart, comparison: Comparison | None, wishes: Wishes
) -> FoundTable:
    reason = plan.why_not(one, part)
    if reason is not None or comparison is None:
        return FoundTable(one, None, reason)
    # Made anew of the table's own rows, so that the best and the tests are among these.
    contenders = [plan.contender(entry.name, one.recipes, wishes.epochs) for entry in one.entries]
    table = make_table(
        comparison.data[0],
        one.task,
        one.metric,
        contenders,
        comparison.outcomes,
        comparison.failures,
        case_groups(part.split, one.task) if part.split else None,
    )
    return FoundTable(one, table)


def _described_by(parts: Mapping[str, plan.DataPart]) -> tuple[BundleDataset | None, str]:
    """The data that the statistics are of: the first part that is there, whole ones before partial ones."""
    there = [part for part in parts.values() if part.split is not None]
    for part in sorted(there, key=lambda part: part.partial):
        assert part.split is not None
        return part.split.dataset, part.name
    return None, ""


def _statistics(dataset: BundleDataset) -> dict[str, int | float]:
    table = dataset_table(dataset)
    if dataset.name == pathak.PARTIAL_NAME:  # what was reconstructed says nothing of the data
        table = {name: value for name, value in table.items() if not name.startswith("user_item")}
    return table


# ── Validation curves ────────────────────────────────────────────────────────────────────────────


def _curves(
    tables: Sequence[FoundTable], comparisons: Mapping[str, Comparison], seed: int
) -> tuple[ValidationCurve, ...]:
    """The first seed of every learned model of the matching table."""
    found = []
    for one in tables:
        if one.plan.section != "matching" or one.table is None:
            continue
        outcomes = {
            outcome.label: outcome for outcome in comparisons[one.plan.part].outcomes if outcome.seed == seed
        }
        for entry in one.plan.entries:
            outcome = outcomes.get(entry.name)
            if outcome is not None and outcome.curve:
                epochs = tuple(range(1, len(outcome.curve) + 1))
                found.append(ValidationCurve(entry.name, epochs, tuple(outcome.curve), outcome.best_epoch))
    return tuple(found)


# ── Case studies ─────────────────────────────────────────────────────────────────────────────────


def _case_studies(wishes: Wishes, parts: Mapping[str, plan.DataPart], cache: Cache) -> tuple[FoundCase, ...]:
    """On the sample shop, which is always there, and on Steam's named games where they are."""
    sample = parts[SAMPLE].split if SAMPLE in parts else None
    if sample is None:
        sample = SplitPlan("paper").divide(read(SAMPLE).dataset)
    found = [_case(sample, SAMPLE, wishes, cache)]
    games = parts[plan.NAMES_PART].split if plan.NAMES_PART in parts else _games_beside(wishes.folder)
    if games is not None:
        found.append(_case(games, "steam", wishes, cache))
    elif wishes.dataset != SAMPLE:
        where = public_data("steam").pages[0]
        reason = (
            f"Not possible: the games' names (steam/{plan.NAMES_PART}/) are not there; published at {where}"
        )
        found.append(FoundCase(pathak.PARTIAL_NAME, None, reason))
    return tuple(found)


def _games_beside(folder: Path | None) -> Split | None:
    """Steam's named games, where they lie beside the data that is being studied."""
    place = folder.resolve().parent / "steam" / plan.NAMES_PART if folder else None
    if place is None or not place.is_dir():
        return None
    return SplitPlan("paper").divide(read(place).dataset)


def _case(split: Split, recipes: str, wishes: Wishes, cache: Cache) -> FoundCase:
    split = cases.fair_split(split)
    chosen = plan.contender("bundlemage", recipes, wishes.epochs)
    cell = Cell(chosen, split, wishes.seeds[0])
    folder = cache.folder / "cases" / cell.key
    recommender = _saved(folder, wishes.device)
    if recommender is None and wishes.only_cached:
        return FoundCase(split.dataset.name, None, NOT_RUN)
    if recommender is None:
        config = chosen.config(cell.seed, wishes.device)
        with cache.working(f"case-{cell.key}") as run:
            recommender = fitted(chosen.model, config, split, run, bar_for_people(), ensemble=chosen.ensemble)
            recommender.save(folder, overwrite=folder.exists())
            RunFolder(run).discard()
    label = f"BundleMage, seed {cell.seed}, {len(recommender.history)} epochs"
    return FoundCase(split.dataset.name, cases.case_study(recommender.model, split, label))


def _saved(folder: Path, device: str) -> Recommender | None:
    try:
        return Recommender.load(folder, device=device) if folder.is_dir() else None
    except ArtifactError:  # damaged: it is trained anew
        return None
