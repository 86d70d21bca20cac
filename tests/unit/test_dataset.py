"""The one form of the data: frozen, binary, sound, and with a fingerprint of its own."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from bundlemage.data.dataset import (
    BUNDLE_SCHEMA,
    ITEM_SCHEMA,
    BundleDataset,
    Catalogue,
    Vocabulary,
    binary_matrix,
    empty_catalogue,
)
from tests.small_shop import dataset_of, pairs_of

ROWS, COLUMNS = 5, 7
pairs = st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(0, COLUMNS - 1)), max_size=30)


def tiny(**others: Any) -> BundleDataset:
    return dataset_of([[0, 1], [2]], [[0], [1]], [[0, 1], [1, 2]], item_count=3, **others)


def titled(items: list[str], titles: list[str], bundles: tuple[str, ...] = ("b0", "b1")) -> Catalogue:
    table = empty_catalogue(ITEM_SCHEMA, Vocabulary("item", items))
    table = table.set_column(1, "title", pa.array(titles, pa.string()))
    return Catalogue(table, empty_catalogue(BUNDLE_SCHEMA, Vocabulary("bundle", list(bundles))))


class TestMatrices:
    @given(pairs)
    @settings(deadline=None)
    def test_pairs_in_pairs_out_each_once_and_in_order(self, given_pairs: list[tuple[int, int]]) -> None:
        rows, columns = [row for row, _ in given_pairs], [column for _, column in given_pairs]
        matrix = binary_matrix(rows, columns, (ROWS, COLUMNS))
        assert pairs_of(matrix) == set(given_pairs)
        assert matrix.nnz == len(set(given_pairs))
        assert matrix.shape == (ROWS, COLUMNS)
        assert set(matrix.data.tolist()) <= {1.0}
        for row in range(ROWS):
            inside = matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]
            assert (np.diff(inside) > 0).all()

    @pytest.mark.parametrize(("row", "column"), [(-1, 0), (0, -1), (ROWS, 0), (0, COLUMNS)])
    def test_a_position_outside_is_refused(self, row: int, column: int) -> None:
        with pytest.raises(ValueError, match="outside"):
            binary_matrix([0, row], [0, column], (ROWS, COLUMNS))

    @pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
    def test_a_matrix_may_have_no_rows_or_columns(self, shape: tuple[int, int]) -> None:
        assert binary_matrix([], [], shape).shape == shape

    def test_arrays_cannot_be_written_to(self) -> None:
        matrix = tiny().user_item
        for array in (matrix.data, matrix.indices, matrix.indptr):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0

    @pytest.mark.parametrize(
        "given_matrix",
        [
            np.array([[3, 0.5, 0], [0, 0, -1]]),
            sparse.coo_matrix((np.ones(4), (np.array([0, 0, 0, 1]), np.array([0, 1, 1, 2]))), shape=(2, 3)),
            sparse.csr_matrix(
                ([2.0, 1.0, 0.0, 7.0], [1, 0, 2, 2], [0, 3, 4]), shape=(2, 3), dtype=np.float32
            ),
            sparse.csc_matrix(np.array([[True, True, False], [False, False, True]])),
        ],
        ids=["dense", "given-twice", "unsorted-with-a-stored-zero", "columns-first"],
    )
    def test_any_matrix_becomes_ones_in_sorted_rows(self, given_matrix: Any) -> None:
        data = replace(tiny(), user_item=given_matrix)
        assert data.user_item.toarray().tolist() == [[1, 1, 0], [0, 0, 1]]
        assert data.user_item.indices.tolist() == [0, 1, 2]
        assert data.user_item.dtype == np.float32

    def test_a_read_only_matrix_is_made_binary_too(self) -> None:
        loaded = sparse.csr_matrix(np.array([[3, 2, 0], [0, 0, 5]], np.float32))
        loaded.data.setflags(write=False)  # as a memory-mapped one is
        assert replace(tiny(), user_item=loaded).user_item.toarray().tolist() == [[1, 1, 0], [0, 0, 1]]

    def test_a_matrix_of_another_shape_than_the_vocabularies_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"shape \(2, 4\), but the vocabularies need \(2, 3\)"):
            replace(tiny(), user_item=sparse.csr_matrix(np.ones((2, 4))))


class TestDataset:
    def test_it_is_frozen(self) -> None:
        with pytest.raises(FrozenInstanceError):
            tiny().name = "mine"  # type: ignore[misc]

    def test_other_matrices_keep_the_vocabularies_and_the_catalogue(self) -> None:
        data = tiny(catalogue=titled(["i0", "i1", "i2"], ["Frost", "Ember", "Dusk"]), notes=("a note",))
        other = data.with_interactions(user_bundle=binary_matrix([0], [1], (2, 2)))
        assert pairs_of(other.user_bundle) == {(0, 1)}
        assert (other.users, other.items, other.bundles) == (data.users, data.items, data.bundles)
        assert (other.catalogue, other.notes) == (data.catalogue, data.notes)
        assert pairs_of(data.user_bundle) == {(0, 0), (1, 1)}

    def test_titles_are_those_of_the_positions(self) -> None:
        data = tiny(catalogue=titled(["i0", "i1", "i2"], ["Frost", "Ember", "Dusk"]))
        assert [data.item_title(position) for position in range(3)] == ["Frost", "Ember", "Dusk"]
        assert data.bundle_title(0) is None
        assert tiny().item_title(0) is None

    def test_a_catalogue_of_another_length_is_refused(self) -> None:
        with pytest.raises(ValueError, match="item ids, or their order, differ from those of the data"):
            tiny(catalogue=titled(["i0", "i1"], ["Frost", "Ember"]))

    def test_a_catalogue_in_another_order_is_refused(self) -> None:
        with pytest.raises(ValueError, match="item"):
            tiny(catalogue=titled(["i2", "i1", "i0"], ["Dusk", "Ember", "Frost"]))

    def test_sizes_and_words_for_a_person(self) -> None:
        assert tiny().sizes == {"users": 2, "items": 3, "bundles": 2}
        assert "2 users, 2 bundles, 3 items" in repr(tiny(name="toy"))
        assert "'toy'" in repr(tiny(name="toy"))


class TestFingerprint:
    def test_equal_data_has_an_equal_fingerprint(self) -> None:
        again = replace(
            tiny(),
            user_item=sparse.csr_matrix(np.array([[9, 9, 0], [0, 0, 9]])),
            name="other",
            notes=("a note",),
        )
        assert again.fingerprint() == tiny().fingerprint()

    @pytest.mark.parametrize(
        "other",
        [
            dataset_of([[0, 1], [1]], [[0], [1]], [[0, 1], [1, 2]], item_count=3),
            dataset_of([[0, 1], [2]], [[0], [0]], [[0, 1], [1, 2]], item_count=3),
            dataset_of([[0, 1], [2]], [[0], [1]], [[0, 1], [1]], item_count=3),
            dataset_of([[0, 1], [2]], [[0], [1]], [[0, 1], [1, 2]], item_count=4),
            tiny(users=Vocabulary("user", ["u1", "u0"])),
            tiny(items=Vocabulary("item", ["i0", "i1", "i3"])),
            tiny(bundles=Vocabulary("bundle", ["b0", "B1"])),
        ],
    )
    def test_other_data_has_another(self, other: BundleDataset) -> None:
        assert other.fingerprint() != tiny().fingerprint()

    def test_ids_with_line_breaks_do_not_run_together(self) -> None:
        one = tiny(users=Vocabulary("user", ["a\nb", "c"]))
        other = tiny(users=Vocabulary("user", ["a", "b\nc"]))
        assert one.fingerprint() != other.fingerprint()
