"""Creates or updates the tables of a database. Several processes may open the same database at once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, func, inspect, select

from bundlemage.errors import StoreError
from bundlemage.store.connections import Database
from bundlemage.store.models import metadata

VERSION_TABLE: Final = "bundlemage_version"
"""Not Alembic's default name, which a shop's own programs may use in the same database."""
LOCK_NUMBER: Final = 6_235_118_047
_ALONE = threading.Lock()  # Alembic keeps its state in globals


def bring_up_to_date(database: Database) -> None:
    """Create or update the tables. Raises `StoreError` if another or a newer program made them."""
    scripts = ScriptDirectory.from_config(_config())
    with database.read() as connection:
        if _version(connection) == scripts.get_current_head():
            return
    # It waits for other processes as long as needed; SQLite waits here until nobody else writes.
    with _ALONE, database.write(patient=True) as connection:
        if not database.is_sqlite:
            connection.execute(select(func.pg_advisory_xact_lock(LOCK_NUMBER)))
        _check(database, connection, scripts)
        upgrade(connection, "head")


def upgrade(connection: Connection, version: str) -> None:
    """Run the migrations up to a version; `head` is the newest."""
    config = _config()
    config.attributes["configuration"] = {
        "connection": connection,
        "target_metadata": metadata,
        "version_table": VERSION_TABLE,
    }
    command.upgrade(config, version)


def _config() -> Config:
    config = Config()
    folder = str(Path(__file__).with_name("migrations"))
    config.set_main_option("script_location", folder.replace("%", "%%"))
    return config


def _version(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def _check(database: Database, connection: Connection, scripts: ScriptDirectory) -> None:
    version = _version(connection)
    known = [script.revision for script in scripts.walk_revisions()]
    if version is None:
        existing = set(inspect(connection).get_table_names())
        # A file belongs to one program; on a server several may share a database if no table name is taken.
        strangers = sorted(existing if database.is_sqlite else existing & set(metadata.tables))
        if strangers:
            raise StoreError(
                f"{database.url}: another program has its tables here: {', '.join(strangers[:5])}. "
                "Give the store a database of its own"
            )
    elif version not in known:
        raise StoreError(
            f"{database.url}: its tables have version {version}, and this program knows {known[0]} at most. "
            "A newer bundlemage made them: update this one"
        )
