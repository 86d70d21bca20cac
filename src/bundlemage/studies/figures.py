"""The report's figures. Each is drawn as SVG (for the page and as a file) and as PNG.

The colours are Okabe and Ito's: colour-blind people can tell them apart. In the SVG they are CSS variables:
a figure changes between light and dark with the page or the system. Nothing is shown by colour alone.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from bundlemage.errors import MissingExtraError
from bundlemage.readers import pathak
from bundlemage.studies.reproduction import DATASET_TITLES, SHORT_NAMES, Findings, Group, TableResult

COLOURS: Mapping[str, tuple[str, str]] = {
    "ink": ("#1b1f24", "#e6e9ed"),
    "ground": ("#fefefe", "#14181d"),
    "rule": ("#d8dee4", "#3a424b"),
    "ours": ("#0072b2", "#56b4e9"),
    "rival": ("#009e73", "#35c79e"),
    "beyond": ("#c28e0e", "#e6c060"),
    "mark": ("#d55e00", "#ff8a3d"),
}
"""Name → colour on a light and on a dark background. A colour has the same meaning in every figure."""
_GROUPS: Mapping[Group, tuple[str, str]] = {
    "ours": ("ours", "BundleMage"),
    "paper": ("rival", "rivals of the paper"),
    "beyond": ("beyond", "beyond the paper"),
}
_LIGHT = {name: light for name, (light, _) in COLOURS.items()}
_FONT = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
_SVG = "http://www.w3.org/2000/svg"
_DOTS_PER_INCH = 160
_HEADING: Mapping[str, Any] = {"loc": "left", "fontsize": 10.5, "fontweight": "bold"}


@dataclass(frozen=True)
class Figure:
    name: str
    """The name of its files, without the extension."""
    title: str
    alt: str
    """A description of the figure for readers who cannot see it."""
    inline: str
    """SVG for the page. The style sheet of the page defines the colours."""
    file: str
    """SVG as a file of its own, with the colours."""
    png: bytes


@dataclass(frozen=True)
class Plotted:
    """One model in a figure. Each figure uses only some of the fields."""

    label: str
    group: Group
    value: float | None = None
    """Test nDCG@5. None if the model was not run; then only the paper's value is shown."""
    spread: float | None = None
    """Standard deviation of the value over seeds."""
    paper: float | None = None
    """The paper's nDCG@5."""
    seconds: float = 0.0
    """Training time."""
    curve: Sequence[float] = ()
    """Validation nDCG@5 after each epoch."""
    best_epoch: int = 0


def require_plots() -> None:
    """Raise MissingExtraError if matplotlib is not installed. Call this before hours of training."""
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        raise MissingExtraError("plots", "drawing the report's figures") from None


def colour_variables(dark: bool = False) -> str:
    """Returns the colours as CSS declarations, for a light or a dark background."""
    return "".join(f"--fig-{name}:{pair[dark]};" for name, pair in COLOURS.items())


def drawn_figures(findings: Findings) -> list[tuple[Figure, str]]:
    """Returns the figures of a report, each with its caption."""
    if findings.no_data:
        return []
    name = pathak.PARTIAL_NAME if findings.partial else DATASET_TITLES[findings.options.dataset]
    sections = ("matching", "generation")
    tables = [result for result in findings.tables if result.plan.section in sections and result.table]
    pictures = []
    if tables:
        bars = {
            result.plan.title: [
                bar for bar in _plotted(result, findings) if bar.paper or bar.value is not None
            ]
            for result in tables
        }
        drawn = accuracy_bars("ndcg", f"nDCG@5 of every model on {name}", bars)
        caption = "Test nDCG@5 of every model (the paper's Fig. 1a). Whiskers: deviation over seeds."
        pictures.append((drawn, caption))
    if findings.cosines is not None:
        drawn = similarity("similarity", f"Item and bundle preference on {name}", findings.cosines)
        caption = "Cosine similarity of each user's item and bundle preference"
        pictures.append((drawn, f"{caption} (the paper's Fig. “dissimilarity”)."))
    matching = next((result for result in tables if result.plan.task == "matching"), None)
    if matching is None or matching.table is None:
        return pictures
    models = [model for model in _plotted(matching, findings) if model.value is not None]
    if curves := [model for model in models if len(model.curve) > 1]:
        drawn = training_curves("curves", f"Training on {name}", curves)
        caption = "Validation nDCG@5 by epoch, first seed. The dot is the epoch whose weights are tested."
        pictures.append((drawn, caption))
    if len(models) > 1 and len(findings.machines("matching")) == 1:
        drawn = time_and_accuracy("time", f"Training time and accuracy on {name}", models)
        note = matching.table.timing_note
        caption = "Training time and test nDCG@5 of matching."
        pictures.append((drawn, caption + (f" The time was {note}." if note else "")))
    return pictures


def _plotted(result: TableResult, findings: Findings) -> list[Plotted]:
    split, seed = result.table.split if result.table else "", findings.options.seeds[0]
    same = (run for run in findings.outcomes if (run.split, run.seed) == (split, seed))
    outcomes = {run.label: run for run in same}
    models = []
    for entry in result.plan.entries:
        row = result.row(entry.name)
        spread = row.metrics["ndcg@5"] if row and row.metrics else None
        outcome = outcomes.get(entry.name)
        models.append(
            Plotted(
                label=SHORT_NAMES.get(entry.name, entry.title),
                group=entry.group,
                value=spread.mean if spread else None,
                spread=spread.sd if spread else None,
                paper=entry.paper.get("ndcg@5"),
                seconds=max((row.fit_seconds if row else None) or 0.0, 0.001),
                curve=outcome.curve if outcome else (),
                best_epoch=outcome.best_epoch if outcome else 0,
            )
        )
    return models


def accuracy_bars(name: str, title: str, panels: Mapping[str, Sequence[Plotted]]) -> Figure:
    """Draws a panel for each task, with a bar for each model and a mark for the paper's value (Fig. 1a)."""
    rows = max(len(bars) for bars in panels.values())
    figure, axes = _canvas(1, len(panels), 1.1 + 0.29 * rows)
    for axis, (heading, bars) in zip(axes, panels.items(), strict=True):
        ordered = sorted(bars, key=lambda bar: bar.paper or 0 if bar.value is None else bar.value)
        for row, bar in enumerate(ordered):
            _draw_bar(axis, row, bar)
        axis.set_yticks(range(len(ordered)), [bar.label for bar in ordered])
        top = max((max(bar.value or 0, bar.paper or 0) for bar in bars), default=1)
        heights = (len(ordered) - rows - 0.7, len(ordered) - 0.3)  # bars have the same height in all panels
        axis.set(ylim=heights, xlim=(0, (top or 1) * 1.16), xlabel="nDCG@5")
        axis.set_title(heading, **_HEADING)
        axis.grid(axis="x")
    every = [bar for bars in panels.values() for bar in bars]
    figure.legend(handles=_legend_entries(every), loc="outside upper center", ncols=4, frameon=False)
    parts = []
    for heading, bars in panels.items():
        measured = sorted((bar for bar in bars if bar.value is not None), key=lambda bar: -(bar.value or 0))
        best = ", ".join(f"{bar.label} {bar.value:.4f}" for bar in measured[:3])
        parts.append(f"{heading}: {len(measured)} models measured{', the best are ' * bool(best)}{best}")
    return _finished(figure, name, title, f"Bar chart of nDCG@5. {'. '.join(parts)}.")


def _legend_entries(bars: Sequence[Plotted]) -> list[Any]:
    """Returns the entries of the legend of a bar chart."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    for group, (colour, label) in _GROUPS.items():
        if group in {bar.group for bar in bars}:
            style: Any = {"hatch": "///" if group == "beyond" else None, "edgecolor": _LIGHT["rule"]}
            handles.append(Patch(facecolor=_LIGHT[colour], label=label, linewidth=0, **style))
    if any(bar.paper is not None for bar in bars):
        mark: Any = {"marker": "D", "color": _LIGHT["mark"], "markersize": 5}
        handles.append(Line2D([], [], linestyle="", label="the paper's value", **mark))
    return handles


def _draw_bar(axis: Any, row: int, bar: Plotted) -> None:
    if bar.value is not None:
        colour = _LIGHT[_GROUPS[bar.group][0]]
        hatched = {"hatch": "///", "edgecolor": _LIGHT["rule"]} if bar.group == "beyond" else {}
        axis.barh(row, bar.value, height=0.62, color=colour, linewidth=0, **hatched)
        if bar.spread:
            axis.errorbar(bar.value, row, xerr=bar.spread, color=_LIGHT["ink"], capsize=2, linewidth=1)
    if bar.paper is not None:
        axis.plot(bar.paper, row, marker="D", markersize=5.6, color=_LIGHT["mark"], markeredgewidth=0.9,
                  markeredgecolor=_LIGHT["ground"])  # fmt: skip
    at = max(bar.value or 0, (bar.value or 0) + (bar.spread or 0), bar.paper or 0)
    text = "not run" if bar.value is None else f"{bar.value:.3f}".lstrip("0")
    axis.annotate(text, (at, row), (5, 0), textcoords="offset points", va="center", fontsize=8)


def similarity(name: str, title: str, cosines: npt.NDArray[np.float64]) -> Figure:
    """Draws how similar each user's items and bundles are: a histogram and a sorted curve."""
    known = np.sort(cosines[~np.isnan(cosines)])[::-1]
    figure, (left, right) = _canvas(1, 2, 3.3)
    left.hist(known, bins=np.linspace(0, 1, 21), color=_LIGHT["ours"], rwidth=0.92)
    left.set(xlabel="cosine similarity of item and bundle preference", ylabel="users", xlim=(0, 1))
    right.plot(np.arange(len(known)), known, color=_LIGHT["ours"], linewidth=1.8)
    right.set(xlabel="users, highest similarity first", ylabel="cosine similarity", ylim=(0, 1.02))
    for axis, heading in ((left, "How many users"), (right, "User by user, as in the paper")):
        axis.set_title(heading, **_HEADING)
        axis.grid(axis="y")
    middle = below = float("nan")
    if len(known):
        middle, below = float(np.median(known)), float((known < 0.5).mean())
        left.set_ylim(0, left.get_ylim()[1] * 1.12)
        left.axvline(middle, color=_LIGHT["mark"], linewidth=1.4, linestyle=(0, (4, 2)))
        left.annotate(f"median {middle:.2f}", (middle, 1), (4, -10), xycoords=("data", "axes fraction"),
                      textcoords="offset points", fontsize=8.5)  # fmt: skip
    alt = (
        f"Histogram and sorted curve of the cosine similarity of {len(known):,} users: median {middle:.3f}, "
        f"below one half for {below:.0%} of them."
    )
    return _finished(figure, name, title, alt)


def training_curves(name: str, title: str, curves: Sequence[Plotted]) -> Figure:
    """Draws validation nDCG@5 over the epochs: a panel for each model, with the other models in grey."""
    columns = min(4, len(curves))
    rows = -(-len(curves) // columns)
    figure, axes = _canvas(rows, columns, 0.5 + 1.65 * rows, share=True)
    highest = max(max(model.curve) for model in curves)
    for number, axis in enumerate(axes):
        if number >= len(curves):
            axis.set_visible(False)
            continue
        for other in curves:
            thin = max(1, len(other.curve) // 40)  # each panel has all curves: fewer points keep it small
            epochs = range(1, len(other.curve) + 1, thin)
            axis.plot(epochs, other.curve[::thin], color=_LIGHT["rule"], linewidth=0.8)
        own = curves[number]
        epochs = range(1, len(own.curve) + 1)
        axis.plot(epochs, own.curve, color=_LIGHT[_GROUPS[own.group][0]], linewidth=1.8)
        at = own.best_epoch if own.best_epoch in epochs else int(np.argmax(own.curve)) + 1
        axis.plot(at, own.curve[at - 1], "o", markersize=4, color=_LIGHT["mark"])
        axis.set_title(f"{own.label}  {max(own.curve):.3f}", loc="left", fontsize=9)
        axis.set_ylim(0, highest * 1.08)
        axis.grid(axis="y")
    axes[0].xaxis.get_major_locator().set_params(integer=True)
    figure.supxlabel("epoch", fontsize=9)
    figure.supylabel("validation nDCG@5", fontsize=9)
    values = "; ".join(f"{model.label} best {max(model.curve):.4f} at {model.best_epoch}" for model in curves)
    return _finished(figure, name, title, f"Validation nDCG@5 by epoch, one panel a model. {values}.")


def time_and_accuracy(name: str, title: str, points: Sequence[Plotted]) -> Figure:
    """Draws training time and test nDCG@5 of each model, as points."""
    figure, (axis,) = _canvas(1, 1, 4.6)
    for group, (colour, label) in _GROUPS.items():
        chosen = [point for point in points if point.group == group]
        if chosen:
            marker = {"ours": "o", "paper": "s", "beyond": "^"}[group]
            axis.plot([point.seconds for point in chosen], [point.value for point in chosen], marker,
                      color=_LIGHT[colour], label=label, markersize=7, markeredgewidth=0)  # fmt: skip
    axis.set(xscale="log", xlabel="seconds of training (logarithmic), mean over the seeds")
    axis.set(ylabel="test nDCG@5, matching")
    axis.margins(0.12)
    axis.grid()
    _label_points(figure, axis, points)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    values = "; ".join(f"{point.label} {point.value:.4f} in {point.seconds:.3g} s" for point in points)
    return _finished(figure, name, title, f"Training time against test nDCG@5. {values}.")


def _label_points(figure: Any, axis: Any, points: Sequence[Plotted]) -> None:
    """Write the name of each model beside its point. Names that would overlap move up."""
    figure.canvas.draw()
    places = {id(point): axis.transData.transform((point.seconds, point.value)) for point in points}
    taken: list[tuple[float, float, float]] = [(x - 6, y, x + 6) for x, y in places.values()]
    for point in sorted(points, key=lambda point: point.value or 0.0):
        x, y = places[id(point)]
        x += 8
        width = 6.5 * len(point.label) + 14
        shift = 0.0
        for left, at, right in sorted(taken, key=lambda place: place[1]):
            if x < right and left < x + width and abs(y + shift - at) < 13:
                shift = at + 13 - y
        taken.append((x, y + shift, x + width))
        axis.annotate(point.label, (point.seconds, point.value), (7, shift * 72 / figure.dpi),
                      textcoords="offset points", va="center", fontsize=8)  # fmt: skip


# ── Drawing ──────────────────────────────────────────────────────────────────────────────────────


def _canvas(rows: int, columns: int, height: float, *, share: bool = False) -> tuple[Any, list[Any]]:
    require_plots()
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    ink, rule = _LIGHT["ink"], _LIGHT["rule"]
    inked = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
    colours = {**dict.fromkeys(inked, ink), "axes.edgecolor": rule, "grid.color": rule}
    with rc_context(colours, Path(__file__).with_name("figures.mplstyle")):  # type: ignore[arg-type]
        figure = Canvas(figsize=(9.6, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share)
    return figure, list(axes.ravel())


def _finished(figure: Any, name: str, title: str, alt: str) -> Figure:
    from matplotlib import rc_context
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_color(_LIGHT["ink"])
    picture, vector = io.BytesIO(), io.StringIO()
    # Text stays text in the SVG, and the same values always give the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(
            picture, format="png", dpi=_DOTS_PER_INCH, facecolor="white", metadata={"Title": title}
        )
        figure.savefig(vector, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = _described(vector.getvalue(), name, title, alt)
    inline = ElementTree.tostring(root, encoding="unicode")
    dark = f"@media(prefers-color-scheme:dark){{:root{{{colour_variables(True)}}}}}"
    root.insert(2, _element("style", f":root{{{colour_variables()}}}{dark}"))
    whole = '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
    return Figure(name, title, alt, inline, whole, picture.getvalue())


def _element(tag: str, content: str, **attributes: str) -> ElementTree.Element:
    element = ElementTree.Element(f"{{{_SVG}}}{tag}", attributes)
    element.text = content
    return element


def _described(text: str, name: str, title: str, alt: str) -> ElementTree.Element:
    """Returns the drawing with its title and description, colours as variables, and unique ids."""
    for colour, (light, _) in COLOURS.items():
        text = re.sub(light, f"var(--fig-{colour})", text, flags=re.IGNORECASE)
    # A hatch pattern has its colours in attributes, and CSS variables do not work there.
    text = re.sub(r'\b(fill|stroke)="(var\(--[\w-]+\))"', r'style="\1: \2"', text)
    text = re.sub(r"font: ([^;\"]*?)(\d[\d.]*px) [^;\"]*", rf"font: \1\2 {_FONT}", text)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ElementTree.fromstring(text)
    for tag, content in (("desc", alt), ("title", title)):
        root.insert(0, _element(tag, content, id=f"{name}-{tag}"))
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title {name}-desc")
    width, height = (root.attrib.pop(side).removesuffix("pt") for side in ("width", "height"))
    root.set("width", width)
    root.set("height", height)
    return root
