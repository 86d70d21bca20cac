"""The counters of the service, for Prometheus and for the Insights page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest, values
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from bundlemage.service.shared import Recent, Shared
from bundlemage.wire.answers import Latency

NO_ROUTE = "(none)"
"""The route of a request that no route has answered."""
_METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
M = TypeVar("M", Counter, Histogram)


class Metrics:
    """Counters in their own registry, so that two services in one process do not clash.

    The counters of several workers are added up. Each worker counts in its own file in a shared folder. A
    worker that replaces a dead one has the same number and continues its file.
    """

    CONTENT_TYPE = CONTENT_TYPE_LATEST

    def __init__(self, queue_length: Callable[[], float] = lambda: 0, shared: Shared | None = None) -> None:
        folder = shared.folder if shared else None
        if shared and folder:
            number = shared.number
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
            values.ValueClass = values.MultiProcessValue(lambda: number)  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._requests = self._new(Counter, "requests_total", "Requests answered.", "route method status")
        seconds = "Time from the request's headers to the last byte of its answer."
        self._seconds = self._new(Histogram, "request_seconds", seconds, "route", buckets=_SECONDS)
        self._answers = self._new(
            Counter, "answers_total", "Recommended items and bundles, by source.", "source"
        )
        self._interactions = self._new(Counter, "interactions_total", "Interactions written to the store.")
        if folder:
            self.registry = CollectorRegistry()
            MultiProcessCollector(self.registry, str(folder))  # type: ignore[no-untyped-call]
        self._now = _Now(queue_length)
        self.registry.register(self._now)
        self._recent = shared.response_times if shared else Recent()
        # Keeps the labelled counters, because looking one up takes much longer than counting.
        self._counters: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def _new(self, kind: type[M], name: str, meaning: str, labels: str = "", **options: Any) -> M:
        return kind(f"bundlemage_{name}", meaning, labels.split(), registry=self.registry, **options)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request. `route` is a template and not a path, to keep the number of labels small."""
        labels = (route, method if method in _METHODS else "OTHER", status)
        pair = self._counters.get(labels)
        if pair is None:
            pair = (self._requests.labels(route, labels[1], str(status)), self._seconds.labels(route))
            self._counters[labels] = pair
        pair[0].inc()
        pair[1].observe(seconds)

    def answered(self, seconds: float, sources: Mapping[str, int]) -> None:
        """Count an answer: its response time, and the number of recommendations from each source."""
        self._recent.append(seconds)
        for source, count in sources.items():
            self._answers.labels(source).inc(count)

    def wrote(self, interactions: int) -> None:
        """Count interactions that were written."""
        self._interactions.inc(interactions)

    def serves(self, version: str, name: str) -> None:
        """Record which model serves now."""
        self._now.model = (version, name)

    def latency(self) -> Latency:
        """Response times of the last few thousand recommendations, as nearest-rank percentiles."""
        ordered = self._recent.sorted()
        if not ordered:
            return Latency(count=0, p50_ms=None, p95_ms=None, p99_ms=None)
        ranks = (-(-len(ordered) * percent // 100) - 1 for percent in (50, 95, 99))  # rounded up
        p50, p95, p99 = (round(1000 * ordered[rank], 3) for rank in ranks)
        return Latency(count=len(ordered), p50_ms=p50, p95_ms=p95, p99_ms=p99)

    def exposition(self) -> bytes:
        """All metrics in the text format of Prometheus. Its media type is CONTENT_TYPE."""
        return generate_latest(self.registry)


class _Now(Collector):
    """What this process does at the moment: how many requests wait, and which model serves."""

    def __init__(self, queue_length: Callable[[], float]) -> None:
        self._queue_length = queue_length
        self.model: tuple[str, str] | None = None

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Called whenever the metrics are read."""
        waiting = "Number of requests that wait for the model, in the process that answers."
        yield GaugeMetricFamily("bundlemage_queue_length", waiting, self._queue_length())
        serving = GaugeMetricFamily(
            "bundlemage_model_info", "The serving model. The value is always 1.", labels=["version", "name"]
        )
        if self.model:
            serving.add_metric(self.model, 1)
        yield serving
