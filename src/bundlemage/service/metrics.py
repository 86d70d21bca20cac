"""The counters of the service, for Prometheus and for the Insights page."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from bundlemage.wire.answers import Latency

_METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_KEPT = 4096
M = TypeVar("M", Counter, Gauge, Histogram)


class Metrics:
    """Counters in their own registry, so that two services in one process do not clash."""

    CONTENT_TYPE = CONTENT_TYPE_LATEST

    def __init__(self, queue_length: Callable[[], float] | None = None) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._new(Counter, "requests_total", "Requests answered.", "route method status")
        seconds = "Time from the request's headers to the last byte of its answer."
        self._seconds = self._new(Histogram, "request_seconds", seconds, "route", buckets=_SECONDS)
        self._answers = self._new(
            Counter, "answers_total", "Recommended items and bundles, by source.", "source"
        )
        self._interactions = self._new(Counter, "interactions_total", "Interactions written to the store.")
        self._model = self._new(
            Gauge, "model_info", "The serving model. The value is always 1.", "version name"
        )
        queue = self._new(Gauge, "queue_length", "Number of requests that wait for the model.")
        if queue_length is not None:
            queue.set_function(queue_length)  # called whenever the metrics are read
        self._recent: deque[float] = deque(maxlen=_KEPT)
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
        self._model.clear()
        self._model.labels(version, name).set(1)

    def latency(self) -> Latency:
        """Response times of the last few thousand recommendations, as nearest-rank percentiles."""
        ordered = sorted(self._recent)
        if not ordered:
            return Latency(count=0, p50_ms=None, p95_ms=None, p99_ms=None)
        ranks = (-(-len(ordered) * percent // 100) - 1 for percent in (50, 95, 99))  # rounded up
        p50, p95, p99 = (round(1000 * ordered[rank], 3) for rank in ranks)
        return Latency(count=len(ordered), p50_ms=p50, p95_ms=p95, p99_ms=p99)

    def exposition(self) -> bytes:
        """All metrics in the text format of Prometheus. Its media type is CONTENT_TYPE."""
        return generate_latest(self.registry)
