"""`bundlemage keys` on a real database."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bundlemage.store.records import Item
from bundlemage.store.repository import Store
from tests.cli.run import run, run_json


@pytest.fixture
def db(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shop.db'}"


def test_a_key_is_printed_once_and_kept_as_a_digest(db: str, tmp_path: Path) -> None:
    made = run("keys", "create", "--db", db, "--role", "write", "--name", "the [bold] till")
    text = made.stdout.strip()
    assert text.startswith("bm_")
    assert len(text.splitlines()) == 1  # nothing else on stdout
    assert f"keys revoke {text[3:15]}" in made.stderr
    kept = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert text[3:15].encode() in kept
    assert text[16:].encode() not in kept
    listed = run("keys", "list", "--db", db).stdout
    assert text[3:15] in listed
    assert "the [bold] till" in listed
    assert text[16:] not in listed


def test_a_database_that_is_new_is_said_to_be(db: str, tmp_path: Path) -> None:
    """A mistyped --db would else make a key that no service knows."""
    for number, command in enumerate((["create", "--role", "read"], ["list"], ["list", "--json"])):
        mistyped = tmp_path / f"sohp{number}.db"
        told = run("keys", *command, "--db", mistyped)
        assert "new database" in told.stderr
        assert mistyped.name in told.stderr
        assert "new database" not in told.stdout
    mistyped = tmp_path / "sohp.db"
    assert "new database" in run("keys", "revoke", "0123456789ab", "--db", mistyped, code=2).stderr
    run("keys", "create", "--db", db, "--role", "admin")
    for command in (["create", "--role", "read"], ["list"]):  # it has a key by now
        assert "new database" not in run("keys", *command, "--db", db).stderr


def test_a_shop_without_keys_is_no_new_database(db: str) -> None:
    store = Store.open(db)
    store.put(Item("lamp"))
    store.close()
    assert "new database" not in run("keys", "create", "--db", db, "--role", "admin").stderr


def test_json(db: str) -> None:
    assert run_json("keys", "list", "--db", db) == []
    made = run_json("keys", "create", "--db", db, "--role", "read", "--name", "till")
    (listed,) = run_json("keys", "list", "--db", db)
    assert made == {"key": made["key"], **listed}
    assert (listed["role"], listed["name"], listed["revoked_at"]) == ("read", "till", None)


def test_revoking(db: str) -> None:
    first, second = (run_json("keys", "create", "--db", db, "--role", "admin")["id"] for _ in range(2))
    assert "last key" not in run("keys", "revoke", first, "--db", db).stderr
    assert "last key" in run("keys", "revoke", second, "--db", db).stderr
    revoked = {key["id"]: key["revoked_at"] for key in run_json("keys", "list", "--db", db)}
    assert revoked[first]
    assert revoked[second]
    store = Store.open(db)
    try:
        assert not store.has_keys()
    finally:
        store.close()


def test_mistakes_are_told_in_words(db: str) -> None:
    assert "read, write, admin" in run("keys", "create", "--db", db, "--role", "root", code=2).stderr
    assert "keys list" in run("keys", "revoke", "0123456789ab", "--db", db, code=2).stderr
    text = json.loads(run("keys", "create", "--db", db, "--role", "read", "--json").stdout)["key"]
    pasted = run("keys", "revoke", text, "--db", db, code=2).stderr
    assert text[16:] not in pasted
    assert "--db" in run("keys", "list", code=2).stderr
    assert "--name" in run("keys", "create", "--db", db, "--role", "read", "--name", "a\nb", code=2).stderr
