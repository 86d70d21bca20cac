"""Items that came after training are known by what the catalogue says about them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy import sparse

from bundlemage import Recommender, read
from bundlemage.core.history import History
from bundlemage.data.dataset import ITEM_SCHEMA, BundleDataset, Catalogue, catalogue_table
from bundlemage.data.features import FeaturePlan
from bundlemage.data.splits import SplitPlan
from bundlemage.errors import ArtifactError, ConfigError, UnsupportedError
from bundlemage.models.base import ContentLearner, Sizes, can
from bundlemage.models.blend import Blend
from bundlemage.models.bundlemage import BundleMage
from bundlemage.models.content import PENALTY, ridge
from bundlemage.models.registry import build, make_config
from bundlemage.training.loop import train_members
from tests.forged import forge, weights
from tests.small_shop import QUICK

NEW: dict[str, Any] = {
    "item_id": "new-1",
    "title": "Moonspire: The Return",
    "tags": ["Space", "Moonspire"],
    "price": 14.99,
}


def catalogue(*records: dict[str, Any]) -> pa.Table:
    ids = [{"item_id": str(n), **record} for n, record in enumerate(records)]
    columns = {name: [record.get(name) for record in ids] for name in ITEM_SCHEMA.names}
    return catalogue_table(ITEM_SCHEMA, columns)


SHELF = catalogue(
    {"title": "Red lamp", "tags": ["Light"], "price": 5.0, "vector": [1.0, 0.0]},
    {"title": "Blue lamp", "tags": ["Light"], "price": 7.0, "vector": [0.0, 1.0]},
    {"title": "Red chair", "tags": ["Seat"], "price": 50.0},
    {"title": "Blue chair", "tags": ["Seat", "Wood"], "description": "A chair for the lamp"},
    {},
)


@pytest.fixture(scope="module")
def shop() -> BundleDataset:
    return read("sample").dataset


@pytest.fixture(scope="module")
def model(shop: BundleDataset) -> Recommender:
    return Recommender(**QUICK).fit(shop, SplitPlan("none"), progress=False, calibrate=False)


# ── Features ─────────────────────────────────────────────────────────────────────────────────────


def test_an_item_has_the_same_features_alone_as_among_others() -> None:
    plan = FeaturePlan.fit(SHELF)
    together = plan.of(SHELF)
    for row in range(len(SHELF)):
        alone = plan.of(SHELF.slice(row, 1))
        assert np.array_equal(alone.toarray()[0], together.toarray()[row])
    again = FeaturePlan.fit(SHELF)
    assert all(
        np.array_equal(one, other)
        for one, other in zip(vars(plan).values(), vars(again).values(), strict=True)
    )


def test_features_say_what_items_share() -> None:
    plan = FeaturePlan.fit(SHELF)
    rows = plan.of(SHELF).toarray()
    alike = rows @ rows.T
    assert alike[0, 1] > alike[0, 2] > alike[0, 4] == 0  # two lamps; two red things; nothing is known
    assert alike[2, 3] > alike[1, 2]
    assert plan.says_something(plan.of(SHELF)).tolist() == [True] * 4 + [False]
    only_price, foreign = catalogue({"price": 5.0}), catalogue({"title": "Zzyzx", "tags": ["Unknown"]})
    assert not plan.says_something(plan.of(only_price)).any()
    assert not plan.says_something(plan.of(foreign)).any()


def test_a_vector_of_another_length_is_left_out() -> None:
    plan = FeaturePlan.fit(SHELF)
    longer, same = catalogue({"vector": [1.0, 0.0, 0.0]}), catalogue({"vector": [1.0, 0.0]})
    assert plan.of(longer).nnz == 0
    assert plan.says_something(plan.of(same)).all()
    assert plan.size == len(plan.columns) + len(plan.bounds) + 1 + 2


def test_a_catalogue_without_anything() -> None:
    plan = FeaturePlan.fit(catalogue({}, {}))
    assert plan.size == 0
    assert plan.of(SHELF).shape == (5, 0)


# ── The regression ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("items", "size"), [(12, 5), (5, 12)])
def test_the_regression_minimises_its_loss(items: int, size: int) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(items, size)), random.normal(size=(items, 3))
    w = random.random(items) + 0.1
    mean, matrix = ridge(sparse.csr_matrix(x), y, w)
    w /= w.mean()

    def loss(b: np.ndarray) -> float:
        return float((w[:, None] * (y - mean - x @ b) ** 2).sum() + PENALTY * (b**2).sum())

    assert mean == pytest.approx((w[:, None] * y).sum(0) / w.sum())
    for _ in range(20):
        assert loss(matrix) < loss(matrix + random.normal(size=matrix.shape) * 0.01)


def test_the_vectors_of_a_new_item_are_the_prediction(model: Recommender) -> None:
    assert isinstance(model.model, BundleMage)
    content, table = model.model.content, catalogue(NEW)
    features = content.plan.of(table).toarray()
    expected = content.mean.numpy() + features @ content.map.numpy()
    assert content.vectors(table).numpy() == pytest.approx(expected, abs=1e-5)


# ── The model ────────────────────────────────────────────────────────────────────────────────────


def test_known_items_and_their_answers_stay_as_they_are(shop: BundleDataset) -> None:
    plan = SplitPlan("none")
    with_content, without = (
        Recommender(**QUICK, content=content).fit(shop, plan, progress=False, calibrate=False)
        for content in (True, False)
    )
    weights_with, weights_without = with_content.model.state_dict(), without.model.state_dict()
    assert set(weights_with) - set(weights_without) == {
        f"content.{name}" for name in ("columns", "idf", "bounds", "vector_mean", "mean", "map", "unseen")
    }
    assert all(torch.equal(tensor, weights_with[name]) for name, tensor in weights_without.items())
    larger = with_content.with_items([NEW])
    assert larger.recommend("u0001") == without.recommend("u0001")
    with pytest.raises(UnsupportedError, match="only by who has them"):
        without.with_items([NEW])


def test_without_a_catalogue_the_weights_are_those_of_a_model_without_content(shop: BundleDataset) -> None:
    bare = replace(shop, catalogue=None)
    fitted = Recommender(**QUICK).fit(bare, SplitPlan("none"), progress=False, calibrate=False)
    assert not any(name.startswith("content") for name in fitted.model.state_dict())


def test_a_new_item_is_as_if_its_row_had_been_in_the_tables(model: Recommender, shop: BundleDataset) -> None:
    """The larger model scores like one whose tables have the row."""
    small = model.model
    assert isinstance(small, BundleMage)
    larger = model.with_items([NEW])
    dataset = larger.dataset
    whole = build("bundlemage", small.config, Sizes.of(dataset))
    assert isinstance(whole, BundleMage)
    row = small.content.vectors(catalogue(NEW))
    state = {name: value for name, value in small.state_dict().items() if not name.startswith("content")}
    start = 0
    for name in ("item_shared", "item_matching", "item_generation"):
        width = state[name].shape[1]
        state[name] = torch.cat([state[name], row[:, start : start + width]])
        start += width
    state["item_counts"] = torch.cat([state["item_counts"], small.assumed_item_count[None]])
    whole.load_state_dict(state)
    whole.eval()
    anew = Recommender(**QUICK)
    anew._fitted = (whole, larger.shop)
    someone = History(items=["new-1", "g0022"], bundles=["b0013"])
    box = {"box": ["new-1", "g0012"]}
    for partial in (["new-1", "g0012"], ["g0012"]):
        found, expected = (
            {each.id: each.score for each in asked.complete(someone, partial, 601, owned="show")}
            for asked in (larger, anew)
        )
        assert found == pytest.approx(expected, rel=1e-4)
        assert len(found) == 601 - len(partial)
    found, expected = (
        {each.id: each.score for each in asked.recommend(someone, 300, new_bundles=box)}
        for asked in (larger, anew)
    )
    assert found == pytest.approx(expected, rel=1e-4)
    one, other = (asked.design(someone, start=["new-1"], size=3, reasons=False) for asked in (larger, anew))
    assert one[0].ids == other[0].ids


def test_a_new_item_is_proposed_with_its_like(model: Recommender, shop: BundleDataset) -> None:
    assert shop.catalogue is not None
    tags = shop.catalogue.items["tags"].to_pylist()
    line = [name for name, each in zip(shop.items, tags, strict=True) if "Moonspire" in each]
    larger = model.with_items([NEW])
    found = larger.complete(History(), line[:3], 600, owned="show")
    (place,) = [answer.rank for answer in found if answer.id == "new-1"]
    assert place <= 20
    assert {answer.in_model for answer in found if answer.id == "new-1"} == {"by content"}
    assert {answer.in_model for answer in found if answer.id != "new-1"} == {True}
    box = larger.recommend("u0001", 300, new_bundles={"box": ["new-1", *line[:2]]})
    assert {answer.by_content for answer in box if answer.id == "box"} == {("new-1",)}
    # The first recommender is as it was.
    assert "new-1" not in model.dataset.items
    assert len(model.complete("u0001", [], 700, owned="show")) == 600


def test_items_are_added_to_items_that_were_added(model: Recommender) -> None:
    other = {**NEW, "item_id": "new-2", "title": "Stars of Moonspire"}
    one_by_one, together = model.with_items([NEW]).with_items([other]), model.with_items([NEW, other])
    asked = ["new-1", "new-2", "g0001"]
    assert one_by_one.complete("u0001", asked, 10) == together.complete("u0001", asked, 10)
    larger = one_by_one.model
    assert isinstance(larger, BundleMage)
    changed = larger.with_items(catalogue({**other, "tags": ["Cooking"]}), [len(model.dataset.items) + 1])
    assert changed.sizes == larger.sizes
    assert changed._later_items is not None
    assert larger._later_items is not None
    assert torch.equal(changed._later_items[0], larger._later_items[0])
    assert not torch.equal(changed._later_items[1], larger._later_items[1])


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{**NEW, "item_id": "g0001"}], "'g0001' is in the data"),
        ([NEW, NEW], "an item_id of its own"),
        ([{"title": "Space"}], "item_id"),
        ([{**NEW, "colour": "red"}], "colour"),
        ([{"item_id": "x", "price": 3.0}], "nothing that the model knows is in the records of 'x'"),
        ([{**NEW, "price": "cheap"}], "records of items are wrong"),
    ],
)
def test_wrong_records_are_refused(model: Recommender, records: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model.with_items(records)


def test_models_without_content_say_so(shop: BundleDataset, model: Recommender) -> None:
    popular = Recommender("popularity", device="cpu").fit(shop, SplitPlan("none"), progress=False)
    with pytest.raises(UnsupportedError, match="only by who has them"):
        popular.with_items([NEW])
    config = make_config("bundlemage", {**QUICK, "propagation": 1})
    assert not can(build("bundlemage", config, Sizes.of(shop)), ContentLearner)


def test_items_of_the_catalogue_that_nobody_had_get_vectors_too(shop: BundleDataset) -> None:
    assert shop.catalogue is not None
    wider = shop.with_items(catalogue(NEW))
    fitted = Recommender(**QUICK).fit(wider, SplitPlan("none"), progress=False, calibrate=False)
    place = wider.items.position("new-1")
    assert isinstance(fitted.model, BundleMage)
    assert fitted.model.known_by_content == {place}
    predicted = fitted.model.content.vectors(catalogue(NEW))[0]
    assert torch.equal(torch.cat([part[place] for part in fitted.model._item_parts]), predicted)
    assert fitted.model.item_counts[place] == fitted.model.assumed_item_count


def test_a_blend_takes_up_new_items_by_the_members_that_can(shop: BundleDataset) -> None:
    split = SplitPlan("none").divide(shop)
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        ("bundlemage", QUICK),
        ("bundlemage", {**QUICK, "seed": 1}),
        ("ease", {}),
        ("popularity", {}),
    )
    trained = [
        train_members(name, make_config(name, {**settings, "device": "cpu"}), split, 1)[0]
        for name, settings in kinds
    ]
    blend = Blend(trained, [0.3, 0.3, 0.4, 0], [0.3, 0.3, 0, 0.4], "a blend")
    recommender = Recommender(**QUICK)
    alone = Recommender(**QUICK).fit(split, progress=False, calibrate=False)
    assert alone.training is not None
    recommender.take(split, blend, alone.training)
    before = recommender.recommend("u0001", 240, owned="show")
    larger = recommender.with_items([NEW])
    assert larger.recommend("u0001", 240, owned="show") == before
    someone = History(items=["new-1", "g0022"], bundles=["b0013"])
    answer = larger.recommend(someone, 300, new_bundles={"box": ["new-1"]}, owned="show")
    assert "box" in {each.id for each in answer}
    completed = larger.complete(someone, ["g0012"], 700, owned="show")
    assert len(completed) == 600
    again = larger.with_items([{**NEW, "item_id": "new-2"}])
    assert len(again.complete(someone, ["g0012"], 700, owned="show")) == 601
    # A blend that completes bundles only by who has them puts a new item last.
    recommender.take(split, Blend(trained, [0.3, 0.3, 0.4, 0], [0, 0, 0, 1], "a blend"), alone.training)
    last = recommender.with_items([NEW]).complete(someone, ["g0012"], 700, owned="show")
    scores = {each.id: each.score for each in last}
    assert scores["new-1"] == min(scores.values())


# ── Saving ───────────────────────────────────────────────────────────────────────────────────────


def test_a_saved_model_knows_the_same(model: Recommender, tmp_path: Path) -> None:
    loaded = Recommender.load(model.save(tmp_path / "model"), device="cpu")
    for one in (loaded, model):
        with pytest.raises(UnsupportedError, match="add them again"):
            one.with_items([NEW]).save(tmp_path / "larger")
    mine, other = (each.with_items([NEW]).complete("u0001", ["new-1"], 20) for each in (model, loaded))
    assert mine == other


FORGED = {
    "columns-order": lambda tensors: tensors["content.columns"].__setitem__(0, 2**19),
    "columns-negative": lambda tensors: tensors["content.columns"].__setitem__(0, -1),
    "columns-type": lambda tensors: tensors.update({"content.columns": tensors["content.columns"].float()}),
    "map-short": lambda tensors: tensors.update({"content.map": tensors["content.map"][1:].clone()}),
    "map-narrow": lambda tensors: tensors.update({"content.map": tensors["content.map"][:, 1:].clone()}),
    "map-type": lambda tensors: tensors.update({"content.map": tensors["content.map"].half()}),
    "map-nan": lambda tensors: tensors["content.map"].__setitem__((0, 0), torch.nan),
    "mean-short": lambda tensors: tensors.update({"content.mean": tensors["content.mean"][1:].clone()}),
    "idf-short": lambda tensors: tensors.update({"content.idf": tensors["content.idf"][1:].clone()}),
    "bounds-order": lambda tensors: tensors["content.bounds"].__setitem__(0, 1e9),
    "unseen-too-high": lambda tensors: tensors.update({"content.unseen": torch.tensor([10**6])}),
    "missing": lambda tensors: tensors.pop("content.mean"),
    "more": lambda tensors: tensors.update({"content.more": torch.zeros(1)}),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_content_is_refused(model: Recommender, tmp_path: Path, name: str) -> None:
    folder = forge(model.save(tmp_path / "model"), weights(FORGED[name]))
    with pytest.raises(ArtifactError) as refused:
        Recommender.load(folder, device="cpu")
    assert len(str(refused.value).splitlines()) == 1


def test_a_model_that_was_saved_without_content_still_loads(shop: BundleDataset, tmp_path: Path) -> None:
    bare = replace(shop, catalogue=Catalogue(shop.catalogue.items, shop.catalogue.bundles))  # type: ignore[union-attr]
    fitted = Recommender(**QUICK, content=False).fit(bare, SplitPlan("none"), progress=False, calibrate=False)
    folder = fitted.save(tmp_path / "model")
    loaded = Recommender.load(folder, device="cpu")
    assert isinstance(loaded.model, BundleMage)
    assert not loaded.model.content
    assert loaded.recommend("u0001") == fitted.recommend("u0001")
