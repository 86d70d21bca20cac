"""What there is to measure. Nothing here imports torch, so that a list of it comes at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    name: str
    title: str
    function: str
    """`module:function`, called with the setting, and with a size where there are several."""
    points: tuple[int, ...] = ()
    """Sizes over which growth is measured."""
    tiny_points: tuple[int, ...] = ()
    threads: int | None = None
    """How many it is defined for, whatever else is asked."""
    long_on_cpu: bool = False
    """Without a GPU it runs only when it is named."""

    def sizes(self, tiny: bool) -> tuple[int, ...]:
        return self.tiny_points if tiny else self.points


_SIZES = (10_000, 100_000, 1_000_000)
_TINY_SIZES = (200, 400)

MEASUREMENTS = (
    Measurement("epoch", "Youshu: an epoch and its bare matrix products", "training:epoch"),
    Measurement("memory", "Youshu: memory of training", "training:memory"),
    Measurement("accuracy", "Youshu: time to accuracy, from a cold start", "training:accuracy"),
    Measurement("whole", "Youshu: the recipe to the end", "training:whole", long_on_cpu=True),
    Measurement("bulk", "Top-20 of 4,771 bundles for a million users", "asking:bulk"),
    Measurement("request", "One request with 100,000 bundles", "asking:request", threads=1),
    Measurement("change", "A change of a catalogue with 100,000 bundles", "changes:change", threads=1),
    Measurement("forecast", "Forecast of a new bundle for 100,000 users", "forecast:forecast", threads=2),
    Measurement("netease", "Generated data of NetEase's size", "training:netease"),
    Measurement("sampled", "Five million items, sampled softmax", "training:sampled", long_on_cpu=True),
    Measurement("items", "Growth with the items", "growth:items", _SIZES, _TINY_SIZES),
    Measurement("users", "Growth with the users", "growth:users", _SIZES, _TINY_SIZES),
)
NAMES = tuple(measurement.name for measurement in MEASUREMENTS)
