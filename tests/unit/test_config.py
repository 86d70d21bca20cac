"""Settings: written once, refused when unknown or impossible, and the paper's by default."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from bundlemage.errors import ConfigError
from bundlemage.models.bundlemage import BundleMageConfig
from bundlemage.models.config import LearnedConfig, ModelConfig, parse_config
from bundlemage.models.registry import MODELS, make_config


def test_the_papers_hyperparameters_are_the_defaults() -> None:
    config = parse_config(BundleMageConfig, {})
    assert (config.mask_bundles, config.mask_items) == (0.5, 0.5)
    assert (config.learning_rate, config.weight_decay) == (0.001, 0.00001)
    assert (config.dropout, config.embedding_dim, config.epochs) == (0.3, 200, 200)
    assert (config.shared_fraction, config.mixer, config.tasks) == (0.5, "gate", "both")


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
    with pytest.raises(ConfigError, match=f"setting '{name}' is {value!r}: "):
        parse_config(BundleMageConfig, {name: value})


def test_an_odd_embedding_dim_is_refused() -> None:
    with pytest.raises(ConfigError, match="'embedding_dim' is 7: input should be a multiple of 2"):
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
