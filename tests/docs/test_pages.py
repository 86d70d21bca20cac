"""What the pages say is true: their commands run, their links lead somewhere, their tables match the code."""

from __future__ import annotations

import ast
import re
from functools import partial
from pathlib import Path

import pytest

from bundlemage.artifact.files import FILES, MANIFEST, REJECTED
from bundlemage.data.splits import PROTOCOLS
from bundlemage.measures.meaning import MEANING
from bundlemage.models.config import BundleMageConfig
from tests.docs.blocks import ROOT, Shell, blocks
from tests.made_once import made_once

PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
RUN = [ROOT / "README.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```[ \t]*$", re.DOTALL | re.MULTILINE)
_SLUG = re.compile(r"[a-z]+(?:-[a-z0-9]+)+|unreadable")
_MACHINE = re.compile(
    r"(?<![\w.])/(?:work|home|root|Users|tmp|mnt|opt|srv|var|workspace)/|\b[A-Z]:\\|"
    r"\bhttps?://(?:10\.|192\.168\.|(?:localhost|127\.0\.0\.1)(?!:8000\b|\{))"
)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", RUN, ids=name)
def test_what_a_page_shows_can_be_run(
    page: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shell = Shell(tmp_path, partial(made_once, tmp_path_factory))
    try:
        ran = _run(page, shell)
    finally:
        shell.close()
    assert ran, "nothing on this page was run"


def _run(page: Path, shell: Shell) -> int:
    ran, folder = 0, shell.folder
    for block in blocks(page, "console", "python", "toml"):
        if block.file:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.text, encoding="utf-8")
            continue
        if not block.runs or block.language == "toml":
            continue
        ran += 1
        if block.language == "python":
            shell.python(block)
            continue
        compared = any(mark.startswith("same") for mark in block.marks)
        assert bool(block.expected_lines) == compared, f"{block.place} shows nothing that could be compared"
        printed = [line.rstrip() for line in shell.console(block).splitlines()]
        missing = [line for line in block.expected_lines if line not in printed]
        assert missing == [], f"{block.place} shows what is not printed; printed was:\n" + "\n".join(printed)
    return ran


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"https?://|mailto:", target):
            continue
        file, _, anchor = target.partition("#")
        place = (page.parent / file).resolve() if file else page
        assert place.exists(), f"{name(page)} links to {target}, which is not there"
        assert ROOT in (place, *place.parents), f"{name(page)} links to {target}, outside the project"
        if anchor:
            assert anchor in anchors(place), f"{name(page)} links to {target}: no such heading"


def anchors(page: Path) -> set[str]:
    """Headings as links name them: lower case, spaces as hyphens, without punctuation."""
    headings = _HEADING.findall(_CODE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_prose_has_at_most_100_characters_a_line(page: Path) -> None:
    """Code, tables and pictures cannot be wrapped; reports are written by a command."""
    prose = _CODE.sub("", page.read_text(encoding="utf-8")).splitlines()
    long = [line for line in prose if len(line) > 100 and not line.lstrip().startswith(("|", "!["))]
    assert long == [] or "reports" in page.parts


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_page_names_a_place_on_a_machine(page: Path) -> None:
    assert _MACHINE.findall(page.read_text(encoding="utf-8")) == []


def rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of the first table after a heading, without its header."""
    after = page.read_text(encoding="utf-8").split(f"\n{heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\|$\n?)+", after, re.MULTILINE)
    assert table, f"no table after {heading!r}"
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table[0].splitlines()]
    return cells[2:]


def test_the_table_of_settings_is_that_of_the_config() -> None:
    shown = rows(ROOT / "docs" / "how-to" / "train-and-resume.md", "## Settings")
    defined = [
        [f"`{setting}`", f"`{field.default}`", " ".join((field.description or "").split())]
        for setting, field in BundleMageConfig.model_fields.items()
    ]
    assert shown == defined


def test_the_tables_of_measures_say_what_the_program_says() -> None:
    page = ROOT / "docs" / "how-to" / "evaluate.md"
    shown = rows(page, "## Metrics") + rows(page, "## Beyond accuracy")
    assert shown == [[f"`{name}@k`", sentence] for name, sentence in MEANING.items()]


def test_the_table_of_files_is_that_of_a_saved_model() -> None:
    shown = rows(ROOT / "docs" / "reference" / "artifact.md", "## The files")
    named = {part for row in shown for part in re.findall(r"`([\w.]+)`", row[0])}
    assert named == {*FILES, MANIFEST, *(f"{file}.parquet" for file in REJECTED)}


def test_every_kind_of_problem_is_explained() -> None:
    """A kind that `data check` can report is a slug in the readers' source. Each has a row on the page."""
    page = (ROOT / "docs" / "how-to" / "own-data.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "bundlemage"
    kinds = set()
    for file in (*(source / "readers").rglob("*.py"), *(source / "data").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _SLUG.fullmatch(node.value):
                kinds.add(node.value)
    kinds -= {
        "latin-1",
        "utf-8",
        "utf-8-sig",
        "utf-16",
        "bundlemage-layout",
        "authors-mat",
        "authors-gen",
        *PROTOCOLS,
    }
    assert len(kinds) > 40
    assert {kind for kind in kinds if f"`{kind}`" not in page} == set()
