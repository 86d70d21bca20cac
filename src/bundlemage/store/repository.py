"""The store: everything that the live service remembers."""

from __future__ import annotations

from bundlemage.store.access import AccessStore
from bundlemage.store.catalogue import CatalogueStore
from bundlemage.store.connections import Database
from bundlemage.store.histories import HistoryStore
from bundlemage.store.migrate import bring_up_to_date
from bundlemage.store.served import ServedStore
from bundlemage.store.training_data import DatasetStore


class Store(CatalogueStore, HistoryStore, ServedStore, AccessStore, DatasetStore):
    """A database with the service's data. Its methods are in five parts, one module each.

    Any thread may call it. Everything that a call has written is on disk when the call returns. A database
    that fails raises `StoreError`; a value that cannot be stored raises its subclass `UnstorableError`.
    """

    @classmethod
    def open(cls, url: str) -> Store:
        """Open `sqlite:///path.db`, which is created if it does not exist, or `postgresql://…`.

        The tables are created or updated.
        """
        database = Database(url)
        try:
            bring_up_to_date(database)
        except BaseException:
            database.close()
            raise
        return cls(database)
