"""Settings: written once, refused when unknown or impossible; the paper's but for what is named here."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from bundlemage.errors import ConfigError, in_short
from bundlemage.models.config import BundleMageConfig, LearnedConfig, ModelConfig, parse_config
from bundlemage.models.registry import MODELS, make_config
from bundlemage.recipe import Recipe


def recipe(name: str) -> dict[str, Any]:
    return dict(Recipe.find(name).recommender().config)


def test_the_papers_recipe_has_the_papers_hyperparameters() -> None:
    paper = BundleMageConfig(**recipe("youshu/bundlemage-paper"))
    assert (paper.mask_bundles, paper.mask_items) == (0.5, 0.5)
    assert (paper.learning_rate, paper.weight_decay) == (0.001, 0.00001)
    assert (paper.dropout, paper.embedding_dim, paper.epochs) == (0.3, 200, 200)
    assert (paper.shared_fraction, paper.mixer, paper.tasks) == (0.5, "gate", "both")
    assert (paper.schedule, paper.weight_average, paper.popularity_weight) == ("constant", 0, 0)
    assert (paper.pairs_per_bundle, paper.sampled_softmax) == (0, 0), "all pairs, all items"
    assert (paper.scores, paper.residual, paper.pair_mixer) == ("dot", False, "join")
    assert (paper.item_popularity_weight, paper.initial_spread, paper.propagation) == (0, 0, 0)
    assert (paper.generation_weight, paper.item_dropout, paper.every_bundle) == (1, 0, False)
    assert (paper.select_by, paper.min_steps, paper.batch_size) == ("matching", 1, 2000)


@pytest.mark.parametrize("name", ["avg", "sep", "sha", "no-generation", "no-matching"])
def test_an_ablation_differs_from_the_papers_recipe_in_one_setting(name: str) -> None:
    paper, ablation = recipe("youshu/bundlemage-paper"), recipe(f"youshu/ablation-{name}")
    assert len([key for key, value in ablation.items() if value != paper[key]]) == 1


@pytest.mark.parametrize("name", ["youshu/bundlemage", "youshu-full/bundlemage"])
def test_our_recipes_for_youshu_are_the_defaults(name: str) -> None:
    assert recipe(name) == dict(parse_config(BundleMageConfig, {}))


@pytest.mark.parametrize("config_class", [ModelConfig, LearnedConfig, BundleMageConfig])
def test_every_setting_says_what_it_means(config_class: type[ModelConfig]) -> None:
    for name, field in config_class.model_fields.items():
        assert field.description, name


def test_a_config_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        parse_config(BundleMageConfig, {}).seed = 3


def test_an_unknown_setting_is_refused_and_the_known_ones_named() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'embeding_dim'") as error:
        parse_config(BundleMageConfig, {"embeding_dim": 64})
    for name in BundleMageConfig.model_fields:
        assert name in str(error.value)


def test_every_wrong_setting_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        parse_config(BundleMageConfig, {"epochs": 0, "dropout": 2, "speed": 3, "mixer": "blend"})
    for part in ("'epochs' is 0", "'dropout' is 2", "unknown setting 'speed'", "'mixer' is 'blend'"):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("embedding_dim", 0),
        ("embedding_dim", "wide"),
        ("embedding_dim", 10.5),
        ("shared_fraction", -0.1),
        ("shared_fraction", 1.1),
        ("dropout", 1.0),
        ("mask_bundles", 1.5),
        ("mask_items", -1),
        ("epochs", 0),
        ("patience", 0),
        ("batch_size", 0),
        ("learning_rate", 0),
        ("learning_rate", float("nan")),
        ("weight_decay", -1),
        ("weight_average", 1.0),
        ("seed", -1),
        ("tasks", "all"),
        ("masking", None),
        ("loss_weighting", "max"),
    ],
)
def test_an_impossible_value_is_refused_with_its_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"setting '{name}' is {re.escape(in_short(value))}[;,] "):
        parse_config(BundleMageConfig, {name: value})


def test_an_odd_embedding_dim_is_refused() -> None:
    with pytest.raises(ConfigError, match="'embedding_dim' is 7; it should be a multiple of 2"):
        parse_config(BundleMageConfig, {"embedding_dim": 7})


def test_the_message_for_an_odd_embedding_dim_names_that_setting() -> None:
    with pytest.raises(ConfigError, match="setting 'embedding_dim' is 7"):
        parse_config(BundleMageConfig, {"embedding_dim": 7})


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"shared_fraction": 0, "mixer": "average", "tasks": "generation", "loss_weighting": "mean"},
        {"seed": 12, "device": "cuda:1", "weight_average": 0.999, "learning_rate": 1e-5},
    ],
)
def test_a_config_goes_out_and_comes_back(settings: dict[str, Any]) -> None:
    config = parse_config(BundleMageConfig, settings)
    assert parse_config(BundleMageConfig, config.model_dump(mode="json")) == config


def test_an_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown model 'bundelmage'") as error:
        make_config("bundelmage", {})
    for name in MODELS:
        assert name in str(error.value)
