"""`bundlemage keys`: create, list and revoke the API keys of the live service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from bundlemage.cli import show
from bundlemage.cli.commands import add
from bundlemage.cli.options import AsJson
from bundlemage.cli.serve import Database, database_url, open_store
from bundlemage.errors import ConfigError

if TYPE_CHECKING:
    from bundlemage.store.records import Key
    from bundlemage.store.repository import Store

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke API keys of the live service.")


def create(role: str, db: Database = None, name: str = "", as_json: AsJson = False) -> None:
    """Create a key and print it. It is shown only once: the database keeps only a digest of it.

    As soon as there is a key, the service refuses requests without one. A running service needs at most 5
    seconds to notice.

    Options:
        --role ROLE: read, write or admin; each includes those before it.
        --name: The owner of the key, to tell keys apart later.
    """
    with _opened(db) as store:
        from bundlemage.service.security import ROLES, make_key

        if role not in ROLES:
            raise ConfigError(f"unknown role {role!r}; the roles are: {', '.join(ROLES)}")
        if len(name) > 200 or not name.isprintable():
            raise ConfigError(f"--name: expected one line of at most 200 characters, found {name[:40]!r}")
        text, key = make_key(role, name)
        store.add_key(key)
    if as_json:
        show.print_json({"key": text, **_described(key)})
        return
    print(text)  # alone on stdout, for a shell's $(…)
    show.note(
        f"A key of role [bold]{role}[/]. It is shown only now: keep it where you keep secrets. It goes into "
        f"the header 'Authorization: Bearer KEY'.\n'bundlemage keys revoke {key.id}' revokes it."
    )


def list_(db: Database = None, as_json: AsJson = False) -> None:
    """List all keys, also revoked ones, without their secrets."""
    with _opened(db) as store:
        keys = store.keys()
    if as_json:
        show.print_json([_described(key) for key in keys])
        return
    if not keys:
        show.out.print("no key yet: everybody who can reach the service may do everything")
        return
    table = Table("id", "role", "name", "made", "revoked")
    for key in keys:
        revoked = f"{key.revoked_at:%Y-%m-%d %H:%M}" if key.revoked_at else ""
        table.add_row(key.id, key.role, show.plain(key.name), f"{key.created_at:%Y-%m-%d %H:%M}", revoked)
    show.out.print(table)


def revoke(key_id: str, db: Database = None) -> None:
    """Revoke a key and end its logins. A running service accepts it for at most 5 more seconds.

    Options:
        key_id ID: The id that 'bundlemage keys list' shows.
    """
    with _opened(db) as store:
        if not store.revoke_key(key_id):
            # A user may paste the whole key here, so only an id is repeated.
            shown = f"key {key_id!r}" if len(key_id) <= 12 else "such key"
            raise ConfigError(f"there is no {shown} to revoke; 'bundlemage keys list' shows the ids")
        last = not store.has_keys()
    show.out.print(f"{key_id} is revoked")
    if last:
        show.warn(
            "that was the last key. A service that only this machine can reach is now "
            "open to all its users; any other service refuses all requests until there is a new key"
        )


@contextmanager
def _opened(db: str | None) -> Iterator[Store]:
    """The store. If it is new, a note says so, because a mistyped --db creates a new database.

    That is no error: a service for other machines needs a key before its first start.
    """
    with closing(open_store(database_url(db, None))) as store:
        if store.is_empty() and not store.keys():
            show.note(
                f"[yellow]note:[/] {show.plain(store.url)} is a new database, without a shop and without "
                "keys. If a service is already running, it uses another database: check --db"
            )
        yield store


def _described(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "role": key.role,
        "name": key.name,
        "created_at": key.created_at.isoformat(),
        "revoked_at": key.revoked_at.isoformat() if key.revoked_at else None,
    }


add(app, create, list_, revoke)
