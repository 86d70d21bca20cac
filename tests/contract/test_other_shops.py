"""The default model on a shop unlike the sample: it must not lose to a closed form that takes a second."""

from __future__ import annotations

from statistics import mean

import pytest

from bundlemage import Recommender, SplitPlan
from bundlemage.models.bundlemage import BundleMage
from tests.one_buyer_shop import one_buyer_shop

SHOPS = (0, 1)
NOISE = 0.03
"""Of a mean over the 120 held-out bundles of each shop."""


def measured(model: str, protocol: str, metric: str) -> float:
    """The mean of a metric over the shops, in matching or, after `generation `, in generation."""
    found = []
    for seed in SHOPS:
        split = SplitPlan(protocol).divide(one_buyer_shop(users=250, themes=25, seed=seed))
        tested = Recommender(model, device="cpu").fit(split, progress=False, calibrate=False).evaluate(split)
        task, _, name = metric.rpartition(" ")
        scores = tested.generation if task == "generation" else tested.matching
        assert scores is not None
        found.append(scores[name])
    return mean(found)


def test_every_bundle_has_one_buyer() -> None:
    sales = one_buyer_shop().user_bundle.sum(0)
    assert (sales == 1).all()


def test_popularity_is_no_part_of_the_score_where_nothing_sells_twice() -> None:
    shop = one_buyer_shop(users=60, themes=8)
    model = (
        Recommender(device="cpu", epochs=1, embedding_dim=8)
        .fit(shop, SplitPlan("none"), progress=False, calibrate=False)
        .model
    )
    assert isinstance(model, BundleMage)
    assert float(model.popularity_weights[0]) == 0


@pytest.mark.parametrize(
    ("protocol", "metric", "rivals"),
    [
        ("full", "recall@20", ("ease", "owned-share")),
        ("paper", "ndcg@5", ("ease", "owned-share")),
        ("paper", "generation ndcg@5", ("co-occurrence", "ease-items")),
    ],
)
def test_where_every_bundle_has_one_buyer_it_is_level_with_closed_forms(
    protocol: str, metric: str, rivals: tuple[str, ...]
) -> None:
    ours = measured("bundlemage", protocol, metric)
    for rival in rivals:
        assert ours >= measured(rival, protocol, metric) - NOISE, rival
