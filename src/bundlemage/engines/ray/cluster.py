"""Join a cluster and leave it; errors of its workers are raised as if they had happened here."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from bundlemage.errors import BundleMageError, ClusterError, MissingExtraError

SECONDS_TO_ANSWER = 10.0


class Cluster:
    """A cluster by its address; without one, Ray is started on this machine for each job."""

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        if find_spec("ray") is None:  # so that it is known before any work
            raise MissingExtraError("ray", "the engine 'ray'")
        self.address, self.workers = address, workers

    @contextmanager
    def joined(self, needed_for: str) -> Iterator[None]:
        """Join the cluster for a job. A process that has joined already, as in tests, stays joined."""
        # Ray sends no usage reports, and its processes do not print what they do.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray
        from ray.exceptions import RayError

        mine = not ray.is_initialized()
        if mine:
            self._join()
        try:
            yield
        except BundleMageError:
            raise
        except Exception as error:
            if ours := _ours(error):
                raise ours from None
            if isinstance(error, RayError):
                raise ClusterError(f"{needed_for} failed: {str(error).splitlines()[0]}") from error
            raise
        finally:
            if mine:
                ray.shutdown()

    def _join(self) -> None:
        import ray

        options = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
        try:
            if self.address is None:
                # On one machine, Ray has room for any number of workers.
                cpus = max(os.cpu_count() or 1, self.workers or 1)
                ray.init(address="local", num_cpus=cpus, include_dashboard=False, **options)
            else:
                _answers(self.address)
                ray.init(address=self.address, **options)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            where = f"at {self.address}" if self.address else "on this machine"
            why = str(error).splitlines()[0].rstrip(".")
            raise ClusterError(
                f"no Ray cluster {where} lets us in: {why}. Is it running ('ray start --head'), and does it "
                "want a token (RAY_AUTH_TOKEN_PATH)? Without --address, Ray is started on this machine"
            ) from error


def _ours(error: BaseException | None) -> BundleMageError | None:
    """The error of this program that a worker raised, without what Ray has wrapped it in."""
    while error is not None:
        if isinstance(error, BundleMageError):
            return error
        error = getattr(error, "cause", None) or error.__cause__
    return None


def _answers(address: str) -> None:
    """Raise an error if nothing listens at the address: Ray itself would try for many minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        if not port.isdecimal():
            raise ValueError("an address is HOST:PORT, ray://HOST:PORT or auto")
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_ANSWER).close()
