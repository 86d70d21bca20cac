"""Processes that are asked again and again: in order, only so far ahead, and with errors as they are."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bundlemage.engines.base import engine
from bundlemage.errors import ClusterError, ConfigError, DeviceError


@dataclass(frozen=True)
class _Job:
    file: Path = Path("deaths left")
    """How often the piece 1 is still to kill its process."""


def _squares(job: _Job) -> Callable[[int], int]:
    def square(number: int) -> int:
        if number == 13:
            raise ConfigError("13 is not squared")
        return number * number

    return square


def test_in_order_and_only_so_far_ahead(ray_cluster: None) -> None:
    drawn: list[int] = []

    def pieces() -> Iterator[int]:
        for number in range(20):
            drawn.append(number)
            yield number

    def squared() -> None:
        from bundlemage.engines.ray.pool import AHEAD

        with engine("ray", workers=2).working("a test", "cpu") as workers:
            assert workers.count == 2
            for number, result in enumerate(workers.each(_squares, _Job(), pieces())):
                assert result == number * number
                assert len(drawn) <= number + AHEAD * 2

    with pytest.raises(ConfigError, match="13 is not squared"):
        squared()
    assert 13 in drawn


@dataclass(frozen=True)
class _Large:
    content: bytes


def _length(job: _Large) -> Callable[[int], int]:
    return lambda number: number + len(job.content)


def test_a_large_job_prints_no_error(ray_cluster: None, capfd: pytest.CaptureFixture[str]) -> None:
    """Ray writes errors to the file descriptor, with the name of its source file."""
    from bundlemage.engines.ray.pool import RayWorkers, Resources

    workers = RayWorkers(Resources(workers=1, cpus=1))
    assert list(workers.each(_length, _Large(bytes(10**6)), [1, 2])) == [10**6 + 1, 10**6 + 2]
    assert ".cc:" not in capfd.readouterr().err


def _dying(job: _Job) -> Callable[[int], int]:
    def work(number: int) -> int:
        left = int(job.file.read_text())
        if number == 1 and left:
            job.file.write_text(str(left - 1))
            os._exit(1)
        return number

    return work


@pytest.mark.slow
def test_a_piece_that_kills_again_and_again_is_given_up(ray_cluster: None, tmp_path: Path) -> None:
    from bundlemage.engines.ray.pool import RayWorkers, Resources

    job = _Job(tmp_path / "deaths left")
    job.file.write_text("100")
    with pytest.raises(ClusterError, match=r"lost 3 times at the same piece of work: .* more memory"):
        list(RayWorkers(Resources(workers=1, cpus=1)).each(_dying, job, [1]))
    assert job.file.read_text() == "97"


@pytest.mark.slow
def test_a_process_that_dies_is_replaced(ray_cluster: None, tmp_path: Path) -> None:
    from bundlemage.engines.ray.pool import RayWorkers, Resources

    job = _Job(tmp_path / "deaths left")
    job.file.write_text("2")
    workers = RayWorkers(Resources(workers=1, cpus=1))
    assert list(workers.each(_dying, job, range(3))) == [0, 1, 2]
    assert job.file.read_text() == "0"


def test_work_goes_to_those_who_are_free(ray_cluster: None) -> None:
    """And not to one that has no place, as when other work has taken it."""
    import ray

    from bundlemage.engines.ray.pool import RayWorkers, Resources

    holder = ray.remote(num_cpus=1)(_Idle).remote()
    ray.get(holder.there.remote())
    try:
        workers = RayWorkers(Resources(workers=2, cpus=1))
        assert list(workers.each(lambda _: lambda n: n, _Job(), range(8))) == list(range(8))
    finally:
        ray.kill(holder)


class _Idle:
    def there(self) -> float:
        return time.time()


def test_each_has_its_share_of_the_machines(ray_cluster: None) -> None:
    from bundlemage.engines.ray.pool import Resources, resources

    assert resources(2, "auto") == resources(None, "auto") == Resources(2, 1)
    assert resources(1, "cpu").options == {"num_cpus": 2}
    with pytest.raises(DeviceError, match="not present on any machine of the cluster"):
        resources(2, "cuda")
    with pytest.raises(
        ClusterError, match=r"3 workers need a processor .* with 2 processors, has room for 2"
    ):
        resources(3, "cpu")


@pytest.mark.parametrize(
    ("machines", "asked", "workers", "cpus", "gpus"),
    [
        ([(8, 2)], 3, 3, 2, 0.5),  # not 2/3, of which two find room
        ([(8, 2)], None, 2, 4, 1.0),
        ([(16, 1)], 6, 6, 2, 0.1666),  # 0.1667 six times is more than one
        ([(4, 0), (2, 0)], 2, 2, 2, 0.0),  # not 3, which the smaller machine lacks
        ([(5, 0)], 3, 3, 1, 0.0),
        ([(2, 1), (8, 1), (8, 0)], 8, 8, 1, 0.1666),  # two on the first machine, six on the second
    ],
)
def test_shares_that_all_find_room(
    machines: list[tuple[int, int]], asked: int | None, workers: int, cpus: int, gpus: float
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'bundlemage[ray]'")
    from bundlemage.engines.ray.pool import Machine, Resources, divided

    there = [Machine(*each) for each in machines]
    assert divided(there, asked, "auto") == Resources(workers, cpus, gpus)
    assert divided(there, None, "cpu").workers == sum(each.cpus for each in there)


def test_no_room() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'bundlemage[ray]'")
    from bundlemage.engines.ray.pool import Machine, divided

    with pytest.raises(ClusterError, match=r"5 workers need .* has room for 4"):
        divided([Machine(4, 1)], 5, "cuda")
    with pytest.raises(ClusterError, match=r"3 workers need a GPU and a processor each, .* has room for 2"):
        divided([Machine(8, 2)], 3, "auto", whole_gpus=True)


def test_the_process_that_divides_the_work_needs_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'bundlemage[ray]'")
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [engine("ray").device_here(device) for device in ("cuda", "cuda:1", "auto", "cpu")] == [
        "cpu",
        "cpu",
        "auto",
        "cpu",
    ]
