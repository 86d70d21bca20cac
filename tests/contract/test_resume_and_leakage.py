"""Over every registered model: nothing held out is learned from, and a resumed run is the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bundlemage import Recommender, SplitPlan
from bundlemage.models.config import LearnedConfig
from bundlemage.models.registry import MODELS
from tests.small_shop import QUICK, small_shop

SPLIT = SplitPlan("paper").divide(small_shop())
LEARNED = sorted(name for name, kind in MODELS.items() if issubclass(kind.config_class, LearnedConfig))


def settings(name: str, **more: Any) -> dict[str, Any]:
    known = MODELS[name].config_class.model_fields
    return {key: value for key, value in (QUICK | more).items() if key in known}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_nothing_held_out_is_learned_from(name: str) -> None:
    blind = replace(SPLIT, dataset=SPLIT.train, test=None, generation=None)
    one, other = (
        Recommender(name, **settings(name)).fit(split, progress=False).model.state_dict()
        for split in (SPLIT, blind)
    )
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("average", [0.0, 0.9])
@pytest.mark.parametrize("name", LEARNED)
def test_a_resumed_run_is_the_run(name: str, average: float, tmp_path: Path) -> None:
    given = settings(name, batch_size=16, weight_average=average, anneal_steps=10)
    whole = Recommender(name, **given | {"epochs": 4}).fit(SPLIT, folder=tmp_path / "a", progress=False)
    Recommender(name, **given | {"epochs": 2}).fit(SPLIT, folder=tmp_path / "b", progress=False)
    rest = Recommender(name, **given | {"epochs": 4}).fit(
        SPLIT, folder=tmp_path / "b", resume=True, progress=False
    )
    for one, other in (
        (whole.model.state_dict(), rest.model.state_dict()),
        *[[load_file(tmp_path / run / "last.safetensors") for run in "ab"]],
    ):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
