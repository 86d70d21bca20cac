"""The store: everything that the live service remembers, and every question that is asked of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Final

from bundlemage.data.dataset import BundleDataset
from bundlemage.store import access, answers, catalogue, erasure, histories, training_data
from bundlemage.store.alone import alone
from bundlemage.store.connections import Database
from bundlemage.store.migrate import bring_up_to_date
from bundlemage.store.records import (
    Bundle,
    CatalogueChange,
    Interaction,
    Item,
    Key,
    ModelRecord,
    Owned,
    Recorded,
    Sales,
    Served,
    ServedSummary,
    State,
    UserSummary,
)

_SECONDS_BETWEEN_FORGETTING: Final = 3600
_LONGEST_PAUSE: Final = 1.0


class Store:
    """A database in words. Any thread may call it; what a call has written is on disk when it returns.

    A database that fails raises `StoreError`, a value that cannot be kept its kind `UnstorableError`.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._forgot_at = 0.0
        self._log_is_due = True  # one that was killed may have left it so
        self.url = database.url
        """For messages: without the password."""

    @classmethod
    def open(cls, url: str) -> Store:
        """`sqlite:///path.db`, made if it is not there, or `postgresql://…`; makes or updates its tables."""
        database = Database(url)
        try:
            bring_up_to_date(database)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def close(self) -> None:
        self._database.close()

    def state(self) -> State:
        with self._database.read() as connection:
            return catalogue.state(connection)

    def alone(self, work: str) -> AbstractContextManager[None]:
        """To do what only one process at a time may do here, such as `retrain`; `BusyError` for the second.

        Nobody who reads or writes waits for it.
        """
        return alone(self._database, work)

    # Whole datasets

    def is_empty(self) -> bool:
        """Whether there is no item yet."""
        with self._database.read() as connection:
            return training_data.is_empty(connection)

    def import_dataset(
        self, dataset: BundleDataset, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Catalogue and histories into an empty store, or nothing. `progress` is told rows done, and all."""
        with self._database.write(patient=True) as connection:
            training_data.import_dataset(connection, dataset, progress)

    def dataset(self) -> BundleDataset:
        """Everything as training data, withdrawn things too; `DataError` where a table has no row yet."""
        with self._database.snapshot(long=True) as connection:
            return training_data.export_dataset(connection)

    # The catalogue

    def catalogue(self, since: int = 0) -> CatalogueChange:
        """What changed after a version, each in the order of ids."""
        with self._database.snapshot(long=not since) as connection:
            return catalogue.changes(connection, since)

    def put_item(self, item: Item, *, only_new: bool = False) -> bool:
        """Writes all of it; True: it is new. With `only_new` it raises `ExistsError` where it is not."""
        with self._database.write() as connection:
            return catalogue.put_item(connection, item, only_new)

    def put_bundle(self, bundle: Bundle, *, only_new: bool = False) -> bool:
        """Writes all of it; True: it is new. Raises `UnknownThingsError` for items that are not there, and
        with `only_new` an `ExistsError` where there is one of that id, withdrawn or not."""
        with self._database.write() as connection:
            return catalogue.put_bundle(connection, bundle, only_new)

    def change_item(self, item_id: str, changes: Mapping[str, Any]) -> Item | None:
        """Writes some of its fields and leaves the others; None: there is none of that id."""
        with self._database.write() as connection:
            return catalogue.change_item(connection, item_id, changes)

    def change_bundle(self, bundle_id: str, changes: Mapping[str, Any]) -> Bundle | None:
        """Writes some of its fields and leaves the others; None: there is none of that id."""
        with self._database.write() as connection:
            return catalogue.change_bundle(connection, bundle_id, changes)

    def withdraw_item(self, item_id: str) -> bool:
        """False: there is none of that id."""
        with self._database.write() as connection:
            return catalogue.withdraw(connection, "item", item_id)

    def withdraw_bundle(self, bundle_id: str) -> bool:
        """False: there is none of that id."""
        with self._database.write() as connection:
            return catalogue.withdraw(connection, "bundle", bundle_id)

    # Who has what

    def histories(self, user_ids: Sequence[str]) -> dict[str, Owned]:
        """One query for all of them; a user with nothing is `Owned()`."""
        with self._database.read() as connection:
            return histories.histories(connection, user_ids)

    def add_interactions(
        self, interactions: Sequence[Interaction], *, idempotency_key: str | None = None, caller: str = ""
    ) -> Recorded:
        """All or nothing. Raises `UnknownThingsError`, and `IdempotencyError` for a key used otherwise."""
        with self._database.write() as connection:
            recorded = histories.add_interactions(connection, interactions, idempotency_key, caller)
            if idempotency_key is not None and self._is_time_to_forget():
                histories.forget_keys(connection)
            return recorded

    def _is_time_to_forget(self) -> bool:
        now = time.monotonic()
        due = self._forgot_at == 0 or now - self._forgot_at > _SECONDS_BETWEEN_FORGETTING
        if due:
            self._forgot_at = now
        return due

    def users(self, search: str = "", limit: int = 50, after: str = "") -> list[UserSummary]:
        """Users who have something, whose ids begin with `search` and come after `after`, in that order."""
        with self._database.snapshot() as connection:
            return histories.users(connection, search, limit, after)

    def erase_user(self, user_id: str) -> bool:
        """Interactions and answers, also those that another process has yet to write; False: there were none.

        Where somebody reads at this moment, SQLite's files are rid of them by a later `tidy`.
        """
        with self._database.write() as connection:
            erased = erasure.erase_user(connection, user_id)
        self._log_is_due = True
        self.tidy()
        return erased

    def tidy(self) -> None:
        """Ends what an erasure had to leave. It waits for nobody; a service calls it every few seconds."""
        if not self._log_is_due:
            return
        self._log_is_due, done = False, False  # before: whoever erases meanwhile makes it due again
        try:
            done = self._database.write_log_anew()
        finally:
            self._log_is_due = self._log_is_due or not done

    def sales(self) -> Sales:
        with self._database.snapshot(long=True) as connection:
            return histories.sales(connection)

    # Answers that were given

    def add_served(self, given: Sequence[Served]) -> None:
        """All but those to users who were erased after they were given."""
        with self._database.write() as connection:
            answers.add_served(connection, given)

    def served_since(self, at: datetime, most: int = 20_000) -> ServedSummary:
        """Of the latest answers, as many as can be counted while somebody looks on."""
        with self._database.snapshot(long=True) as connection:
            return answers.summary(connection, at, most)

    def forget_served(self, before: datetime) -> int:
        """How many answers were forgotten. A few at a time, so that others write in between."""
        forgotten = 0
        while True:
            began = time.monotonic()
            with self._database.write(long=True) as connection:
                some = answers.forget_some(connection, before)
                erasure.forget_erased(connection)
            forgotten += some
            if not some:
                return forgotten
            # Else whoever waits is passed by: a thread wakes slowly, another process looks now and then.
            time.sleep(min(time.monotonic() - began, _LONGEST_PAUSE))

    # Models

    def publish(self, record: ModelRecord, *, instead_of: str | None = None) -> None:
        """Registers it, or registers it anew, and makes it the one to serve.

        With `instead_of` it raises `SupersededError` where that version is not the one that serves.
        """
        with self._database.write() as connection:
            access.publish(connection, record, instead_of)

    def models(self) -> list[ModelRecord]:
        """Newest first."""
        with self._database.read() as connection:
            return access.all_models(connection)

    def model(self, version: str) -> ModelRecord | None:
        with self._database.read() as connection:
            return access.model(connection, version)

    # Keys and sessions

    def add_key(self, key: Key) -> None:
        with self._database.write() as connection:
            access.add_key(connection, key)

    def key(self, key_id: str) -> Key | None:
        with self._database.read() as connection:
            return access.key(connection, key_id)

    def keys(self) -> list[Key]:
        """Oldest first, revoked ones included."""
        with self._database.read() as connection:
            return access.all_keys(connection)

    def revoke_key(self, key_id: str) -> bool:
        """Ends its sessions too; False: there is none of that id."""
        with self._database.write() as connection:
            return access.revoke_key(connection, key_id)

    def has_keys(self) -> bool:
        """Whether any is not revoked."""
        with self._database.read() as connection:
            return access.has_keys(connection)

    def add_session(self, digest: bytes, key_id: str, expires_at: datetime) -> None:
        with self._database.write() as connection:
            access.add_session(connection, digest, key_id, expires_at)

    def session(self, digest: bytes) -> Key | None:
        """The key of a session that has not expired, where the key is not revoked."""
        with self._database.read() as connection:
            return access.session(connection, digest)

    def end_session(self, digest: bytes) -> None:
        with self._database.write() as connection:
            access.end_session(connection, digest)
