"""Processes that are asked again and again: in order, only so far ahead, and with errors as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from bundlemage.engines.ray.cluster import Cluster
from bundlemage.errors import ConfigError, DeviceError


def _squares() -> Callable[[int], int]:
    def square(number: int) -> int:
        if number == 13:
            raise ConfigError("13 is not squared")
        return number * number

    return square


def test_in_order_and_only_so_far_ahead(ray_cluster: None) -> None:
    cluster = Cluster(None, 2)
    drawn: list[int] = []

    def pieces() -> Iterator[int]:
        for number in range(20):
            drawn.append(number)
            yield number

    def squared() -> None:
        from bundlemage.engines.ray.pool import AHEAD, in_order

        with cluster.joined("a test"):
            for number, found in enumerate(in_order(cluster, "cpu", _squares, pieces())):
                assert found == number * number
                assert len(drawn) <= number + AHEAD * 2

    with pytest.raises(ConfigError, match="13 is not squared"):
        squared()
    assert 13 in drawn


def test_each_has_its_share_of_the_machines(ray_cluster: None) -> None:
    from bundlemage.engines.ray.pool import resources

    assert resources(Cluster(None, 2), "auto") == {"num_cpus": 1}
    assert resources(Cluster(None, 1), "cpu") == {"num_cpus": 2}
    with pytest.raises(DeviceError, match="not present on any machine of the cluster"):
        resources(Cluster(None, 2), "cuda")
