"""Fixtures for every test. Being here also lets tests import one another's helpers as `tests.…`."""

import os

# The models in tests are tiny: more threads than one only wait for each other, most of all when several
# test processes share the cores. Set before torch is imported, and inherited by commands that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.postgres_server import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]
