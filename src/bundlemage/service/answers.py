"""Builds the answers of the service from results of the store, the model and the designer."""

from __future__ import annotations

from typing import Any

from bundlemage.core.shop import Recommendation
from bundlemage.live import Live
from bundlemage.store.records import Bundle, Item
from bundlemage.wire.answers import BundleOut, EntryOut, ItemOut, RankedBundle, RankedItem
from bundlemage.wire.design_answers import DesignedItem, Designs, DesignsFor

IN_A_DESIGN = 10
"""Maximum number of reasons for each item of a design. It is small because a design has many items."""
IN_AN_EXPLANATION = 100
"""Maximum number of reasons in an explanation."""

# An answer takes the fields of its record that have the same names, and ignores the record's other fields.
# So a new field is named here only if it must be computed.


def item_out(item: Item, live: Live) -> ItemOut:
    """An item of the catalogue."""
    return ItemOut(**vars(item), in_model=live.in_model(item.id))


def bundle_out(bundle: Bundle, live: Live) -> BundleOut:
    """A bundle of the catalogue, with its items."""
    facts = {**vars(bundle), "items": _items_of(bundle, live)}
    return BundleOut(**facts, recommendable=live.recommendable(bundle))


def _items_of(bundle: Bundle, live: Live) -> list[EntryOut]:
    items = (live.stock.items.get(name) or Item(name) for name in bundle.items)
    return [EntryOut.model_validate(item) for item in items]


def ranked_bundle(answer: Recommendation, live: Live, *, details: bool) -> RankedBundle:
    """A recommended bundle. With `details`, its items are listed."""
    bundle = live.stock.bundles[answer.id]
    facts = {**vars(answer), **vars(bundle)}
    del facts["items"]  # a field that is not set is left out of the JSON
    if details:
        facts["items"] = _items_of(bundle, live)
    return RankedBundle(**facts)


def ranked_item(answer: Recommendation, live: Live) -> RankedItem:
    """A recommended item."""
    return RankedItem(**{**vars(answer), **vars(live.stock.items[answer.id])})


def designs_out(designs: Designs, about: dict[str, Any]) -> DesignsFor:
    """The answer with designed bundles. `about` holds its other fields: request id, model and user."""
    bundles = tuple(
        design.model_copy(update={"items": tuple(map(_shortened, design.items))}) for design in designs
    )
    return DesignsFor(**{**vars(designs), "bundles": bundles}, **about)


def _shortened(item: DesignedItem) -> DesignedItem:
    return item if item.why is None else item.model_copy(update={"why": item.why.shortened(IN_A_DESIGN)})
