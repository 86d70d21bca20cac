"""A report as parts that are written twice, as a page and as Markdown, and so say the same in both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

from bundlemage.studies.figures import Figure, colour_variables
from bundlemage.studies.report_style import REPORT_STYLE
from bundlemage.studies.style import SCRIPT, STYLE

Tone = Literal["", "near", "above", "below"]
SIGNS: dict[Tone, str] = {"": "", "near": "≈", "above": "▲", "below": "▼"}


@dataclass(frozen=True)
class Cell:
    text: str = ""
    best: bool = False
    spread: str = ""
    """`±.0008`"""
    beside: str = ""
    """The figure it is compared with."""
    difference: str = ""
    tone: Tone = ""
    """How the difference is to be taken, told by a sign and by colour."""
    chips: tuple[str, ...] = ()
    """Short words, such as tags."""
    code: str = ""
    """A name for programs, after the text."""
    hint: str = ""
    """More on the text, for whoever asks."""
    order: float | None = None
    """What the column is sorted by; None sorts last."""


@dataclass(frozen=True)
class Grid:
    """A table. The first cell of a row names it."""

    key: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    groups: tuple[str, ...] = ()
    """Of each row; a line is drawn where the group changes."""
    legend: str = ""
    numbers: bool = True


@dataclass(frozen=True)
class Text:
    text: str
    kind: Literal["plain", "soft", "warning"] = "plain"


@dataclass(frozen=True)
class Points:
    points: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    text: str
    about: str = ""


@dataclass(frozen=True)
class Picture:
    figure: Figure
    caption: str


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Folded:
    """Details that are there, but out of the way."""

    title: str
    lines: tuple[str, ...]


Block = Text | Points | Grid | Command | Picture | Heading | Folded


@dataclass(frozen=True)
class Section:
    key: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    title: str
    subtitle: str
    banners: tuple[str, ...]
    summary: tuple[Block, ...]
    sections: tuple[Section, ...] = field(default_factory=tuple)

    def grids(self) -> list[Grid]:
        blocks = [*self.summary, *(block for section in self.sections for block in section.blocks)]
        return [block for block in blocks if isinstance(block, Grid)]

    def figures(self) -> list[Figure]:
        blocks = [block for section in self.sections for block in section.blocks]
        return [block.figure for block in blocks if isinstance(block, Picture)]


# ── Markdown ─────────────────────────────────────────────────────────────────────────────────────


def markdown(document: Document) -> str:
    parts = [f"# {_quoted(document.title)}", _quoted(document.subtitle)]
    parts += [f"> **{_quoted(banner)}**" for banner in document.banners]
    parts += [_markdown_block(block) for block in document.summary]
    for section in document.sections:
        parts.append(f"## {_quoted(section.title)}")
        parts += [_markdown_block(block) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def _markdown_block(block: Block) -> str:
    match block:
        case Text(text, kind):
            return f"> **Note:** {_quoted(text)}" if kind == "warning" else _quoted(text)
        case Points(points):
            return "\n".join(f"- {_quoted(point)}" for point in points)
        case Command(text, about):
            return (f"{_quoted(about)}\n\n" if about else "") + f"```sh\n{text}\n```"
        case Picture(figure, caption):
            return f"![{_quoted(figure.alt)}](figures/{figure.name}.svg)\n\n*{_quoted(caption)}*"
        case Heading(text):
            return f"### {_quoted(text)}"
        case Folded(title, lines):
            body = "\n".join(lines)
            return f"<details><summary>{escape(title)}</summary>\n\n```text\n{body}\n```\n\n</details>"
        case Grid():
            return _markdown_grid(block)


def _markdown_grid(grid: Grid) -> str:
    rule = "---:" if grid.numbers else "---"
    lines = [_line(map(_quoted, grid.head)), _line(["---", *[rule] * (len(grid.head) - 1)])]
    lines += [_line(map(_markdown_cell, row)) for row in grid.rows]
    return "\n".join(lines) + (f"\n\n{_quoted(grid.legend)}" if grid.legend else "")


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_cell(cell: Cell) -> str:
    text = _quoted(cell.text)
    shown = f"**{text}**" if cell.best and text else text
    if cell.code:
        shown += f" `{cell.code}`"
    if cell.spread:
        shown += f" {cell.spread}"
    if cell.chips:
        shown = ": ".join(part for part in (shown, ", ".join(map(_quoted, cell.chips))) if part)
    if cell.beside:
        told = " ".join(part for part in (cell.beside, SIGNS[cell.tone], cell.difference) if part)
        shown += f" ({told})"
    return shown.strip()


def _quoted(text: str) -> str:
    """Text in which nothing is taken for Markdown or HTML."""
    one_line = escape(" ".join(text.split()), quote=False)
    return "".join(f"\\{letter}" if letter in "\\`*_[]|~" else letter for letter in one_line)


# ── HTML ─────────────────────────────────────────────────────────────────────────────────────────


def html(document: Document) -> str:
    """One page that loads nothing."""
    links = "".join(
        f'<li><a href="#{section.key}">{escape(section.title)}</a></li>' for section in document.sections
    )
    banners = "".join(f'<p class="banner">{escape(banner)}</p>' for banner in document.banners)
    summary = "\n".join(map(_html_block, document.summary))
    sections = "\n".join(
        f'<section id="{section.key}" aria-labelledby="{section.key}-title">\n'
        f'<h2 id="{section.key}-title">{escape(section.title)}</h2>\n'
        + "\n".join(map(_html_block, section.blocks))
        + "\n</section>"
        for section in document.sections
    )
    colours = (
        f":root{{{colour_variables()}}}"
        f"@media(prefers-color-scheme:dark){{:root{{{colour_variables(dark=True)}}}}}"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(document.title)}</title>\n<style>{STYLE}{colours}{REPORT_STYLE}</style>\n</head>\n"
        '<body class="report">\n<a class="skip" href="#content">Skip to the content</a>\n'
        f'<nav aria-label="Sections"><ol>{links}</ol></nav>\n<main id="content">\n'
        f'<header><h1>{escape(document.title)}</h1>\n<p class="soft">{escape(document.subtitle)}</p>\n'
        f'{banners}\n<div class="summary">\n{summary}\n</div></header>\n{sections}\n</main>\n'
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _html_block(block: Block) -> str:
    match block:
        case Text(text, kind):
            return f'<p class="{kind}">{escape(text)}</p>'
        case Points(points):
            return "<ul>" + "".join(f"<li>{escape(point)}</li>" for point in points) + "</ul>"
        case Command(text, about):
            told = f'<p class="soft">{escape(about)}</p>' if about else ""
            return f'{told}<pre class="command">{escape(text)}</pre>'
        case Picture(figure, caption):
            return (
                f'<figure id="figure-{figure.name}"><div class="drawing">{figure.inline}</div>\n'
                f"<figcaption>{escape(caption)} "
                f'<a href="figures/{figure.name}.svg">SVG</a> · <a href="figures/{figure.name}.png">PNG</a>'
                "</figcaption></figure>"
            )
        case Heading(text):
            return f"<h3>{escape(text)}</h3>"
        case Folded(title, lines):
            body = escape("\n".join(lines))
            return f"<details><summary>{escape(title)}</summary><pre>{body}</pre></details>"
        case Grid():
            return _html_grid(block)


def _html_grid(grid: Grid) -> str:
    sortable = grid.numbers and len(grid.rows) > 2
    heads = "".join(
        f'<th scope="col">{f"<button type=button>{escape(head)}</button>" if sortable else escape(head)}</th>'
        for head in grid.head
    )
    groups = grid.groups or ("",) * len(grid.rows)
    rows = []
    for number, (row, group) in enumerate(zip(grid.rows, groups, strict=True)):
        first = number and group != groups[number - 1]
        classes = " ".join(
            name for name in (f"group-{group}" if group else "", "first" if first else "") if name
        )
        opening = f'<tr class="{classes}">' if classes else "<tr>"
        rows.append(opening + _html_head(row[0]) + "".join(map(_html_cell, row[1:])) + "</tr>")
    kind = " ".join(name for name, given in (("sortable", sortable), ("words", not grid.numbers)) if given)
    legend = f'<p class="legend">{escape(grid.legend)}</p>' if grid.legend else ""
    body = "\n".join(rows)
    return (
        f'<div class="scroll" tabindex="0"><table id="table-{grid.key}" class="{kind}">'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>{legend}"
    )


def _html_head(cell: Cell) -> str:
    return f'<th scope="row" data-sort="{escape(cell.text)}">{_inside(cell)}</th>'


def _html_cell(cell: Cell) -> str:
    order = "" if cell.order is None else f' data-sort="{cell.order:.6f}"'
    return f"<td{order}{' class=best' * cell.best}>{_inside(cell)}</td>"


def _inside(cell: Cell) -> str:
    text = escape(cell.text)
    if cell.hint:
        text = f'<span title="{escape(cell.hint)}">{text}</span>'
    shown = f"<strong>{text}</strong>" if cell.best and text else text
    if cell.code:
        shown += f" <code>{escape(cell.code)}</code>"
    if cell.spread:
        shown += f' <span class="sd">{cell.spread}</span>'
    if cell.chips:
        shown += (
            f'<span class="chips">{"".join(f"<span>{escape(chip)}</span>" for chip in cell.chips)}</span>'
        )
    if cell.beside:
        told = f'<span class="{cell.tone}">{SIGNS[cell.tone]} {escape(cell.difference)}</span>'
        shown += f'<span class="beside">{escape(cell.beside)} {told if cell.difference else ""}</span>'
    return shown


def words(parts: Sequence[str]) -> str:
    """`a, b and c`"""
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)
