"""A process that has some pairs of a layout gives them the weights that they have among all pairs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from bundlemage.data.dataset import BundleDataset
from bundlemage.data.events import Events, Whole
from bundlemage.data.shards import LAYOUT, Layout, write_layout
from bundlemage.data.splits import SplitPlan
from bundlemage.engines.training import on_one_scale
from bundlemage.models.division import Processes
from tests.leaking_shop import leaking_shop, uneven_shop

PARTS: dict[str, list[dict[str, range]]] = {
    "users": [{"users": range(0, 50)}, {"users": range(50, 50)}, {"users": range(50, 110)}],
    "items": [{"items": range(0, 40)}, {"items": range(40, 50)}, {"items": range(50, 100)}],
}


@pytest.fixture(scope="module")
def shop() -> BundleDataset:
    return uneven_shop()


@pytest.fixture(scope="module")
def layout(shop: BundleDataset, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    return write_layout(shop, tmp_path_factory.mktemp("layout") / "layout", 40)


@dataclass(frozen=True)
class Together(Processes):
    """Processes whose numbers are known from the start."""

    every: list[tuple[float, float]] = field(default_factory=list)

    def totals(self, numbers: Any) -> list[float]:
        assert tuple(numbers) in self.every
        return [sum(each) for each in zip(*self.every, strict=True)]


def table(data: BundleDataset, values: Any) -> Any:
    """The values of the pairs of `user_item`."""
    matrix = data.user_item
    return sparse.csr_matrix((values, matrix.indices, matrix.indptr), matrix.shape).toarray()


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("protocol", ["paper", "time", "none"])
def test_parts_have_the_weights_of_the_whole(
    kind: str, protocol: str, shop: BundleDataset, layout: Layout
) -> None:
    plan = SplitPlan(protocol)
    whole = plan.divide(shop)
    decided = SplitPlan(protocol, histories=whole.histories)
    parts = [decided.divide(layout.dataset(ids=False, **part)) for part in PARTS[kind]]
    assert {part.key for part in parts} == {whole.key}
    events = [part.train.item_events for part in parts]
    expected = whole.train.item_events
    assert {each.tells_purchases for each in events} == {expected.tells_purchases} == {True}
    assert expected.purchases is not None
    bought = sum(
        table(part.train, np.ones(part.train.user_item.nnz) if each.purchases is None else each.purchases)
        for part, each in zip(parts, events, strict=True)
    )
    np.testing.assert_array_equal(bought, table(whole.train, expected.purchases))
    group = Together(0, len(parts), [each.sums(20) for each in events])
    scaled = [on_one_scale(part.train, 20, group) for part in parts]
    assert {each.fingerprint() for each in scaled} == {whole.train.fingerprint()}
    found = sum(table(each, each.item_events.strengths(20)) for each in scaled)
    strengths = expected.strengths(20)
    assert strengths is not None
    assert expected.weight is not None
    assert strengths.mean() == pytest.approx(expected.weight.mean(), rel=1e-5)
    np.testing.assert_allclose(found, table(whole.train, strengths), rtol=1e-5)


def test_a_layout_says_what_all_pairs_tell(shop: BundleDataset, layout: Layout, tmp_path: Path) -> None:
    for name, events in (("user_item", shop.item_events), ("user_bundle", shop.bundle_events)):
        assert layout.whole[name] == Whole.of([events.weight], [events.at])
    write_layout(leaking_shop(), tmp_path / "plain", 40)
    assert "whole" not in json.loads((tmp_path / "plain" / LAYOUT).read_text())


def test_a_split_keeps_what_counts_as_a_purchase(shop: BundleDataset) -> None:
    assert shop.item_events.weight is not None
    views = shop.user_item.copy()
    views.data = (shop.item_events.weight < 1).astype(np.float32)
    views.eliminate_zeros()
    left = shop.item_events.of(shop.user_item, views)
    assert left.weight is not None
    assert left.weight.max() < 1
    assert left.purchases is not None
    assert not left.purchases.any()
    assert Events(weight=left.weight).purchases is None
