"""`bundlemage keys`: who may ask the live service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bundlemage.cli.options import AsJson
from bundlemage.cli.serve import Database, database_url, open_store

if TYPE_CHECKING:
    from bundlemage.store.records import Key
    from bundlemage.store.repository import Store

app = typer.Typer(no_args_is_help=True, help="Make, list and revoke API keys of the live service.")


@app.command()
def create(
    role: Annotated[
        str, typer.Option(metavar="ROLE", help="read, write or admin; each may what those before it may.")
    ],
    db: Database = None,
    name: Annotated[str, typer.Option(help="Whom it is for, to tell keys apart later.")] = "",
    as_json: AsJson = False,
) -> None:
    """Make a key and print it. It is shown this once: the database keeps only a digest of it.

    From the first key on the service answers nobody without one; one that runs already, within 5 seconds.
    """
    from bundlemage.cli import show
    from bundlemage.errors import ConfigError

    store = _opened(db)
    try:
        from bundlemage.service.security import ROLES, make_key

        if role not in ROLES:
            raise ConfigError(f"unknown role {role!r}; the roles are: {', '.join(ROLES)}")
        if len(name) > 200 or not name.isprintable():
            raise ConfigError(f"--name: a line of at most 200 characters is wanted, not {name[:40]!r}")
        text, key = make_key(role, name)
        store.add_key(key)
    finally:
        store.close()
    if as_json:
        show.print_json({"key": text, **_described(key)})
        return
    print(text)  # alone on stdout, for a shell's $(…)
    show.notes.print(
        f"A key of role [bold]{role}[/]. It is shown only now: keep it where secrets are kept. It goes into "
        f"the header 'Authorization: Bearer KEY'.\n'bundlemage keys revoke {key.id}' ends it.",
        soft_wrap=True,
    )


@app.command("list")
def list_keys(db: Database = None, as_json: AsJson = False) -> None:
    """List every key, revoked ones included, without its secret."""
    from rich.table import Table

    from bundlemage.cli import show

    store = _opened(db)
    try:
        keys = store.keys()
    finally:
        store.close()
    if as_json:
        show.print_json([_described(key) for key in keys])
        return
    if not keys:
        show.out.print("no key yet: whoever can reach the service may do everything")
        return
    table = Table("id", "role", "name", "made", "revoked")
    for key in keys:
        revoked = f"{key.revoked_at:%Y-%m-%d %H:%M}" if key.revoked_at else ""
        table.add_row(key.id, key.role, show.plain(key.name), f"{key.created_at:%Y-%m-%d %H:%M}", revoked)
    show.out.print(table)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As 'bundlemage keys list' shows it.")],
    db: Database = None,
) -> None:
    """End a key and the logins made with it. A running service believes it for at most 5 seconds more."""
    from bundlemage.cli import show
    from bundlemage.errors import ConfigError

    store = _opened(db)
    try:
        if not store.revoke_key(key_id):
            # Someone may paste the whole key here; of what was given only an id is repeated.
            shown = repr(key_id) if len(key_id) <= 12 else "what was given"
            raise ConfigError(
                f"there is no key {shown} that could be revoked; 'bundlemage keys list' shows the ids"
            )
        last = not store.has_keys()
    finally:
        store.close()
    show.out.print(f"{key_id} is revoked")
    if last:
        show.notes.print(
            "[yellow]warning:[/] that was the last key. A service on this machine alone is now open to all "
            "its users; one that listens elsewhere refuses everybody until there is a new key",
            soft_wrap=True,
        )


def _opened(db: str | None) -> Store:
    """The store; and if there was nothing in it yet, that is said: a mistyped --db makes a new database.

    It is not refused: the key of a service for others must be there before the service is first started.
    """
    from bundlemage.cli import show

    store = open_store(database_url(db, None))
    try:
        new = store.is_empty() and not store.keys()
    except BaseException:
        store.close()
        raise
    if new:
        show.notes.print(
            f"[yellow]note:[/] {show.plain(store.url)} is a new database, with no shop and no key in it yet. "
            "Where a service runs already, it has another one: see that --db is the same",
            soft_wrap=True,
        )
    return store


def _described(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "role": key.role,
        "name": key.name,
        "created_at": key.created_at.isoformat(),
        "revoked_at": key.revoked_at.isoformat() if key.revoked_at else None,
    }
