"""Output in a terminal: tables, cards, curves."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from bundlemage.cli.texts import plural
from bundlemage.errors import Problem

if TYPE_CHECKING:
    from bundlemage.core.shop import RecommendedBundle, RecommendedItem
    from bundlemage.data.dataset import BundleDataset
    from bundlemage.data.leakage import Leakage
    from bundlemage.data.statistics import EventFacts
    from bundlemage.evaluation import Evaluation
    from bundlemage.measures.steering import SteeringPoint
    from bundlemage.studies.standings import ResultTable
    from bundlemage.training.history import EpochRecord
    from bundlemage.wire.shop import ShopSettings

BARS = "▁▂▃▄▅▆▇█"
RELATIONS = ("user_bundle", "user_item", "bundle_item")

out = Console(highlight=False)
notes = Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """Print a value as JSON on stdout."""
    json.dump(value, sys.stdout, ensure_ascii=False, indent=2)
    print()


def say(line: str) -> None:
    """Print a line on stdout. The terminal wraps it, so that it can be copied as one line."""
    out.print(line, soft_wrap=True)


def note(line: str) -> None:
    """Print a line on stderr, as `say` does."""
    notes.print(line, soft_wrap=True)


def table(title: str, *columns: str) -> Table:
    """A table with these columns. A column whose name begins with ">" is aligned to the right."""
    empty = Table(title=title, title_justify="left")
    for column in columns:
        empty.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    return empty


def plain(value: object) -> str:
    """Text from users or data, escaped so that brackets are not read as markup."""
    return str(value).replace("[", "\\[")


def warn(*problems: object) -> None:
    """Print a warning on stderr for each problem. Notes are left to `data check`."""
    for problem in problems:
        if not (isinstance(problem, Problem) and problem.severity == "note"):
            note(f"[yellow]warning:[/] {plain(problem)}")


def sizes(name: str, counts: Mapping[str, int]) -> str:
    """One line with the sizes of a data set: how many users, bundles and items, and pairs of them."""
    things = ", ".join(f"{counts[each]:,} {each}" for each in ("users", "bundles", "items"))
    pairs = (f"{counts[each]:,} {each.replace('_', '-')}" for each in RELATIONS)
    return f"{plain(name)}: {things}; {', '.join(pairs)} pairs"


def described(dataset: BundleDataset) -> str:
    """The sizes of a data set in one line."""
    counts = {name: len(getattr(dataset, name)) for name in ("users", "bundles", "items")}
    return sizes(dataset.name, counts | {name: getattr(dataset, name).nnz for name in RELATIONS})


def caveats(dataset: BundleDataset) -> None:
    """Print the notes of a data set. A reader needs them to compare figures."""
    for each in dataset.notes:
        out.print(f"[yellow]note:[/] {plain(each)}")


def event_facts(known: Mapping[str, EventFacts]) -> None:
    """Print what is known about the pairs of tables of events: types, times, weights, rejected pairs."""
    for name, facts in known.items():
        lines = []
        if facts.types:
            types = ", ".join(f"{plain(kind) or 'none'} {count:,}" for kind, count in facts.types.items())
            lines.append(f"types of events (rows): {types}")
        if facts.first is not None:
            undated = f"; without a time: {plural(facts.undated, 'pair')}" if facts.undated else ""
            lines.append(f"times: {facts.first} to {facts.last}{undated}")
        if facts.weights is not None:
            least, median, most = facts.weights
            lines.append(f"weights of pairs: {least:.4g} to {most:.4g}, median {median:.4g}")
        if facts.rejected:
            lines.append(f"rejected, because the latest event is negative: {plural(facts.rejected, 'pair')}")
        for line in lines:
            out.print(f"{name}: {line}", soft_wrap=True)


def leakage(found: Leakage, histories: str | None = None) -> None:
    """Print on stderr how many pairs users' items give away, and what a split did about it."""
    from bundlemage.data.leakage import told

    if found.pairs:
        note("[yellow]leakage:[/] " * found.found + plain(told(found, histories)))


def evaluations(rows: Sequence[Evaluation]) -> RenderableType:
    """A table for each task of the first model. The others come after it for comparison, the best first. The
    best value of each column is bold."""
    tables: list[RenderableType] = []
    for task, question in (
        ("matching", "Which bundle did the user take next?"),
        ("generation", "Which items complete the bundle?"),
    ):
        if not rows or not getattr(rows[0], task):
            continue
        measured = [(row.model, getattr(row, task)) for row in rows if getattr(row, task)]
        measured[1:] = sorted(measured[1:], key=lambda row: -row[1]["ndcg@5"])
        cases = getattr(rows[0], f"{task}_cases")
        metrics = _metrics_beside(max(len(model) for model, _ in measured))
        shown = table(
            f"{question}  ({task}, {cases:,} cases)", "model", *(f">{metric}" for metric in metrics)
        )
        for model, values in measured:
            cells = []
            for metric in metrics:
                best = max(others[metric] for _, others in measured)
                cells.append(f"[bold]{best:.4f}[/]" if values[metric] == best else f"{values[metric]:.4f}")
            shown.add_row(model, *cells)
        tables.append(shown)
    return Group(*tables) if tables else Text("There are no held-out test cases.")


def steering(points: Sequence[SteeringPoint]) -> RenderableType:
    """A table for each of the two weights that steer lists: what it changes, and what it costs."""
    columns = {"ndcg@5": "ndcg@5", "ndcg@10": "ndcg@10"}
    columns |= {f"{name}@10": name for name in ("coverage", "diversity", "cosine", "lift", "misplaced")}
    tables: list[RenderableType] = []
    for weight, other in (("diversity", "match_popularity"), ("match_popularity", "diversity")):
        shown = table(
            f"Lists of ten bundles by {weight}", "value", *(f">{name}" for name in columns.values())
        )
        for point in points:
            if not getattr(point, other):
                values = (point.metrics[metric] for metric in columns)
                cells = ("" if value is None else f"{value:.3f}" for value in values)
                shown.add_row(f"{getattr(point, weight):g}", *cells)
        tables.append(shown)
    return Group(*tables)


def _metrics_beside(longest: int) -> list[str]:
    """The metrics that fit beside names of this length. A narrow terminal shows fewer of them rather than
    names that are cut."""
    metrics = [f"{name}@{k}" for name in ("ndcg", "recall") for k in (5, 10, 20)]
    for less_needed in ("recall@10", "ndcg@10", "recall@5"):
        if 1 + sum(len(column) + 3 for column in ("x" * longest, *metrics)) <= out.width:
            break
        metrics.remove(less_needed)
    return metrics


def comparison_table(results: ResultTable, columns: Sequence[str]) -> RenderableType:
    """A table of a comparison, with a line below that explains its marks."""
    from bundlemage.studies import render

    shown = table(f"{plain(render.heading(results))}  ({results.cases:,} cases)")
    longest = max((len(row.label) for row in results.rows), default=0) + 2  # room for a mark
    shown.add_column("model", overflow="fold", min_width=min(longest, 24))
    # A narrow terminal shows fewer metrics rather than half of each.
    deviations = any(row.metrics and len(row.seeds) > 1 for row in results.rows)
    room = (out.width - min(longest, 24) - 24) // (15 if deviations else 12)
    columns = columns[: max(1, room)]
    for head in (*columns, "fit", "memory"):
        shown.add_column(head, justify="right", no_wrap=True)
    for row in results.rows:
        name = plain(row.label) + f" {render.NOT_DIFFERENT}" * (not row.distinguishable)
        if row.metrics is None:
            shown.add_row(name, "[red]failed[/]")
            continue
        cells = []
        for column in columns:
            if column not in row.metrics:
                cells.append("–")
                continue
            spread = row.metrics[column]
            mean = render.figure(spread.mean)
            mean = f"[bold]{mean}[/]" if column in row.best else mean
            cells.append(f"{mean} {render.deviation(spread, row.seeds)}".strip())
        shown.add_row(name, *cells, render.duration(row.fit_seconds), render.size(row.memory))
    failed = [
        f"[red]{plain(row.label)} failed:[/] {plain(row.failure)}" for row in results.rows if row.failure
    ]
    unknown = any(row.metrics and column not in row.metrics for row in results.rows for column in columns)
    failed += [f"[dim]–: {render.NOT_STORED}.[/]"] * unknown
    return Group(shown, *failed, f"[dim]{plain(render.legend(results))}[/]", "")


def curve(history: Sequence[EpochRecord], metric: str) -> RenderableType:
    """The validation metric of each epoch as a line of bars; one line for each member of an ensemble."""
    members: dict[int, list[float]] = {}
    for record in history:
        if metric in record.validation:
            members.setdefault(record.member, []).append(record.validation[metric])
    if len(members) == 1:
        return _bars(f"validation {metric}", *members.values())
    return Group(*(_bars(f"member {member} {metric}", values) for member, values in members.items()))


def _bars(name: str, values: Sequence[float]) -> Text:
    if len(values) < 2:
        return Text("")
    width = max(2, min(out.width - 50, 60, len(values)))  # the line has some 50 characters of text
    picked = [values[round(step * (len(values) - 1) / (width - 1))] for step in range(width)]
    low, high = min(picked), max(picked)
    bars = "".join(BARS[round((value - low) / ((high - low) or 1) * (len(BARS) - 1))] for value in picked)
    return Text(f"{name}  {values[0]:.4f} {bars} {values[-1]:.4f}  (best {max(values):.4f})")


def bundle_cards(
    dataset: BundleDataset,
    answers: Sequence[RecommendedBundle],
    shop: ShopSettings,
    new: Iterable[str] = (),
) -> RenderableType:
    """Recommended bundles as cards with their items. `new` are the ids of bundles outside the data."""
    return Columns([_bundle_card(dataset, answer, answer.id in new, shop) for answer in answers], equal=True)


def _bundle_card(dataset: BundleDataset, answer: RecommendedBundle, new: bool, shop: ShopSettings) -> Panel:
    lines = []
    for item in (*answer.missing, *answer.owned):  # what the user would get comes first
        label = plain(item_name(dataset, dataset.items.position(item)))
        label += " [yellow]owned[/]" * (item in answer.owned)
        lines.append(f"• {label}" + " [red]sold out[/]" * (item in answer.sold_out))
    if len(lines) > 6:
        lines[6:] = [f"  and {len(lines) - 6:,} more"]
    details = ["[bold]new[/]"] if new else []
    tags: list[str] = []
    discount: float | None = None
    if dataset.catalogue is not None and not new:
        row = dataset.catalogue.bundles.slice(dataset.bundles.position(answer.id), 1).to_pylist()[0]
        tags, discount = row["tags"] or [], row["discount"]
    if answer.price is not None:
        off = f"  [green]−{discount:.0%}[/]" if discount else ""
        details.append(f"[bold]{money(answer.price, shop)}[/]{off}")
    if tags:
        details.append(f"[dim]{plain(', '.join(tags[:3]))}[/]")
    if answer.owned:
        of = f"owns {len(answer.owned):,} of {len(answer.owned) + len(answer.missing):,} items"
        if answer.to_pay == answer.price:
            pay = ""
        elif answer.to_pay is None:
            pay = "; the price of what is missing is not known"
        else:
            pay = f", pays {money(answer.to_pay, shop)}"
        details.append(f"[yellow]{of}{pay}[/]")
    if answer.sold_out:
        details.append("[red]sold out[/]")
    title = answer.title or answer.id
    body = "\n".join([*details, *lines, "", f"{_score(answer)} [dim]· {plain(answer.id)}[/]"])
    return Panel(body, title=f"{answer.rank}. {plain(title)}", title_align="left", width=44)


def _score(answer: RecommendedBundle) -> str:
    """The score of a bundle, and what it is."""
    if answer.source == "popular":
        return f"best seller, [cyan]{answer.score:.1%}[/] [dim]of sales[/]"
    return f"[cyan]{answer.score:.1%}[/] [dim]chance among all bundles[/]"


def item_table(
    dataset: BundleDataset, answers: Sequence[RecommendedItem], title: str, shop: ShopSettings
) -> Table:
    """A table of recommended items, best first."""
    rows = table(title, ">rank", "item", "tags", ">price", ">score")
    for answer in answers:
        tags, price = "", None
        if dataset.catalogue is not None:
            row = dataset.items.position(answer.id)
            tags = ", ".join((dataset.catalogue.items["tags"][row].as_py() or [])[:3])
            price = dataset.catalogue.items["price"][row].as_py()
        label = name(answer.title, answer.id) + " [yellow]owned[/]" * answer.owned
        label += " [red]sold out[/]" * answer.sold_out
        rows.add_row(str(answer.rank), label, plain(tags), amount(price, shop).strip(), f"{answer.score:.1%}")
    return rows


def item_name(dataset: BundleDataset, position: int) -> str:
    return dataset.item_title(position) or dataset.items[position]


def names(labels: Sequence[str], most: int = 6) -> str:
    """The first `most` names, and the number of the others."""
    shown = ", ".join(plain(label) for label in labels[:most])
    return f"{shown} and {len(labels) - most:,} more" if len(labels) > most else shown or "nothing yet"


def counted(labels: Sequence[str], noun: str) -> str:
    if not labels:
        return f"no {noun}"
    return f"{len(labels):,} {noun}{'s' * (len(labels) > 1)}: {names(labels)}"


def name(title: str | None, id_: str) -> str:
    """The title and the id of an item or a bundle, or only the id."""
    return f"{plain(title)} [dim]{plain(id_)}[/]" if title else plain(id_)


def amount(price: float | None, shop: ShopSettings) -> str:
    """A price as the shop writes it, after two spaces; nothing if it is unknown."""
    return "" if price is None else f"  {money(price, shop)}"


def money(amount: float, shop: ShopSettings) -> str:
    """An amount of money as the shop writes it."""
    from bundlemage.wire.money import price_text

    return plain(price_text(amount, shop))
