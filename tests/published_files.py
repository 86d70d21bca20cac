"""Small files in each published layout, for tests, and what they have in common to check."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from bundlemage.data.splits import Source
from bundlemage.errors import DataError, Problem

USERS, BUNDLES, HELD_OUT, ITEMS = 4, 5, 2, 6


def matrix(shape: tuple[int, int], *pairs: tuple[int, int]) -> sparse.csr_matrix:
    rows, columns = zip(*pairs, strict=True)
    return sparse.csr_matrix((np.full(len(pairs), 2), (rows, columns)), shape=shape)


def write_pickles(folder: Path, **values: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / f"{name}.pkl").write_bytes(pickle.dumps(value, 3))
    return folder


def write_matching(folder: Path) -> Path:
    taken = (USERS, BUNDLES)
    return write_pickles(
        folder,
        train=matrix(taken, (0, 0), (0, 1), (1, 2)),
        valid=matrix(taken, (0, 2), (2, 3)),
        test=matrix(taken, (0, 3), (1, 4)),
        bundle_item=matrix((BUNDLES, ITEMS), (0, 0), (0, 1), (1, 1), (2, 2), (3, 3), (4, 4), (4, 5)),
        user_item=matrix((USERS, ITEMS), (0, 0), (0, 5), (2, 3)),
    )


def write_generation(folder: Path) -> Path:
    write_matching(folder)
    return write_pickles(
        folder,
        gen_bundle_item_input=matrix((HELD_OUT, ITEMS), (1, 0)),  # the first held-out bundle is shown empty
        gen_bundle_item_output=matrix((HELD_OUT, ITEMS), (0, 5), (1, 1)),
        gen_neg=np.array([[0, 1, 2], [3, 4, 5]]),
        gen_user_bundle=matrix((USERS, HELD_OUT), (0, 1), (2, 0), (2, 1)),
    )


def write_bgcn(folder: Path, **changed: str | None) -> Path:
    texts: dict[str, str | None] = {
        "user_bundle_train": "0\t0\n0\t1\n1\t2\n",
        "user_bundle_tune": "0\t2\n2\t3\n",
        "user_bundle_test": "0\t3\n0\t4\n1\t4\n",
        "user_item": "0\t0\n0\t5\n2\t3\n",
        "bundle_item": "0\t0\n0\t1\n4\t5\n",
        "NetEase_data_size": "4\t5\t7\n",
        **changed,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        if text is not None:
            (folder / f"{name}.txt").write_text(text)
    return folder


def write_pathak(folder: Path, **changed: Any) -> Path:
    maps: dict[str, Any] = {
        "bundle_item_map": {0: {0, 1}, 1: {1}, 2: {2}},
        "user_bundle_map": {0: {0}, 1: {1, 2}},
        "item_id_lookup": {0: 70, 1: 10, 2: 50},
        "item_name_map": {10: "Ten", 50: "Fünfzig", 70: "Seventy"},
        "item_price_map": {0: "$14.99", 1: "Free to Play", 2: "Install Now"},
        "all_items": [{"appid": "10", "tags": ["Indie", "RPG"]}, {"appid": "50", "tags": []}],
        "bundle_final_price_map": {1: 9.5, 2: 8.5, 3: 7.5},
        "bundle_discount_map": {1: 20.0, 2: 0.0, 3: 92.0},
        **changed,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in maps.items():
        if value is not None:
            (folder / name).write_bytes(pickle.dumps(value, 0))
    return folder


def pairs(found: sparse.csr_matrix) -> list[tuple[int, int]]:
    return [(int(row), int(column)) for row, column in zip(*found.nonzero(), strict=True)]


def problems(read: Callable[[Path], Source], folder: Path) -> list[Problem]:
    with pytest.raises(DataError) as caught:
        read(folder)
    for problem in caught.value.problems:
        assert problem.fix
        assert str(folder.resolve()) in str(Path(problem.where).resolve())
    return list(caught.value.problems)
