"""Every route there is, against every kind of caller: nothing is open but what this file says is open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles

from bundlemage.service.app import create_app
from bundlemage.store.records import Role
from tests.cli.run import run
from tests.service.running import Inside, copied, inside, new_key, ok, problem

ROLES: tuple[Role, ...] = ("read", "write", "admin")
OPEN = {
    ("GET", "/healthz"),
    ("HEAD", "/healthz"),
    ("GET", "/readyz"),
    ("HEAD", "/readyz"),
    ("GET", "/v1/session"),
    ("POST", "/v1/session"),
    ("DELETE", "/v1/session"),
    ("GET", "/static/{name}"),
}
"""What answers without a key."""
PAGES = {("GET", "/"), ("HEAD", "/"), ("GET", "/{page}"), ("HEAD", "/{page}")}
"""What sends whoever has not logged in to the login page, which is `/login` and open."""
NEEDED: dict[tuple[str, str], Role] = {
    ("GET", "/v1/users/{user_id}/bundles"): "read",
    ("POST", "/v1/recommend"): "read",
    ("POST", "/v1/complete"): "read",
    ("POST", "/v1/design"): "read",
    ("POST", "/v1/explain"): "read",
    ("POST", "/v1/bundles:score"): "read",
    ("POST", "/v1/bundles:buyers"): "write",
    ("GET", "/v1/work"): "read",
    ("GET", "/v1/work/{request_id}"): "read",
    ("GET", "/v1/users"): "read",
    ("GET", "/v1/users/{user_id}"): "read",
    ("DELETE", "/v1/users/{user_id}"): "write",
    ("GET", "/v1/users/{user_id}/gate"): "read",
    ("POST", "/v1/interactions"): "write",
    ("GET", "/v1/items"): "read",
    ("GET", "/v1/items/{item_id}"): "read",
    ("PUT", "/v1/items/{item_id}"): "write",
    ("PATCH", "/v1/items/{item_id}"): "write",
    ("PATCH", "/v1/bundles/{bundle_id}"): "write",
    ("DELETE", "/v1/items/{item_id}"): "write",
    ("GET", "/v1/bundles"): "read",
    ("GET", "/v1/bundles/{bundle_id}"): "read",
    ("PUT", "/v1/bundles/{bundle_id}"): "write",
    ("DELETE", "/v1/bundles/{bundle_id}"): "write",
    ("GET", "/v1/bundles/{bundle_id}/similar"): "read",
    ("GET", "/v1/tags"): "read",
    ("GET", "/v1/models"): "read",
    ("POST", "/v1/models/reload"): "admin",
    ("GET", "/v1/insights"): "read",
    ("GET", "/metrics"): "read",
    ("GET", "/openapi.json"): "read",
}
BODIES = {
    "/v1/recommend": {"user_id": "u0007"},
    "/v1/complete": {"user_id": "u0007"},
    "/v1/design": {"user_id": "u0007", "n": 1, "reasons": False},
    "/v1/explain": {"user_id": "u0007", "bundles": ["b0013"]},
    "/v1/bundles:score": {"items": ["g0022"], "k": 1},
    "/v1/bundles:buyers": {"items": ["g0022"]},
    "/v1/interactions": {"interactions": [{"user_id": "u0007", "item_id": "g0022"}]},
    "/v1/items/{item_id}": {"title": "Put by a test"},
    "/v1/bundles/{bundle_id}": {"items": ["g0022"]},
    "/v1/models/reload": {},
}
ERASED = "/v1/users/{user_id}"
IDS = {
    "{user_id}": "u0010",
    "{item_id}": "g0022",
    "{bundle_id}": "b0013",
    "{name}": "base.css",
    "{page}": "builder",
}


@dataclass(frozen=True)
class Keyed:
    """A service with keys: one of each role, and some that are no good."""

    running: Inside
    keys: dict[Role, str]
    revoked: str


@pytest.fixture(scope="module")
def keyed(
    sample_model: Path, sample_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Keyed]:
    with inside(sample_model, copied(sample_database, tmp_path_factory.mktemp("roles"))) as running:
        keys = {role: new_key(running.store, role) for role in ROLES}
        revoked = new_key(running.store, "admin")
        assert running.store.revoke_key(revoked.split("_")[1])
        yield Keyed(running, keys, revoked)


def leaves(routes: list[BaseRoute]) -> Iterator[BaseRoute]:
    """Every route of the app, also of a router within it."""
    for route in routes:
        router = getattr(route, "original_router", route)  # newer versions of the framework keep them apart
        inner = getattr(router, "routes", None)
        if inner:
            yield from leaves(list(inner))
        else:
            yield route


def declared(running: Inside) -> set[tuple[str, str]]:
    """Method and path of all that the app answers; from its own list, so that none is forgotten."""
    found: set[tuple[str, str]] = set()
    for route in leaves(list(create_app(running.service).routes)):
        if isinstance(route, Mount):
            assert isinstance(route.app, StaticFiles), route
            found.add(("GET", f"{route.path}/{{name}}"))
            continue
        assert isinstance(route, APIRoute), route
        found |= {(method, route.path_format) for method in route.methods or ()}
    return found


def ask(
    client: httpx.Client, method: str, path: str, headers: dict[str, str] | None = None
) -> httpx.Response:
    body = BODIES.get(path) if method in {"POST", "PUT", "PATCH"} else None
    for parameter, name in IDS.items():
        path = path.replace(parameter, "u0011" if path == ERASED and method == "DELETE" else name)
    return client.request(method, path, json=body, headers=headers)


def test_the_lists_of_this_file_are_all_the_routes_there_are(keyed: Keyed) -> None:
    assert declared(keyed.running) == OPEN | PAGES | set(NEEDED)
    with keyed.running.client(keyed.keys["read"]) as client:
        document = ok(client.get("/openapi.json"))
    described = {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
        if method != "parameters"
    }
    hidden = {("GET", "/openapi.json"), ("GET", "/static/{name}"), *PAGES}
    hidden |= {("HEAD", "/healthz"), ("HEAD", "/readyz")}
    assert described == declared(keyed.running) - hidden
    for method, path in described:
        assert bool(document["paths"][path][method.lower()].get("security")) == ((method, path) in NEEDED)


@pytest.mark.parametrize(("method", "path"), sorted(NEEDED))
def test_a_route_refuses_every_bad_key_and_too_weak_ones(keyed: Keyed, method: str, path: str) -> None:
    right = keyed.keys["admin"]
    _, identity, secret = right.split("_", 2)
    flipped = secret[:-2] + ("A" if secret[-2] != "A" else "B") + secret[-1]
    bad = {
        "missing": None,
        "empty": "Bearer",
        "cut": f"Bearer {right[:-1]}",
        "id alone": f"Bearer bm_{identity}",
        "wrong secret": f"Bearer bm_{identity}_{flipped}",
        "wrong id": f"Bearer bm_{'0' * 12}_{secret}",
        "another's secret": f"Bearer bm_{keyed.keys['read'].split('_')[1]}_{secret}",
        "longer": f"Bearer {right}A",
        "revoked": f"Bearer {keyed.revoked}",
        "other scheme": f"Basic {right}",
        "no scheme": right,
    }
    with keyed.running.client() as client:
        for kind, header in bad.items():
            answer = ask(client, method, path, None if header is None else {"Authorization": header})
            told = problem(answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer", kind
            assert secret not in told["detail"], kind
        in_query = client.request(method, path, params={"key": right, "access_token": right})
        assert in_query.status_code == 401
        needed = NEEDED[method, path]
        for role in ROLES:
            answer = ask(client, method, path, {"Authorization": f"Bearer {keyed.keys[role]}"})
            if ROLES.index(role) < ROLES.index(needed):
                problem(answer, 403, repr(needed), repr(role))
            else:
                assert answer.status_code in {200, 201, 204, 404}, answer.text
                # Erased by the role before, or long since done.
                assert answer.status_code != 404 or method == "DELETE" or path.startswith("/v1/work/")


def test_nothing_was_changed_by_those_who_were_refused(
    sample_model: Path, sample_database: Path, tmp_path: Path
) -> None:
    with inside(sample_model, copied(sample_database, tmp_path)) as running:
        read = new_key(running.store, "read")
        before = running.store.state(), running.store.dataset().fingerprint()
        for key in (None, read, "bm_wrong"):
            with running.client(key) as client:
                for (method, path), role in NEEDED.items():
                    if role != "read":
                        assert ask(client, method, path).status_code in {401, 403}
        assert (running.store.state(), running.store.dataset().fingerprint()) == before


def test_what_is_open_is_open(keyed: Keyed) -> None:
    with keyed.running.client() as client:
        for method, path in sorted(OPEN - {("POST", "/v1/session")}):
            assert ask(client, method, path).is_success, (method, path)
        assert ok(client.get("/v1/session")) == {"login_required": True, "role": None}
        login = client.get("/login")
        assert login.status_code == 200
        assert login.headers["content-type"].startswith("text/html")


def test_pages_send_whoever_has_not_logged_in_to_the_login_and_back(keyed: Keyed) -> None:
    for wanted in ("/", "/builder", "/insights?user=u0007&k=3"):
        with keyed.running.client() as client:
            away = client.get(wanted)
            assert away.status_code == 303
            assert away.headers["location"] == f"/login?next={quote(wanted, safe='')}"
            assert not away.content
            with_key = client.get(wanted, headers={"Authorization": f"Bearer {keyed.keys['read']}"})
            assert with_key.status_code == 200
            assert client.post("/v1/session", json={"key": keyed.keys["read"]}).status_code == 204
            page = client.get(wanted)
            assert page.status_code == 200
            assert page.headers["content-type"].startswith("text/html")
            assert ok(client.get("/v1/tags"))
            problem(
                client.delete("/v1/users/u0012"), 403, "'write'"
            )  # the session is no stronger than its key
            assert client.delete("/v1/session").status_code == 204
            assert client.get(wanted).status_code == 303
    with keyed.running.client() as client:
        problem(client.get("/nothing"), 404)
        assert client.get("/builder", headers={"Authorization": "Bearer bm_wrong"}).status_code == 303


@pytest.mark.parametrize("option", ["--host=0.0.0.0", "--host=::", "--trust-proxy"])
def test_without_keys_it_does_not_start_for_others_than_this_machine(
    sample_model: Path, sample_database: Path, tmp_path: Path, option: str
) -> None:
    db = copied(sample_database, tmp_path)
    refused = run("serve", sample_model, "--db", db, "--port", "0", option, code=2)
    assert "bundlemage keys create" in " ".join(refused.output.split())


def test_a_made_up_session_opens_nothing(keyed: Keyed) -> None:
    with keyed.running.client(cookies={"bundlemage_session": "A" * 43}) as client:
        for method, path in sorted(NEEDED):
            problem(ask(client, method, path), 401)
        assert client.get("/").status_code == 303


def test_without_keys_all_is_open_to_this_machine_alone(
    sample_model: Path, sample_database: Path, tmp_path: Path
) -> None:
    with inside(sample_model, copied(sample_database, tmp_path)) as running, running.client() as client:
        for page in ("/", "/builder", "/insights", "/docs", "/login"):
            assert client.get(page).status_code == 200
        for method, path in sorted(NEEDED):
            problem(ask(client, method, path, {"Host": "shop.example"}), 403, "machine")
            if method != "GET":
                problem(ask(client, method, path, {"Origin": "http://shop.example"}), 403, "another site")
        problem(client.get("/", headers={"Host": "shop.example"}), 403, "machine")
        for method, path in sorted(set(NEEDED) - {("GET", "/v1/work/{request_id}")}):
            assert ask(client, method, path).is_success, (method, path)


def test_only_those_who_may_write_see_what_items_cost(
    sample_model: Path, sample_database: Path, tmp_path: Path
) -> None:
    with inside(sample_model, copied(sample_database, tmp_path)) as running:
        keys = {role: new_key(running.store, role) for role in ("read", "write")}
        with running.client(keys["write"]) as writer, running.client(keys["read"]) as reader:
            changed = ok(writer.patch("/v1/items/g0022", json={"cost": 3.5, "image_url": "/pictures/22.jpg"}))
            assert (changed["cost"], changed["image_url"]) == (3.5, "/pictures/22.jpg")
            event = {"interactions": [{"user_id": "ann", "item_id": "g0022"}]}
            ok(writer.post("/v1/interactions", json=event))
            for client, cost in ((writer, 3.5), (reader, None)):
                assert ok(client.get("/v1/items/g0022"))["cost"] == cost
                (listed,) = ok(client.get("/v1/items", params={"search": "g0022"}))["items"]
                assert (listed["cost"], listed["image_url"]) == (cost, "/pictures/22.jpg")
                assert ok(client.get("/v1/users/ann"))["items"][0]["cost"] == cost
            # A design by margin would tell the costs, so it uses them only for those who may see them.
            everything = ok(writer.get("/v1/items", params={"limit": 500}))["items"]
            for item in everything[:20]:
                ok(writer.patch(f"/v1/items/{item['id']}", json={"cost": 2}))
            asked = {
                "user_id": "u0007", "margin": 5, "start": [item["id"] for item in everything[:2]],
                "must": [everything[2]["id"]], "size": {"least": 3, "most": 3}, "not_owned": False,
                "in_stock": False, "reasons": False,
            }  # fmt: skip
            margins = [
                ok(client.post("/v1/design", json=asked | more))["bundles"][0]["terms"]["margin"]
                for client, more in (
                    (writer, {}),
                    (reader, {}),
                    (reader, {"costs": {everything[2]["id"]: 2}}),
                )
            ]
            assert margins[0] < margins[1]
            assert margins[0] == pytest.approx(margins[2])


def test_a_wrong_image_or_cost_is_refused(sample_model: Path, sample_database: Path, tmp_path: Path) -> None:
    with inside(sample_model, copied(sample_database, tmp_path)) as running, running.client() as client:
        for kind, fields, field in (
            ("items", {"image_url": "javascript:alert(1)"}, "image_url"),
            ("items", {"cost": -1}, "cost"),
            ("bundles", {"image_url": "//other.example/a.png"}, "image_url"),
        ):
            name = "g0022" if kind == "items" else "b0013"
            told = problem(client.patch(f"/v1/{kind}/{name}", json=fields), 422)
            assert [each["field"] for each in told["errors"]] == [field]


def test_pages_may_load_pictures_of_the_schemes_that_the_shop_uses(
    sample_model: Path, sample_database: Path, tmp_path: Path
) -> None:
    def sources(path: str) -> str:
        policy = client.get(path).headers.get_list("content-security-policy")
        assert len(policy) == 1
        return next(part.strip() for part in policy[0].split(";") if part.strip().startswith("img-src"))

    with inside(sample_model, copied(sample_database, tmp_path)) as running, running.client() as client:
        assert sources("/") == "img-src 'self' data:"
        ok(client.patch("/v1/bundles/b0013", json={"image_url": "/pictures/13.png"}))
        assert sources("/") == "img-src 'self' data:"
        ok(client.patch("/v1/bundles/b0013", json={"image_url": "https://pictures.example/13.png"}))
        assert sources("/") == "img-src 'self' data: https:"
        assert sources("/v1/models") == "img-src 'self' data:"
        assert "http" not in sources("/docs")
        (bundle,) = ok(client.get("/v1/bundles", params={"search": "b0013"}))["bundles"]
        assert bundle["image_url"] == "https://pictures.example/13.png"
