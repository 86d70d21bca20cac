"""Models that learn nothing by steps, each against the obvious dense way to say the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from bundlemage import read
from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import GenerationCases, MatchingCases, Split
from bundlemage.errors import UnsupportedError
from bundlemage.evaluation import GenerationEvaluator, MatchingEvaluator, means
from bundlemage.models.base import Completer, Histories, Interactions, Matcher, Model, Sizes, can, require
from bundlemage.models.baselines import closed_form
from bundlemage.models.baselines.closed_form import Ease, EaseItems, SparseRows
from bundlemage.models.baselines.co_occurrence import (
    CoOccurrence,
    ItemKnn,
    PpmiSvd,
    pair_counts,
    positive_information,
)
from bundlemage.models.baselines.rules import ItemPopularity, OwnedShare, Popularity, Random
from bundlemage.models.ragged import Ragged
from tests.real_data import real_data
from tests.small_shop import dataset_of, datasets

CPU = torch.device("cpu")
MATCHING: list[type[Model]] = [Random, ItemPopularity, ItemKnn, Ease, OwnedShare]
GENERATION: list[type[Model]] = [Random, CoOccurrence, PpmiSvd, EaseItems]
Array = Any


def random_shop(users: int, items: int, bundles: int, seed: int = 0) -> BundleDataset:
    random = np.random.default_rng(seed)

    def rows(count: int, columns: int) -> list[list[int]]:
        return [np.flatnonzero(random.random(columns) < 0.3).tolist() for _ in range(count)]

    return dataset_of(rows(users, items), rows(users, bundles), rows(bundles, items), items)


WIDE, TALL = random_shop(9, 31, 14), random_shop(60, 8, 6)
"""More columns than rows, and more rows than columns, in every matrix of interest."""


def untrained(kind: type[Model], dataset: BundleDataset, **given_settings: Any) -> Model:
    return kind(kind.config_class(**{"device": "cpu", **given_settings}), Sizes.of(dataset))


def fitted(kind: type[Model], dataset: BundleDataset, **given_settings: Any) -> Model:
    model = untrained(kind, dataset, **given_settings)
    model.observe(Interactions.of(dataset, CPU))
    return model.eval()


def everyone(dataset: BundleDataset) -> tuple[Histories, Ragged]:
    data = Interactions.of(dataset, CPU)
    return data.histories(torch.arange(len(dataset.users))), data.bundle_item


def bundle_scores(model: Model, dataset: BundleDataset) -> Array:
    return require(model, Matcher).score_bundles(*everyone(dataset)).double().numpy()


PARTIAL = [[0, 1], [], [2], [0, 3, 5]]


def item_scores(model: Model, dataset: BundleDataset) -> Array:
    """Four partial bundles for the first four users."""
    data = Interactions.of(dataset, CPU)
    histories = data.histories(torch.arange(len(PARTIAL)))
    return (
        require(model, Completer)
        .score_items(histories, Ragged.from_lists(PARTIAL), data.bundle_item)
        .double()
        .numpy()
    )


def dense(matrix: Any) -> Array:
    return matrix.toarray().astype(np.float64)


def partial_rows(items: int) -> Array:
    rows = np.zeros((len(PARTIAL), items))
    for row, members in enumerate(PARTIAL):
        rows[row, members] = 1
    return rows


def textbook_ease(rows: Array, regularisation: float) -> Array:
    inverse = np.linalg.inv(rows.T @ rows + regularisation * np.eye(rows.shape[1]))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)
    return weights


def assert_close(found: Array, expected: Array, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(found, expected, atol=tolerance)
    assert np.ptp(expected) > 100 * tolerance, "the comparison must be able to fail"


def made_dense(matrix: SparseRows) -> Array:
    """The cells of a sparse matrix, one by one."""
    cells = np.zeros((len(matrix), matrix.columns))
    np.add.at(cells, (matrix.rows.row_of_entry().numpy(), matrix.rows.values.numpy()), matrix.weights.numpy())
    return cells


class TestSparseProducts:
    @given(datasets())
    @settings(deadline=None, max_examples=30)
    def test_products_and_stacks_are_those_of_dense_matrices(self, shop: BundleDataset) -> None:
        items = len(shop.items)
        mine = SparseRows.of(Ragged.from_csr(shop.user_item), items, 2.0, torch.float64)
        other = SparseRows.of(Ragged.from_csr(shop.bundle_item), items, 3.0, torch.float64)
        left, right = 2 * dense(shop.user_item), 3 * dense(shop.bundle_item)
        assert np.array_equal(made_dense(mine), left)
        assert np.array_equal(mine.times(other.transposed()).numpy(), left @ right.T)
        assert np.array_equal(made_dense(mine.above(other)), np.vstack([left, right]))
        assert np.array_equal(made_dense(mine.beside(mine)), np.hstack([left, left]))
        assert np.array_equal(made_dense(mine.plus(mine)), 2 * left)
        assert np.array_equal(
            mine.times_dense(torch.from_numpy(made_dense(other).T.copy())).numpy(), left @ right.T
        )

    @pytest.mark.parametrize("at_a_time", [1, 2, 7, 50])
    def test_a_product_in_many_parts_is_the_same(
        self, at_a_time: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows = SparseRows.of(Ragged.from_csr(WIDE.user_item), len(WIDE.items))
        whole = rows.times(rows.transposed())
        monkeypatch.setattr(closed_form, "WALKS", at_a_time)
        assert torch.equal(rows.times(rows.transposed()), whole)


@pytest.fixture(params=[closed_form.CELLS, 20], ids=["one-block", "many-blocks"])
def cells(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_form, "CELLS", request.param)


@pytest.mark.usefixtures("cells")
class TestEase:
    @pytest.mark.parametrize("shop", [WIDE, TALL], ids=["dual", "primal"])
    @pytest.mark.parametrize("beside", ["items", "contents", "nothing"])
    def test_bundles_are_scored_by_the_textbook_inverse(self, shop: BundleDataset, beside: str) -> None:
        taken, owned, weight = dense(shop.user_bundle), dense(shop.user_item), 0.7
        rows = {
            "items": np.hstack([taken, weight * owned]),
            "contents": np.vstack([taken, weight * dense(shop.bundle_item).T]),
            "nothing": taken,
        }[beside]
        bundles = len(shop.bundles)
        expected = rows[: len(shop.users)] @ textbook_ease(rows, 2.5)[:, :bundles]
        model = fitted(Ease, shop, beside=beside, regularisation=2.5, side_weight=weight)
        assert_close(bundle_scores(model, shop), expected)

    @pytest.mark.parametrize("shop", [WIDE, TALL], ids=["dual", "primal"])
    @pytest.mark.parametrize("user_weight", [0.0, 0.4])
    def test_items_are_scored_by_the_textbook_inverse(self, shop: BundleDataset, user_weight: float) -> None:
        held, owned = dense(shop.bundle_item), user_weight * dense(shop.user_item)
        rows = np.vstack([held, owned]) if user_weight else held
        asked = partial_rows(len(shop.items)) + owned[: len(PARTIAL)]
        model = fitted(EaseItems, shop, regularisation=1.5, user_weight=user_weight)
        assert_close(item_scores(model, shop), asked @ textbook_ease(rows, 1.5))

    def test_neither_form_keeps_more_than_it_must(self) -> None:
        def kept(kind: type[Model], shop: BundleDataset, **given_settings: Any) -> tuple[int, ...]:
            return tuple(fitted(kind, shop, **given_settings).state_dict()["solution"].shape)

        assert kept(Ease, WIDE, beside="items") == (9, 9)  # K
        assert kept(Ease, random_shop(20, 30, 5), beside="items") == (20, 5)  # K times the bundles' columns
        assert kept(Ease, TALL, beside="items") == (14, 6)  # B
        assert kept(EaseItems, WIDE) == (14, 14)


class TestItemKnn:
    def test_scores_are_sums_of_cosines_with_what_the_user_has(self) -> None:
        taken, owned = dense(WIDE.user_bundle), dense(WIDE.user_item)
        norms = np.sqrt(taken.sum(0))
        among = taken.T @ taken / (np.outer(norms, norms) + 2)
        np.fill_diagonal(among, 0)
        across = owned.T @ taken / (np.outer(np.sqrt(owned.sum(0)), norms) + 2)
        model = fitted(ItemKnn, WIDE, neighbours=99, shrinkage=2, item_weight=0.3)
        assert_close(bundle_scores(model, WIDE), taken @ among + 0.3 * owned @ across)

    def test_only_the_nearest_count(self) -> None:
        # b0 shares two users with b1 and one with b2.
        shop = dataset_of([[], [], []], [[0, 1], [0, 1], [0, 2]], [[], [], []], 1)
        model = fitted(ItemKnn, shop, neighbours=1, shrinkage=0, item_weight=0)
        histories = Histories(Ragged.from_lists([[]]), Ragged.from_lists([[0]]))
        scores = require(model, Matcher).score_bundles(histories, Ragged.from_lists([[], [], []]))[0]
        assert scores.tolist() == pytest.approx([0, 2 / np.sqrt(6), 0], abs=1e-5)

    def test_tables_filled_in_blocks_are_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = bundle_scores(fitted(ItemKnn, WIDE, neighbours=99), WIDE)
        monkeypatch.setattr(closed_form, "CELLS", 30)
        assert_close(bundle_scores(fitted(ItemKnn, WIDE, neighbours=99), WIDE), whole, 1e-7)


class TestPlainRules:
    def test_a_bundle_is_as_popular_as_its_items_are_on_average(self) -> None:
        shop = dataset_of([[0, 1], [0], [0]], [[], [], []], [[0], [0, 1], [2], []], 3)
        scores = bundle_scores(fitted(ItemPopularity, shop), shop)
        assert np.expm1(scores[0, :3]).tolist() == pytest.approx([3, 2, 0])
        assert scores[0, 3] < scores[0, 2], "an empty bundle comes last"
        assert (scores == scores[0]).all()

    def test_the_share_owned_decides_and_popularity_only_among_equals(self) -> None:
        large = list(range(40))
        contents = [large, large[:39], [0, 50], [1, 51], []]
        shop = dataset_of([large[:39], []], [[0, 2, 3], [0, 3]], contents, 60)
        scores = bundle_scores(fitted(OwnedShare, shop), shop)
        assert scores[0].tolist() == pytest.approx([39 / 40, 1, 1 / 2, 1 / 2, 0], abs=1e-3)
        assert np.argsort(-scores[0]).tolist() == [1, 0, 3, 2, 4]
        assert np.argsort(-scores[1], kind="stable")[:3].tolist() == [0, 3, 2], "nothing owned: by popularity"

    @given(datasets())
    @settings(deadline=None, max_examples=50)
    def test_popularity_never_overturns_a_share(self, shop: BundleDataset) -> None:
        scores = bundle_scores(fitted(OwnedShare, shop), shop)
        sizes = np.maximum(1, np.diff(shop.bundle_item.indptr))
        share = dense(shop.user_item) @ dense(shop.bundle_item).T / sizes
        higher = share[:, :, None] > share[:, None, :] + 1e-9
        assert (scores[:, :, None] > scores[:, None, :])[higher].all()

    def test_large_shares_that_differ_by_little_stay_apart(self) -> None:
        # 999/1000 against 998/999: about a millionth between them, and the lower one sells.
        owned = list(range(999))
        contents = [[*owned, 1001], [*owned[:998], 1002]]
        shop = dataset_of([owned, []], [[1], [1]], contents, 1003)
        scores = bundle_scores(fitted(OwnedShare, shop), shop)
        assert scores[0, 0] > scores[0, 1]
        assert scores[1, 0] < scores[1, 1]


class TestRandom:
    def test_each_person_has_an_order_that_hangs_on_seed_and_history_alone(self) -> None:
        scores = bundle_scores(fitted(Random, WIDE), WIDE)
        assert len({tuple(np.argsort(row)) for row in scores}) == len(WIDE.users)
        assert not np.array_equal(scores, bundle_scores(fitted(Random, WIDE, seed=1), WIDE))
        items = item_scores(fitted(Random, WIDE), WIDE)
        assert len({tuple(np.argsort(row)) for row in items}) == len(PARTIAL)

    def test_a_history_in_another_order_is_the_same_history(self) -> None:
        model, contents = fitted(Random, WIDE), everyone(WIDE)[1]
        scores = [
            require(model, Matcher).score_bundles(
                Histories(Ragged.from_lists([items]), Ragged.from_lists([[1]])), contents
            )
            for items in ([3, 7, 2], [2, 3, 7], [2, 3, 8])
        ]
        assert torch.equal(scores[0], scores[1])
        assert not torch.equal(scores[0], scores[2])

    def test_the_partial_bundle_takes_part(self) -> None:
        model, data = fitted(Random, WIDE), Interactions.of(WIDE, CPU)
        histories = data.histories(torch.tensor([0, 0]))
        one, other = require(model, Completer).score_items(
            histories, Ragged.from_lists([[1], [2]]), data.bundle_item
        )
        assert not torch.equal(one, other)

    def test_scores_are_spread_evenly_and_owe_nothing_to_each_other(self) -> None:
        shop = random_shop(200, 50, 300)
        scores = bundle_scores(fitted(Random, shop), shop)
        assert scores.min() >= 0
        assert scores.max() < 1
        counts, _ = np.histogram(scores, 10, (0, 1))
        # 60,000 draws: a tenth in each, give or take five standard deviations.
        assert np.abs(counts - 6000).max() < 5 * np.sqrt(6000 * 0.9)
        between = np.corrcoef(scores) - np.eye(len(scores))
        assert np.abs(between).max() < 6 / np.sqrt(300)
        assert np.abs(np.corrcoef(scores[:, :-1].ravel(), scores[:, 1:].ravel())[0, 1]) < 5 / np.sqrt(60_000)


class TestCoOccurrence:
    @pytest.mark.parametrize("normalise", ["count", "cosine"])
    @pytest.mark.parametrize("user_weight", [0.0, 0.2])
    def test_scores_are_those_of_the_item_item_matrix(self, normalise: str, user_weight: float) -> None:
        held = dense(WIDE.bundle_item)
        together = held.T @ held
        if normalise == "cosine":
            norms = np.sqrt(np.maximum(1, held.sum(0)))
            together /= np.outer(norms, norms)
        asked = partial_rows(len(WIDE.items)) + user_weight * dense(WIDE.user_item)[: len(PARTIAL)]
        model = fitted(CoOccurrence, WIDE, normalise=normalise, user_weight=user_weight)
        tie_break = model.state_dict()["tie_break"].double().numpy()
        assert tie_break.max() <= {"count": 0.1, "cosine": 1e-4}[normalise]
        assert_close(item_scores(model, WIDE) - tie_break, asked @ together)

    def test_an_empty_bundle_begins_with_what_stands_in_most_bundles_then_with_what_most_users_have(
        self,
    ) -> None:
        shop = dataset_of([[2, 0], [2], [2, 1]], [[], [], []], [[0, 1], [1, 0], [1], [2]], 3)
        model = fitted(CoOccurrence, shop, user_weight=0)
        histories, contents = everyone(shop)
        scores = require(model, Completer).score_items(histories, Ragged.from_lists([[], [], []]), contents)
        assert scores.argsort(1, descending=True).tolist() == [[1, 0, 2]] * 3
        tied = dataset_of([[1]], [[]], [[0, 1, 2]], 3)
        scores = require(fitted(CoOccurrence, tied, user_weight=0), Completer).score_items(
            everyone(tied)[0], Ragged.from_lists([[]]), everyone(tied)[1]
        )
        assert int(scores.argmax()) == 1


class TestPpmiSvd:
    def test_pairs_and_information_are_as_defined(self) -> None:
        held = dense(WIDE.bundle_item)
        expected = held.T @ held
        np.fill_diagonal(expected, 0)
        counts = pair_counts(Ragged.from_csr(WIDE.bundle_item), len(WIDE.items), 99)
        assert np.array_equal(counts.toarray(), expected)
        totals = expected.sum(1)
        with np.errstate(divide="ignore", invalid="ignore"):
            information = np.log(expected * expected.sum() / np.outer(totals, totals))
        information = np.where(expected > 0, np.maximum(information, 0), 0)
        assert_close(positive_information(counts).toarray(), information, 1e-6)

    def test_a_long_bundle_counts_as_several(self) -> None:
        counts = pair_counts(Ragged.from_lists([[0, 1, 2, 3, 4], [0, 3]]), 5, 2).toarray()
        assert {(i, j) for i, j in np.argwhere(counts) if i < j} == {(0, 1), (2, 3), (0, 3)}

    @pytest.mark.parametrize("similarity", ["dot", "cosine"])
    @pytest.mark.parametrize("user_weight", [0.0, 0.5])
    def test_scores_are_products_of_all_singular_vectors(self, similarity: str, user_weight: float) -> None:
        items = len(WIDE.items)
        in_bundles, in_users = (
            pair_counts(Ragged.from_csr(rows), items, 99) for rows in (WIDE.bundle_item, WIDE.user_item)
        )
        counts = (in_bundles + user_weight * in_users).tocsr()
        left, values, _ = np.linalg.svd(positive_information(counts).toarray())
        products = left * values @ left.T
        if similarity == "cosine":
            lengths = np.sqrt(np.diag(products))
            products /= np.outer(lengths, lengths)
        # Of the four, one partial bundle is empty: there the user's items stand in.
        rows = partial_rows(items)
        rows[1] = dense(WIDE.user_item)[1]
        expected = rows / rows.sum(1, keepdims=True) @ products
        model = fitted(
            PpmiSvd, WIDE, similarity=similarity, embedding_dim=items, longest=99, user_weight=user_weight
        )
        assert_close(item_scores(model, WIDE), expected, 5e-5)

    def test_the_sparse_solver_finds_what_the_dense_one_does(self, monkeypatch: pytest.MonkeyPatch) -> None:
        exhaustive = item_scores(fitted(PpmiSvd, WIDE, embedding_dim=5), WIDE)
        monkeypatch.setattr("bundlemage.models.baselines.co_occurrence.SMALL", 0)
        iterated, again = (item_scores(fitted(PpmiSvd, WIDE, embedding_dim=5), WIDE) for _ in range(2))
        assert_close(iterated, exhaustive, 1e-4)
        assert np.array_equal(iterated, again)


@pytest.fixture(params=[WIDE, TALL], ids=["wide", "tall"])
def shop(request: pytest.FixtureRequest) -> BundleDataset:
    dataset: BundleDataset = request.param
    return dataset


NOBODY = dataset_of([[0], [], [1, 2], []], [[0], [1], [], []], [[0, 1], [], [2], [0]], 6)
"""Users without items or bundles, an empty bundle, items in no bundle."""
NOTHING = dataset_of([[], [], [], []], [[], [], [], []], [[], []], 6)


def scores_of(model: Model, dataset: BundleDataset) -> list[Array]:
    asked = [bundle_scores] * can(model, Matcher) + [item_scores] * can(model, Completer)
    return [scores(model, dataset) for scores in asked]


VARIANTS: list[tuple[type[Model], dict[str, Any]]] = [
    *((kind, {}) for kind in dict.fromkeys(MATCHING + GENERATION)),
    (Ease, {"beside": "items"}),
    (ItemKnn, {"item_weight": 0.1}),
    (EaseItems, {"user_weight": 0.2}),
    (PpmiSvd, {"user_weight": 0.2, "similarity": "cosine"}),
    (CoOccurrence, {"normalise": "count"}),
]


@pytest.mark.parametrize(("kind", "chosen"), VARIANTS)
class TestAll:
    def test_only_what_is_saved_is_needed_to_score(
        self, kind: type[Model], chosen: dict[str, Any], shop: BundleDataset
    ) -> None:
        model = fitted(kind, shop, **chosen)
        loaded = untrained(kind, shop, **chosen)
        loaded.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()})
        assert all(tensor.is_contiguous() for tensor in model.state_dict().values())
        for before, after in zip(scores_of(model, shop), scores_of(loaded, shop), strict=True):
            assert np.array_equal(before, after)

    def test_fitted_twice_it_scores_the_same(
        self, kind: type[Model], chosen: dict[str, Any], shop: BundleDataset
    ) -> None:
        model = fitted(kind, shop, **chosen)
        before = scores_of(model, shop)
        model.observe(Interactions.of(shop, CPU))
        assert all(map(np.array_equal, before, scores_of(model, shop)))

    @pytest.mark.parametrize("strange", [NOBODY, NOTHING], ids=["gaps", "nothing"])
    def test_whoever_has_nothing_gets_finite_scores(
        self, kind: type[Model], chosen: dict[str, Any], strange: BundleDataset
    ) -> None:
        for scores in scores_of(fitted(kind, strange, **chosen), strange):
            assert np.isfinite(scores).all()

    def test_it_says_which_task_it_does(
        self, kind: type[Model], chosen: dict[str, Any], shop: BundleDataset
    ) -> None:
        model = fitted(kind, shop, **chosen)
        assert can(model, Matcher) == (kind in MATCHING)
        assert can(model, Completer) == (kind in GENERATION)
        if not can(model, Matcher):
            with pytest.raises(UnsupportedError, match="does not recommend bundles"):
                bundle_scores(model, shop)
        if not can(model, Completer):
            with pytest.raises(UnsupportedError, match="does not complete"):
                item_scores(model, shop)

    def test_a_user_is_what_the_user_has(
        self, kind: type[Model], chosen: dict[str, Any], shop: BundleDataset
    ) -> None:
        """The same history without a user behind it, alone in its batch."""
        model = fitted(kind, shop, **chosen)
        histories, contents = everyone(shop)
        one = torch.tensor([3])
        stranger = Histories(histories.items.rows(one), histories.bundles.rows(one))
        if can(model, Matcher):
            assert_close(
                require(model, Matcher).score_bundles(stranger, contents).numpy(),
                bundle_scores(model, shop)[3:4],
                1e-6,
            )
        if can(model, Completer):
            partial = Ragged.from_lists(PARTIAL[3:])
            found = require(model, Completer).score_items(stranger, partial, contents).numpy()
            assert_close(found, item_scores(model, shop)[3:4], 1e-6)


@pytest.mark.parametrize("kind", MATCHING)
class TestMatching:
    def test_later_bundles_have_scores_and_change_no_others(
        self, kind: type[Model], shop: BundleDataset
    ) -> None:
        model = fitted(kind, shop)
        histories, contents = everyone(shop)
        later = len(contents)
        more = contents.append(Ragged.from_lists([[0, 2], []]))
        scores = require(model, Matcher).score_bundles(histories, more)
        assert scores.shape == (len(histories), later + 2)
        assert torch.isfinite(scores).all()
        assert_close(scores[:, :later].numpy(), bundle_scores(model, shop), 1e-6)
        # Someone who has one of them already, beside a bundle of old.
        owner = Histories(Ragged.from_lists([[1]]), Ragged.from_lists([[0, later]]))
        assert torch.isfinite(require(model, Matcher).score_bundles(owner, more)).all()

    def test_whoever_knows_bundles_by_their_items_knows_later_ones_too(self, kind: type[Model]) -> None:
        if kind not in (ItemPopularity, OwnedShare):
            pytest.skip("knows bundles by name, or nothing at all")
        model = fitted(kind, WIDE)
        histories, contents = everyone(WIDE)
        more = contents.append(contents.rows(torch.tensor([5])))
        scores = require(model, Matcher).score_bundles(histories, more)
        torch.testing.assert_close(scores[:, -1], scores[:, 5], atol=0.01, rtol=0)


@pytest.mark.parametrize("kind", [Ease, ItemKnn, OwnedShare])
def test_whoever_has_nothing_is_offered_what_sells(kind: type[Model], shop: BundleDataset) -> None:
    nobody = Histories(Ragged.from_lists([[]]), Ragged.from_lists([[]]))
    scores = require(fitted(kind, shop), Matcher).score_bundles(nobody, everyone(shop)[1])[0].numpy()
    sales = dense(shop.user_bundle).sum(0)
    assert (np.diff(sales[np.argsort(-scores)]) <= 0).all()
    assert np.ptp(sales) > 0


@pytest.mark.parametrize("kind", [EaseItems, PpmiSvd])
def test_whoever_has_nothing_begins_with_what_is_common(kind: type[Model]) -> None:
    nobody = Histories(Ragged.from_lists([[]]), Ragged.from_lists([[]]))
    scores = (
        require(fitted(kind, WIDE), Completer)
        .score_items(nobody, Ragged.from_lists([[]]), everyone(WIDE)[1])[0]
        .numpy()
    )
    counts = dense(WIDE.user_item).sum(0) + dense(WIDE.bundle_item).sum(0)
    assert (np.diff(counts[np.argsort(-scores)]) <= 0).all()


# ── The published data ───────────────────────────────────────────────────────────────────────────


def published(relative: str) -> Split:
    split = read(real_data(relative)).ready
    assert split is not None
    return split


def figures(kind: type[Model], split: Split, cases: MatchingCases | GenerationCases | None) -> list[float]:
    """nDCG@5, @10 and @20."""
    assert cases is not None
    model = untrained(kind, split.dataset)
    data = Interactions.of(split.train, CPU)
    model.observe(data)
    if isinstance(cases, MatchingCases):
        found = means(MatchingEvaluator(cases, data).metrics(model))
    else:
        found = means(GenerationEvaluator(cases, data).metrics(model))
    return [found[f"ndcg@{k}"] for k in (5, 10, 20)]


def test_the_rows_of_popularity_and_chance_in_matching_on_youshu() -> None:
    split = published("youshu/authors/mat")
    assert figures(ItemPopularity, split, split.test) == pytest.approx([0.0256, 0.0435, 0.0689], abs=5e-4)
    assert figures(Popularity, split, split.test) == pytest.approx([0.4347, 0.4766, 0.4999], abs=5e-4)
    chance = np.cumsum(1 / np.log2(np.arange(20) + 2))[[4, 9, 19]] / 100
    assert figures(Random, split, split.test) == pytest.approx(chance.tolist(), abs=0.006)


def test_the_row_of_popularity_in_generation_on_youshu() -> None:
    split = published("youshu/authors/gen")
    paper = [0.2078, 0.2525, 0.3179]
    assert figures(Popularity, split, split.generation) == pytest.approx(paper, abs=5e-4)
