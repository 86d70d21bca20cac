"""Rules of the layout that import-linter cannot express."""

from __future__ import annotations

import ast
from pathlib import Path

import bundlemage

ROOT = Path(bundlemage.__file__).parent


def calls(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return attributes | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def test_nothing_outside_training_touches_an_optimiser() -> None:
    outside = [file for file in ROOT.rglob("*.py") if file.parent.name != "training"]
    touching = {"optim", "backward", "zero_grad", "Adam"}
    assert [file.name for file in outside if calls(file) & touching] == []
    assert {"backward", "Adam"} <= calls(ROOT / "training" / "steps.py")


def test_models_open_no_file() -> None:
    opening = {"open", "read_text", "write_text", "read_bytes", "write_bytes", "Path"}
    assert [file.name for file in (ROOT / "models").rglob("*.py") if calls(file) & opening] == []


def test_no_pickle_is_imported_anywhere() -> None:
    for file in ROOT.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = {
            alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
        }
        names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not names & {"pickle", "cPickle", "dill", "cloudpickle", "joblib"}, file
