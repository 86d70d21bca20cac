"""A client of the live service, for a shop's own program.

>>> from bundlemage.client import Client
>>> with Client("https://bundles.example.org", key="bm_…") as client:
...     answer = client.recommend("u0007", k=3)
...     client.record("u0007", bundle=answer[0].id, request_id=answer.request_id)

It imports neither the service's code nor torch: its answers are the pydantic classes in `bundlemage.wire`.
"""

from __future__ import annotations

from bundlemage.client.client import Client, Interaction
from bundlemage.client.transport import ServiceError
from bundlemage.wire.requests import HistoryOf, Where

__all__ = ["Client", "HistoryOf", "Interaction", "ServiceError", "Where"]
