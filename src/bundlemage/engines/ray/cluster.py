"""Joining a cluster and leaving it, and errors of its workers as if they had happened here."""

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
    """By its address; without one, Ray is started on this machine for as long as a job takes."""

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        if find_spec("ray") is None:  # known before any work
            raise MissingExtraError("ray", "the engine 'ray'")
        self.address, self.asked = address, workers

    @contextmanager
    def joined(self, needed_for: str) -> Iterator[None]:
        """Whoever has joined already, as tests have, stays joined."""
        # Ray's own: no word of who uses it goes out, and its processes do not each say what they do.
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
                # However many are asked for, Ray on one machine finds room for them.
                cpus = max(os.cpu_count() or 1, self.asked or 1)
                ray.init(address="local", num_cpus=cpus, include_dashboard=False, **options)
            else:
                _answers(self.address)
                ray.init(address=self.address, **options)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            where = f"at {self.address}" if self.address else "on this machine"
            why = str(error).splitlines()[0].rstrip(".")
            raise ClusterError(
                f"no Ray cluster {where} lets us in: {why}. Is it running ('ray start --head'), and does it "
                "want a token (RAY_AUTH_TOKEN_PATH)? Without --address one is started here for the time"
            ) from error


def _ours(error: BaseException | None) -> BundleMageError | None:
    """The error of ours that a worker met, however Ray has wrapped it."""
    while error is not None:
        if isinstance(error, BundleMageError):
            return error
        error = getattr(error, "cause", None) or error.__cause__
    return None


def _answers(address: str) -> None:
    """Whether anybody listens there: Ray itself goes on asking for many minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        if not port.isdecimal():
            raise ValueError("an address is HOST:PORT, ray://HOST:PORT or auto")
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_ANSWER).close()
