"""Paths and queries of requests: ids of any characters, text that is not UTF-8, ranges of files."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bundlemage.client import Client, ServiceError
from bundlemage.service.paths import is_text, path_of
from bundlemage.wire.requests import fault_of_id
from tests.service.running import Inside, copied, ids, inside, ok, problem

ROUTES = [
    "/bundles",
    "/similar",
    "/gate",
    "/reload",
    "/",
    "//",
    "/..",
    "/.",
    "%2F",
    "%2Fbundles",
    "%",
    "?",
    "#",
]
IDS = st.builds(
    str.__add__,
    st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=20),
    st.sampled_from(["", *ROUTES]),
).filter(lambda name: fault_of_id(name) is None)


@pytest.fixture(scope="module")
def running(
    sample_model: Path, sample_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Inside]:
    with inside(sample_model, copied(sample_database, tmp_path_factory.mktemp("paths"))) as started:
        yield started


@pytest.fixture(scope="module")
def client(running: Inside) -> Iterator[httpx.Client]:
    with running.client() as opened:
        yield opened


def status_line(running: Inside, target: bytes) -> bytes:
    """The first line of the answer to a target that no client library would send."""
    address = ("127.0.0.1", httpx.URL(running.url).port or 0)
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return connection.recv(4096).partition(b"\r\n")[0]


# ── Ids ──────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=IDS)
@example(name="amb/bundles")
@example(name="u0001/gate")
@example(name="b0001/similar")
@example(name="..")
@example(name="bundles")
@example(name="a/b/c/")
def test_the_path_of_an_id_reaches_this_id(running: Inside, client: httpx.Client, name: str) -> None:
    """Nothing has these ids, so each answer says which id was asked for."""
    with Client(running.url, retries=0) as shop:
        refused: list[Callable[[], object]] = [
            lambda: shop.user(name),
            lambda: shop.item(name),
            lambda: shop.bundle(name),
            lambda: shop.similar(name),
            lambda: shop.change_item(name, title="x"),
            lambda: shop.change_bundle(name, title="x"),
            lambda: shop.withdraw_item(name),
            lambda: shop.withdraw_bundle(name),
        ]
        for ask in refused:
            with pytest.raises(ServiceError) as caught:
                ask()
            assert caught.value.status == 404
            assert f" {name!r}" in (caught.value.detail or "")
        assert shop.gate(name).user_id == name
        assert not shop.erase_user(name)
    # httpx would remove '..' from the path.
    path = quote(name, safe="").replace(".", "%2E")
    assert ok(client.get(f"/v1/users/{path}/bundles?k=1"))["user_id"] == name


def test_a_user_whose_id_ends_like_a_route_is_not_somebody_else(client: httpx.Client) -> None:
    wanted = {"amb": "g0022", "amb/bundles": "g0033", "amb/gate": "g0044"}
    interactions = [{"user_id": user, "item_id": item} for user, item in wanted.items()]
    ok(client.post("/v1/interactions", json={"interactions": interactions}))
    for user, item in wanted.items():
        assert ids(client.get(f"/v1/users/{quote(user, safe='')}"), "items") == [item]
    assert client.delete("/v1/users/amb%2fbundles").status_code == 204
    assert ids(client.get("/v1/users/amb"), "items") == ["g0022"]
    problem(client.delete("/v1/users/amb/bundles"), 405)


@pytest.mark.parametrize(
    "path", ["/v1/items/a/b", "/v1/users/a/b", "/v1/bundles/a/b/similar", "/v1/users//a/gate"]
)
def test_a_plain_slash_in_an_id_is_answered_by_a_hint(client: httpx.Client, path: str) -> None:
    problem(client.get(path), 404, "write / as %2F")


def test_a_route_has_no_slash_that_is_encoded_and_no_line_break(client: httpx.Client) -> None:
    for path in ("/v1%2Fusers", "/v1/users/a%2Fgate", "/v1/users/a/gate%0A", "/v1/users%0A", "/healthz%0A",
                 "/static%2Fapi.js", "/static/..%2Findex.html", "/builder%2F", "/%2F"):  # fmt: skip
        problem(client.get(path), 404)
    assert client.get("/v1/%75sers").status_code == 200
    assert client.get("/st%61tic/api%2Ejs").status_code == 200


def test_the_counter_names_the_route_and_not_the_id(running: Inside, client: httpx.Client) -> None:
    client.get("/v1/users/secret%2Fgate/gate")
    counted = client.get("/metrics").text
    assert 'route="/v1/users/{user_id}/gate"' in counted
    assert "secret" not in counted


def test_a_path_without_its_raw_form_is_taken_as_it_is() -> None:
    assert path_of({"path": "/v1/items/a b"}) == "/v1/items/a b"
    assert path_of({"path": "/v1/items/a b", "raw_path": None}) == "/v1/items/a b"


# ── Not UTF-8 ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "wrong", ["%FF", "a%C3", "%C3%28", "%ED%A0%80", "%ED%B0%AF", "%C0%AF", "%F5%80%80%80"]
)
def test_text_that_is_not_utf_8_is_refused(client: httpx.Client, wrong: str) -> None:
    for path in (f"/v1/users/{wrong}", f"/v1/users/{wrong}/gate", f"/v1/items?search={wrong}", f"/{wrong}",
                 f"/static/{wrong}", f"/v1/users/u0001/bundles?exclude={wrong}",
                 f"/v1/users?{wrong}=1"):  # fmt: skip
        problem(client.get(path), 422, "not UTF-8")
    problem(client.put(f"/v1/items/{wrong}", json={}), 422, "not UTF-8")


def test_a_query_is_ascii_that_decodes_to_utf_8() -> None:
    assert all(map(is_text, [b"", b"a=1&b", b"%C3%BC=%F0%9F%8E%B2", b"100%", b"a=%zz"]))
    assert not any(map(is_text, [b"\xff", "ü".encode(), b"%FF", b"%C3&a=%BC"]))


def test_other_forms_of_a_target(running: Inside) -> None:
    assert status_line(running, b"http://localhost/v1/users/a%2Fgate/gate") == b"HTTP/1.1 200 OK"
    assert status_line(running, b"http://localhost/v1/users/%FF") == b"HTTP/1.1 422 Unprocessable Entity"
    for target in (b"*", b"//", b"//v1/users", b"/v1/users/%2e%2e/%2e%2e/%2e%2e"):
        assert status_line(running, target) == b"HTTP/1.1 404 Not Found"


# ── Files and methods ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "wanted",
    ["bytes=0-9", "bytes=a-b", "bytes=9999999-", "bytes=-0", "bytes=9-1", "bytes=0-1,4-5",
     "bytes=" + "0-1," * 500, "lines=1-2", "x", "", "bytes=-99999999999999999999"],
)  # fmt: skip
def test_a_range_is_ignored(client: httpx.Client, wanted: str) -> None:
    for path in ("/", "/builder", "/login", "/static/api.js"):
        whole, answer = client.get(path), client.get(path, headers={"Range": wanted})
        assert (answer.status_code, answer.content) == (200, whole.content)
        assert answer.headers["content-type"] == whole.headers["content-type"]
        assert answer.headers["accept-ranges"] == "none"
        head = client.head(path, headers={"Range": wanted})
        assert (head.status_code, head.headers["content-length"]) == (200, str(len(whole.content)))


@pytest.mark.parametrize("path", ["/", "/static/api.js", "/healthz"])
def test_a_wrong_method_is_answered_by_the_right_ones(client: httpx.Client, path: str) -> None:
    for method in ("POST", "DELETE", "OPTIONS", "TRACE", "PROPFIND"):
        answer = client.request(method, path)
        problem(answer, 405, "It answers GET, HEAD")
        assert answer.headers["allow"] == "GET, HEAD"
    assert client.head(path).status_code == 200
