"""Costs and images of the catalogue: saved with a model, read from models without them, used by designs."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bundlemage import History, Recommender
from bundlemage.core.filters import Filter
from bundlemage.data.splits import SplitPlan
from tests.forged import forge
from tests.small_shop import QUICK, shop_with_details


@pytest.fixture(scope="module")
def model() -> Recommender:
    return Recommender(**QUICK).fit(shop_with_details(), SplitPlan("none"), progress=False)


def test_they_are_saved_with_the_model(model: Recommender, tmp_path: Path) -> None:
    loaded = Recommender.load(model.save(tmp_path / "model")).dataset.catalogue
    assert loaded is not None
    assert model.dataset.catalogue is not None
    assert loaded.items.equals(model.dataset.catalogue.items)
    assert loaded.bundles.equals(model.dataset.catalogue.bundles)


def test_a_model_that_was_saved_without_them_is_loaded(model: Recommender, tmp_path: Path) -> None:
    def forgery(folder: Path) -> None:
        for name, later in (("items", ["cost", "image_url"]), ("bundles", ["image_url"])):
            file = folder / f"{name}.parquet"
            pq.write_table(pq.read_table(file).drop_columns(later), file)

    folder = forge(model.save(tmp_path / "model"), forgery)
    loaded = Recommender.load(folder)
    assert loaded.dataset.catalogue is not None
    assert loaded.dataset.catalogue.items["cost"].null_count == len(loaded.dataset.items)
    user = loaded.dataset.users[0]
    expected = [replace(answer, image_url=None) for answer in model.recommend(user)]
    assert loaded.recommend(user) == expected


def test_a_design_by_margin_uses_the_costs_of_the_catalogue(model: Recommender) -> None:
    assert model.dataset.catalogue is not None
    table = model.dataset.catalogue.items
    known = {row["item_id"]: row["cost"] for row in table.to_pylist() if row["cost"] is not None}
    user = model.dataset.users[1]

    def designed(**more: object) -> list[tuple[list[str], float]]:
        found = model.design(user, margin=3, discount=0.1, reasons=False, **more)  # type: ignore[arg-type]
        return [([item.id for item in bundle.items], bundle.terms.margin) for bundle in found]

    assert designed() == designed(costs=known)
    assert designed() != designed(own_costs=False)
    some = dict(list(known.items())[:1])
    assert designed(costs=some) != designed()  # given costs replace those of the catalogue


def test_designs_have_the_images(model: Recommender) -> None:
    (bundle,) = model.design(model.dataset.users[1], n=1, reasons=False)
    assert [item.image_url for item in bundle.items] == [
        f"https://pictures.example/{item.id}.jpg" for item in bundle.items
    ]


def test_answers_have_the_images(model: Recommender) -> None:
    user, inside = model.dataset.users[1], [model.dataset.items[0]]
    answers = model.recommend(user, 3, new_bundles={"box": inside}, where=Filter(exclude=["b0001"]))
    assert [answer.image_url for answer in answers] == [
        f"/pictures/{answer.id}.jpg" if answer.id != "box" else None for answer in answers
    ]
    (box,) = model.recommend(History(), 3, new_bundles={"box": inside}, where=Filter(among=["box"]))
    assert box.image_url is None
    for item in model.complete(user, inside, 3):
        assert asdict(item)["image_url"] == f"https://pictures.example/{item.id}.jpg"
    for answer in model.similar("b0001", 3):
        assert answer.image_url == f"/pictures/{answer.id}.jpg"
