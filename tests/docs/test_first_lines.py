"""README's first five lines take a newcomer from three CSV files to an answered curl."""

from __future__ import annotations

import csv
import json
import random
import shutil
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, Shell

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


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_first_five_lines_end_in_an_answer(tmp_path: Path) -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:5]
    assert lines[1].startswith("```console")
    assert lines[4].startswith("$ curl ")
    people = grocery(tmp_path / "shop")
    install, train = lines[2].split(" && ")
    assert install == "$ pip install '.[serve]'"  # done already, here
    shell = Shell(tmp_path)
    try:
        printed = shell.console(Block("README.md:2", "console", (), "\n".join([f"$ {train}", *lines[3:]])))
    finally:
        shell.close()
    answer = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    assert answer["user_id"] == "ann"
    assert len(answer["bundles"]) == 3
    assert all(bundle["id"].startswith(people["ann"]) for bundle in answer["bundles"])
