"""What may be shown in a campaign besides the shop as it is: new bundles, and items with another stock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from bundlemage.campaigns.chances import with_median_sales
from bundlemage.core.ownership import Whole, full_price
from bundlemage.core.shop import Shop
from bundlemage.data.dataset import (
    BUNDLE_SCHEMA,
    ITEM_SCHEMA,
    Catalogue,
    catalogue_table,
    empty_catalogue,
    frozen,
    with_rows,
)
from bundlemage.errors import ConfigError
from bundlemage.models.base import Model
from bundlemage.models.ragged import Ragged


def with_new_bundles(
    shop: Shop, model: Model, new: Mapping[str, Sequence[str]], prices: Mapping[str, float], decimals: int
) -> Shop:
    """Returns the shop with more bundles at the end: id → ids of the items. Nobody has bought them yet.

    A bundle that is not in `prices` costs the sum of its items' prices, rounded to `decimals`. The model
    scores the new bundles with the sales of the median bundle, as in a forecast.
    """
    data, start = shop.dataset, len(shop.dataset.bundles)
    if taken := data.bundles.known(new):
        raise ConfigError(f"new bundle {taken[0]!r} has the id of a bundle that the shop already has")
    if strange := [name for name in prices if name not in new]:
        raise ConfigError(f"a price is given for {strange[0]!r}, which is not among the new bundles")
    if "" in new:
        raise ConfigError("a new bundle has an empty id: give it another one")
    if empty := [name for name, items in new.items() if not items]:
        raise ConfigError(f"new bundle {empty[0]!r} has no items")
    inside = [shop.item_positions(items) for items in new.values()]
    end = start + len(new)

    bought = data.user_bundle
    user_bundle = sparse.csr_matrix((bought.data, bought.indices, bought.indptr), (bought.shape[0], end))
    user_bundle.has_canonical_format = True
    bundles = data.bundles.with_more(tuple(new))
    tables = data.catalogue or Catalogue(
        empty_catalogue(ITEM_SCHEMA, data.items), empty_catalogue(BUNDLE_SCHEMA, data.bundles)
    )
    whole = np.array([shop.item_facts(np.array(items))[0].sum() for items in inside])
    own = np.array([prices.get(name, np.nan) for name in new])
    cost = full_price(own, whole, np.zeros(len(new)), decimals)
    with np.errstate(invalid="ignore", divide="ignore"):
        discount = np.where(whole > 0, np.maximum(0.0, 1 - cost / whole), 0.0)
    added = catalogue_table(
        BUNDLE_SCHEMA,
        {
            "bundle_id": pa.array(list(new), pa.string()),
            "price": pa.array(cost, from_pandas=True),  # nan: unknown
            "discount": pa.array(np.where(np.isnan(cost), np.nan, discount), from_pandas=True),
        },
    )
    dataset = replace(
        data,
        user_bundle=frozen(user_bundle),
        bundle_events=data.bundle_events.wider(end),
        bundle_item=with_rows(data.bundle_item, dict(enumerate(inside, start)), end),
        bundles=bundles,
        catalogue=replace(tables, bundles=pa.concat_tables([tables.bundles, added])),
    )
    contents = with_median_sales(model, Ragged.from_lists(inside, shop.device))
    interactions = replace(shop.interactions, bundle_item=shop.interactions.bundle_item.append(contents))
    return Shop(dataset, shop.device, interactions=interactions)


def repeated(contents: sparse.csr_matrix, candidates: Whole, start: int) -> dict[int, int]:
    """Returns the candidates from position `start` on that have the same items as an earlier candidate, each
    with the first such candidate. Candidates are positions in ascending order."""
    new = candidates[candidates >= start]
    if not len(new):
        return {}
    inside, inside_new = (contents[places].astype(np.int32) for places in (candidates, new))
    shared, sizes = (inside @ inside_new.T).tocoo(), np.diff(contents.indptr)
    first, second = candidates[shared.row], new[shared.col]
    same = (first < second) & (shared.data == sizes[first]) & (shared.data == sizes[second])
    pairs = sorted(zip(first[same].tolist(), second[same].tolist(), strict=True), reverse=True)
    return {after: before for before, after in pairs}


def restocked(shop: Shop, item: int, stock: int) -> Shop:
    """Returns the shop with another stock of one item. The catalogue must have a column of stocks."""
    tables = shop.dataset.catalogue
    assert tables is not None
    column = tables.items["stock"].combine_chunks()
    changed = pc.if_else(pa.array(np.arange(len(column)) == item), pa.scalar(stock, column.type), column)
    items = tables.items.set_column(tables.items.column_names.index("stock"), "stock", changed)
    dataset = replace(shop.dataset, catalogue=replace(tables, items=items))
    return Shop(dataset, shop.device, shop.trade, interactions=shop.interactions)
