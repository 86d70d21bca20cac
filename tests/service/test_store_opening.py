"""Opening a store: what is made, what is refused, and what happens when the database goes away."""

from __future__ import annotations

import re
import socket
import sqlite3
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, create_engine, insert, inspect, make_url

from bundlemage.errors import StoreError
from bundlemage.store.connections import Database
from bundlemage.store.models import metadata, served
from bundlemage.store.records import Bundle, Entry, InteractionRecord, Item, ModelRecord, ServedSummary
from bundlemage.store.repository import VERSION, Store
from tests.service.test_store import NOON
from tests.small_shop import dataset_of


def run(store: Store, statement: str) -> None:
    with store._database.write() as connection:
        connection.exec_driver_sql(statement)


def create_released(connection: Connection, version: int) -> None:
    """Create the tables of a released version, with the statements of that release."""
    for number in range(1, version + 1):
        file = Path(__file__).parent / "released" / f"{connection.dialect.name}-{number}.sql"
        for statement in file.read_text().split(";\n")[:-1]:
            connection.exec_driver_sql(statement)


def import_into(database: Database, contents: list[list[int]]) -> None:
    """Write two items, bundles of them and a user with the first of each, as a released version did."""
    two = "('i0', '[]', FALSE, 1), ('i1', '[]', FALSE, 1)"
    statements = [f"INSERT INTO items (id, tags, withdrawn, version) VALUES {two}"]
    for bundle, inside in enumerate(contents):
        new = f"('b{bundle}', '[]', FALSE, 1)"
        statements.append(f"INSERT INTO bundles (id, tags, withdrawn, version) VALUES {new}")
        pairs = ", ".join(f"('b{bundle}', {place}, 'i{item}')" for place, item in enumerate(inside))
        statements.append(f"INSERT INTO bundle_item (bundle_id, position, item_id) VALUES {pairs}")
    statements.append("INSERT INTO user_item (user_id, item_id) VALUES ('u0', 'i0')")
    statements.append("INSERT INTO user_bundle (user_id, bundle_id) VALUES ('u0', 'b0')")
    with database.write() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql("UPDATE clock SET catalogue = 1")


def assert_tables_are_up_to_date(store: Store) -> None:
    with store._database.read() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION.name})
        assert compare_metadata(context, metadata) == []


def test_a_new_store_has_exactly_the_tables(store: Store) -> None:
    assert_tables_are_up_to_date(store)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_sqlite_gets_the_same_statements_from_updates_and_at_once(tmp_path: Path, version: int) -> None:
    """The comparison above ignores row ids."""
    old = Database(f"sqlite:///{tmp_path}/old.db")
    with old.write() as connection:
        create_released(connection, version)
    old.close()
    statements = []
    for name in ("old", "new"):
        store = Store.open(f"sqlite:///{tmp_path}/{name}.db")
        with store._database.read() as connection:
            rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
            # A column that was added later stands on the line of the one before.
            statements.append({row.name: re.sub(r"\s+", "", row.sql) for row in rows})
        store.close()
    assert statements[0] == statements[1]
    assert "WITHOUTROWID" in statements[0]["user_item"]


def test_a_store_is_there_when_it_is_opened_again(store: Store, store_url: str) -> None:
    store.put(Item("lamp"))
    again = Store.open(store_url)
    assert again.catalogue().items == [Item("lamp")]
    again.close()
    again.close()


def test_many_open_a_new_store_at_once(store_url: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(Store.open, [store_url] * 8))
    for number, store in enumerate(stores):
        assert store.put(Item(f"item {number}"))
    assert len(stores[0].catalogue().items) == 8
    for store in stores:
        store.close()


def test_a_database_of_the_first_version_is_brought_up_to_date_with_all_it_holds(store_url: str) -> None:
    database = Database(store_url)
    with database.write() as connection:
        create_released(connection, 1)
        assert "erased" not in inspect(connection).get_table_names()
    old = Store(database)  # not opened, which would bring it up to date
    import_into(database, [[0, 1]])
    noon = int(NOON.timestamp()) * 1_000_000
    run(old, f"INSERT INTO user_item (user_id, item_id, at) VALUES ('ann', 'i1', {noon})")
    run(old, f"INSERT INTO user_bundle (user_id, bundle_id, at) VALUES ('ann', 'b0', {noon})")
    old.publish(ModelRecord("v1", "models/v1", "bundlemage"))
    with database.write() as connection:
        connection.execute(
            insert(served).values(
                request_id="r", kind="bundles", user_id="ann", model="v1", ids=["b0"], at=NOON
            )
        )
    before = (old.state(), old.models())
    old.close()
    new = Store.open(store_url)
    assert (new.state(), new.models()) == before
    assert new.served_since(NOON) == ServedSummary(1, {"b0": 1}, 1)
    assert new.entries("item", "ann") == [Entry("i1", NOON)]
    assert new.add_interactions([InteractionRecord("ann", "item", "i0", NOON, None, 0.2, "view")]).new == 1
    assert new.histories(["ann"])["ann"].item_weights == (0.2, 1.0)
    assert new.erase_user("ann")
    new.add_interactions([InteractionRecord("ann", "item", "i1", NOON)])
    data = new.dataset()
    assert (data.users.ids, data.items.ids, data.bundles.ids) == (("ann", "u0"), ("i0", "i1"), ("b0",))
    assert data.user_item.toarray().tolist() == [[0, 1], [1, 0]]
    assert data.bundle_item.toarray().tolist() == [[1, 1]]
    assert_tables_are_up_to_date(new)
    assert new.served_since(NOON).answers == 0
    new.close()


def test_a_database_that_knew_of_no_expected_sales_keeps_its_bundles(store_url: str) -> None:
    database = Database(store_url)
    with database.write() as connection:
        create_released(connection, 2)
        columns = {column["name"] for column in inspect(connection).get_columns("bundles")}
        assert not columns & {"expected_sales", "sells_like"}
    old = Store(database)
    contents = [[0, 1], [1]]
    import_into(database, contents)
    old.close()
    new = Store.open(store_url)
    assert new.dataset().fingerprint() == dataset_of([[0]], [[0]], contents, 2).fingerprint()
    assert [(item.cost, item.image_url) for item in new.catalogue().items] == [(None, None)] * 2
    assert [(b.id, b.expected_sales, b.sells_like) for b in new.catalogue().bundles] == [
        ("b0", None, None),
        ("b1", None, None),
    ]
    assert new.put(Bundle("b2", ("i0",), sells_like="b1"))
    assert_tables_are_up_to_date(new)
    new.close()


def test_a_newer_database_is_refused(store: Store, store_url: str) -> None:
    run(store, f"UPDATE {VERSION.name} SET version_num = '99'")
    with pytest.raises(
        StoreError, match=r"version 99, but this program knows only versions up to 5.* update"
    ):
        Store.open(store_url)


def test_a_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "orders.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("create table orders (id integer)")
    with pytest.raises(StoreError, match=r"another program has its tables here: orders.*of its own"):
        Store.open(f"sqlite:///{file}")
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("select name from sqlite_master").fetchall() == [("orders",)]


def test_tables_of_others_are_left_alone(store: Store, store_url: str) -> None:
    run(store, f"DROP TABLE {VERSION.name}")
    with pytest.raises(
        StoreError, match=r"another program has its tables.*bundle_item, bundles, .*of its own"
    ):
        Store.open(store_url)


def test_a_server_may_have_other_tables_in_the_same_database(postgres_url: str) -> None:
    engine = create_engine(make_url(postgres_url.replace("postgresql:", "postgresql+psycopg:")))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('of another program')")
    engine.dispose()
    store = Store.open(postgres_url)
    assert store.is_empty()
    store.close()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense", "cannot be understood. Write sqlite:///"),
        ("mysql://me:s3cret@host/shop", "SQLite or PostgreSQL, and not 'mysql'"),
        ("sqlite://", "must be a file"),
        ("sqlite:///:memory:", "must be a file"),
        ("sqlite:///{folder}/none/store.db", "there is no folder '.*none'. Create it, or correct the path"),
        ("sqlite:///{folder}", "this is a folder"),
        ("sqlite:///{folder}/text.db", "file is not a database. Give the path of a database that"),
        ("postgresql://me:s3cret@127.0.0.1:1/shop", r"postgresql://me:\*\*\*@127.0.0.1:1/shop: .*refused"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused_in_words(tmp_path: Path, url: str, words: str) -> None:
    (tmp_path / "text.db").write_text("Dear diary, " * 100)
    with pytest.raises(StoreError, match=words) as raised:
        Store.open(url.format(folder=tmp_path))
    assert "s3cret" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert not (tmp_path / "none").exists()


def test_a_wrong_password_is_told_but_not_shown(postgres_url: str) -> None:
    wrong = make_url(postgres_url).set(password="hunter2").render_as_string(hide_password=False)
    with pytest.raises(StoreError, match="Check the name and the password in the URL") as raised:
        Store.open(wrong)
    assert "hunter2" not in str(raised.value)


def test_a_database_that_is_not_there_is_told(postgres_url: str) -> None:
    with pytest.raises(StoreError, match=r'database "none" does not exist\. Create the database first'):
        Store.open(make_url(postgres_url).set(database="none").render_as_string(hide_password=False))


def test_the_url_in_messages_has_no_password(store: Store, store_url: str) -> None:
    assert store.url == make_url(store_url).render_as_string(hide_password=True)


def test_a_sqlite_file_is_for_its_owner_and_for_eyes_after_a_crash(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/store.db")
    store.put(Item("lamp"))
    assert {path.name for path in tmp_path.iterdir()} == {"store.db", "store.db-wal", "store.db-shm"}
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with store._database.write() as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "secure_delete", "busy_timeout")
        }
    assert found == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "secure_delete": 1,
        "busy_timeout": 30_000,
    }
    store.close()


def test_a_relative_path_stays_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store.open("sqlite:///store.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with ThreadPoolExecutor(4) as pool:  # each on a connection of its own
        assert all(pool.map(lambda number: store.put(Item(str(number))), range(8)))
    assert not list((tmp_path / "elsewhere").iterdir())
    store.close()


def test_postgresql_acknowledges_only_what_is_on_disk(postgres_url: str) -> None:
    store = Store.open(postgres_url)
    run(store, f"ALTER DATABASE {make_url(postgres_url).database} SET synchronous_commit = off")
    store.close()
    store = Store.open(postgres_url)
    with store._database.write() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
    store.close()


def test_postgresql_orders_ids_as_python_does(postgres_url: str) -> None:
    store = Store.open(postgres_url)
    query = (
        "SELECT column_name, collation_name FROM information_schema.columns WHERE table_name = 'user_item'"
    )
    with store._database.read() as connection:
        found = {row.column_name: row.collation_name for row in connection.exec_driver_sql(query)}
    assert found["user_id"] == found["item_id"] == "C"  # the server of the tests does so anyway
    store.close()


class Wire:
    """A line to a server that can be cut and mended."""

    def __init__(self, host: str, port: int) -> None:
        self.server = (host, port)
        self.whole = True
        self.ends: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            if not self.whole:
                near.close()
                continue
            far = socket.create_connection(self.server)
            self.ends += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    @staticmethod
    def _carry(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass

    def cut(self) -> None:
        self.whole = False
        for end in self.ends:
            end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.ends.clear()


@pytest.fixture
def wire(postgres_url: str) -> Iterator[tuple[Wire, str]]:
    address = make_url(postgres_url)
    wire = Wire(address.host or "", address.port or 0)
    yield wire, address.set(port=wire.port).render_as_string(hide_password=False)
    wire.listener.close()


def cut_in_the_middle(line: Wire, store: Store) -> None:
    with store._database.write() as connection:
        connection.exec_driver_sql("UPDATE items SET title = 'half'")
        line.cut()
        connection.exec_driver_sql("UPDATE items SET price = 1")


def test_a_lost_connection_is_told_and_made_again(wire: tuple[Wire, str]) -> None:
    line, url = wire
    store = Store.open(url)
    assert store.put(Item("lamp"))
    line.cut()
    for call in (store.state, store.sales, lambda: store.put(Item("rug"))):
        with pytest.raises(StoreError, match=r"postgresql://shop:\*\*\*@.*the server is running"):
            call()
    line.whole = True
    assert store.put(Item("rug"))
    with pytest.raises(StoreError):
        cut_in_the_middle(line, store)
    line.whole = True
    assert store.catalogue().items == [Item("lamp"), Item("rug")]
    line.cut()  # while the connections lie idle
    line.whole = True
    assert store.put(Item("bed"))
    store.close()
