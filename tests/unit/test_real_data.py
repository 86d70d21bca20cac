"""The published data sets themselves: every count that their README gives."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from bundlemage.data.dataset import BundleDataset, Catalogue
from bundlemage.data.splits import GenerationCases, MatchingCases, Source, Split
from bundlemage.readers import authors, bgcn, pathak
from tests.real_data import real_data

YOUSHU = {"users": 8_039, "bundles": 4_771, "items": 32_770}
STEAM = {"users": 29_634, "bundles": 615, "items": 2_819}
STEAM_PARTIAL_PAIRS = 197_488
SPLITS = ["youshu/authors/mat", "youshu/authors/gen", "steam/authors/mat", "steam/authors/gen"]


@cache
def read(relative: str) -> Source:
    folder = real_data(relative)
    (reader,) = (reader for reader in (authors, bgcn, pathak) if reader.matches(folder))
    source: Source = reader.read(folder)
    return source


def split_of(relative: str) -> Split:
    ready = read(relative).ready
    assert ready is not None
    return ready


def matching(split: Split) -> tuple[MatchingCases, MatchingCases]:
    assert split.validation is not None
    assert split.test is not None
    return split.validation, split.test


def generation(split: Split) -> GenerationCases:
    assert split.generation is not None
    return split.generation


def catalogue(dataset: BundleDataset) -> Catalogue:
    assert dataset.catalogue is not None
    return dataset.catalogue


def differ(left: Any, right: Any) -> bool:
    return bool((left != right).nnz)


def sizes_of_rows(matrix: Any) -> Any:
    return np.diff(matrix.indptr)


@pytest.mark.parametrize(
    ("relative", "sizes", "counts"),
    [
        ("youshu/authors/mat", YOUSHU, (43_433, 4_433, 3_511)),
        ("youshu/authors/gen", YOUSHU, (39_274, 4_090, 3_211)),
        ("youshu/bgcn", YOUSHU, (34_416, 5_189, 9_746)),
        ("steam/authors/mat", STEAM, (59_493, 14_036, 14_036)),
        ("steam/authors/gen", STEAM, (50_641, 10_912, 10_941)),
    ],
)
def test_sizes_and_pairs(relative: str, sizes: dict[str, int], counts: tuple[int, int, int]) -> None:
    split = split_of(relative)
    validation, test = matching(split)
    assert split.dataset.sizes == sizes
    assert (split.train.user_bundle.nnz, validation.positives.nnz, test.positives.nnz) == counts
    held_out = len(split.generation) if split.generation else 0
    # The parts add up to the whole only if no pair is in two of them.
    assert split.dataset.user_bundle.nnz == sum(counts) + held_out


@pytest.mark.parametrize("relative", SPLITS)
def test_one_positive_and_99_negatives_that_the_user_has_nowhere(relative: str) -> None:
    split = split_of(relative)
    for cases in matching(split):
        assert cases.candidates is not None
        assert cases.candidates.shape == (len(cases), 100)
        assert len(np.unique(cases.users)) == len(cases)
        rows = np.arange(len(cases))
        np.testing.assert_array_equal(cases.candidates[:, 0], cases.positives.indices)
        taken = split.dataset.user_bundle[cases.users].toarray()
        assert not taken[rows[:, None], cases.candidates[:, 1:]].any()
        assert all(len(set(row)) == 100 for row in cases.candidates.tolist())
    assert not any("were drawn" in note for note in split.dataset.notes)  # the given negatives were found


@pytest.mark.parametrize(
    ("relative", "known", "held_out", "cases", "positives", "empty"),
    [
        ("youshu/authors/gen", 4_294, 477, 4_802, 5, 15),
        ("steam/authors/gen", 554, 61, 15_071, 1, 1),
    ],
)
def test_generation(relative: str, known: int, held_out: int, cases: int, positives: int, empty: int) -> None:
    split = split_of(relative)
    asked = generation(split)
    assert len(asked) == cases
    assert asked.candidates.shape == (held_out, 100 * positives)
    assert set(sizes_of_rows(asked.positives)) == {positives}
    assert (sizes_of_rows(asked.partial) == 0).sum() == empty
    assert len(split.dataset.bundles) == known + held_out
    assert split.train.bundle_item[known:].nnz == 0
    assert split.train.user_bundle[:, known:].nnz == 0

    np.testing.assert_array_equal(asked.candidates[:, :positives].ravel(), asked.positives.indices)
    rows = np.arange(held_out)[:, None]
    whole = split.dataset.bundle_item[known:].toarray()
    assert not whole[rows, asked.candidates[:, positives:]].any()
    assert (asked.partial + asked.positives - split.dataset.bundle_item[known:]).count_nonzero() == 0


@pytest.mark.parametrize("data", ["youshu", "steam"])
def test_both_splits_hold_the_same_data_under_other_bundle_numbers(data: str) -> None:
    mat, gen = (split_of(f"{data}/authors/{split}").dataset for split in ("mat", "gen"))

    def bundles(dataset: BundleDataset) -> list[tuple[int, ...]]:
        return sorted(
            tuple(row) for row in np.split(dataset.bundle_item.indices, dataset.bundle_item.indptr[1:-1])
        )

    assert bundles(mat) == bundles(gen)
    np.testing.assert_array_equal(sizes_of_rows(mat.user_bundle), sizes_of_rows(gen.user_bundle))
    assert not differ(mat.user_item, gen.user_item)
    assert differ(mat.bundle_item, gen.bundle_item)


def test_youshu_users_without_a_history() -> None:
    split = split_of("youshu/authors/mat")
    assert (sizes_of_rows(split.dataset.user_item) == 0).sum() == 33
    without = sizes_of_rows(split.train.user_bundle) == 0
    assert [without[cases.users].sum() for cases in matching(split)] == [1_474, 552]


def test_youshu_is_the_same_in_both_layouts() -> None:
    ours, theirs = read("youshu/authors/mat").dataset, read("youshu/bgcn").dataset
    assert not differ(ours.user_item, theirs.user_item)
    assert not differ(ours.bundle_item, theirs.bundle_item)


def test_bgcn_ranks_all_bundles() -> None:
    for cases in matching(split_of("youshu/bgcn")):
        assert cases.candidates is None
        assert sizes_of_rows(cases.positives).min() >= 1


def test_steam_partial() -> None:
    for relative in ("steam/authors/mat", "steam/authors/gen", "steam/pathak"):
        source = read(relative)
        assert source.dataset.name == "steam-partial"
        assert source.dataset.user_item.nnz == STEAM_PARTIAL_PAIRS
        assert pathak.PARTIAL_NOTE in source.dataset.notes
        assert source.warnings == ()


def test_steam_agrees_in_both_layouts() -> None:
    assert read("steam/authors/mat").dataset.fingerprint() == read("steam/pathak").dataset.fingerprint()


def test_steam_catalogue() -> None:
    dataset = read("steam/pathak").dataset
    items, bundles = catalogue(dataset).items, catalogue(dataset).bundles
    assert items["title"].null_count == items["price"].null_count == 0
    assert items["title"][3].as_py() == "Sam & Max 101: Culture Shock"
    assert "BioShock® 2" in items["title"].to_pylist()  # not broken by Python 2's encodings
    assert items["tags"].null_count == 304
    assert bundles["price"].null_count == bundles["discount"].null_count == 0
    # The bundle's list price is the sum of its games' prices: so the maps that count from 1 were read right.
    discounts = np.array(bundles["discount"])
    listed = dataset.bundle_item @ np.array(items["price"])
    assert np.mean(np.abs(listed * (1 - discounts) - np.array(bundles["price"])) < 0.2) > 0.9


def test_steam_catalogue_follows_the_bundles_into_the_generation_split() -> None:
    dataset = read("steam/authors/gen").dataset
    prices = np.array(catalogue(dataset).bundles["price"].to_pylist(), dtype=float)
    discounts = np.array(catalogue(dataset).bundles["discount"].to_pylist(), dtype=float)
    known = ~np.isnan(prices)
    assert known.sum() == 606  # the others share their games with another bundle
    listed = dataset.bundle_item @ np.array(catalogue(dataset).items["price"])
    assert np.mean(np.abs(listed * (1 - discounts) - prices)[known] < 0.2) > 0.9
