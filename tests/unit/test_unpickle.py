"""Pickles are data here: what the published files hold is read, and damage is told."""

from __future__ import annotations

import contextlib
import pickle
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from bundlemage.errors import DataError
from bundlemage.readers.unpickle import safe_load
from tests.pickle_files import PROTOCOLS, a_matrix_with, load, refusal

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
keys = st.integers() | st.text() | st.booleans()
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(keys, inner)
        | st.sets(keys)
        | st.tuples(inner, inner)
        | st.tuples(inner)
    ),
)


class TestPlainValues:
    @given(value=values, protocol=st.sampled_from(PROTOCOLS))
    def test_every_protocol_reads_as_python_does(
        self, value: Any, protocol: int, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        file = tmp_path_factory.getbasetemp() / "plain.pkl"
        file.write_bytes(pickle.dumps(value, protocol))
        assert safe_load(file) == value

    def test_python_2_text_is_latin_1(self, tmp_path: Path) -> None:
        assert load(tmp_path, b"(dp0\nS'caf\\xe9'\np1\nVna\\u00efve\np2\nsI7\nI01\nsL5L\nF1.5\ns.") == {
            "café": "naïve",
            7: True,
            5: 1.5,
        }

    def test_python_2_default_dict_of_sets(self, tmp_path: Path) -> None:
        data = (
            b"ccollections\ndefaultdict\np0\n(c__builtin__\nset\np1\ntp2\nRp3\n"
            b"I4\ng1\n((lp4\nI1\naI2\natp5\nRp6\ns."
        )
        loaded = load(tmp_path, data)
        assert loaded == {4: {1, 2}}
        assert type(loaded) is dict

    @pytest.mark.parametrize("factory", [int, float, list, set, dict, None])
    def test_default_dict_with_a_plain_factory(
        self, tmp_path: Path, factory: Callable[[], Any] | None
    ) -> None:
        assert load(tmp_path, pickle.dumps(defaultdict(factory, {"a": 1}))) == {"a": 1}

    def test_shared_parts_stay_shared(self, tmp_path: Path) -> None:
        array = np.arange(3)
        first, second = load(tmp_path, pickle.dumps([array, array]))
        assert first is second


class TestArrays:
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    @pytest.mark.parametrize("code", ["?", "i1", "<i4", ">i4", "<u8", "<f4", ">f8"])
    def test_arrays_of_numbers(self, tmp_path: Path, protocol: int, code: str) -> None:
        array = np.array([[0, 1, 2], [3, 4, 5]]).astype(code)
        for written in (array, np.asfortranarray(array), array[:0]):
            np.testing.assert_array_equal(load(tmp_path, pickle.dumps(written, protocol)), written)

    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_scalars_become_plain_numbers(self, tmp_path: Path, protocol: int) -> None:
        loaded = load(tmp_path, pickle.dumps({"a": np.float64(0.5), "b": np.int32(3)}, protocol))
        assert loaded == {"a": 0.5, "b": 3}
        assert [type(value) for value in loaded.values()] == [float, int]

    @pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
    @pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csc_matrix, sparse.coo_matrix])
    def test_sparse_matrices(self, tmp_path: Path, protocol: int, kind: Any) -> None:
        matrix = kind(np.array([[0, 2, 0], [1, 0, 3]]))
        loaded = load(tmp_path, pickle.dumps(matrix, protocol))
        assert type(loaded) is kind
        np.testing.assert_array_equal(loaded.toarray(), matrix.toarray())

    @pytest.mark.parametrize("module", [b"scipy.sparse.csr", b"scipy.sparse._csr"])
    def test_old_and_new_module_names(self, tmp_path: Path, module: bytes) -> None:
        data = pickle.dumps(sparse.eye(3, format="csr", dtype=np.int32), 2)
        assert b"scipy.sparse._csr" in data
        data = data.replace(b"scipy.sparse._csr", module).replace(b"numpy._core", b"numpy.core")
        np.testing.assert_array_equal(load(tmp_path, data).toarray(), np.eye(3))

    @pytest.mark.parametrize("protocol", PROTOCOLS)
    @pytest.mark.parametrize(
        "array",
        [
            np.array([{}, []], dtype=object),
            np.zeros(2, "i4,f4"),
            np.array(["a"]),
            np.array(["2020"], "M8[D]"),
        ],
        ids=["objects", "fields", "text", "dates"],
    )
    def test_other_arrays_are_refused(self, tmp_path: Path, protocol: int, array: Any) -> None:
        assert "only numbers are allowed" in refusal(tmp_path, pickle.dumps(array, protocol))


class TestBrokenFiles:
    @pytest.mark.parametrize(
        "state",
        [
            {"indptr": np.array([0, 1, 2, 9])},
            {"indptr": np.array([0, 2, 1, 3])},
            {"indptr": np.array([0, 3])},
            {"indptr": np.array([0.0, 1, 2, 3])},
            {"indices": np.array([0, 1, 3])},
            {"indices": np.array([0, -1, 2])},
            {"indices": np.array([0, 1])},
            {"data": np.ones((3, 1))},
            {"data": None},
            {"_shape": (3,)},
            {"_shape": (3, -3)},
            {"_shape": ("3", 3)},
        ],
    )
    def test_a_matrix_that_contradicts_itself(self, tmp_path: Path, state: dict[str, Any]) -> None:
        assert "sparse matrix" in refusal(tmp_path, a_matrix_with(**state), "broken-pickle")

    @pytest.mark.parametrize(
        "data", [b"user_id,item_id\n1,2\n", b"PK\x03\x04", b"\x00\x01", b"version https://git"]
    )
    def test_another_kind_of_file(self, tmp_path: Path, data: bytes) -> None:
        with pytest.raises(DataError, match=r"some\.pkl"):
            load(tmp_path, data)

    def test_every_cut_is_noticed(self, tmp_path: Path) -> None:
        data = pickle.dumps({"matrix": sparse.csr_matrix(np.eye(3))}, 4)
        for length in range(1, len(data)):
            assert "not a whole pickle" in refusal(tmp_path, data[:length], "broken-pickle")

    def test_any_damage_gives_data_or_a_clear_error(self, tmp_path: Path) -> None:
        random = np.random.default_rng(0)
        for protocol in (0, 2, 4, 5):
            value = {"a": np.eye(2), "b": [np.float32(2.5), {1, 2}], "c": ("x", None, 2**80)}
            data = pickle.dumps([value, sparse.csr_matrix(np.eye(2))] if protocol else value, protocol)
            for _ in range(500):
                damaged = bytearray(data)
                damaged[random.integers(len(data))] = random.integers(256)
                with contextlib.suppress(DataError):  # and no other error
                    load(tmp_path, bytes(damaged))

    def test_empty_missing_and_folder(self, tmp_path: Path) -> None:
        assert "empty" in refusal(tmp_path, b"", "empty-file")
        for path, kind in ((tmp_path / "none.pkl", "missing-file"), (tmp_path, "unreadable-file")):
            with pytest.raises(DataError) as caught:
                safe_load(path)
            assert caught.value.problems[0].kind == kind
