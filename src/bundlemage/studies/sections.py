"""What was found, as the sections of a report: every number beside the paper's, with its command."""

from __future__ import annotations

from collections.abc import Mapping

from bundlemage.readers.load import SAMPLE
from bundlemage.studies import paper, plan
from bundlemage.studies.case_sections import case_section
from bundlemage.studies.document import (
    Block,
    Cell,
    Command,
    Folded,
    Grid,
    Points,
    Section,
    Text,
    Tone,
)
from bundlemage.studies.figure_sections import figure_section
from bundlemage.studies.findings import NOT_RUN, Findings, FoundTable
from bundlemage.studies.render import LIKE, described, deviation, duration, figure, legend
from bundlemage.studies.standings import Row, Table

NEAR_SHARE, NEAR_FIGURE = 0.05, 0.005
"""A figure is near the paper's within this share of it, or within this much: less is noise between seeds."""
NONE = "--"
_STATISTICS = {
    "users": "users",
    "bundles": "bundles",
    "items": "items",
    "user_bundle_pairs": "user-bundle pairs",
    "user_bundle_density": "user-bundle density",
    "user_item_pairs": "user-item pairs",
    "user_item_density": "user-item density",
    "bundle_item_pairs": "bundle-item pairs",
    "bundle_item_density": "bundle-item density",
    "items_per_bundle": "mean items in a bundle",
}
_STATISTICS_HEAD = ("", "this data", "the paper", "difference")


def signed(value: float) -> str:
    """`+.0012`, `−.0125`; `.0000` has no sign."""
    size = figure(abs(value))
    return size if size == figure(0.0) else f"{'−' if value < 0 else '+'}{size}"


def tone_of(ours: float, theirs: float) -> Tone:
    difference = ours - theirs
    if abs(difference) <= max(NEAR_FIGURE, NEAR_SHARE * theirs):
        return "near"
    return "above" if difference > 0 else "below"


def sections(findings: Findings) -> tuple[Section, ...]:
    """All of them, in the paper's order; those that were not wanted are left out."""
    dataset = findings.wishes.dataset
    made = [_statistics(findings)]
    for found in findings.tables:
        if found.plan.key == "full-ranking":
            made.append(_bias(findings))
        made.append(_table_section(found, findings))
    if not any(section.key == "bias" for section in made):
        made.append(_bias(findings))
    made += [figure_section(findings), case_section(findings)] if not findings.nothing else []
    if dataset != SAMPLE:
        made.append(_missing(findings))
    made.append(_how(findings))
    return tuple(section for section in made if section.blocks)


# ── Statistics ───────────────────────────────────────────────────────────────────────────────────


def _statistics(findings: Findings) -> Section:
    dataset = findings.wishes.dataset
    printed = paper.STATISTICS.get(dataset, {})
    heads = _STATISTICS_HEAD if printed else _STATISTICS_HEAD[:2]
    rows = [
        (Cell(title), *_statistic(name, findings.statistics.get(name), printed.get(name)))[: len(heads)]
        for name, title in _STATISTICS.items()
    ]
    blocks: list[Block] = []
    if findings.statistics:
        rounds = " Where the paper rounds, so does the difference." if printed else ""
        blocks.append(Text(f"Measured on {data_place(findings, findings.statistics_part)}.{rounds}"))
    else:
        blocks.append(Text("There is no data to measure: these are the paper's figures alone.", "warning"))
    blocks.append(Grid("statistics", heads, tuple(rows)))
    if findings.statistics:
        where = SAMPLE if dataset == SAMPLE else f"{data_folder(findings)}/{findings.statistics_part}"
        blocks.append(Command(f"bundlemage data stats {where}"))
    return Section("statistics", "Dataset statistics", tuple(blocks))


def _statistic(name: str, ours: float | None, theirs: float | None) -> tuple[Cell, Cell, Cell]:
    def text(value: float | None) -> str:
        if value is None:
            return NONE
        if name.endswith("density"):
            return f"{value:.2%}"
        return f"{value:.2f}" if name == "items_per_bundle" else f"{value:,.0f}"

    if ours is None or theirs is None:
        return Cell(text(ours), order=ours), Cell(text(theirs)), Cell(NONE)
    digits = 4 if name.endswith("density") else 2
    difference = round(ours, digits) - round(theirs, digits)
    if abs(difference) < 10**-digits / 2:
        return Cell(text(ours)), Cell(text(theirs)), Cell("none")
    sign = "−" if difference < 0 else "+"
    return Cell(text(ours)), Cell(text(theirs)), Cell(sign + text(abs(difference)))


def _bias(findings: Findings) -> Section:
    printed = paper.POPULARITY_BIAS.get(findings.wishes.dataset)
    ours = findings.bias
    both = ours is not None and printed is not None
    difference = f"{(ours or 0) - (printed or 0):+.2%}".replace("-", "−") if both else NONE
    row = (
        Cell("mean rank of the items in bundles"),
        Cell(NONE if ours is None else f"{ours:.2%}"),
        Cell(NONE if printed is None else f"{printed:.2%}"),
        Cell(difference),
    )
    text = (
        "How popular the items in bundles are: the rank of an item by its number of users, as a share of all "
        "items, averaged over each bundle and then over all bundles. Near 0% bundles hold only what is most "
        "popular; 50% is as good as any."
    )
    blocks: list[Block] = [Text(text)]
    if ours is None:
        blocks.append(Text("It needs the user-item matrix, which is not here.", "warning"))
    heads = _STATISTICS_HEAD if printed is not None else _STATISTICS_HEAD[:2]
    blocks.append(Grid("bias", heads, (row[: len(heads)],)))
    return Section("bias", "Popularity bias", tuple(blocks))


# ── Tables ───────────────────────────────────────────────────────────────────────────────────────


def _table_section(found: FoundTable, findings: Findings) -> Section:
    one = found.plan
    blocks: list[Block] = [Text(one.intro)]
    if found.reason is not None:
        blocks.append(Text(f"Not possible here: {found.reason}.", "warning"))
    elif found.table is None:
        blocks.append(Text("None of these models was run, and no training was asked for.", "warning"))
    if found.reason is not None and not any(entry.paper for entry in one.entries):
        return Section(one.key, one.title, tuple(blocks))
    entries = one.entries
    if found.reason is not None:  # what the paper has is all there is
        own = ("bundlemage", plan.ENSEMBLE)
        entries = tuple(entry for entry in entries if entry.group != "beyond" and entry.name not in own)
    rows = [_row(entry, found.table, one, NONE if found.reason else NOT_RUN) for entry in entries]
    groups: list[str] = [entry.group for entry in entries]
    sources: list[str] = []
    if one.key == "full-ranking":
        for published in paper.TABLES[one.key]:
            figures = published.figures(findings.wishes.dataset)
            if figures:
                sources.append(f"{published.title}: {published.remark}")
            if figures and not published.contender:
                rows.append(_published_row(published, figures, one))
                groups.append("published")
    heads = ("model", *map(_heading, one.metrics), "fit")
    machines = {outcome.device for outcome in findings.outcomes if getattr(outcome, one.task) is not None}
    times = len(machines) <= 1  # seconds of different machines do not compare
    if not times:
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    blocks.append(Grid(one.key, heads, tuple(rows), tuple(groups), _legend(found, times)))
    if sources:
        blocks.append(Text(f"Published figures: {'; '.join(sources)}."))
    blocks += [Text(f"{entry.title}: {entry.remark}.", "soft") for entry in entries if entry.remark]
    if found.table is not None:
        blocks.append(Command(compare_command(found, findings)))
    return Section(one.key, one.title, tuple(blocks))


def _heading(metric: str) -> str:
    return metric.replace("ndcg", "nDCG").replace("recall", "Recall")


def _row(entry: plan.Entry, table: Table | None, one: plan.TablePlan, without: str) -> tuple[Cell, ...]:
    """`without` is said where there is no result."""
    row = next((row for row in table.rows if row.label == entry.name), None) if table else None
    recipe = plan.recipe_of(entry.name, one.recipes)
    mark = f" {LIKE}" if row is not None and row.metrics and not row.distinguishable else ""
    hint = f"recipe {recipe}" if recipe else "the model's default settings"
    name = Cell(entry.title + mark, code=recipe or entry.name, hint=hint)
    cells = [
        _figure_cell(row, metric, entry.paper.get(metric), one.beside, without) for metric in one.metrics
    ]
    seconds = row.fit_seconds if row else None
    return (name, *cells, Cell(duration(seconds), order=seconds))


def _figure_cell(row: Row | None, metric: str, theirs: float | None, beside: str, without: str) -> Cell:
    shown = figure(theirs) if theirs is not None else NONE if beside else ""
    if row is None or row.metrics is None:
        why = "failed" if row is not None else without
        return Cell(why, beside=shown, hint=row.failure or "" if row else "")
    spread = row.metrics[metric]
    cell = Cell(
        figure(spread.mean),
        best=metric in row.best,
        spread=deviation(spread, row.seeds),
        beside=shown,
        order=spread.mean,
    )
    if theirs is None:
        return cell
    return Cell(
        **{
            **vars(cell),
            "difference": signed(spread.mean - theirs),
            "tone": tone_of(spread.mean, theirs),
        }
    )


def _published_row(
    published: paper.PaperRow, figures: Mapping[str, float], one: plan.TablePlan
) -> tuple[Cell, ...]:
    cells = [
        Cell(NONE, beside=figure(figures[metric]) if metric in figures else NONE) for metric in one.metrics
    ]
    return (Cell(published.title, hint=published.remark), *cells, Cell(NONE))


def _legend(found: FoundTable, times: bool) -> str:
    parts = [legend(found.table, times=times)] if found.table else []
    if found.plan.beside:
        whose = "the paper's" if found.plan.beside == "the paper" else "the published"
        parts.append(
            f"Beside ours, {whose} figure ({NONE}: there is none) and the difference: ≈ within "
            f"{NEAR_SHARE:.0%} or {figure(NEAR_FIGURE)} of it, ▲ above, ▼ below."
        )
    return " ".join(parts)


def compare_command(found: FoundTable, findings: Findings) -> str:
    """What makes the numbers of a table, and these alone."""
    one, wishes = found.plan, findings.wishes
    names = [plan.recipe_of(entry.name, one.recipes) or entry.name for entry in one.entries]
    where = SAMPLE if one.part == SAMPLE else f"{data_folder(findings)}/{one.part}"
    parts = [f"bundlemage compare {where} --seeds {_seeds(findings)}"]
    if wishes.epochs is not None:
        parts[0] += f" --epochs {wishes.epochs}"
    if one.metric != "ndcg@5":
        parts.append(f"--metric {one.metric} --metrics {','.join(one.metrics)}")
    parts += [f"-m {','.join(names[start : start + 5])}" for start in range(0, len(names), 5)]
    return " \\\n    ".join(parts)


def data_folder(findings: Findings) -> str:
    """The data's folder as a report may show it, which does not say where on a machine it lies."""
    folder = findings.wishes.folder
    return SAMPLE if folder is None else f"DATA/{folder.resolve().name}"


def data_place(findings: Findings, part: str) -> str:
    return "the built-in shop" if part == SAMPLE else f"{data_folder(findings)}/{part}"


def _seeds(findings: Findings) -> str:
    return ",".join(map(str, findings.wishes.seeds))


# ── What is missing, and how it was made ─────────────────────────────────────────────────────────


def _missing(findings: Findings) -> Section:
    points = [
        f"{missing.part}: {'; '.join(dict.fromkeys(missing.problems))} — {missing.where}"
        for missing in findings.missing
    ]
    if not points:
        return Section("missing", "Missing files", ())
    return Section("missing", "Missing files", (Points(tuple(points)),))


def _how(findings: Findings) -> Section:
    blocks: list[Block] = [Command(reproduce_command(findings), "The command that made this report:")]
    machines = {f"{one.device}; BundleMage {one.version}, PyTorch {one.torch}" for one in findings.outcomes}
    dates = sorted(one.date[:10] for one in findings.outcomes)
    told = [f"Ran on {machine}." for machine in sorted(machines)]
    if findings.wishes.note:
        told.append(findings.wishes.note)
    if dates:
        told.append(
            f"Measured {f'from {dates[0]} to {dates[-1]}' if dates[0] != dates[-1] else f'on {dates[0]}'}."
        )
    told.append(f"Seeds {_seeds(findings)}: those of the training; the splits do not change.")
    told += [f"{facts.name}, {facts.protocol}: {described(facts)}" for facts in findings.facts]
    notes = dict.fromkeys(note for facts in findings.facts for note in facts.notes)
    told += [f"Note: {note}" for note in notes]
    told += [f"Failed: {what}: {message}" for what, message in findings.failures.items()]
    blocks.append(Points(tuple(told)))
    settings: dict[str, tuple[str, ...]] = {}
    for one in findings.outcomes:
        settings[f"{one.label} on {one.dataset}, {one.protocol}"] = (
            f"model = {one.model}",
            *(f"{key} = {value!r}" for key, value in one.shown_settings.items()),
        )
    if settings:
        lines = [line for title, body in settings.items() for line in (f"[{title}]", *body, "")]
        blocks.append(Folded("Every setting of every model", tuple(lines[:-1])))
    return Section("how", "How it was made", tuple(blocks))


def reproduce_command(findings: Findings) -> str:
    wishes = findings.wishes
    parts = [f"bundlemage reproduce {wishes.dataset}"]
    if wishes.folder is not None:
        parts.append(f"--data {data_folder(findings)}")
    parts.append(f"-o REPORT --seeds {_seeds(findings)}")
    if wishes.epochs is not None:
        parts.append(f"--epochs {wishes.epochs}")
    parts += [f"--skip {name}" for name in wishes.skip]
    return " ".join(parts) + " --only-cached" * wishes.only_cached
