"""Fixtures for every test. Being here also lets tests import one another's helpers as `tests.…`."""

from tests.postgres_server import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]
