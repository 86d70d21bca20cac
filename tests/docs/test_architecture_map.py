"""The table that leads from an equation of the paper to its code names things that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "architecture.md"
PACKAGE = ROOT / "src" / "bundlemage"
REFERENCE = ROOT / "tests" / "reference" / "numpy_bundlemage.py"
_LABELS = (
    "item_rep",
    "bundle_rep",
    "gate",
    "matching_prob",
    "incomplete_bundle_rep",
    "pair_rep",
    "reconstruction",
    "matching_loss",
    "generation_loss",
)


def table() -> list[tuple[str, str, str, str]]:
    """Equation, file, names in the file, names in the NumPy version."""
    text = PAGE.read_text(encoding="utf-8").split("\n## Find an equation\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [(equation, file.strip("`"), ours, theirs) for equation, file, ours, theirs, *_ in cells]


def defined(file: Path) -> set[str]:
    """Functions, classes, methods as `Class.method`, and names given a value at the top or in a class."""
    found: set[str] = set()

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                walk(node.body, f"{prefix}{node.name}.")
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(prefix + node.target.id)

    walk(ast.parse(file.read_text(encoding="utf-8")).body, "")
    return found


def names(cell: str) -> list[str]:
    return re.findall(r"`([\w.]+)`", cell)


@pytest.mark.parametrize("row", table(), ids=lambda row: row[0])
def test_a_row_names_what_is_there(row: tuple[str, str, str, str]) -> None:
    _, file, ours, theirs = row
    assert names(ours), "no function is named"
    assert set(names(ours)) <= defined(PACKAGE / file)
    assert set(names(theirs)) <= defined(REFERENCE)


def test_every_equation_has_a_row_with_its_numpy_version() -> None:
    known = {equation: theirs for equation, _, _, theirs in table()}
    for label in _LABELS:
        rows = [theirs for equation, theirs in known.items() if f"`{label}`" in equation]
        assert rows, label
        assert all(names(theirs) for theirs in rows), label


def test_every_function_of_the_numpy_version_is_in_the_table() -> None:
    helpers = {"feed_forward", "sigmoid", "softmax", "Parameters", "recommendation_loss"}
    functions = {name for name in defined(REFERENCE) if "." not in name and not name.startswith("_")}
    named = {name for row in table() for name in names(row[3])}
    assert functions - helpers <= named
