"""The recipes that come along can be used as they are, and are found by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from bundlemage.errors import ConfigError
from bundlemage.recipe import Recipe, recipe_names

every_recipe = pytest.mark.parametrize("name", recipe_names())


@every_recipe
def test_a_recipe_has_a_known_model_valid_settings_and_a_split(name: str) -> None:
    recipe = Recipe.find(name)
    recipe.recommender()
    recipe.plan()


@every_recipe
def test_the_seed_and_the_device_are_left_to_whoever_runs_it(name: str) -> None:
    assert not {"seed", "device"} & set(Recipe.find(name).settings)


def test_an_ablation_differs_from_the_papers_settings_in_one_place() -> None:
    whole = dict(Recipe.find("youshu/bundlemage-paper").recommender().config)
    changed = {
        name: {
            key: value
            for key, value in Recipe.find(f"youshu/ablation-{name}").recommender().config
            if value != whole[key]
        }
        for name in ("avg", "sep", "sha", "no-generation", "no-matching")
    }
    assert changed == {
        "avg": {"mixer": "average"},
        "sep": {"shared_fraction": 0},
        "sha": {"shared_fraction": 1},
        "no-generation": {"tasks": "matching"},
        "no-matching": {"tasks": "generation"},
    }


def test_a_path_and_a_name_both_find_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('model = "popularity"\n')
    assert Recipe.find(str(file)) == Recipe("popularity")
    with pytest.raises(ConfigError, match=r"unknown recipe 'youshu/bundelmage'.*Did you mean 'youshu/bun"):
        Recipe.find("youshu/bundelmage")
