"""Pickles for tests, loaded from a file as a user's would be."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from bundlemage.errors import DataError
from bundlemage.readers.unpickle import safe_load

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def load(folder: Path, data: bytes) -> Any:
    file = folder / "some.pkl"
    file.write_bytes(data)
    return safe_load(file)


def refusal(folder: Path, data: bytes, kind: str = "unsafe-pickle") -> str:
    """The message with which the data are refused."""
    with pytest.raises(DataError) as caught:
        load(folder, data)
    (problem,) = caught.value.problems
    assert problem.kind == kind
    assert problem.where.endswith("some.pkl")
    return str(problem)


def a_matrix_with(**state: Any) -> bytes:
    matrix = sparse.csr_matrix(np.eye(3, dtype=np.int32))
    matrix.__dict__.update(state)
    return pickle.dumps(matrix, 4)
