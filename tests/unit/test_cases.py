"""Case studies follow their rules, on data whose answers were planted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

from bundlemage.data.dataset import (
    BUNDLE_SCHEMA,
    ITEM_SCHEMA,
    BundleDataset,
    Catalogue,
    empty_catalogue,
)
from bundlemage.data.splits import GenerationCases, Split, SplitPlan, padded
from bundlemage.models.base import Completer, Histories, Sizes
from bundlemage.models.config import ModelConfig, parse_config
from bundlemage.models.ragged import Ragged
from bundlemage.studies import cases
from bundlemage.studies.cases import LEAST_ITEMS, case_study
from tests.small_shop import dataset_of, matrix_of, small_shop

ITEMS = 40
TAGS = {"red": range(10), "green": range(10, 20), "blue": range(20, 30), "grey": range(30, 40)}


class Planted(Completer):
    """Says of every case what it was told to say."""

    name: ClassVar[str] = "planted"
    title: ClassVar[str] = "Planted"

    def __init__(self, scores: Sequence[Sequence[float]], sizes: Sizes) -> None:
        super().__init__(parse_config(ModelConfig, {}), sizes)
        self.table: Tensor
        self.register_buffer("table", torch.tensor(scores))  # [users, items]

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        assert histories.users is not None
        return self.table[histories.users]


def shop(user_item: Sequence[Any], held_out_users: Sequence[Sequence[int]], bundles: Sequence[Any]) -> Split:
    """`held_out_users[b]` have the held-out bundle `bundles[b]`, whose last item is hidden."""
    users, whole = len(user_item), [[], *bundles]
    user_bundle: list[list[int]] = [[] for _ in range(users)]
    dataset = dataset_of(user_item, user_bundle, whole, ITEMS)
    tags = {item: name for name, items in TAGS.items() for item in items}
    items = empty_catalogue(ITEM_SCHEMA, dataset.items)
    items = items.set_column(1, "title", pa.array([f"Item {number}" for number in range(ITEMS)]))
    items = items.set_column(3, ITEM_SCHEMA.field("tags"), pa.array([[tags[item]] for item in range(ITEMS)]))
    catalogue = Catalogue(items, empty_catalogue(BUNDLE_SCHEMA, dataset.bundles))
    dataset = BundleDataset(
        **{
            **{name: getattr(dataset, name) for name in ("users", "items", "bundles")},
            "catalogue": catalogue,
        },
        user_item=dataset.user_item,
        user_bundle=dataset.user_bundle,
        bundle_item=dataset.bundle_item,
    )
    pairs = [(user, row) for row, owners in enumerate(held_out_users) for user in owners]
    generation = GenerationCases(
        np.array([user for user, _ in pairs], np.int32),
        np.array([row for _, row in pairs], np.int32),
        matrix_of([items[:-1] for items in bundles], ITEMS),
        matrix_of([items[-1:] for items in bundles], ITEMS),
        padded([np.array([items[-1], *_wrong(items)]) for items in bundles]),
    )
    train = dataset.with_interactions(bundle_item=matrix_of([[]] * len(whole), ITEMS))
    return Split(dataset, train, None, None, generation, "planted")


def _wrong(items: Sequence[int]) -> list[int]:
    return [item for item in range(ITEMS) if item not in items]


def study(split: Split, scores: Sequence[Sequence[float]]) -> cases.CaseStudy:
    return case_study(Planted(scores, Sizes.of(split.dataset)), split, "planted")


LOVERS = {"red": list(range(9)), "green": list(range(10, 19)), "blue": list(range(20, 29))}
COLLECTOR = list(range(30, 40))
"""Without whom the bundles' items would have been sold to nobody."""


def test_the_bundle_with_the_most_different_answers_beats_one_with_more_users() -> None:
    owned = [LOVERS["red"], LOVERS["green"], LOVERS["blue"], COLLECTOR]
    split = shop(owned, [[0, 1, 2], [0, 1]], [[30, 31, 38], [32, 33, 39]])
    # Only where item 9 is not in the bundle anyway can users 0 and 1 be told apart; here everywhere.
    scores = [[0.0] * ITEMS for _ in owned]
    scores[0][9] = scores[1][19] = scores[2][9] = 1.0
    case = study(split, scores).taste
    assert case is not None
    assert case.users == 3, "as many different answers, and more users"
    assert [person.answers[0].title for person in case.people[:2]] in (
        ["Item 9", "Item 19"],
        ["Item 19", "Item 9"],
    )
    scores[2][9], scores[2][35], scores[1][19], scores[1][9] = 0.0, 1.0, 0.0, 1.0
    split = shop(owned, [[0, 1, 1], [0, 2]], [[30, 31, 38], [32, 33, 39]])
    case = study(split, scores).taste
    assert case is not None
    assert [card.title for card in case.shown] == ["Item 32", "Item 33"]


def test_the_bundle_with_the_most_test_users_and_users_of_different_tags() -> None:
    owned = [LOVERS["red"], LOVERS["green"], LOVERS["blue"], LOVERS["red"], [30, 31]]
    split = shop(owned, [[0], [0, 1, 2, 3, 4]], [[35, 36, 37], [30, 31, 38]])
    scores = [[0.0] * ITEMS for _ in owned]
    for user, item in ((0, 9), (1, 19), (2, 29), (3, 9), (4, 39)):
        scores[user][item] = 1.0
    for row in scores:  # what is in the bundle, or owned, is never an answer
        row[30] = row[0] = row[10] = row[20] = 5.0
    scores[3][10] = scores[0][10] = scores[0][20] = scores[3][20] = 0.0
    scores[1][0] = scores[1][20] = scores[2][0] = scores[2][10] = 0.0
    case = study(split, scores).taste
    assert case is not None
    assert (case.users, [card.title for card in case.shown]) == (5, ["Item 30", "Item 31"])
    assert [card.title for card in case.hidden] == ["Item 38"]
    # u3 likes what u0 likes, so another tag goes first; u4 owns too little to tell.
    assert {person.user for person in case.people} == {"u0", "u1", "u2"}
    assert {person.taste[0].tag for person in case.people} == {"red", "green", "blue"}
    assert {person.user: person.answers[0].title for person in case.people} == {
        "u0": "Item 9",
        "u1": "Item 19",
        "u2": "Item 29",
    }
    assert (case.bundles, case.personal) == (1, 1)
    assert case.by_taste > 1


def test_a_lean_is_a_share_less_the_usual_share() -> None:
    owned = [LOVERS["red"], LOVERS["green"], COLLECTOR]
    case = study(shop(owned, [[0, 1]], [[30, 31, 38]]), [[0.0] * ITEMS] * 3).taste
    assert case is not None
    assert [(person.taste[0].share, person.taste[0].usual) for person in case.people] == [(1.0, 9 / 28)] * 2
    assert (case.personal, case.by_taste) == (0, 1), (
        "they own different things, but the model says the same to both"
    )


def test_nobody_whose_taste_is_unknown_is_shown() -> None:
    owned = [list(range(LEAST_ITEMS - 1)), []]
    assert study(shop(owned, [[0, 1]], [[30, 31, 38]]), [[0.0] * ITEMS] * 2).taste is None


def test_a_bundle_that_shows_less_than_two_items_is_not_chosen() -> None:
    owned = [LOVERS["red"], LOVERS["green"], COLLECTOR]
    case = study(shop(owned, [[0, 1], [0]], [[30, 38], [31, 32, 39]]), [[0.0] * ITEMS] * 3).taste
    assert case is not None
    assert case.users == 1


def test_a_bundle_with_an_item_that_nobody_has_is_not_chosen() -> None:
    owned = [LOVERS["red"], LOVERS["green"], [30, 31]]
    split = shop(owned, [[0, 1], [0]], [[33, 34, 38], [30, 31, 39]])
    scores = [[0.0] * ITEMS for _ in owned]
    scores[0][9] = scores[1][19] = 1.0
    case = study(split, scores).taste
    assert case is not None
    assert [card.title for card in case.shown] == ["Item 30", "Item 31"]


def test_the_least_popular_of_those_that_only_the_model_gets_right() -> None:
    # Popularity: item 0 has four users, 39 three, 38 two, 37 one, 36 none.
    owned = [[0, 39, 38, 37], [0, 39, 38], [0, 39], [0]]
    bundles = [[1, 2, 38], [1, 2, 37], [1, 2, 36], [1, 2, 0]]
    split = shop(owned, [[0], [1], [2], [3]], bundles)
    scores = [[0.0] * ITEMS for _ in owned]
    scores[0][38] = scores[1][37] = scores[3][0] = 1.0  # right, right, (wrong), right as popularity is
    scores[2][5] = 1.0
    case = study(split, scores).unpopular
    assert case is not None
    assert (case.user, case.right.title, case.popular.title) == ("u1", "Item 37", "Item 0")
    assert (case.alike, case.opposite, case.cases) == (2, 0, 4)
    assert case.right.top == pytest.approx(4 / ITEMS)
    assert case.popular.top == pytest.approx(1 / ITEMS)


def test_a_tie_is_no_knowledge() -> None:
    split = shop([[0], [0]], [[0], [1]], [[1, 2, 38], [1, 2, 0]])
    found = study(split, [[0.0] * ITEMS] * 2).unpopular
    assert found is None, "all scores are the same"
    scores = [[0.0] * ITEMS for _ in range(2)]
    scores[0][38] = 1.0
    case = study(split, scores).unpopular
    assert case is not None
    assert case.opposite == 1, "popularity knows u1's item, and the model does not"


def test_without_generation_cases_there_is_no_case() -> None:
    split = SplitPlan("full").divide(small_shop())
    found = study(split, [[0.0] * len(split.dataset.items)] * len(split.dataset.users))
    assert found.taste is None
    assert found.unpopular is None
