"""One Ray for all tests of the engines, started once; and each job's tests on both engines."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from bundlemage.engines.base import ENGINES, Engine, engine


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """Ray with two processors and a small object store, which jobs find and stay joined to."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'bundlemage[ray]'")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # or workers wait until every other test has a break
    folder = tempfile.mkdtemp(prefix="bm", dir="/tmp")  # a short name, because there are sockets in it
    ray.init(
        address="local",  # whatever else runs on this machine
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=300 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
        _temp_dir=folder,
    )
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=ENGINES)
def any_engine(request: pytest.FixtureRequest) -> Engine:
    """The same test on each engine; only the one on Ray starts Ray."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    return engine(request.param)
