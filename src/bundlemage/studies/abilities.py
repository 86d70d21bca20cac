"""What a model can do. This may depend on its settings, so a tiny instance of the model is examined."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from bundlemage.errors import BundleMageError
from bundlemage.models.base import Completer, Interactions, Learner, Matcher, Model, Sizes, can
from bundlemage.models.ragged import Ragged
from bundlemage.models.registry import build, make_config, model_class, model_names, names_taken


@dataclass(frozen=True)
class Abilities:
    """The tasks that a model can do, and whether it learns and depends on a seed."""

    matches: bool
    generates: bool
    learns: bool
    """Whether the model learns by gradient steps."""
    seeded: bool
    """Whether another seed could give another result."""


def abilities(model: str, settings: Mapping[str, Any] | None = None) -> Abilities:
    """Returns the abilities of a registered model with these settings."""
    return _abilities(model, json.dumps(dict(settings or {}), sort_keys=True))


@lru_cache(maxsize=1024)
def _abilities(name: str, settings_json: str) -> Abilities:
    settings = json.loads(settings_json)
    model = build(name, make_config(name, settings), _TINY)
    learns = can(model, Learner)
    return Abilities(
        can(model, Matcher), can(model, Completer), learns, learns or _seed_matters(name, settings)
    )


@dataclass(frozen=True)
class ModelFacts:
    """A row of the list of models. If `error` is set, the other fields except `name` are empty."""

    name: str
    title: str = ""
    matches: bool = False
    generates: bool = False
    learns: bool = False
    knows_new_users: bool = False
    publication: str = ""
    error: str | None = None


def every_model() -> list[ModelFacts]:
    """Returns all registered models, including other packages'. A model that fails to load has an `error`."""
    taken = [
        ModelFacts(name, error=f"{where} registers a name that is taken: rename it there")
        for name, where in names_taken().items()
    ]
    return [_facts(name) for name in model_names()] + taken


def _facts(name: str) -> ModelFacts:
    try:
        kind, able = model_class(name), abilities(name)
    except BundleMageError as error:
        return ModelFacts(name, error=str(error))
    except Exception as error:  # another package's model may fail in any way
        return ModelFacts(name, error=f"it cannot be built: {type(error).__name__}: {error}")
    tasks = (able.matches, able.generates, able.learns)
    return ModelFacts(name, kind.title, *tasks, kind.knows_new_users, kind.publication)


# ── Does the seed matter to a model without training? ────────────────────────────────────────────

_TINY = Sizes(8, 8, 8)


def _seed_matters(name: str, settings: Mapping[str, Any]) -> bool:
    """Whether two seeds give different weights or different answers on a tiny shop."""
    try:
        first, second = (_observed(name, {**settings, "seed": seed}) for seed in (1, 2))
        return not all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    except Exception:  # it may fail on such a small shop: running every seed is always correct
        return True


def _observed(name: str, settings: Mapping[str, Any]) -> list[Tensor]:
    config = make_config(name, {**settings, "device": "cpu"})
    model: Model = build(name, config, _TINY).eval()
    rows = Ragged.from_lists([[row, (row + 1) % 8, (row + 3) % 8] for row in range(8)], torch.device("cpu"))
    data = Interactions(rows, rows, rows, 8)
    histories = data.histories(torch.arange(8))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)
        model.observe(data)
        answers = [*model.state_dict().values()]
        if can(model, Matcher):
            answers.append(model.score_bundles(histories, rows))
        if can(model, Completer):
            answers.append(model.score_items(histories, rows, rows))
    return answers
