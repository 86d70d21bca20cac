"""A client of the live service, for a shop's own program. It needs nothing but Python's standard library.

>>> from bundlemage.client import Client
>>> with Client("https://bundles.example.org", key="bm_…") as client:
...     answer = client.recommend("u0007", k=3)
...     client.record("u0007", bundle=answer[0].id, request_id=answer.request_id)
"""

from __future__ import annotations

from bundlemage.client.answers import (
    Bundle,
    BundlePage,
    BundlesFor,
    Exposure,
    FieldError,
    Gate,
    Insights,
    Item,
    ItemPage,
    ItemsFor,
    Known,
    Latency,
    Model,
    Models,
    Part,
    RankedBundle,
    RankedItem,
    Recorded,
    Reloaded,
    ServedAnswers,
    ServingModel,
    SimilarBundles,
    TagCount,
    Tags,
    User,
    UserPage,
    UserSummary,
)
from bundlemage.client.client import Client, HistoryOf, Interaction, Where
from bundlemage.client.transport import ServiceError

__all__ = [
    "Bundle",
    "BundlePage",
    "BundlesFor",
    "Client",
    "Exposure",
    "FieldError",
    "Gate",
    "HistoryOf",
    "Insights",
    "Interaction",
    "Item",
    "ItemPage",
    "ItemsFor",
    "Known",
    "Latency",
    "Model",
    "Models",
    "Part",
    "RankedBundle",
    "RankedItem",
    "Recorded",
    "Reloaded",
    "ServedAnswers",
    "ServiceError",
    "ServingModel",
    "SimilarBundles",
    "TagCount",
    "Tags",
    "User",
    "UserPage",
    "UserSummary",
    "Where",
]
