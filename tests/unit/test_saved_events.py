"""A saved model keeps when and how strongly users took things, what they rejected, and items' vectors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bundlemage.artifact.files import load_artifact
from bundlemage.data.dataset import BundleDataset, binary_matrix
from bundlemage.data.events import UNDATED, Events
from bundlemage.engines.scoring import ModelUsers
from bundlemage.errors import ArtifactError
from bundlemage.readers.load import read
from bundlemage.recommender import Recommender
from bundlemage.sample.generate import write_shop
from tests.forged import forge
from tests.small_shop import small_shop

WEIGHTS = {"view": 0.2, "buy": 1.0}


def shop_with_events() -> BundleDataset:
    data = small_shop()
    random = np.random.default_rng(0)
    at = random.integers(10**15, 2 * 10**15, data.user_item.nnz)
    at[::7] = UNDATED
    weight = random.choice([0.5, 1, 3], data.user_item.nnz).astype(np.float32)
    free = np.argwhere(data.user_item.toarray() == 0)[::40]
    rejected = binary_matrix(free[:, 0], free[:, 1], data.user_item.shape)
    assert data.catalogue is not None
    items = data.catalogue.items
    vectors: list[Any] = [[float(n), 0.5] if n % 3 else None for n in range(len(items))]
    place = items.column_names.index("vector")
    described = items.set_column(place, items.field(place), pa.array(vectors, pa.list_(pa.float32())))
    return replace(
        data,
        item_events=Events(at, weight, rejected),
        bundle_events=Events(at=np.arange(data.user_bundle.nnz)),
        catalogue=replace(data.catalogue, items=described),
        event_weights=WEIGHTS,
    )


@pytest.fixture(scope="module")
def data() -> BundleDataset:
    return shop_with_events()


@pytest.fixture(scope="module")
def whole(data: BundleDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = Recommender("popularity").fit(data, progress=False, calibrate=False)
    return model.save(tmp_path_factory.mktemp("models") / "model")


def test_a_model_keeps_what_is_known(data: BundleDataset, whole: Path) -> None:
    loaded = load_artifact(whole).dataset
    assert loaded.fingerprint() == data.fingerprint()
    assert loaded.digests() == data.digests()
    assert loaded.event_weights == WEIGHTS
    assert loaded.catalogue is not None
    assert data.catalogue is not None
    assert loaded.catalogue.items == data.catalogue.items


def test_a_saved_model_is_read_without_its_users(data: BundleDataset, whole: Path) -> None:
    users = ModelUsers(whole)
    ids, histories = users.read(3, 9)
    assert ids.to_pylist() == list(data.users.ids[3:9])
    assert histories.items.values.tolist() == data.user_item[3:9].indices.tolist()
    assert len(users) == len(data.users)


def test_data_without_events_is_saved_as_before(tmp_path: Path) -> None:
    model = Recommender("popularity").fit(small_shop(), progress=False, calibrate=False)
    folder = model.save(tmp_path / "model")
    assert pq.read_schema(folder / "user_item.parquet").names == ["row", "column"]
    assert not {"description", "vector"} & {*pq.read_schema(folder / "items.parquet").names}
    assert not list(folder.glob("*rejected*"))
    assert "events" not in json.loads((folder / "config.json").read_text())["dataset"]


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet"])
def test_the_tables_of_a_shop_have_times_and_weights(form: Any, data: BundleDataset, tmp_path: Path) -> None:
    known = replace(data, item_events=replace(data.item_events, rejected=None), event_weights=None)
    write_shop(known, tmp_path / "shop", form)
    found = read(tmp_path / "shop").dataset
    assert found.fingerprint() == known.fingerprint()
    assert found.catalogue is not None
    assert known.catalogue is not None
    assert found.catalogue.items["vector"].to_pylist() == known.catalogue.items["vector"].to_pylist()


Column = npt.NDArray[Any]


def altered(file: str, column: str, change: Callable[[Column], Any]) -> Callable[[Path], None]:
    def alter(folder: Path) -> None:
        table = pq.read_table(folder / file)
        place = table.column_names.index(column)
        values = pa.array(change(table[column].to_numpy().copy()))
        pq.write_table(table.set_column(place, column, values), folder / file)

    return alter


def first(value: Any) -> Callable[[Column], Column]:
    def change(values: Column) -> Column:
        values[0] = value
        return values

    return change


def vectors(*values: Any) -> Callable[[Path], None]:
    def alter(folder: Path) -> None:
        table = pq.read_table(folder / "items.parquet")
        column = pa.array([*values, *[None] * (len(table) - len(values))], pa.list_(pa.float32()))
        place = table.column_names.index("vector")
        pq.write_table(table.set_column(place, "vector", column), folder / "items.parquet")

    return alter


def unsorted(folder: Path) -> None:
    table = pq.read_table(folder / "user_item.parquet")
    pq.write_table(table.take(list(range(len(table)))[::-1]), folder / "user_item.parquet")


def twice(folder: Path) -> None:
    table = pq.read_table(folder / "user_item.parquet")
    pq.write_table(pa.concat_tables([table.slice(0, 1), table]), folder / "user_item.parquet")


def also_rejected(folder: Path) -> None:
    table = pq.read_table(folder / "user_item.parquet", columns=["row", "column"])
    pq.write_table(table.slice(0, 1), folder / "user_item_rejected.parquet")


FORGERIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a weight that is no number": (altered("user_item.parquet", "weight", first(np.nan)), "a weight is not"),
    "a weight of 0": (altered("user_item.parquet", "weight", first(0)), "a weight is not a number above 0"),
    "a negative weight": (altered("user_item.parquet", "weight", first(-1)), "a weight is not"),
    "weights of another type": (altered("user_item.parquet", "weight", np.float64), "its columns are"),
    "a weight that is missing": (
        altered("user_item.parquet", "weight", lambda w: pa.array(w, mask=w == w[0])),
        "the column 'weight' has a missing value",
    ),
    "a time beyond all": (altered("user_item.parquet", "at", first(2**62)), "a time is not between"),
    "pairs in another order": (unsorted, "its pairs are not in order"),
    "a pair that is there twice": (twice, "its pairs are not in order"),
    "a pair that is rejected as well": (also_rejected, "a pair is rejected as well"),
    "a rejected item that does not exist": (
        altered("user_item_rejected.parquet", "column", first(10**6)),
        "user_item_rejected.parquet is damaged .a position is outside",
    ),
    "vectors of different lengths": (vectors([1, 2], [1]), "its vectors have different lengths"),
    "a vector that is no number": (vectors([1, np.inf]), "a vector has something that is no number"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_file_is_refused(name: str, whole: Path, tmp_path: Path) -> None:
    forgery, reason = FORGERIES[name]
    folder = forge(shutil.copytree(whole, tmp_path / "model"), forgery)
    with pytest.raises(ArtifactError, match=reason):
        load_artifact(folder)


def test_an_altered_file_of_rejected_pairs_is_noticed(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "model")
    altered("user_item_rejected.parquet", "column", lambda column: column[::-1])(folder)
    with pytest.raises(ArtifactError, match=r"user_item_rejected\.parquet"):
        load_artifact(folder)
