"""The JSON that comes out, and how it is made of what the store and the model say."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from bundlemage.core.shop import Recommendation
from bundlemage.live import Live
from bundlemage.store.records import Bundle, Item


class Out(BaseModel):
    model_config = ConfigDict(frozen=True)


def shown(**example: Any) -> ConfigDict:
    """An answer's example in the API's document."""
    return ConfigDict(json_schema_extra={"examples": [example]})


# What the examples are made of: things of the sample shop.
ANSWERED = {"request_id": "5f1c9a3e7b2d4860", "model_version": "3f9a1c0b77de"}
FOR = {**ANSWERED, "user_id": "u0007", "history": {"items": 14, "bundles": 4, "not_in_model": 0}}
_PART = {"id": "g0022", "title": "Glassreach: The Ancient Privateers", "price": 14.99, "tags": ["Seafaring"]}
_ITEM = {**_PART, "tags": ["Seafaring"], "stock": 12, "withdrawn": False, "in_model": True}
_PRICED = {"id": "b0013", "title": "Legends of Glassreach", "price": 87.96, "discount": 0.2}
_TAGGED = {**_PRICED, "tags": ["Seafaring", "Glassreach"]}
_BUNDLE = {**_TAGGED, "items": [_PART], "withdrawn": False, "recommendable": True}
_RANKED = {"score": 0.049, "rank": 1, "source": "model"}
_METRICS = {"bundles": {"ndcg@5": 0.31, "recall@20": 0.58}}
_MODEL = {"version": "3f9a1c0b77de", "name": "bundlemage", "metrics": _METRICS}


class Known(Out):
    """How much of a history the model went by."""

    items: int
    bundles: int
    not_in_model: int = Field(description="Things newer than the model, which it passed over.")


class Part(Out):
    id: str
    title: str | None
    price: float | None
    tags: list[str]


class Ranked(Out):
    id: str
    title: str | None
    price: float | None
    tags: list[str]
    score: float = Field(
        description="A probability over all candidates; for 'popular' a share of all sales; for similar "
        "bundles the cosine between the two."
    )
    rank: int
    source: Literal["model", "popular"]


class RankedBundle(Ranked):
    discount: float | None
    items: list[Part] | None = Field(default=None, description="With details=true.")


class RankedItem(Ranked):
    stock: int | None


class Answered(Out):
    request_id: str
    model_version: str


class ForSomeone(Answered):
    user_id: str | None
    history: Known


class BundlesFor(ForSomeone):
    model_config = shown(**FOR, bundles=[{**_TAGGED, **_RANKED}])

    bundles: list[RankedBundle]


class ItemsFor(ForSomeone):
    model_config = shown(**FOR, items=[{**_PART, "tags": ["Seafaring"], "stock": 12, **_RANKED}])

    items: list[RankedItem]


class SimilarBundles(Answered):
    model_config = shown(**ANSWERED, bundles=[{**_TAGGED, **_RANKED, "score": 0.954}])

    bundles: list[RankedBundle]


class ItemOut(Out):
    model_config = shown(**_ITEM)

    id: str
    title: str | None
    price: float | None
    tags: list[str]
    stock: int | None
    withdrawn: bool
    in_model: bool = Field(description="Whether the model that serves knows it, or it came later.")


class BundleOut(Out):
    model_config = shown(**_BUNDLE)

    id: str
    title: str | None
    price: float | None
    discount: float | None
    tags: list[str]
    items: list[Part]
    withdrawn: bool
    recommendable: bool = Field(
        description="Whether it can be recommended now: sold, as are all its items, and the model knows one."
    )
    expected_sales: float | None = Field(
        default=None, description="How often it is expected to sell, if that was said."
    )
    sells_like: str | None = Field(
        default=None, description="The bundle that it is expected to sell like, if one was named."
    )


class ItemPage(Out):
    model_config = shown(items=[_ITEM], total=600)

    items: list[ItemOut]
    total: int


class BundlePage(Out):
    model_config = shown(bundles=[_BUNDLE], total=240)

    bundles: list[BundleOut]
    total: int


class TagCount(Out):
    tag: str
    count: int


class Tags(Out):
    model_config = shown(
        items=[{"tag": "Seafaring", "count": 61}], bundles=[{"tag": "Seafaring", "count": 24}]
    )

    items: list[TagCount]
    bundles: list[TagCount]


class UserOut(Out):
    model_config = shown(id="u0007", items=[_ITEM], bundles=[_BUNDLE])

    id: str
    items: list[ItemOut]
    bundles: list[BundleOut]


class UserLine(Out):
    id: str
    items: int
    bundles: int


class UserPage(Out):
    model_config = shown(users=[{"id": "u0007", "items": 14, "bundles": 4}], next="u0007")

    users: list[UserLine]
    next: str | None = Field(description="To go on, as 'after'; null at the end.")


class Gate(Answered):
    model_config = shown(**ANSWERED, user_id="u0007", items=0.62, bundles=0.38)

    user_id: str
    items: float = Field(description="How far item history speaks, 0 to 1.")
    bundles: float


class Written(Out):
    model_config = shown(new=2, known=0, replayed=False, request_id="5f1c9a3e7b2d4860")

    new: int
    known: int = Field(description="Those that were there before.")
    replayed: bool = Field(description="Whether this idempotency key had been answered before.")
    request_id: str


class ModelLine(Out):
    version: str
    name: str
    published_at: datetime | None
    serving: bool
    metrics: dict[str, Any]
    problem: str | None = Field(default=None, description="Why it could not be loaded, if it was tried.")


class Models(Out):
    model_config = shown(
        serving="3f9a1c0b77de",
        models=[{**_MODEL, "published_at": "2026-11-15T12:00:00Z", "serving": True}],
    )

    serving: str
    models: list[ModelLine]


class Reloaded(Out):
    model_config = shown(serving="3f9a1c0b77de", previous="95da838360d4", changed=True)

    serving: str
    previous: str
    changed: bool


class ServingModel(Out):
    version: str
    name: str
    title: str
    trained_on: str
    metrics: dict[str, Any]
    history: list[dict[str, Any]] = Field(description="Epoch by epoch: losses and validation.")


class Exposure(Out):
    id: str
    title: str | None
    sales_share: float
    shown_share: float


class Latency(Out):
    count: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


class ServedOut(Out):
    since: datetime
    answers: int
    taken: int = Field(description="Bundles taken by someone to whom they had been shown before.")


class Insights(Out):
    model_config = shown(
        model={**_MODEL, "title": "BundleMage", "trained_on": "sample", "history": [{"epoch": 1}]},
        popularity=[
            {"id": "b0013", "title": "Legends of Glassreach", "sales_share": 0.014, "shown_share": 0.02}
        ],
        left_out=0,
        latency={"count": 1200, "p50_ms": 1.9, "p95_ms": 4.2, "p99_ms": 7.5},
        served={"since": "2026-11-08T12:00:00Z", "answers": 1200, "taken": 37},
    )

    model: ServingModel
    popularity: list[Exposure] = Field(description="The bundles that sell or are shown most.")
    left_out: int = Field(description="How many more bundles there are.")
    latency: Latency
    served: ServedOut


class Health(Out):
    model_config = shown(status="ok")

    status: Literal["ok"]


# ── From what the store and the model say ────────────────────────────────────────────────────────


def item_out(item: Item, live: Live) -> ItemOut:
    return ItemOut(
        id=item.id,
        title=item.title,
        price=item.price,
        tags=list(item.tags),
        stock=item.stock,
        withdrawn=item.withdrawn,
        in_model=live.in_model(item.id),
    )


def bundle_out(bundle: Bundle, live: Live) -> BundleOut:
    return BundleOut(
        id=bundle.id,
        title=bundle.title,
        price=bundle.price,
        discount=bundle.discount,
        tags=list(bundle.tags),
        items=parts(bundle, live),
        withdrawn=bundle.withdrawn,
        recommendable=live.recommendable(bundle),
        expected_sales=bundle.expected_sales,
        sells_like=bundle.sells_like,
    )


def parts(bundle: Bundle, live: Live) -> list[Part]:
    found = (live.stock.items.get(name) or Item(name) for name in bundle.items)
    return [Part(id=item.id, title=item.title, price=item.price, tags=list(item.tags)) for item in found]


def ranked_bundle(answer: Recommendation, live: Live, *, details: bool) -> RankedBundle:
    bundle = live.stock.bundles[answer.id]
    more: dict[str, Any] = {"items": parts(bundle, live)} if details else {}
    return RankedBundle(**_ranked(answer, bundle), discount=bundle.discount, **more)


def ranked_item(answer: Recommendation, live: Live) -> RankedItem:
    item = live.stock.items[answer.id]
    return RankedItem(**_ranked(answer, item), stock=item.stock)


def _ranked(answer: Recommendation, thing: Item | Bundle) -> dict[str, Any]:
    return {
        "id": answer.id,
        "title": thing.title,
        "price": thing.price,
        "tags": list(thing.tags),
        "score": answer.score,
        "rank": answer.rank,
        "source": answer.source,
    }
