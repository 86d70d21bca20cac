"""Items and bundles: looked up, put, withdrawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Depends, Header, Query, Response

from bundlemage.service.answerer import Serving
from bundlemage.service.answers import bundle_out, item_out
from bundlemage.service.problems import responses
from bundlemage.service.routes.common import BundleId, ItemId, Limit, Offset, Search, TheService, unknown
from bundlemage.service.security import require
from bundlemage.store.records import Bundle, Item
from bundlemage.wire.answers import BundleOut, BundlePage, ItemOut, ItemPage, TagCount, Tags
from bundlemage.wire.requests import BundleChange, BundleIn, ItemChange, ItemIn, Tag

router = APIRouter(prefix="/v1", tags=["catalogue"])
Thing = TypeVar("Thing", Item, Bundle)
OneTag = Annotated[Tag | None, Query(description="Only what has this tag.")]
OnlyNew = Annotated[
    Literal["*"] | None, Header(description="'*': only if there is none of that id, withdrawn ones included.")
]
READ = responses(401, 403, 404, 422, 429, 503)
CHANGE = responses(401, 403, 404, 413, 422, 429, 503)
WRITE = responses(401, 403, 404, 412, 413, 422, 429, 503)


@router.get("/items", dependencies=[Depends(require("read"))], responses=responses(401, 403, 422, 429, 503))
async def items(
    service: TheService, search: Search = "", tag: OneTag = None, limit: Limit = 50, offset: Offset = 0
) -> ItemPage:
    """The items that are sold, by title."""
    live = (await service.now()).live
    matches = await service.in_thread(_matches, live.stock.items, search, tag)
    page = tuple(item_out(item, live) for item in matches[offset : offset + limit])
    return ItemPage(items=page, total=len(matches))


@router.get("/bundles", dependencies=[Depends(require("read"))], responses=responses(401, 403, 422, 429, 503))
async def bundles(
    service: TheService, search: Search = "", tag: OneTag = None, limit: Limit = 50, offset: Offset = 0
) -> BundlePage:
    """The bundles that are sold, by title."""
    live = (await service.now()).live
    matches = await service.in_thread(_matches, live.stock.bundles, search, tag)
    page = tuple(bundle_out(bundle, live) for bundle in matches[offset : offset + limit])
    return BundlePage(bundles=page, total=len(matches))


@router.get("/tags", dependencies=[Depends(require("read"))], responses=responses(401, 403, 429, 503))
async def tags(service: TheService) -> Tags:
    """The tags of what is sold, the most frequent first."""
    stock = (await service.now()).live.stock
    items, bundles = stock.items.values(), stock.bundles.values()
    return Tags(
        items=await service.in_thread(_counted, items), bundles=await service.in_thread(_counted, bundles)
    )


@router.get("/items/{item_id:id}", dependencies=[Depends(require("read"))], responses=READ)
async def item(item_id: ItemId, service: TheService) -> ItemOut:
    """An item, also if it was withdrawn."""
    return await service.answerer.on_live(lambda serving: _item(item_id, serving))


@router.put(
    "/items/{item_id:id}",
    dependencies=[Depends(require("write"))],
    responses={201: {"model": ItemOut, "description": "It is new."}, **WRITE},
)
async def put_item(
    item_id: ItemId, body: ItemIn, service: TheService, response: Response, if_none_match: OnlyNew = None
) -> ItemOut:
    """Add an item, or replace all that is known of it. One that was withdrawn is sold again."""
    given = Item(item_id, body.title, body.price, tuple(dict.fromkeys(body.tags)), body.stock)
    new = await service.in_thread(service.store.put_item, given, only_new=if_none_match is not None)
    response.status_code = 201 if new else 200
    return await service.answerer.on_live(lambda serving: _item(item_id, serving))


@router.patch("/items/{item_id:id}", dependencies=[Depends(require("write"))], responses=CHANGE)
async def change_item(item_id: ItemId, body: ItemChange, service: TheService) -> ItemOut:
    """Change some of what is known of an item, such as its price or stock, and leave the rest."""
    if await service.in_thread(service.store.change_item, item_id, _given(body)) is None:
        raise unknown("item", item_id)
    return await service.answerer.on_live(lambda serving: _item(item_id, serving))


@router.delete(
    "/items/{item_id:id}", status_code=204, dependencies=[Depends(require("write"))], responses=READ
)
def withdraw_item(item_id: ItemId, service: TheService) -> None:
    """Sell it no more, nor bundles with it. Histories keep it; PUT brings it back."""
    if not service.store.withdraw_item(item_id):
        raise unknown("item", item_id)


@router.get("/bundles/{bundle_id:id}", dependencies=[Depends(require("read"))], responses=READ)
async def bundle(bundle_id: BundleId, service: TheService) -> BundleOut:
    """A bundle, also if it was withdrawn."""
    return await service.answerer.on_live(lambda serving: _bundle(bundle_id, serving))


@router.put(
    "/bundles/{bundle_id:id}",
    dependencies=[Depends(require("write"))],
    responses={201: {"model": BundleOut, "description": "It is new."}, **WRITE},
)
async def put_bundle(
    bundle_id: BundleId,
    body: BundleIn,
    service: TheService,
    response: Response,
    if_none_match: OnlyNew = None,
) -> BundleOut:
    """Add a bundle of items of the catalogue, or replace one. It may be in the very next answer."""
    given = Bundle(
        bundle_id,
        tuple(dict.fromkeys(body.items)),
        body.title,
        body.price,
        body.discount,
        tuple(dict.fromkeys(body.tags)),
        expected_sales=body.expected_sales,
        sells_like=body.sells_like,
    )
    new = await service.in_thread(service.store.put_bundle, given, only_new=if_none_match is not None)
    response.status_code = 201 if new else 200
    return await service.answerer.on_live(lambda serving: _bundle(bundle_id, serving))


@router.patch("/bundles/{bundle_id:id}", dependencies=[Depends(require("write"))], responses=CHANGE)
async def change_bundle(bundle_id: BundleId, body: BundleChange, service: TheService) -> BundleOut:
    """Change some of what is known of a bundle, such as its price or title, and leave the rest."""
    if await service.in_thread(service.store.change_bundle, bundle_id, _given(body)) is None:
        raise unknown("bundle", bundle_id)
    return await service.answerer.on_live(lambda serving: _bundle(bundle_id, serving))


@router.delete(
    "/bundles/{bundle_id:id}", status_code=204, dependencies=[Depends(require("write"))], responses=READ
)
def withdraw_bundle(bundle_id: BundleId, service: TheService) -> None:
    """Recommend it no more. Histories keep it; PUT brings it back."""
    if not service.store.withdraw_bundle(bundle_id):
        raise unknown("bundle", bundle_id)


def _given(body: ItemChange | BundleChange) -> dict[str, Any]:
    """The fields that were named, as the store keeps them."""
    given = body.model_dump(include=body.model_fields_set)
    lists = {name: tuple(dict.fromkeys(value)) for name, value in given.items() if isinstance(value, list)}
    return {**given, **lists}


def _item(name: str, serving: Serving) -> ItemOut:
    found = serving.live.stock.items.get(name)
    if found is None:
        raise unknown("item", name)
    return item_out(found, serving.live)


def _bundle(name: str, serving: Serving) -> BundleOut:
    found = serving.live.stock.bundles.get(name)
    if found is None:
        raise unknown("bundle", name)
    return bundle_out(found, serving.live)


def _matches(things: Mapping[str, Thing], search: str, tag: str | None) -> list[Thing]:
    """What is sold and has the text in its title or id, in the order of the titles."""
    wanted = search.casefold()
    found = [
        thing
        for thing in things.values()
        if not thing.withdrawn
        and (tag is None or tag in thing.tags)
        and (wanted in thing.id.casefold() or wanted in (thing.title or "").casefold())
    ]
    return sorted(found, key=lambda thing: ((thing.title or thing.id).casefold(), thing.id))


def _counted(things: Iterable[Item | Bundle]) -> tuple[TagCount, ...]:
    counts = Counter(tag for thing in things if not thing.withdrawn for tag in thing.tags)
    return tuple(TagCount(tag=tag, count=count) for tag, count in counts.most_common())
