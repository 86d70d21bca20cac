"""The command line answers at once, and people can read what it prints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from bundlemage.cli.main import app
from tests.cli.run import BUNDLEMAGE, run

MOST_MODULES = 450
"""Typer and rich alone bring about 300. The time of a start follows from how many modules it reads."""


def test_help_reads_few_modules() -> None:
    script = (
        "import sys; sys.argv = ['bundlemage', '--help']\n"
        "from bundlemage.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(len(sys.modules), file=sys.stderr)"
    )
    answer = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert "Usage" in answer.stdout
    assert int(answer.stderr) < MOST_MODULES


def test_help_does_not_import_torch() -> None:
    script = "import sys, bundlemage.cli.main; print({'torch', 'numpy', 'pyarrow'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert answer.stdout.strip() == "set()"


def test_the_tour_of_the_demo_names_games(tmp_path: Path) -> None:
    trained = run("train", "-o", tmp_path / "model", *BUNDLEMAGE).stdout
    assert "BundleMage" in trained
    assert "Popularity" in trained
    cards = run("recommend", tmp_path / "model", "--user", "u0007", "-k", 2).stdout
    assert "u0007 has 14 items" in cards
    assert "•" in cards
    completed = run("complete", tmp_path / "model", "--user", "u0007", "--items", "g0022,g0401").stdout
    assert "Glassreach Corsairs II" in completed
    assert "to complete it" in completed


def test_stats_has_the_papers_columns() -> None:
    shown = run("data", "stats").stdout
    for label in ("users", "user-bundle pairs", "items per bundle", "popularity bias"):
        assert label in shown


def test_a_model_that_learned_nothing_is_said_to_be_worse_than_a_closed_form(tmp_path: Path) -> None:
    nothing = [
        "--set",
        "learning_rate=1e-9",
        "--set",
        "popularity_weight=0",
        "--set",
        "item_popularity_weight=0",
    ]
    shown = " ".join(run("train", "-o", tmp_path / "model", *BUNDLEMAGE, *nothing).stdout.split())
    assert "is better than BundleMage" in shown
    assert "To use it: bundlemage train sample -o" in shown


@pytest.mark.parametrize(
    ("model", "own", "other"),
    [("co-occurrence", "generation", "matching"), ("item-popularity", "matching", "generation")],
)
def test_only_tasks_of_the_model_are_shown(model: str, own: str, other: str, tmp_path: Path) -> None:
    for command in (
        ["train", "-o", tmp_path / "model", "--model", model, "--device", "cpu"],
        ["evaluate", tmp_path / "model"],
    ):
        shown = run(*command).stdout
        assert f"({own}, " in shown
        assert f"({other}, " not in shown


def test_every_option_of_every_command_is_described() -> None:
    def options(command: Any, path: list[str]) -> Iterator[tuple[str, str | None]]:
        for name, inner in getattr(command, "commands", {}).items():
            yield from options(inner, [*path, name])
        for option in command.make_context("bundlemage", [], resilient_parsing=True).command.params:
            yield " ".join([*path, option.name]), getattr(option, "help", None)

    described = dict(options(get_command(app), []))
    assert len(described) > 200
    assert [name for name, text in described.items() if not text] == []
