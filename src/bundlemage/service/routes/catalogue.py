"""Items and bundles: search, read, write, withdraw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Header, Query, Response

from bundlemage.service.answerer import Serving
from bundlemage.service.answers import bundle_out, item_out
from bundlemage.service.routes.common import (
    BundleId,
    ItemId,
    Limit,
    Offset,
    Search,
    TheService,
    allow,
    unknown,
)
from bundlemage.store.records import Bundle, Item
from bundlemage.wire.answers import BundleOut, BundlePage, ItemOut, ItemPage, TagCount, Tags
from bundlemage.wire.requests import BundleChange, BundleIn, ItemChange, ItemIn, Tag

router = APIRouter(prefix="/v1", tags=["catalogue"])
Thing = TypeVar("Thing", Item, Bundle)
OneTag = Annotated[Tag | None, Query(description="Only items or bundles with this tag.")]
OnlyNew = Annotated[
    Literal["*"] | None,
    Header(description="'*': only if there is nothing with this id. A withdrawn one counts, too."),
]


@router.get("/items", **allow("read"))
async def items(
    service: TheService, search: Search = "", tag: OneTag = None, limit: Limit = 50, offset: Offset = 0
) -> ItemPage:
    """The items on sale, ordered by title."""
    live = (await service.now()).live
    matches = await service.in_thread(_matches, live.stock.items, search, tag)
    page = tuple(item_out(item, live) for item in matches[offset : offset + limit])
    return ItemPage(items=page, total=len(matches))


@router.get("/bundles", **allow("read"))
async def bundles(
    service: TheService, search: Search = "", tag: OneTag = None, limit: Limit = 50, offset: Offset = 0
) -> BundlePage:
    """The bundles on sale, ordered by title."""
    live = (await service.now()).live
    matches = await service.in_thread(_matches, live.stock.bundles, search, tag)
    page = tuple(bundle_out(bundle, live) for bundle in matches[offset : offset + limit])
    return BundlePage(bundles=page, total=len(matches))


@router.get("/tags", **allow("read"))
async def tags(service: TheService) -> Tags:
    """The tags of all items and bundles on sale, the most frequent first."""
    stock = (await service.now()).live.stock
    return Tags(
        items=await service.in_thread(_counted, stock.items.values()),
        bundles=await service.in_thread(_counted, stock.bundles.values()),
    )


@router.get("/items/{item_id:id}", **allow("read", 404))
async def item(item_id: ItemId, service: TheService) -> ItemOut:
    """An item. It may be withdrawn."""
    return await service.answerer.on_live(lambda serving: _item(item_id, serving))


@router.put("/items/{item_id:id}", **allow("write", 404, 412, 413, created=ItemOut))
async def put_item(
    item_id: ItemId, body: ItemIn, service: TheService, response: Response, if_none_match: OnlyNew = None
) -> ItemOut:
    """Add an item, or replace all its fields. A withdrawn item is on sale again."""
    record = Item(item_id, **_stored(body.model_dump()))
    new = await service.in_thread(service.store.put_item, record, only_new=if_none_match is not None)
    response.status_code = 201 if new else 200
    return await service.answerer.on_live(lambda serving: _item(item_id, serving))


@router.patch("/items/{item_id:id}", **allow("write", 404, 413))
async def change_item(item_id: ItemId, body: ItemChange, service: TheService) -> ItemOut:
    """Change some fields of an item, such as its price or stock. The other fields stay as they are."""
    changes = _stored(body.model_dump(exclude_unset=True))
    if await service.in_thread(service.store.change_item, item_id, changes) is None:
        raise unknown("item", item_id)
    return await service.answerer.on_live(lambda serving: _item(item_id, serving))


@router.delete("/items/{item_id:id}", status_code=204, **allow("write", 404))
def withdraw_item(item_id: ItemId, service: TheService) -> None:
    """Stop selling an item and all bundles that contain it. Histories keep it; PUT restores it."""
    if not service.store.withdraw_item(item_id):
        raise unknown("item", item_id)


@router.get("/bundles/{bundle_id:id}", **allow("read", 404))
async def bundle(bundle_id: BundleId, service: TheService) -> BundleOut:
    """A bundle. It may be withdrawn."""
    return await service.answerer.on_live(lambda serving: _bundle(bundle_id, serving))


@router.put("/bundles/{bundle_id:id}", **allow("write", 404, 412, 413, created=BundleOut))
async def put_bundle(
    bundle_id: BundleId,
    body: BundleIn,
    service: TheService,
    response: Response,
    if_none_match: OnlyNew = None,
) -> BundleOut:
    """Add a bundle of items in the catalogue, or replace one. The next answer may already contain it."""
    record = Bundle(bundle_id, **_stored(body.model_dump()))
    new = await service.in_thread(service.store.put_bundle, record, only_new=if_none_match is not None)
    response.status_code = 201 if new else 200
    return await service.answerer.on_live(lambda serving: _bundle(bundle_id, serving))


@router.patch("/bundles/{bundle_id:id}", **allow("write", 404, 413))
async def change_bundle(bundle_id: BundleId, body: BundleChange, service: TheService) -> BundleOut:
    """Change some fields of a bundle, such as its price or title. The other fields stay as they are."""
    changes = _stored(body.model_dump(exclude_unset=True))
    if await service.in_thread(service.store.change_bundle, bundle_id, changes) is None:
        raise unknown("bundle", bundle_id)
    return await service.answerer.on_live(lambda serving: _bundle(bundle_id, serving))


@router.delete("/bundles/{bundle_id:id}", status_code=204, **allow("write", 404))
def withdraw_bundle(bundle_id: BundleId, service: TheService) -> None:
    """Stop recommending a bundle. Histories keep it; PUT restores it."""
    if not service.store.withdraw_bundle(bundle_id):
        raise unknown("bundle", bundle_id)


def _stored(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a body as the store keeps them: each id or tag of a list once."""
    return {
        name: tuple(dict.fromkeys(value)) if isinstance(value, list) else value
        for name, value in fields.items()
    }


def _item(name: str, serving: Serving) -> ItemOut:
    record = serving.live.stock.items.get(name)
    if record is None:
        raise unknown("item", name)
    return item_out(record, serving.live)


def _bundle(name: str, serving: Serving) -> BundleOut:
    record = serving.live.stock.bundles.get(name)
    if record is None:
        raise unknown("bundle", name)
    return bundle_out(record, serving.live)


def _matches(things: Mapping[str, Thing], search: str, tag: str | None) -> list[Thing]:
    """The items or bundles on sale with the text in their title or id, ordered by title."""
    text = search.casefold()
    matches = [
        thing
        for thing in things.values()
        if not thing.withdrawn
        and (tag is None or tag in thing.tags)
        and (text in thing.id.casefold() or text in (thing.title or "").casefold())
    ]
    return sorted(matches, key=lambda thing: ((thing.title or thing.id).casefold(), thing.id))


def _counted(things: Iterable[Item | Bundle]) -> tuple[TagCount, ...]:
    counts = Counter(tag for thing in things if not thing.withdrawn for tag in thing.tags)
    return tuple(TagCount(tag=tag, count=count) for tag, count in counts.most_common())
