"""Candidates with equal scores: more sales first, then the lower id, wherever the question is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bundlemage import BundleDataset, History, Recommender, SplitPlan
from bundlemage.core.ranking import Ranker, top
from bundlemage.core.shop import Recommendation
from bundlemage.data.dataset import Vocabulary, canonical_order
from bundlemage.engines.base import engine
from bundlemage.engines.scoring import ScoringJob
from bundlemage.live import EMPTY, Live, Question
from bundlemage.models.base import Histories
from bundlemage.models.ragged import Ragged
from bundlemage.store.records import Bundle, CatalogueChange, Item, Owned, Sales
from bundlemage.wire.shop import ShopSettings
from tests.small_shop import dataset_of

SCORES = st.sampled_from([-torch.inf, -1.0, 0.0, 2.5])
SALES = st.sampled_from([0.0, 0.25, 0.5])
NUMBERS = [str(number) for number in range(60)]
NAMES = [f"b{number}" for number in range(60)]


@st.composite
def vocabularies(draw: st.DrawFn, size: int) -> Vocabulary:
    """Ids in their canonical order, and then some that were added one after the other."""
    names = draw(st.permutations(draw(st.sampled_from([NUMBERS, NAMES]))))[:size]
    first = draw(st.integers(1, size))
    vocabulary = Vocabulary("bundle", canonical_order(names[:first]))
    for start in range(first, size, 3):
        if draw(st.booleans()):
            assert (vocabulary.by_id is None) == (start == first)  # from now on it is kept up to date
        vocabulary = vocabulary.with_more(names[start : start + 3])
    return vocabulary


@st.composite
def questions(draw: st.DrawFn) -> tuple[Tensor, Tensor, Vocabulary, int]:
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 60))
    scores = draw(st.lists(SCORES, min_size=rows * columns, max_size=rows * columns))
    sales = draw(st.lists(SALES, min_size=columns, max_size=columns))
    ids = draw(vocabularies(columns))
    return torch.tensor(scores).view(rows, columns), torch.tensor(sales), ids, draw(st.integers(1, columns))


def slowly(scores: list[float], sales: list[float], ids: list[str]) -> list[int]:
    """The positions that may be shown, by a plain sort."""
    canonical = canonical_order(ids)
    shown = [place for place, score in enumerate(scores) if score > -torch.inf]
    return sorted(shown, key=lambda place: (-scores[place], -sales[place], canonical.index(ids[place])))


@settings(deadline=None, max_examples=300)
@given(questions())
def test_as_a_plain_sort(question: tuple[Tensor, Tensor, Vocabulary, int]) -> None:
    scores, sales, ids, k = question
    values, positions = top(scores, k, sales, ids)
    assert torch.equal(values, scores.sort(dim=1, descending=True).values[:, :k])
    everyone = torch.zeros(len(scores), dtype=torch.bool)
    ranking = Ranker(sales, torch.zeros(len(sales)), ids).rank(scores, everyone, [], k)
    for row, found in enumerate(positions.tolist()):
        expected = slowly(scores[row].tolist(), sales.tolist(), list(ids))[:k]
        assert found[: len(expected)] == expected
        assert ranking.positions[row, : ranking.counts[row]].tolist() == expected
    popular = Ranker(sales, torch.zeros(len(sales)), ids).rank(scores.clamp(min=-9), ~everyone, [], k)
    by_sales = slowly(sales.tolist(), sales.tolist(), list(ids))[:k]
    assert popular.positions.tolist() == [by_sales] * len(scores)


@settings(deadline=None)
@given(st.data())
def test_sales_may_differ_from_row_to_row(data: st.DataObject) -> None:
    rows, columns = 3, 20
    scores, sales = (
        torch.tensor(data.draw(st.lists(each, min_size=60, max_size=60))).view(rows, columns)
        for each in (SCORES, SALES)
    )
    _, positions = top(scores, 7, sales)
    for row, found in enumerate(positions.tolist()):
        expected = slowly(scores[row].tolist(), sales[row].tolist(), NUMBERS[:columns])[:7]
        assert found[: len(expected)] == expected


@settings(deadline=None)
@given(vocabularies(30))
def test_positions_by_id(ids: Vocabulary) -> None:
    in_order = range(len(ids)) if ids.by_id is None else ids.by_id.tolist()
    assert [ids[place] for place in in_order] == canonical_order(ids)


def test_names_added_to_numbers_come_after_them() -> None:
    ids = Vocabulary("bundle", ["9", "10"]).with_more(["b", "2"]).with_more(["a", "11"])
    assert ids.by_id is not None
    assert [ids[place] for place in ids.by_id] == ["2", "9", "10", "11", "a", "b"]


# ── A shop with bundles of the same contents ─────────────────────────────────────────────────────

BUNDLES = ["2", "9", "10", "33", "100", "101"]
CONTENTS = [[0, 1], [0, 1], [0, 1], [2], [0, 1], [0, 1]]
SOLD = [[0, 2, 3], [1, 2], [2], [4], [5, 1], []]
"""By user: 2, 33, 100 and 101 sold once, 9 twice, 10 three times."""
ITEMS = [[0], [1], [0, 2], [1], [0, 1, 2], []]
EXPECTED = ["10", "9", "2", "100", "101"]
"""The bundles with the same contents. They have the highest score: their items sell more than the other."""
BY_SALES = ["10", "9", "2", "33", "100", "101"]
"""For users without a history, such as the last one."""


def shop() -> BundleDataset:
    return dataset_of(ITEMS, SOLD, CONTENTS, 3, bundles=Vocabulary("bundle", BUNDLES))


@pytest.fixture(scope="module")
def recommender() -> Recommender:
    model = Recommender("item-popularity", device="cpu").fit(shop(), SplitPlan("none"), progress=False)
    model.shop_settings = ShopSettings(mostly_owned=1)
    return model


def ids(answers: Sequence[Recommendation]) -> list[str]:
    return [answer.id for answer in answers]


def test_one_user_and_all_users(recommender: Recommender, tmp_path: Path) -> None:
    visitor = History(items=["i2"])
    assert ids(recommender.recommend(visitor, 10, owned="show")) == [*EXPECTED, "33"]
    assert ids(recommender.recommend(visitor, 10)) == EXPECTED  # the user owns all of 33
    assert ids(recommender.recommend(visitor, 3)) == EXPECTED[:3]
    assert ids(recommender.recommend(History(), 10)) == BY_SALES
    everyone = pa.Table.from_batches(recommender.recommend_all(4)).to_pylist()
    saved = recommender.save(tmp_path / "model")
    engine().recommend_all(ScoringJob(saved, tmp_path / "answers", k=4, part_users=2, device="cpu"))
    parts = sorted((tmp_path / "answers" / "parts").iterdir())
    written = [row for part in parts for row in pq.read_table(part).to_pylist()]
    for user, bought in enumerate(SOLD):
        items = {*ITEMS[user], *(item for place in bought for item in CONTENTS[place])}
        has = {name for name, inside in zip(BUNDLES, CONTENTS, strict=True) if items.issuperset(inside)}
        best = [*EXPECTED, "33"] if items else BY_SALES
        left = [name for name in best if name not in has][:4]
        for rows in (everyone, written):
            assert [row["bundle_id"] for row in rows if row["user_id"] == f"u{user}"] == left
        assert ids(recommender.recommend(f"u{user}", 4)) == left
    histories = Histories(Ragged.from_lists([[2]]), Ragged.from_lists([[]]))
    (ranking,) = recommender.rank_bundles(histories, 5)
    assert [BUNDLES[place] for place in ranking.positions[0].tolist()] == EXPECTED


def test_new_bundles_in_a_live_shop_are_compared_by_their_ids(recommender: Recommender) -> None:
    items = [Item(f"i{number}") for number in range(3)]
    contents = dict(zip(BUNDLES, CONTENTS, strict=True))
    bundles = [Bundle(name, tuple(f"i{item}" for item in inside)) for name, inside in contents.items()]
    counts = {name: sum(place in bought for bought in SOLD) for place, name in enumerate(BUNDLES)}
    stock = EMPTY.after(CatalogueChange(1, items, bundles))
    live = Live(recommender, stock, Sales({"i0": 3, "i1": 3, "i2": 2}, counts))

    def asked(now: Live, owned: Owned) -> list[str]:
        (answer,) = now.answer([Question(owned, 20, owned="show")])
        assert not isinstance(answer, Exception)
        return ids(answer)

    visitor = Owned(items=("i2",))
    assert asked(live, visitor) == [*EXPECTED, "33"]
    for version, name in enumerate(("50", "1", "102"), start=2):
        live = live.after(CatalogueChange(version, [], [Bundle(name, ("i0", "i1"))]), Sales({}, counts))
    one_sale = ["2", "100", "101"]
    assert asked(live, visitor) == ["10", "9", *one_sale, "1", "50", "102", "33"]
    live = live.after(CatalogueChange(9, [], []), Sales({}, counts | {"50": 1, "1": 1}))
    assert asked(live, visitor) == ["10", "9", "1", "2", "50", "100", "101", "102", "33"]
    assert asked(live, Owned()) == ["10", "9", "1", "2", "33", "50", "100", "101", "102"]


def test_new_bundles_of_a_question_and_items(recommender: Recommender) -> None:
    new = {"60": ["i0", "i1"], "1": ["i0", "i1"]}
    answers = recommender.recommend(History(items=["i2"]), 20, new_bundles=new, owned="show")
    assert ids(answers) == [*EXPECTED, "1", "60", "33"]
    completer = Recommender("popularity", device="cpu").fit(shop(), SplitPlan("none"), progress=False)
    # Both items are in five bundles, and have sold equally often.
    assert ids(completer.complete(History(items=["i2"]), [], 2)) == ["i0", "i1"]
