"""Scores of bundles that were added after training, in models that know bundles only by their buyers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bundlemage import Recommender, SplitPlan
from bundlemage.live import Live
from bundlemage.models.base import Matcher, require
from bundlemage.models.later import LaterBundles
from bundlemage.models.ragged import Ragged
from bundlemage.store.records import Bundle, CatalogueChange, Sales
from tests.small_shop import dataset_of, small_shop
from tests.unit.test_live import ask, owned_by, stock_of

BY_BUYERS: dict[str, dict[str, Any]] = {
    "ease": {},
    "ease beside items": {"beside": "items"},
    "item-knn": {},
    "bpr": {"epochs": 2},
    "lightgcn": {"epochs": 2},
    "ncf": {"epochs": 1},
    "vae-cf": {"epochs": 1},
}
"""Models that know a bundle only by its buyers, with their settings."""
ITEMS = 12


def slow(known: npt.NDArray[np.float64], contents: Sequence[set[int]]) -> npt.NDArray[np.float64]:
    """The scores of later bundles by the definition, one at a time. `known` is [users, known bundles]."""
    count = known.shape[1]
    columns = []
    for later in contents[count:]:
        cosines = np.array(
            [
                len(later & own) / np.sqrt(len(later) * len(own)) if later and own else 0.0
                for own in contents[:count]
            ]
        )
        closest = cosines.max()
        squares = cosines**2
        near = known @ squares / squares.sum() if squares.any() else np.zeros(len(known))
        columns.append(closest * near + (1 - closest) * known.mean(1))
    return np.stack(columns, axis=1)


bundle = st.sets(st.integers(0, ITEMS - 1), max_size=6)


@given(st.lists(bundle, min_size=1, max_size=6), st.lists(bundle, min_size=1, max_size=6), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_scores_are_those_of_the_definition(known: list[set[int]], later: list[set[int]], seed: int) -> None:
    scores = np.random.default_rng(seed).normal(size=(3, len(known)))
    contents = [*known, *later]
    similar = LaterBundles.of(Ragged.from_lists(contents), len(known), ITEMS)
    found = similar.scores(torch.from_numpy(scores).float()).double().numpy()
    assert found.shape == (3, len(later))
    assert np.isfinite(found).all()
    assert np.allclose(found, slow(scores, contents), atol=1e-5)


@torch.inference_mode(False)
def fitted(name: str) -> Recommender:
    settings = {"device": "cpu", **BY_BUYERS[name]}
    return Recommender(name.split()[0], **settings).fit(
        small_shop(), SplitPlan("none"), progress=False, calibrate=False
    )


@pytest.mark.parametrize("name", BY_BUYERS)
@torch.inference_mode()
def test_every_such_model_scores_later_bundles_by_similar_ones(name: str) -> None:
    model = fitted(name)
    matcher, contents = require(model.model, Matcher), model.shop.interactions.bundle_item
    people = model.shop.everyone()
    before = matcher.score_bundles(people, contents)
    first = contents.rows(torch.tensor([0])).values.tolist()
    added = [first, first[:2], [], [1, 5, 7]]
    both = contents.append(Ragged.from_lists(added))
    after = matcher.score_bundles(people, both)
    known = len(contents)
    assert torch.allclose(after[:, :known], before, atol=1e-6)  # known bundles do not change
    assert torch.isfinite(after).all()
    sets = [set(both.rows(torch.tensor([row])).values.tolist()) for row in range(len(both))]
    expected = slow(before.double().numpy(), sets)
    assert np.allclose(after[:, known:].double().numpy(), expected, atol=1e-4)
    new = matcher.score_new_bundles(people, contents, Ragged.from_lists(added))
    assert torch.allclose(new, after[:, known:], atol=1e-5)
    # A bundle without items is like nothing else, so it scores like the mean.
    assert torch.allclose(after[:, known + 2], before.mean(1), atol=1e-4)


@pytest.mark.parametrize("name", ["ease", "item-knn"])
@torch.inference_mode()
def test_a_copy_scores_like_its_original_and_a_stranger_like_the_mean(name: str) -> None:
    """In this shop no two known bundles have an item in common, and item 12 is in no bundle."""
    contents = [[3 * number, 3 * number + 1, 3 * number + 2] for number in range(4)]
    owned = [[0, 1], [0, 1], [2, 3], [0], [2], [3, 1]]
    shop = dataset_of([[0]] * len(owned), owned, contents, 13)
    own: dict[str, Any] = {"regularisation": 1.0} if name == "ease" else {}
    model = Recommender(name, device="cpu", **own).fit(
        shop, SplitPlan("none"), progress=False, calibrate=False
    )
    matcher, people = require(model.model, Matcher), model.shop.everyone()
    known = model.shop.interactions.bundle_item
    new = Ragged.from_lists([contents[2], [12], [*contents[1], *contents[3]]])
    before = matcher.score_bundles(people, known)
    found = matcher.score_new_bundles(people, known, new)
    assert before.std() > 1e-3  # otherwise all would be alike
    assert torch.allclose(found[:, 0], before[:, 2], atol=1e-5)
    assert torch.allclose(found[:, 1], before.mean(1), atol=1e-5)
    # Both halves of the third are equally similar to it: their mean, drawn to the mean of all.
    closeness = float(np.sqrt(0.5))
    expected = closeness * before[:, [1, 3]].mean(1) + (1 - closeness) * before.mean(1)
    assert torch.allclose(found[:, 2], expected, atol=1e-5)


@torch.inference_mode()
def test_a_model_without_known_bundles_scores_later_ones() -> None:
    shop = dataset_of([[0], [1]], [[], []], [], 3)
    model = Recommender("item-knn", device="cpu").fit(
        shop, SplitPlan("none"), progress=False, calibrate=False
    )
    people, known = model.shop.everyone(), model.shop.interactions.bundle_item
    found = require(model.model, Matcher).score_new_bundles(people, known, Ragged.from_lists([[0, 1]]))
    assert found.tolist() == [[0.0], [0.0]]


@torch.inference_mode()
def test_other_contents_are_not_answered_with_the_last_ones() -> None:
    """A model keeps what it found for the last contents."""
    model = fitted("ease")
    matcher, people = require(model.model, Matcher), model.shop.everyone()
    contents = model.shop.interactions.bundle_item
    one, other = ([contents.rows(torch.tensor([row])).values.tolist()] for row in (0, 1))
    first = matcher.score_new_bundles(people, contents, Ragged.from_lists(one))
    second = matcher.score_new_bundles(people, contents, Ragged.from_lists(other))
    assert not torch.allclose(first, second, atol=1e-4)
    assert torch.equal(matcher.score_new_bundles(people, contents, Ragged.from_lists(one)), first)


def test_a_live_shop_ranks_a_bundle_that_was_added() -> None:
    model = fitted("ease")
    stock = stock_of(model.dataset)
    copied = next(iter(stock.bundles.values()))
    added = stock.after(CatalogueChange(2, [], [Bundle("copy", copied.items, "Copy", 5.0, 0.0, ())]))
    live = Live(model, added, Sales({}, {}))
    owned = owned_by(model.dataset, "u0001")
    found = {answer.id: answer.score for answer in ask(live, owned, 100, owned="show")}
    people = model.shop.everyone().rows(torch.tensor([model.dataset.users.position("u0001")]))
    contents = model.shop.interactions.bundle_item
    new = Ragged.from_lists([[model.dataset.items.position(item) for item in copied.items]])
    with torch.inference_mode():
        matcher = require(model.model, Matcher)
        known, later = (
            matcher.score_bundles(people, contents),
            matcher.score_new_bundles(people, contents, new),
        )
    # The scores of answers are chances, so their quotients are differences of the model's scores.
    expected = float(later[0, 0] - known[0, 0])
    assert np.log(found["copy"] / found[copied.id]) == pytest.approx(expected, abs=1e-4)
    assert len(found) == len(contents) + 1
