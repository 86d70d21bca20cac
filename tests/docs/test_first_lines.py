"""The README's commands take a newcomer from three CSV files to an answer of the API."""

from __future__ import annotations

import csv
import json
import random
import re
import shutil
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, Shell, blocks

KITCHENS = {
    "italian": ["spaghetti", "passata", "parmesan", "basil", "olive oil", "garlic", "mozzarella", "pancetta"],
    "indian": ["basmati", "cumin", "ghee", "chickpeas", "garam masala", "paneer", "coriander", "red lentils"],
    "baking": ["flour", "butter", "eggs", "sugar", "vanilla", "yeast", "baking powder", "dark chocolate"],
    "nordic": [
        "rye bread",
        "herring",
        "dill",
        "potatoes",
        "crème fraîche",
        "lingonberries",
        "cardamom",
        "oats",
    ],
}

KIT = "italian kit #1"


def write(file: Path, header: tuple[str, str], rows: set[tuple[str, str]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as handle:
        csv.writer(handle).writerows([header, *sorted(rows)])


def grocery(folder: Path) -> dict[str, str]:
    """Meal kits and who cooks them: one kitchen a person. Gives each person's kitchen."""
    folder.mkdir()
    draw = random.Random(5)
    kits = {
        f"{kitchen} kit #{n}": draw.sample(foods, 4) for kitchen, foods in KITCHENS.items() for n in range(12)
    }
    people = {
        name: draw.choice(list(KITCHENS)) for name in ["ann", *(f"mail+{n}@shop.example" for n in range(299))]
    }
    bought, cooked = set(), set()
    for person, kitchen in people.items():
        bought |= {(person, food) for food in draw.sample(KITCHENS[kitchen], 4)}
        cooked |= {(person, f"{kitchen} kit #{n}") for n in draw.sample(range(12), 5)}
    write(folder / "user_item.csv", ("user_id", "item_id"), bought)
    write(folder / "user_bundle.csv", ("user_id", "bundle_id"), cooked)
    contents = {(kit, food) for kit, foods in kits.items() for food in foods}
    write(folder / "bundle_item.csv", ("bundle_id", "item_id"), contents)
    return people


def _replaced(command: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        command = command.replace(old, new)
    return command


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_lines_of_the_readme_work_for_another_shop(tmp_path: Path) -> None:
    """The README's commands, on tables that a newcomer brings."""
    (lines,) = (block for block in blocks(ROOT / "README.md", "console") if "train shop" in block.text)
    people = grocery(tmp_path / "shop")
    wanted = [c for c in lines.commands if re.match(r"bundlemage (data check|train|serve)|curl", c)]
    assert len(wanted) == 5
    shell = Shell(tmp_path)
    try:
        # People cook with the same foods again, so the grocer sets this.
        again = "train shop --shop owned=show"
        changes = {"u0007": "ann", "b0001": KIT, "train shop": again}
        text = "\n".join(f"$ {_replaced(command, changes)}" for command in wanted)
        printed = shell.console(Block("README.md", "console", (), text))
    finally:
        shell.close()
    # curl's progress stands between and behind the answers.
    starts = [found.start() for found in re.finditer(r'\{"(?:request_id|new)"', printed)]
    answer, recorded = (json.JSONDecoder().raw_decode(printed, start)[0] for start in starts)
    assert answer["user_id"] == "ann"
    assert len(answer["bundles"]) == 3
    assert all(bundle["id"].startswith(people["ann"]) for bundle in answer["bundles"])
    assert recorded["new"] == 1
