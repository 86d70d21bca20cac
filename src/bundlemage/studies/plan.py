"""What a reproduction is made of: which tables, which models in them, which files of the data they need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bundlemage.data.splits import Split, SplitPlan
from bundlemage.downloads.public_data import public_data
from bundlemage.errors import ConfigError, DataError
from bundlemage.models.registry import model_class
from bundlemage.readers import pathak
from bundlemage.readers.load import SAMPLE, read
from bundlemage.recipe import Recipe, recipe_names
from bundlemage.studies import paper
from bundlemage.studies.cells import Contender
from bundlemage.studies.figures import Group

STUDIES = (*paper.DATASETS, SAMPLE)
MATCHING_PART, GENERATION_PART, FULL_PART, NAMES_PART = "authors/mat", "authors/gen", "bgcn", "pathak"
_LAST_PART = {"steam": NAMES_PART}
"""What a dataset is published as besides the authors' splits; the others have a split for full ranking."""
SECTIONS = ("matching", "generation", "ablations", "parts", "full-ranking", "cases")
"""What can be left out, besides single models."""

_PAPERS_RECIPES = "youshu"
"""Where the paper's own settings are: it has one set of hyperparameters for all data."""


@dataclass(frozen=True)
class Entry:
    """A row of a table."""

    name: str
    """A recipe of the data's folder, or else a model."""
    title: str
    group: Group
    paper: Mapping[str, float] = field(default_factory=dict)
    remark: str = ""


@dataclass(frozen=True)
class TablePlan:
    key: str
    title: str
    section: str
    part: str
    """The folder of the data that it is measured on."""
    task: str
    recipes: str
    """The folder of the recipes."""
    metrics: tuple[str, ...]
    metric: str
    """The one that ranks."""
    entries: tuple[Entry, ...]
    intro: str
    beside: str = "the paper"
    """Whose figures stand beside ours."""
    partial: bool = False
    """Whether reconstructed data will do, and nothing of the paper stands beside it."""


def _rows(rows: Iterable[paper.PaperRow], dataset: str) -> list[Entry]:
    entries = []
    for row in rows:
        group: Group = "ours" if row.title.startswith("BundleMage") else "paper"
        title = {"item-popularity": "POP, by mean popularity of the items"}.get(row.contender, row.title)
        if row.contender == "bundlemage-paper":
            title = "BundleMage, the paper's settings"
        figures = row.figures(dataset)
        remark = row.remark if dataset in paper.DATASETS and not figures else ""
        entries.append(Entry(row.contender, title, group, figures, remark))
    return entries


def _beyond(**titles: str) -> list[Entry]:
    return [Entry(name.replace("_", "-"), title, "beyond") for name, title in titles.items()]


_OUR_TITLE = "BundleMage"
ENSEMBLE = "bundlemage-ensemble"
_ENSEMBLE_TITLE = "BundleMage, four averaged"
_MORE_MATCHING = _beyond(
    popularity="Popularity, by purchases of the bundle",
    owned_share="Share of the bundle's items owned",
    item_knn="ItemKNN",
    ease="EASE",
    lightgcn="LightGCN",
    crosscbr="CrossCBR",
    crosscbr_tuned="CrossCBR, tuned anew",
    multicbr="MultiCBR",
    bundlegt="BundleGT",
)
_YOUSHU_ALONE = frozenset({"crosscbr-tuned"})
"""Rows that are a recipe for Youshu: no other data has settings of that name."""
_MORE_GENERATION = _beyond(
    co_occurrence="Item co-occurrence", ppmi_svd="PPMI-SVD", ease_items="EASE on bundle-item"
)
_ALSO_FULL = ("popularity", "ease", "lightgcn", "crosscbr", "multicbr", "bundlegt")
_FULL = (
    Entry("bgcn", "BGCN", "paper"),
    Entry("bundlemage", _OUR_TITLE, "ours"),
    Entry(ENSEMBLE, _ENSEMBLE_TITLE, "ours"),
    *(entry for entry in _MORE_MATCHING if entry.name in _ALSO_FULL),
)
_POP_NOTE = (
    "The paper's POP row of matching is the mean popularity of a bundle's items; popularity by purchases of "
    "the bundle, which is what the word mostly means, has a row of its own."
)

_NEGATIVES_NOTE = (
    " The 99 wrong bundles of each user are the same for every model here, but not those that the paper drew."
)


def _more_matching(dataset: str) -> list[Entry]:
    youshu = dataset == _PAPERS_RECIPES
    return [entry for entry in _MORE_MATCHING if youshu or entry.name not in _YOUSHU_ALONE]


def table_plans(dataset: str) -> tuple[TablePlan, ...]:
    """The tables of a report, in the paper's order."""
    sample = dataset == SAMPLE
    matching, generation = (SAMPLE, SAMPLE) if sample else (MATCHING_PART, GENERATION_PART)
    plans = [
        TablePlan(
            "matching",
            "Bundle matching",
            "matching",
            matching,
            "matching",
            dataset,
            paper.METRICS,
            "ndcg@5",
            (*_with_ours(_rows(paper.MATCHING, dataset)), *_more_matching(dataset)),
            "Which bundle did the user take next? One right bundle among 100. "
            + _POP_NOTE
            + _NEGATIVES_NOTE * (not sample),
        ),
        TablePlan(
            "generation",
            "Bundle generation",
            "generation",
            generation,
            "generation",
            dataset,
            paper.METRICS,
            "ndcg@5",
            (*_with_ours(_rows(paper.GENERATION, dataset)), *_MORE_GENERATION),
            "Which items complete a bundle that no model has seen, for this user?",
        ),
        TablePlan(
            "ablation-matching",
            "Ablation of matching",
            "ablations",
            matching,
            "matching",
            dataset,
            paper.NDCG,
            "ndcg@5",
            tuple(_rows(paper.ABLATION_MATCHING, dataset)),
            "What matching loses without a part of the model. -Avg averages instead of gating, -Sep shares "
            "no item embeddings between the tasks, -Sha all of them, -Lgen learns no generation.",
        ),
        TablePlan(
            "ablation-generation",
            "Ablation of generation",
            "ablations",
            generation,
            "generation",
            dataset,
            paper.NDCG,
            "ndcg@5",
            tuple(_rows(paper.ABLATION_GENERATION, dataset)),
            "What generation loses without a part of the model; -Lmat learns no matching.",
        ),
    ]
    if dataset == _PAPERS_RECIPES:
        plans += _parts_plans()
    if sample:
        return tuple(replace(one, beside="") for one in plans)
    if dataset == "steam":
        return (*plans, *_partial_plans())
    return (*plans, _full_plan(dataset))


_PARTS = (
    ("without-cosine", "inner products instead of cosines"),
    ("without-residual", "no residual"),
    ("without-popularity", "no popularity in the scores"),
    ("with-join", "user and bundle joined, no gate"),
    ("without-item-dropout", "no dropout of a user's items"),
    ("with-small-spread", "first vectors with Xavier's spread"),
    ("matching-alone", "matching alone"),
    ("generation-alone", "generation alone"),
    ("shared-nothing", "nothing shared"),
    ("shared-all", "all shared"),
    ("with-200-dimensions", "200 dimensions"),
    ("with-propagation", "with propagation"),
    ("with-learned-temperature", "with learned temperatures"),
)
"""BundleMage's defaults with one change each, and what a table calls it."""


def _parts_plans() -> list[TablePlan]:
    """What each part of BundleMage is worth that the paper's model has not."""
    ours = Entry("bundlemage", _OUR_TITLE, "ours")
    entries = [Entry(name, f"… {title}", "ours") for name, title in _PARTS]
    return [
        TablePlan(
            f"parts-{key}",
            f"What the parts are worth: {key}",
            "parts",
            part,
            task,
            _PAPERS_RECIPES,
            metrics,
            metric,
            (ours, *(entry for entry in entries if keeps(entry.name))),
            "BundleMage's defaults with one change each.",
            beside="",
        )
        for key, part, task, metrics, metric, keeps in (
            ("matching", MATCHING_PART, "matching", paper.METRICS, "ndcg@5", "generation-alone".__ne__),
            ("generation", GENERATION_PART, "generation", paper.METRICS, "ndcg@5", "matching-alone".__ne__),
        )
    ]


def _with_ours(entries: Sequence[Entry]) -> list[Entry]:
    """The paper's rows, and the package's own settings of BundleMage, one of it and several, beside the same
    figures."""
    last = entries[-1]
    ours = (("bundlemage", _OUR_TITLE), (ENSEMBLE, _ENSEMBLE_TITLE))
    return [*entries, *(replace(last, name=name, title=title) for name, title in ours)]


def _full_plan(dataset: str) -> TablePlan:
    published = {row.contender: row.figures for row in paper.FULL_RANKING.get(dataset, ()) if row.contender}
    return TablePlan(
        "full-ranking",
        "Full ranking, beyond the paper",
        "full-ranking",
        FULL_PART,
        "matching",
        f"{dataset}-full",
        paper.FULL_METRICS,
        "recall@20",
        tuple(replace(entry, paper=published.get(entry.name, {})) for entry in _FULL),
        "Every bundle is a candidate, on the split that BGCN and its followers report on. The paper has no "
        "such table; published figures stand beside ours.",
        beside="published",
    )


def _partial_plans() -> list[TablePlan]:
    ours = Entry("bundlemage", _OUR_TITLE, "ours")
    paper_ours = Entry("bundlemage-paper", "BundleMage, the paper's settings", "ours")
    kept = [entry for entry in _MORE_MATCHING if entry.name in ("popularity", "owned-share", "ease")]
    note = (
        f"{pathak.PARTIAL_NAME} is not the paper's Steam: its user-item matrix is reconstructed from the "
        "bundles, so the paper's figures do not stand beside these."
    )
    return [
        TablePlan(
            f"partial-{task}",
            f"{pathak.PARTIAL_NAME}: {task}",
            task,
            part,
            task,
            "steam",
            paper.METRICS,
            "ndcg@5",
            (ours, paper_ours, *others),
            note,
            beside="",
            partial=True,
        )
        for task, part, others in (
            ("matching", MATCHING_PART, kept),
            (
                "generation",
                GENERATION_PART,
                [Entry("popularity", "Popularity, by users of the item", "beyond"), *_MORE_GENERATION],
            ),
        )
    ]


# ── Models ───────────────────────────────────────────────────────────────────────────────────────


def recipe_of(name: str, recipes: str) -> str | None:
    """The recipe that a row is run by; None for a model with its defaults."""
    own = [f"{recipes}/{name}"]
    if name in ("bundlemage-paper", ENSEMBLE) or name.startswith("ablation-"):
        own.append(f"{_PAPERS_RECIPES}/{name}")
    return next((candidate for candidate in own if candidate in recipe_names()), None)


def contender(name: str, recipes: str, epochs: int | None = None) -> Contender:
    found = recipe_of(name, recipes)
    if found is None:
        model_class(name)  # an unknown name is refused here, before anything runs
        made = Contender(name, name)
    else:
        recipe = Recipe.find(found)
        made = Contender(name, recipe.model, recipe.settings, recipe.ensemble)
    if epochs is not None and "epochs" in model_class(made.model).config_class.model_fields:
        made = made.with_settings({"epochs": epochs})
    return made


def without(plans: Iterable[TablePlan], skipped: Collection[str]) -> tuple[TablePlan, ...]:
    """The plans less what is not wanted: models by name, or whole sections."""
    known = {entry.name for plan in table_plans("steam") + table_plans("youshu") for entry in plan.entries}
    for name in skipped:
        if name not in known and name not in SECTIONS:
            raise ConfigError(
                f"--skip {name}: there is no such model or section here. Sections: {', '.join(SECTIONS)}; "
                f"models: {', '.join(sorted(known))}"
            )
    kept = []
    for plan in plans:
        entries = tuple(entry for entry in plan.entries if entry.name not in skipped)
        if plan.section not in skipped and entries:
            kept.append(replace(plan, entries=entries))
    return tuple(kept)


# ── Data ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Part:
    """One folder of a dataset: its split, or why there is none."""

    name: str
    split: Split | None
    problems: tuple[str, ...] = ()

    @property
    def partial(self) -> bool:
        """Whether the user-item matrix is a reconstruction."""
        return self.split is not None and self.split.dataset.name == pathak.PARTIAL_NAME


@dataclass(frozen=True)
class MissingFiles:
    part: str
    problems: tuple[str, ...]
    where: str
    """Where they are published, and how they are had."""


def read_parts(dataset: str, folder: Path | None) -> dict[str, Part]:
    """Every part of the data; one that is not there, or not sound, says what is wrong with it."""
    if dataset == SAMPLE:
        return {SAMPLE: Part(SAMPLE, SplitPlan("paper").divide(read(SAMPLE).dataset))}
    names = (MATCHING_PART, GENERATION_PART, _LAST_PART.get(dataset, FULL_PART))
    if folder is None or not folder.is_dir():
        given = "no folder is named" if folder is None else f"{folder} is not a folder"
        raise ConfigError(f"--data: {given}; give the one that holds {', '.join(names)} of {dataset}")
    return {name: _read_part(name, folder / name) for name in names}


def _read_part(name: str, folder: Path) -> Part:
    if not folder.is_dir() or not any(folder.iterdir()):
        return Part(name, None, (f"the folder {name}/ is not there",))
    try:
        source = read(folder)
    except DataError as error:
        base = f"{folder}/"
        return Part(name, None, tuple(str(problem).replace(base, f"{name}/") for problem in error.problems))
    if name == NAMES_PART:
        return Part(name, SplitPlan("paper").divide(source.dataset))
    if source.ready is None:
        return Part(
            name, None, (f"{name}/ defines no split: its files for training and testing are missing",)
        )
    return Part(name, source.ready)


def missing_files(dataset: str, parts: Mapping[str, Part], folder: str) -> tuple[MissingFiles, ...]:
    """What is not there of all that the dataset is published with."""
    if dataset == SAMPLE:
        return ()
    found = []
    for name, part in parts.items():
        problems = part.problems
        where = _published(dataset, name, folder)
        if part.partial and name in (MATCHING_PART, GENERATION_PART):
            problems = (f"{name}/user_item.pkl is missing: who owns which item",)
            where += "; whether this file is among those is not known"
        if problems:
            found.append(MissingFiles(name, problems, where))
    return tuple(found)


def _published(dataset: str, part: str, folder: str) -> str:
    known = public_data(dataset)
    if part == known.folder:
        return f"published at {known.pages[0]}; fetch with: bundlemage data get {dataset} -o {folder}"
    for entry in known.by_hand:
        if part in entry.put:
            return f"published at {entry.page}; put into {folder}/{part}"
    if part in (MATCHING_PART, GENERATION_PART):
        return f"published at {paper.AUTHORS_FILES}; put into {folder}/{part}"
    return f"the data was first published at {paper.SOURCES[dataset]}; nobody is known to publish this part"


def why_not(plan: TablePlan, part: Part) -> str | None:
    """Why a table cannot be made; None if it can."""
    if part.split is None:
        return "; ".join(part.problems)
    if part.partial and not plan.partial:
        return (
            f"{part.name}/user_item.pkl is missing, and the reconstruction is not what the paper measured on"
        )
    if plan.partial and not part.partial:
        return "the real data is here, so its reconstruction is not needed"
    cases = part.split.test if plan.task == "matching" else part.split.generation
    if not cases:
        return f"{part.name}/ has no cases of {plan.task}"
    return None
