"""What the tests of the service and its store need: a database, by each of the two kinds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bundlemage.store.repository import Store
from tests.service.running import recommender, sample_database, sample_model, second_model

__all__ = ["recommender", "sample_database", "sample_model", "second_model"]


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database that is not there yet, or is empty."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """An empty store."""
    opened = Store.open(store_url)
    yield opened
    opened.close()
