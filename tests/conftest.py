"""Fixtures for every test. Being here also lets tests import one another's helpers as `tests.…`."""

import os

# The models in tests are tiny: more threads than one only wait for each other, most of all when several
# test processes share the cores. Set before torch is imported, and inherited by commands that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import pytest

from tests.postgres_server import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]

_ENGINES = Path(__file__).parent / "engines"


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests run in one process, so that what they share is made once; and all tests of the engines
    in one, as a second Ray would only wait for the first one's cores."""
    for item in items:
        group = "engines" if _ENGINES in item.path.parents else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
