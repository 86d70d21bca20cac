"""What the store keeps about items for models: descriptions and vectors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from bundlemage.data.dataset import ITEM_SCHEMA, BundleDataset
from bundlemage.errors import UnstorableError
from bundlemage.store.records import Item, numbers_of, vector_of
from bundlemage.store.repository import Store
from tests.small_shop import small_shop


def shop_with_content(length: int = 3) -> BundleDataset:
    """The small shop, in which every third item has no description and no vector."""
    data = small_shop()
    assert data.catalogue is not None
    items: list[dict[str, Any]] = data.catalogue.items.to_pylist()
    for place, item in enumerate(items):
        item["description"] = f"Text {place}" if place % 3 else None
        item["vector"] = [0.5 * place, -1.25, 0.1][:length] if place % 3 else None
    table = pa.Table.from_pylist(items, schema=ITEM_SCHEMA)
    return replace(data, catalogue=replace(data.catalogue, items=table))


def test_descriptions_and_vectors_go_into_the_store_and_out_again(store: Store) -> None:
    data = shop_with_content()
    store.import_dataset(data)
    out = store.dataset().catalogue
    assert out is not None
    assert data.catalogue is not None
    assert out.items.equals(data.catalogue.items)
    plain, first = store.catalogue().items[:2]
    assert (plain.description, plain.vector) == (None, None)
    assert (first.description, first.vector) == ("Text 1", vector_of([0.5, -1.25, 0.1]))
    assert store.change("item", plain.id, {"vector": vector_of([1, 2, 3])}) is not None
    assert store.put(Item("new", description="Warm light", vector=vector_of([1, 2, 3])))
    found = {item.id: item for item in store.catalogue(1).items}
    assert found["new"].description == "Warm light"
    assert numbers_of(found["new"].vector or b"").tolist() == [1, 2, 3]
    assert found[plain.id].vector == found["new"].vector


def test_all_vectors_have_one_length(store: Store) -> None:
    store.import_dataset(shop_with_content(2))
    wrong = Item("lamp", vector=vector_of([1, 2, 3]))
    with pytest.raises(
        UnstorableError, match="vector of item 'lamp' has 3 numbers, but those of other items have 2"
    ):
        store.put(wrong)
    for item in store.catalogue().items:
        if item.vector is not None:
            store.change("item", item.id, {"vector": None})
    assert store.put(wrong)
    with pytest.raises(UnstorableError, match="has 2 numbers, but those of other items have 3"):
        store.put(Item("rug", vector=vector_of([1, 2])))
    assert not store.put(replace(wrong, vector=vector_of([1, 2])))  # the only vector may change its length


def test_a_dataset_whose_vectors_differ_in_length_is_not_imported(store: Store) -> None:
    data = shop_with_content()
    assert data.catalogue is not None
    items = data.catalogue.items.to_pylist()
    items[7]["vector"] = [1.0]
    catalogue = replace(data.catalogue, items=pa.Table.from_pylist(items, schema=ITEM_SCHEMA))
    named = f"vector of item '{items[7]['item_id']}' has 1 numbers, but that of another item has 3"
    with pytest.raises(UnstorableError, match=named):
        store.import_dataset(replace(data, catalogue=catalogue))
    assert store.is_empty()


@pytest.mark.parametrize("numbers", [[], [1.0, float("nan")], [float("inf")]])
def test_a_vector_of_no_numbers_is_not_stored(store: Store, numbers: list[float]) -> None:
    with pytest.raises(UnstorableError, match="vector of item 'lamp' is empty or has a number that is not"):
        store.put(Item("lamp", vector=vector_of(numbers)))
    with pytest.raises(UnstorableError, match=r"item 'lamp' has 'description' .* which is not text"):
        store.put(Item("lamp", description="\ud800"))
