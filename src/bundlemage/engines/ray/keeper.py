"""A program that joins Ray on behalf of another process, and that can be ended at any time.

Joining Ray may hang in code that neither Ctrl-C nor another thread can end. So this program joins first, with
the arguments of `ray.init` as JSON. It prints one line: what it has joined, or why it has failed. If it has
started Ray on this machine, it keeps Ray running until its input ends. The input also ends when the other
process is killed. Then this program ends all processes of Ray and removes their files.

It imports nothing of BundleMage, so it starts quickly. It needs `fork`.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import logging
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

PREFIX = "bundlemage-ray-"
LONGEST = 13
"""Maximum number of bytes of the temporary folder's path. Ray's sockets are in it: their paths have up to 90
bytes more, and the path of a socket may have at most 103 bytes."""
DIE_WITH_PARENT, ADOPT_ORPHANS = 1, 36
"""Settings of Linux for a process: PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER."""


def main(options: dict[str, Any]) -> None:
    """Join Ray in a child process. End the child, and all that it has started, when the input ends."""
    local = options["address"] == "local"
    try:
        folder = private_folder() if local else None
    except OSError as error:
        _tell(error=str(error))
        return
    _set_process(ADOPT_ORPHANS, 1)
    joining = os.fork()
    if not joining:
        _set_process(DIE_WITH_PARENT, signal.SIGKILL)
        _join(options if folder is None else {**options, "_temp_dir": str(folder)})
        while local:
            signal.pause()
        os._exit(0)
    os.close(1)
    while not select.select([0], [], [], 0.5)[0] and joining not in _ended():
        pass
    _kill(joining)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def private_folder() -> Path:
    """Returns a new folder for the files of Ray, locked by this process. Removes the folders of processes
    that have ended."""
    usual = tempfile.gettempdir()
    root = os.environ.get("RAY_TMPDIR") or (usual if len(os.fsencode(usual)) <= LONGEST else "/tmp")
    for old in Path(root).glob(f"{PREFIX}*"):
        with suppress(OSError):  # it belongs to a living process, or to somebody else
            _lock(old)
            shutil.rmtree(old)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        with suppress(BlockingIOError, FileNotFoundError):  # another process took it for an old one
            _lock(folder)
            folder.stat()
            return folder


def _lock(folder: Path) -> None:
    """Lock a folder until this process ends. Raises `OSError` if another process has locked it."""
    fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)


def _join(options: dict[str, Any]) -> None:
    # Otherwise Ray would start idle workers and wait for them, forever if one of them dies while it starts.
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    try:
        import ray

        joined = ray.init(**options, logging_level=logging.CRITICAL, log_to_driver=False)
        address = getattr(joined, "address_info", {}).get("gcs_address")
        _tell(address=address, authentication=os.environ.get("RAY_AUTH_MODE"))
    except BaseException as error:
        _tell(error=str(error) or type(error).__name__)
        os._exit(1)


def _tell(**answer: str | None) -> None:
    os.write(1, f"{json.dumps(answer)}\n".encode())


def _set_process(what: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


def _ended() -> set[int]:
    """Reap the children that have ended: the first one, and processes that it has left behind."""
    ended = set[int]()
    with suppress(ChildProcessError):  # there are no more
        while process := os.waitpid(-1, os.WNOHANG)[0]:
            ended.add(process)
    return ended


def _kill(joining: int) -> None:
    """End the child and all processes of Ray. When a process ends, the processes that it has started become
    children of this one, so they are ended in the next round."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    kill = [joining]
    while kill:
        for process in kill:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)
        _ended()
        kill = [int(child) for child in children.read_text().split()] if children.exists() else []


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
