"""Two processes on one GPU learn what one process learns there.

Products run on bfloat16 there, so sums in another order differ in the third digit and not in the seventh.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bundlemage.data.splits import SplitPlan
from bundlemage.engines.base import engine
from bundlemage.engines.training import TrainingJob
from bundlemage.readers.load import read
from bundlemage.recipe import Recipe

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

RECIPE = Recipe("bundlemage", {"epochs": 12, "batch_size": 300, "seed": 3, "device": "cuda"})


@pytest.mark.parametrize("item_tables", ["replicated", "sharded"])
def test_two_processes_on_one_gpu_learn_what_one_learns(item_tables: str, tmp_path: Path) -> None:
    split = SplitPlan().divide(read("sample").dataset)
    one = RECIPE.recommender().fit(split, progress=False)
    job = TrainingJob("sample", RECIPE, tmp_path / "run", item_tables=item_tables)
    two = engine("local", workers=2).train(job)
    assert two.training is not None
    assert two.training.device == "2 × cuda"
    assert len(two.history) == len(one.history) == 12
    for mine, theirs in zip(two.history, one.history, strict=True):
        assert mine.losses == pytest.approx(dict(theirs.losses), rel=3e-3)
    last = [model.history[-1].validation["ndcg@5"] for model in (two, one)]
    assert last[0] == pytest.approx(last[1], abs=0.03)
