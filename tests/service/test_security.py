"""Who may do what, asked of a real server over a real store."""

from __future__ import annotations

import hashlib
import socket
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from bundlemage.errors import ConfigError
from bundlemage.service.security import COOKIE, caller_address, check_may_listen, is_loopback, make_key
from bundlemage.service.settings import Settings
from bundlemage.store.records import Role
from bundlemage.store.repository import Store
from tests.service.small_service import Running, copied, serving
from tests.waiting import wait_until

READ = "/v1/users/u0007/bundles"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    database = tmp_path_factory.mktemp("template") / "shop.db"
    Store.open(f"sqlite:///{database}").close()
    return database


@pytest.fixture(scope="module")
def keyed(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with keys that looks each of them up anew."""
    with serving(copied(template, tmp_path_factory.mktemp("keyed"))) as running:
        running.key("admin")
        yield running


@pytest.fixture(scope="module")
def keyless(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(copied(template, tmp_path_factory.mktemp("keyless"))) as running:
        yield running


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status
    assert body["request_id"] == answer.headers["x-request-id"]
    return body


# Keys


def test_a_key_is_kept_as_a_digest_alone(keyed: Running) -> None:
    text = keyed.key("read")
    prefix, identity, secret = text.split("_", 2)
    assert (prefix, len(identity), len(secret)) == ("bm", 12, 43)
    kept = keyed.service.store.key(identity)
    assert kept is not None
    assert kept.digest == hashlib.sha256(secret.encode()).digest()
    assert secret not in repr(kept)
    assert len({make_key("read")[0] for _ in range(100)}) == 100


def test_a_missing_key_is_refused_with_what_to_send(keyed: Running) -> None:
    with keyed.client() as client:
        answer = client.get(READ)
    assert "Authorization: Bearer" in problem(answer, 401)["detail"]
    assert answer.headers["www-authenticate"] == "Bearer"


def test_wrong_keys_are_refused(keyed: Running) -> None:
    text, other = keyed.key("read"), keyed.key("admin")
    identity, secret = text[3:15], text[16:]
    wrong = {
        "cut": text[:-1],
        "longer": text + "A",
        "another's secret": f"bm_{identity}_{other[16:]}",
        "unknown id": f"bm_{'0' * 12}_{secret}",
        "one letter changed": text[:-1] + ("A" if text[-1] != "A" else "B"),
        "upper case id": f"bm_{identity.upper()}X_{secret}",
        "secret alone": secret,
        "id alone": f"bm_{identity}_",
        "empty": "",
        "twice in one header": f"{text} {text}",
        "not ASCII": "bm_ü",
        "null byte": f"bm_{identity}_%00",
    }
    for name, value in wrong.items():
        request = (
            f"GET {READ} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {value}\r\n\r\n"
        )
        answer = keyed.raw(request.encode("latin-1"))
        assert answer.startswith(b"HTTP/1.1 401"), name
        assert b"The key is wrong or revoked" in answer, name
        assert not value or value.encode("latin-1") not in answer, name
    for scheme in ("Basic", "bm"):
        with keyed.client() as client:
            problem(client.get(READ, headers={"Authorization": f"{scheme} {text}"}), 401)
    with keyed.client(text) as client:  # all that was wrong is the key
        assert client.get(READ).status_code == 200


def test_two_authorization_headers_are_refused(keyed: Running) -> None:
    text = keyed.key("read")
    doubled = [("Authorization", f"Bearer {text}"), ("Authorization", f"Bearer {text}")]
    with keyed.client() as client:
        assert "two Authorization headers" in problem(client.get(READ, headers=doubled), 401)["detail"]


def test_the_scheme_is_read_without_regard_to_case(keyed: Running) -> None:
    with keyed.client() as client:
        answer = client.get(READ, headers={"Authorization": f"bEARER {keyed.key('read')}"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("role", "expected"),
    [("read", [200, 403, 403]), ("write", [200, 200, 403]), ("admin", [200, 200, 200])],
)
def test_roles(keyed: Running, role: Role, expected: list[int]) -> None:
    with keyed.client(keyed.key(role)) as client:
        answers = [client.get(READ), client.post("/v1/ask", json={}), client.delete("/v1/everything")]
    assert [answer.status_code for answer in answers] == expected
    for answer, needed in zip(answers, ("read", "write", "admin"), strict=True):
        if answer.status_code == 403:
            detail = problem(answer, 403)["detail"]
            assert repr(needed) in detail
            assert repr(role) in detail


def test_a_weak_key_is_refused_before_its_body_is_looked_at(keyed: Running) -> None:
    with keyed.client(keyed.key("read")) as client:
        problem(client.post("/v1/ask", json={"k": "many"}), 403)


STRANGERS = {
    "nothing": {},
    "a made-up key": {"Authorization": f"Bearer bm_{'0' * 12}_{'x' * 43}"},
    "another scheme": {"Authorization": "Basic eA=="},
    "a made-up cookie": {"Cookie": f"{COOKIE}={'x' * 43}"},
    "another cookie": {"Cookie": "theme=dark"},
}


@pytest.mark.parametrize("headers", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_refused_before_the_body_is_read(keyed: Running, headers: dict[str, str]) -> None:
    kind = {"Content-Type": "application/json", **headers}
    with keyed.client() as client:
        for body in (b"{", b"[" * 100_000, b"\xff", b'{"k": "many"}'):
            answer = client.post("/v1/ask", content=body, headers=kind)
            problem(answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer"
        problem(client.get("/v1/nothing", headers=headers), 401)  # nor told which routes there are
        problem(client.post("/v1/session", content=b"{", headers=kind), 422)  # a login comes without a key
    told = "".join(f"{name}: {value}\r\n" for name, value in kind.items())
    with socket.create_connection(("127.0.0.1", keyed.port), timeout=10) as connection:
        # A body of which not a byte comes; whoever read it would wait.
        head = f"POST /v1/ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n{told}\r\n"
        connection.sendall(head.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 401")


def test_so_is_who_comes_from_elsewhere_where_there_are_no_keys(keyless: Running) -> None:
    headers = {"Host": "evil.example", "Content-Type": "application/json"}
    with keyless.client() as client:
        problem(client.post("/v1/ask", content=b"{", headers=headers), 403)


def test_a_store_that_is_away_while_the_key_is_looked_up_is_told_as_ever(
    template: Path, tmp_path: Path
) -> None:
    with serving(copied(template, tmp_path)) as running:
        text = running.key("read")
        with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
            database.execute("alter table keys rename to gone")
        for key, name in ((text, "no-store-1"), (None, "no-store-2")):
            with running.client(key) as client:
                answer = client.get(READ, headers={"X-Request-ID": name})
            assert problem(answer, 503)["title"] == "Store unavailable"
            assert answer.headers["retry-after"]
            assert running.lines(name, "failed")


def test_a_revoked_key_is_refused(keyed: Running) -> None:
    text = keyed.key("read")
    with keyed.client(text) as client:
        assert client.get(READ).status_code == 200
        keyed.revoke(text)
        problem(client.get(READ), 401)


def test_a_key_is_believed_for_some_seconds_and_no_longer(template: Path, tmp_path: Path) -> None:
    with serving(copied(template, tmp_path), seconds_believed=1.0) as running:
        running.key("admin")
        text = running.key("read")
        with running.client(text) as client:
            assert client.get(READ).status_code == 200
            running.revoke(text)
            wait_until(lambda: client.get(READ).status_code != 200, "the refusal")
            problem(client.get(READ), 401)


def test_the_principal_carries_the_keys_id(keyed: Running) -> None:
    text = keyed.key("write")
    with keyed.client(text) as client:
        answer = client.get(READ, headers={"X-Request-ID": "who-is-it"})
    assert answer.json()["caller"] == text[3:15]
    assert keyed.lines("who-is-it")[0]["key"] == text[3:15]


def test_callers_at_the_same_time_are_not_mixed_up(keyed: Running) -> None:
    keys = [keyed.key(role) for role in ("read", "write", "admin")]

    def ask(number: int) -> None:
        text = keys[number % 3]
        with keyed.client(text) as client:
            for turn in range(5):
                identity = f"n{number}-{turn}"
                answer = client.get(READ, params={"k": number}, headers={"X-Request-ID": identity})
                assert answer.json()["caller"] == text[3:15]
                assert answer.json()["k"] == number
                assert answer.headers["x-request-id"] == identity
                assert client.delete("/v1/everything").status_code == (200 if number % 3 == 2 else 403)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(24)))


# Sessions


def log_in(client: httpx.Client, key: str, **headers: str) -> httpx.Response:
    return client.post("/v1/session", json={"key": key}, headers=headers)


def test_a_login_sets_a_cookie_that_stands_for_the_key(template: Path, tmp_path: Path) -> None:
    with serving(copied(template, tmp_path)) as running, running.client() as client:
        text = running.key("write")
        assert client.get("/v1/session").json() == {"login_required": True, "role": None}
        answer = log_in(client, text)
        assert answer.status_code == 204
        cookie = answer.headers["set-cookie"]
        parts = {part.strip().lower() for part in cookie.split(";")[1:]}
        assert parts == {"httponly", "samesite=strict", "path=/", "max-age=43200"}  # http: not Secure
        token = client.cookies[COOKIE]
        assert token not in text
        assert client.get("/v1/session").json() == {"login_required": True, "role": "write"}
        assert client.get(READ).json()["caller"] == text[3:15]
        problem(client.delete("/v1/everything"), 403)
        kept = running.service.store.session(hashlib.sha256(token.encode()).digest())
        assert kept is not None
        assert running.service.store.session(token.encode()) is None  # the token itself is nowhere
        assert log_in(client, text).headers["set-cookie"] != cookie  # each login has its own

        old = client.cookies[COOKIE]
        out = client.delete("/v1/session")
        assert out.status_code == 204
        assert "max-age=0" in out.headers["set-cookie"].lower()
        assert COOKIE not in client.cookies
        problem(client.get(READ, headers={"Cookie": f"{COOKIE}={old}"}), 401)
        assert client.delete("/v1/session").status_code == 204  # nothing to end is no error


def test_a_login_that_is_ended_is_not_believed_any_longer(template: Path, tmp_path: Path) -> None:
    with serving(copied(template, tmp_path), seconds_believed=600) as running, running.client() as client:
        log_in(client, running.key("read"))
        old = {"Cookie": f"{COOKIE}={client.cookies[COOKIE]}"}
        assert client.get(READ).status_code == 200
        client.delete("/v1/session")
        problem(client.get(READ, headers=old), 401)


def test_a_session_ends_with_its_key_and_with_its_time(template: Path, tmp_path: Path) -> None:
    with serving(copied(template, tmp_path)) as running, running.client() as client:
        running.key("admin")
        text = running.key("read")
        log_in(client, text)
        assert client.get(READ).status_code == 200
        running.revoke(text)
        problem(client.get(READ), 401)
        another = running.key("read")
        token = "x" * 43
        past = datetime.now(UTC) - timedelta(seconds=1)
        digest = hashlib.sha256(token.encode()).digest()
        running.service.store.add_session(digest, another[3:15], past)
        problem(client.get(READ, headers={"Cookie": f"{COOKIE}={token}"}), 401)


def test_a_wrong_key_is_not_helped_by_a_right_cookie(template: Path, tmp_path: Path) -> None:
    with serving(copied(template, tmp_path)) as running, running.client() as client:
        text = running.key("read")
        log_in(client, text)
        problem(client.get(READ, headers={"Authorization": "Bearer bm_wrong"}), 401)


def test_a_session_is_no_key_and_a_key_no_session(template: Path, tmp_path: Path) -> None:
    with serving(copied(template, tmp_path), seconds_believed=600) as running, running.client() as client:
        text = running.key("read")
        log_in(client, text)
        token = client.cookies[COOKIE]
        assert client.get(READ).status_code == 200  # believed from now on
        with running.client(token) as other:
            problem(other.get(READ), 401)
        secret = text[16:]  # of the form of a token
        with running.client(text) as other:
            assert other.get(READ).status_code == 200
        for made_up in (text, secret):
            with running.client() as other:
                problem(other.get(READ, headers={"Cookie": f"{COOKIE}={made_up}"}), 401)


@pytest.mark.parametrize("token", ["", "x", "x" * 42 + "!", "x" * 5000, "../../etc"])
def test_a_made_up_cookie_is_nobody(keyed: Running, token: str) -> None:
    with keyed.client() as client:
        problem(client.get(READ, headers={"Cookie": f"{COOKIE}={token}"}), 401)


def test_a_wrong_login_is_refused_and_never_repeats_the_key(template: Path, tmp_path: Path) -> None:
    with serving(copied(template, tmp_path)) as running, running.client() as client:
        running.key("admin")
        wrong = f"bm_{'0' * 12}_{'s' * 43}"
        answer = log_in(client, wrong)
        problem(answer, 401)
        assert "set-cookie" not in answer.headers
        for body in ({"key": wrong * 4}, {"key": [wrong]}, {}, {"key": wrong, "more": 1}):
            answer = client.post("/v1/session", json=body)
            problem(answer, 422)
            assert "sss" not in answer.text


def test_logins_are_limited_by_address(template: Path, tmp_path: Path) -> None:
    with serving(copied(template, tmp_path)) as running, running.client() as client:
        text = running.key("admin")
        codes = [log_in(client, "bm_wrong").status_code for _ in range(12)]
        assert codes == [401] * 10 + [429] * 2
        answer = log_in(client, text)  # a right key does not tell itself from a wrong one
        problem(answer, 429)
        assert 1 <= int(answer.headers["retry-after"]) <= 6
        with running.client(text) as other:
            assert other.get(READ).status_code == 200  # those who have a key go on


def test_behind_a_proxy_the_cookie_is_secure_and_addresses_are_the_proxys_word(
    template: Path, tmp_path: Path
) -> None:
    settings = Settings(trust_proxy=True, login_limit=2)
    with serving(copied(template, tmp_path), settings) as running:
        text = running.key("read")
        from_outside = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "shop.example"}
        with running.client() as client:
            answer = log_in(client, text, **from_outside, Origin="https://shop.example")
            assert "secure" in answer.headers["set-cookie"].lower()
        with running.client() as client:
            # The caller may put any address first; the last is what the proxy saw.
            made_up = [f"10.0.0.{turn}, 192.0.2.7" for turn in range(3)]
            codes = [log_in(client, "x", **{"X-Forwarded-For": one}).status_code for one in made_up]
            assert codes == [401, 401, 429]
            assert log_in(client, "x", **{"X-Forwarded-For": "192.0.2.8"}).status_code == 401


def test_without_a_proxy_forwarded_headers_are_not_believed(template: Path, tmp_path: Path) -> None:
    settings = Settings(login_limit=2)
    with serving(copied(template, tmp_path), settings) as running, running.client() as client:
        text = running.key("read")
        headers = {"X-Forwarded-Host": "evil.example", "Origin": "https://evil.example"}
        problem(client.delete("/v1/session", headers=headers), 403)
        answer = log_in(client, text, **{"X-Forwarded-Proto": "https"})
        assert "secure" not in answer.headers["set-cookie"].lower()
        addresses = [f"10.0.0.{turn}" for turn in range(2)]
        codes = [log_in(client, "x", **{"X-Forwarded-For": one}).status_code for one in addresses]
        assert codes == [401, 429]


def test_one_callers_many_ipv6_addresses_count_as_one() -> None:
    def address(text: str) -> str:
        return caller_address({"client": (text, 1)})

    assert address("2001:db8:1:2::1") == address("2001:db8:1:2:ffff::9")
    assert address("2001:db8:1:2::1") != address("2001:db8:1:3::1")
    assert address("::ffff:192.0.2.1") == "192.0.2.1"


# Without keys


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "shop.localhost"]
)
def test_without_keys_this_machine_may_do_everything(keyless: Running, host: str) -> None:
    with keyless.client() as client:
        answer = client.delete("/v1/everything", headers={"Host": host})
        assert answer.json() == {"caller": "local"}
        session = client.get("/v1/session", headers={"Host": host})
        assert session.json() == {"login_required": False, "role": "admin"}


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "192.0.2.1", "",
     "localhost@evil.example", "evil.example#localhost", "[::1].evil.example", "0.0.0.0"],
)  # fmt: skip
def test_without_keys_a_name_that_is_not_this_machines_is_refused(keyless: Running, host: str) -> None:
    for method, path in (("GET", READ), ("DELETE", "/v1/everything"), ("GET", "/v1/session")):
        request = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        answer = keyless.raw(request.encode())
        assert answer.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400")), (host, answer[:100])
        assert b"u0007" not in answer


def test_without_keys_what_a_proxy_passes_on_is_refused(keyless: Running) -> None:
    for name in ("X-Forwarded-For", "Forwarded", "X-Real-IP"):
        with keyless.client() as client:
            detail = problem(client.get(READ, headers={name: "192.0.2.1"}), 403)["detail"]
            assert "bundlemage keys create" in detail


def test_without_keys_a_wrong_key_is_still_wrong(keyless: Running) -> None:
    with keyless.client(make_key("read")[0]) as client:
        problem(client.get(READ), 401)


def test_without_keys_an_old_cookie_does_no_harm_and_a_login_is_not_needed(keyless: Running) -> None:
    with keyless.client() as client:
        assert client.get(READ, headers={"Cookie": f"{COOKIE}={'x' * 43}"}).status_code == 200
        problem(client.post("/v1/session", json={"key": "bm_x"}), 409)


def test_the_first_key_ends_the_openness_and_the_last_revoked_begins_it(
    template: Path, tmp_path: Path
) -> None:
    with serving(copied(template, tmp_path)) as running, running.client() as client:
        assert client.get(READ).status_code == 200
        text = running.key("read")
        problem(client.get(READ), 401)
        running.revoke(text)
        assert client.get(READ).status_code == 200


@pytest.mark.parametrize("changed", [{"host": "0.0.0.0"}, {"trust_proxy": True}])
def test_a_service_for_others_that_lost_its_keys_answers_nobody(
    template: Path, tmp_path: Path, changed: dict[str, Any]
) -> None:
    with serving(copied(template, tmp_path), Settings(**changed)) as running, running.client() as client:
        # Whoever can reach it can write "localhost" into the header as well.
        problem(client.delete("/v1/everything", headers={"Host": "localhost"}), 403)
        with running.client(running.key("admin")) as other:
            assert other.delete("/v1/everything").status_code == 200


# Writes from other sites


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost", ""]
)
@pytest.mark.parametrize("which", ["keyed", "keyless"])
def test_a_write_from_another_site_is_refused(
    request: pytest.FixtureRequest, which: str, origin: str
) -> None:
    running: Running = request.getfixturevalue(which)
    key = running.key("admin") if which == "keyed" else None
    with running.client(key) as client:
        headers = {"Origin": origin}
        for answer in (
            client.post("/v1/ask", json={}, headers=headers),
            client.delete("/v1/everything", headers=headers),
            client.put("/v1/anything", headers=headers),
        ):
            assert problem(answer, 403)["title"] == "From another site"
            assert "access-control-allow-origin" not in answer.headers
        assert (
            client.get(READ, headers=headers).status_code == 200
        )  # a browser keeps the answer from the site


def test_a_write_from_the_services_own_page_passes(keyless: Running) -> None:
    for host in (f"127.0.0.1:{keyless.port}", f"LOCALHOST:{keyless.port}"):
        with keyless.client() as client:
            headers = {"Origin": f"http://{host.lower()}", "Host": host}
            assert client.post("/v1/ask", json={}, headers=headers).status_code == 200


# Where it may listen


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.9.9.9"])
def test_this_machine_needs_no_key(host: str) -> None:
    assert is_loopback(host)
    check_may_listen(host, has_keys=False)
    check_may_listen("0.0.0.0", has_keys=True, trust_proxy=True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "shop.example", "localhost.example"])
def test_elsewhere_needs_one(host: str) -> None:
    with pytest.raises(ConfigError, match="bundlemage keys create"):
        check_may_listen(host, has_keys=False)
    with pytest.raises(ConfigError, match="behind a proxy"):
        check_may_listen("127.0.0.1", has_keys=False, trust_proxy=True)


def test_the_api_document_tells_which_routes_need_a_key(keyed: Running) -> None:
    described = keyed.app.openapi()
    assert described["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for method, path in (("post", "/v1/ask"), ("delete", "/v1/everything")):
        assert described["paths"][path][method]["security"] == [{"key": []}]
    for path in ("/healthz", "/v1/session"):
        assert "security" not in described["paths"][path]["get"]
