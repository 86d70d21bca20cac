"""Joining a Ray cluster, or starting Ray on this machine, within a time limit."""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

from bundlemage.errors import ClusterError

SECONDS_TO_ANSWER = 10.0
"""Time in which a connection to the address of a cluster must open."""
SECONDS_TO_JOIN = 60.0
SECONDS_TO_START = 120.0
"""A machine that does nothing else starts Ray in a few seconds."""
MESSAGE_LENGTH = 300


@contextmanager
def joined(address: str | None, workers: int | None) -> Iterator[None]:
    """Join the cluster at an address, and leave it at the end. Without an address, Ray runs on this machine
    until the end. Raises `ClusterError` if joining fails or takes too long.

    Another process joins first, see `keeper`: if it hangs, it can be ended. This process joins after that.
    """
    with ExitStack() as at_the_end:
        try:
            answer = at_the_end.enter_context(_joined_by_another(address, workers))
            import ray

            if "RAY_AUTH_MODE" not in os.environ and answer["authentication"]:
                os.environ["RAY_AUTH_MODE"] = answer["authentication"]  # as Ray does when it starts itself
                ray._raylet.Config.initialize("")
            at_the_end.callback(ray.shutdown)
            ray.init(address=address or answer["address"], log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:
            why = " ".join(str(error).split())[:MESSAGE_LENGTH].rstrip(".:")
            if address is None:
                raise ClusterError(
                    f"cannot start Ray on this machine: {why}. Ray needs free memory, and space in the "
                    "folder for temporary files (RAY_TMPDIR names another one). The command runs without Ray "
                    "if --engine is left out"
                ) from error
            raise ClusterError(
                f"cannot join a Ray cluster at {address}: {why}. Is it running ('ray start --head')? Does "
                "it need a token (RAY_AUTH_MODE=token, RAY_AUTH_TOKEN_PATH)? Without --address, Ray is "
                "started on this machine"
            ) from error
        yield


@contextmanager
def _joined_by_another(address: str | None, workers: int | None) -> Iterator[dict[str, Any]]:
    """Start a keeper. Yields its answer. At the end the keeper ends, with all processes that it started."""
    if address is None:
        # Declare enough processors for all workers, even if this machine has fewer.
        cpus, seconds = max(os.cpu_count() or 1, workers or 1), SECONDS_TO_START
        options: dict[str, Any] = {"address": "local", "num_cpus": cpus, "include_dashboard": False}
    else:
        _check_listening(address)
        options, seconds = {"address": address}, SECONDS_TO_JOIN
    # -P: Python must not import modules from the program's folder. A new session: Ctrl-C does not reach it.
    command = [sys.executable, "-P", str(Path(__file__).with_name("keeper.py")), json.dumps(options)]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, stdin=PIPE, stdout=PIPE, stderr=errors, start_new_session=True
        ) as keeper,  # at the end, its input is closed and its end awaited
    ):
        assert keeper.stdout is not None
        if not select.select([keeper.stdout], [], [], seconds)[0]:
            raise TimeoutError(f"no answer within {seconds:g} s")
        answer = json.loads(keeper.stdout.readline() or "{}")
        if "address" not in answer:
            errors.seek(0)
            printed = errors.read().decode(errors="replace")
            raise ConnectionError(answer.get("error") or printed or "its process died")
        yield answer


def _check_listening(address: str) -> None:
    """Raises an error if nothing listens at the address. Ray itself would retry for many minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        if not port.isdecimal():
            raise ValueError("the address must be HOST:PORT, ray://HOST:PORT or auto")
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_ANSWER).close()
