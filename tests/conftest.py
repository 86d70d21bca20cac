"""Fixtures for every test. Being here also lets tests import one another's helpers as `tests.…`."""

import os

# The models in tests are tiny: more threads than one only wait for each other, most of all when several
# test processes share the cores. Set before torch is imported, and inherited by commands that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from typing import Any

import pytest

from tests.postgres_server import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The tests of a file run in one process, so that they share what they set up. All tests of the engines
    run in one process, because a second Ray would only wait for the cores of the first. Each documentation
    page runs by itself."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if "test_what_a_page_shows" in nodeid:
                return nodeid
            return "tests/engines" if file.startswith("tests/engines/") else file

    return ByFile(config, log)
