"""Items and bundles: search, read, write, withdraw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Header, Query, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field

from bundlemage.service.routes.common import (
    BundleId,
    ItemId,
    SeesCosts,
    TheService,
    allow,
    bundle_out,
    item_out,
    known,
    unknown,
)
from bundlemage.store.records import Bundle, Item, vector_of
from bundlemage.wire.answers import BundleOut, BundlePage, ItemOut, ItemPage, TagCount, Tags
from bundlemage.wire.requests import BundleChange, BundleIn, ItemChange, ItemIn, Tag

router = APIRouter(prefix="/v1", tags=["catalogue"])
Thing = TypeVar("Thing", Item, Bundle)
OnlyNew = Annotated[
    Literal["*"] | None,
    Header(description="'*': write only if the id is new. The id of a withdrawn item or bundle is not new."),
]


class PageOf(BaseModel):
    """The query parameters of a page of items or bundles."""

    search: str = Field("", max_length=200, pattern=r"^[^\x00]*$", description="A part of the title or id.")
    tag: Tag | None = Field(None, description="Only items or bundles with this tag.")
    limit: int = Field(50, ge=1, le=500)
    offset: int = Field(0, ge=0, lt=2**31)

    def of(self, things: Mapping[str, Thing]) -> tuple[list[Thing], int]:
        """Returns one page of the matching items or bundles on sale, by title, and the number of matches."""
        text = self.search.casefold()
        matches = [
            thing
            for thing in things.values()
            if not thing.withdrawn
            and (self.tag is None or self.tag in thing.tags)
            and (text in thing.id.casefold() or text in (thing.title or "").casefold())
        ]
        matches.sort(key=lambda thing: ((thing.title or thing.id).casefold(), thing.id))
        return matches[self.offset : self.offset + self.limit], len(matches)


Page = Annotated[PageOf, Query()]


def _new(answer: type[BaseModel]) -> dict[int | str, Any]:
    return {201: {"model": answer, "description": "The item or bundle is new."}}


@router.get("/items", **allow("read"))
async def items(service: TheService, page: Page, costs: SeesCosts) -> ItemPage:
    """The items on sale, ordered by title."""
    live = await service.now()
    on_page, total = await run_in_threadpool(page.of, live.stock.items)
    return ItemPage(items=tuple(item_out(item, live, costs) for item in on_page), total=total)


@router.get("/bundles", **allow("read"))
async def bundles(service: TheService, page: Page) -> BundlePage:
    """The bundles on sale, ordered by title."""
    live = await service.now()
    on_page, total = await run_in_threadpool(page.of, live.stock.bundles)
    return BundlePage(bundles=tuple(bundle_out(bundle, live) for bundle in on_page), total=total)


@router.get("/tags", **allow("read"))
async def tags(service: TheService) -> Tags:
    """The tags of all items and bundles on sale, the most frequent first."""
    stock = (await service.now()).stock
    return Tags(
        items=await run_in_threadpool(_counted, stock.items.values()),
        bundles=await run_in_threadpool(_counted, stock.bundles.values()),
    )


@router.get("/items/{item_id:id}", **allow("read", 404))
async def item(item_id: ItemId, service: TheService, costs: SeesCosts) -> ItemOut:
    """An item of the catalogue, also if it is withdrawn."""
    live = await service.now()
    return item_out(known("item", item_id, live.stock.items), live, costs)


@router.put("/items/{item_id:id}", **allow("write", 404, 412, 413, also=_new(ItemOut)))
async def put_item(
    item_id: ItemId, body: ItemIn, service: TheService, response: Response, if_none_match: OnlyNew = None
) -> ItemOut:
    """Add an item, or replace all its fields. A withdrawn item is on sale again."""
    record = Item(item_id, **_stored(body.model_dump()))
    new = await run_in_threadpool(service.store.put, record, only_new=if_none_match is not None)
    response.status_code = 201 if new else 200
    return await item(item_id, service, costs=True)


@router.patch("/items/{item_id:id}", **allow("write", 404, 413))
async def change_item(item_id: ItemId, body: ItemChange, service: TheService) -> ItemOut:
    """Change some fields of an item, such as its price or stock. The other fields stay as they are."""
    changes = _stored(body.model_dump(exclude_unset=True))
    if await run_in_threadpool(service.store.change, "item", item_id, changes) is None:
        raise unknown("item", item_id)
    return await item(item_id, service, costs=True)


@router.delete("/items/{item_id:id}", status_code=204, **allow("write", 404))
def withdraw_item(item_id: ItemId, service: TheService) -> None:
    """Stop selling an item and all bundles that contain it. Histories keep the item. PUT restores it."""
    if not service.store.withdraw("item", item_id):
        raise unknown("item", item_id)


@router.get("/bundles/{bundle_id:id}", **allow("read", 404))
async def bundle(bundle_id: BundleId, service: TheService) -> BundleOut:
    """A bundle of the catalogue, also if it is withdrawn."""
    live = await service.now()
    return bundle_out(known("bundle", bundle_id, live.stock.bundles), live)


@router.put("/bundles/{bundle_id:id}", **allow("write", 404, 412, 413, also=_new(BundleOut)))
async def put_bundle(
    bundle_id: BundleId,
    body: BundleIn,
    service: TheService,
    response: Response,
    if_none_match: OnlyNew = None,
) -> BundleOut:
    """Add a bundle of items in the catalogue, or replace all its fields. The next answer may contain it."""
    record = Bundle(bundle_id, **_stored(body.model_dump()))
    new = await run_in_threadpool(service.store.put, record, only_new=if_none_match is not None)
    response.status_code = 201 if new else 200
    return await bundle(bundle_id, service)


@router.patch("/bundles/{bundle_id:id}", **allow("write", 404, 413))
async def change_bundle(bundle_id: BundleId, body: BundleChange, service: TheService) -> BundleOut:
    """Change some fields of a bundle, such as its price or title. The other fields stay as they are."""
    changes = _stored(body.model_dump(exclude_unset=True))
    if await run_in_threadpool(service.store.change, "bundle", bundle_id, changes) is None:
        raise unknown("bundle", bundle_id)
    return await bundle(bundle_id, service)


@router.delete("/bundles/{bundle_id:id}", status_code=204, **allow("write", 404))
def withdraw_bundle(bundle_id: BundleId, service: TheService) -> None:
    """Stop recommending a bundle. Histories keep the bundle. PUT restores it."""
    if not service.store.withdraw("bundle", bundle_id):
        raise unknown("bundle", bundle_id)


def _stored(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a body as the store expects them: lists become tuples without duplicates, and a vector
    becomes bytes."""
    return {
        name: vector_of(value)
        if name == "vector" and value is not None
        else tuple(dict.fromkeys(value))
        if isinstance(value, list)
        else value
        for name, value in fields.items()
    }


def _counted(things: Iterable[Item | Bundle]) -> tuple[TagCount, ...]:
    counts = Counter(tag for thing in things if not thing.withdrawn for tag in thing.tags)
    return tuple(TagCount(tag=tag, count=count) for tag, count in counts.most_common())
