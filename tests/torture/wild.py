"""Makes requests for the fuzzer: valid ones, nearly valid ones, and bytes that are no request at all.

A request is a function of the seed and its number alone, so that one that found a fault can be made again.
Keys and cookies are placeholders of the right length, which are replaced when the request is sent.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

KEY_LENGTH, TOKEN_LENGTH = 59, 43
SLOWEST_DESIGN = 0.03
"""The `time_limit` of each valid design, in seconds. The service would allow more."""
_WEIGHTS = {"/v1/models/reload": 0.05, "/v1/design": 0.3, "/v1/insights": 0.2, "/v1/session": 0.3}
_PAGES = ("/", "/builder", "/insights", "/login", "/openapi.json", "/metrics", "/healthz", "/readyz", "/none")
_FILES = ("/static/app.js", "/static/style.css", "/static/../../etc/passwd", "/static/%2e%2e/", "/static/")
_METHODS = ("OPTIONS", "HEAD", "TRACE", "PROPFIND", "FOO", "get", "PATCH", "PUT", "DELETE", "POST", "GET")
_TEXTS = (
    *("", " ", "\t", "\x00", "a\x00b", "\n", "\r\nX: y", "%", "%s%n", "'; drop table users; --", '"', "\\"),
    *(
        "../../etc/passwd",
        "a/b",
        "a/bundles",
        "//",
        ".",
        "..",
        "<script>alert(1)</script>",
        "\u202e",
        "\ufeff",
    ),
    *("\U0001f389", "\ud800", "ä" * 100, "x" * 201, "x" * 5000, "null", "NaN", "-1", "1e999", "${jndi:x}"),
    *("İ", "ß", "\x7f", "\x85", "2026-13-45T99:99:99Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59+14:00"),
)
_NUMBERS = (
    *(0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, -(10**400), 1e308, -1e308, 1e-320, 0.1, -0.0),
    *(float("nan"), float("inf"), float("-inf"), 101, 1001, 10**12 + 1),
)
_IN_PATHS = (
    *(b"%FF", b"%C3%28", b"%00", b"%0A", b"%2F", b"a%2Fb", b"%2e%2e%2f", b"..", b"%", b"%zz", b"%25%32%46"),
    *(b"a/b/c", b"a//b", b"a/bundles", b"u0007/bundles", b"b0013/similar", b"%F0%9F%8E%89", b"x" * 201),
    *(b"x" * 5000, b"+", b";a=b", b"a%20b", b"%ED%A0%80", b"\xff\xfe", b"", b"/", b"~", b"*", b"{user_id}"),
)
_HEADERS = (
    *(b"Range: bytes=0-10", b"Range: bytes=9999999-", b"Range: bytes=a-b", b"Range: bytes=5-1,2-3,,-"),
    *(b"Range: items=1-2", b"Range: bytes=" + b"0-1," * 500, b"If-None-Match: *", b'If-None-Match: "x", W/'),
    *(
        b"If-Modified-Since: yesterday",
        b"X-Forwarded-For: 1.2.3.4, ::1, x",
        b"X-Forwarded-Host: evil.example",
    ),
    *(b"X-Forwarded-Proto: ftp", b"Forwarded: for=unknown;host=\x00".replace(b"\x00", b"_"), b"X-Real-IP: 1"),
    *(b"Origin: https://evil.example", b"Origin: null", b"Origin: http://127.0.0.1", b"Referer: \xff\xfe"),
    *(
        b"Host: evil.example",
        b"Host: [::1]:80",
        b"Host: a b",
        b"Accept: application/xml",
        b"Accept-Encoding: br",
    ),
    *(b"X-Request-Id: ../../x", b"X-Request-Id: " + b"a" * 65, b"X-Request-Id: ok-1", b"Upgrade: websocket"),
    *(b"Connection: upgrade", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"TE: trailers"),
    *(b"Cookie: bundlemage_session=", b"Cookie: bundlemage_session=" + b"A" * 43, b"Cookie: =;;;=a; b"),
    *(b"Cookie: " + b"a=b; " * 1000, b"Idempotency-Key: ", b"Idempotency-Key: \xe4", b"Idempotency-Key: a b"),
    *(b"Idempotency-Key: " + b"k" * 201, b"Content-Encoding: gzip", b"X-HTTP-Method-Override: DELETE"),
    *(b"Expect: 100-continue", b"Expect: tea", b"Authorization: Basic YTpi", b"Authorization: Bearer"),
    *(b"Max-Forwards: 0", b"X: " + b"y" * 7000, b"Sec-Fetch-Site: cross-site", b"Last-Event-ID: \xf0\x9f"),
)
_TYPES = (
    *(b"application/json", b"application/json; charset=utf-16", b"text/plain", b"application/xml", b"", b"/"),
    *(
        b"application/x-www-form-urlencoded",
        b"multipart/form-data; boundary=x",
        b"application/json;;;",
        b"\xff",
    ),
    *(b"application/problem+json", b"APPLICATION/JSON", b"application/jsonx"),
)


@dataclass(frozen=True)
class Sent:
    """A request."""

    number: int
    route: str
    role: str
    data: bytes
    """With placeholders for the secrets."""
    method: str = ""
    is_http: bool = True
    """Whether it is well-formed HTTP, so that exactly one answer must come."""

    def __str__(self) -> str:
        shown = repr(self.data)
        return f"request {self.number} ({self.route}, {self.role}): " + (
            shown if len(shown) < 3000 else f"{shown[:3000]}… ({len(self.data):,} bytes)"
        )


def placeholder(kind: str, role: str) -> bytes:
    """What stands for a secret in a request: of its length, so that Content-Length is right."""
    length = KEY_LENGTH if kind == "key" else TOKEN_LENGTH
    return f"@{kind}-{role}@".ljust(length, "_").encode()


class Wild:
    """Makes the request that belongs to a number."""

    def __init__(self, document: dict[str, Any], seed: int, roles: tuple[str, ...], writes: bool) -> None:
        self._schemas = document["components"]["schemas"]
        self._seed = seed
        self._roles = roles
        self._writes = writes
        self._operations = [
            (path, method.upper(), operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        ]
        self._weights = [_WEIGHTS.get(path, 1.0) for path, *_ in self._operations]

    def __call__(self, number: int) -> Sent:
        dice = random.Random(f"{self._seed}:{self._writes}:{number}")
        if dice.random() < 0.06:
            return self._garbage(number, dice)
        if dice.random() < 0.05:
            path = dice.choice(_PAGES + _FILES).encode() + dice.choice([b"", b"", b"?a=b", b"?%FF", b"/"])
            method = dice.choice(["GET", "GET", "HEAD", dice.choice(_METHODS)])
            return self._request(number, dice, "pages", method, path, None)
        path, method, operation = dice.choices(self._operations, self._weights)[0]
        wildness = dice.choice([0.0, 0.0, 0.15, 0.5])
        target = self._target(dice, path, operation, wildness)
        body = self._body(dice, operation, wildness)
        label = f"{method} {path}"
        if dice.random() < 0.1 * wildness:
            method = dice.choice(_METHODS)
        return self._request(number, dice, label, method, target, body, wildness)

    # ── Parts of a request ───────────────────────────────────────────────────────────────────────

    def _target(self, dice: random.Random, path: str, operation: dict[str, Any], wildness: float) -> bytes:
        target, query = path.encode(), []
        for parameter in operation.get("parameters", ()):
            name, place, schema = parameter["name"], parameter["in"], parameter["schema"]
            wild = dice.random() < wildness
            if place == "path":
                value = str(self.valid(dice, schema, name)).encode("utf-8", "surrogatepass")
                made = dice.choice(_IN_PATHS) if wild else quote(value, safe="").encode()
                target = target.replace(b"{%s}" % name.encode(), made)
            elif place == "query" and (dice.random() < 0.4 or parameter.get("required")):
                values = self._wild(dice) if wild else self.valid(dice, schema, name)
                for value in (values if isinstance(values, list) else [values])[:200]:
                    text = str(value).lower() if isinstance(value, bool) else str(value)
                    query.append(f"{name}=".encode() + quote(text.encode("utf-8", "surrogatepass")).encode())
        if dice.random() < 0.1 * wildness:
            query += dice.choice([[b"unknown=1"], [b"k"], [b"%FF=%FF"], [b"&&="], query * 3, [b"k=1"] * 50])
        return target + (b"?" + b"&".join(query) if query else b"")

    def _body(self, dice: random.Random, operation: dict[str, Any], wildness: float) -> bytes | None:
        described = operation.get("requestBody")
        if described is None:
            return b"{}" if dice.random() < 0.1 * wildness else None
        schema = described["content"]["application/json"]["schema"]
        value = self.valid(dice, schema, "body")
        if wildness and dice.random() < wildness + 0.2:
            for _ in range(dice.randint(1, 3)):
                value = self._mutated(dice, value)
        body = json.dumps(value).encode()
        if dice.random() < 0.15 * wildness:
            body = self._broken(dice, body)
        return body

    def _broken(self, dice: random.Random, body: bytes) -> bytes:
        at = dice.randrange(len(body) + 1)
        depth = dice.choice([100, 5000, 50_000])
        makers: list[Callable[[], bytes]] = [
            lambda: b"",
            lambda: body[:at],
            lambda: body + b"garbage",
            lambda: b"\xef\xbb\xbf" + body,
            lambda: body.decode().encode("utf-16"),
            lambda: body[:at] + bytes([dice.randrange(256)]) + body[at:],
            lambda: b"[" * depth,
            lambda: b"[" * depth + b"]" * depth,
            lambda: b'{"a":' * depth + b"1" + b"}" * depth,
            lambda: body.replace(b"{", b'{"a":1,"a":2,', 1),
            lambda: body.replace(b"{", b"{" + body.strip(b"{}") + b",", 1),
            lambda: b'{"%s": 1}' % b'": 1, "'.join(b"k%d" % each for each in range(depth)),
            lambda: b"1" * 5000,
            lambda: b'"' + b"\\u0000" * 100 + b'"',
            lambda: b" " * 1_100_000,
            lambda: b"a=b&c=d",
        ]
        return dice.choice(makers)()

    def _request(
        self,
        number: int,
        dice: random.Random,
        label: str,
        method: str,
        target: bytes,
        body: bytes | None,
        wildness: float = 0.2,
    ) -> Sent:
        role = dice.choice(self._roles)
        lines = [b"%s %s HTTP/1.1" % (method.encode(), target)]
        extra = dice.sample(_HEADERS, dice.randint(1, 3)) if dice.random() < wildness else []
        if not any(each.startswith(b"Host:") for each in extra):
            lines.append(b"Host: 127.0.0.1")
        if label == "DELETE /v1/session" and role.endswith("cookie"):
            role = "write cookie"  # no other request uses this login, so it may end
        lines += self._credentials(dice, role)
        if dice.random() < 0.3 and label == "POST /v1/interactions":
            lines.append(b"Idempotency-Key: k%d" % dice.randrange(1000))
        if dice.random() < 0.1 and method == "PUT":
            lines.append(b"If-None-Match: *")
        lines += extra
        sent_body = b""
        if body is not None:
            kind = dice.choice(_TYPES) if dice.random() < 0.2 * wildness else b"application/json"
            lines.append(b"Content-Type: " + kind)
            if dice.random() < 0.1:
                lines.append(b"Transfer-Encoding: chunked")
                sent_body = b"".join(_chunks(dice, body))
            else:
                lines.append(b"Content-Length: %d" % len(body))
                sent_body = body
        # The HTTP parser may refuse an illegal request line or header without a problem in JSON.
        legal = all(32 <= letter < 127 for letter in target) and b" " not in target and method.isupper()
        legal = legal and not any(each.startswith((b"Upgrade", b"Connection", b"Expect")) for each in extra)
        return Sent(number, label, role, b"\r\n".join([*lines, b"", b""]) + sent_body, method, legal)

    def _credentials(self, dice: random.Random, role: str) -> list[bytes]:
        if role == "none":
            return []
        if role == "wrong":
            key = b"bm_%012x_%s" % (dice.getrandbits(48), b"A" * 43)
            return [
                dice.choice([b"Authorization: Bearer " + key, b"Authorization: Bearer \xff", b"Cookie: a"])
            ]
        if role.endswith("cookie"):
            return [b"Cookie: bundlemage_session=" + placeholder("token", role.removesuffix(" cookie"))]
        bearer = b"Authorization: Bearer " + placeholder("key", role)
        return [bearer] * (2 if dice.random() < 0.01 else 1)

    # ── Values ───────────────────────────────────────────────────────────────────────────────────

    def valid(self, dice: random.Random, schema: dict[str, Any], name: str, depth: int = 0) -> Any:
        """A value that the schema allows, or nearly so."""
        if "$ref" in schema:
            return self.valid(dice, self._schemas[schema["$ref"].rpartition("/")[2]], name, depth)
        for choices in ("anyOf", "oneOf"):
            if choices in schema:
                return self.valid(dice, dice.choice(schema[choices]), name, depth)
        if "enum" in schema:
            return dice.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        if schema.get("examples") and dice.random() < 0.2:
            return deepcopy(dice.choice(schema["examples"]))  # it is changed later
        kind = schema.get("type")
        if kind == "object":
            return self._object(dice, schema, name, depth)
        if kind == "array":
            least = schema.get("minItems", 0)
            items = schema.get("items", {})
            return [self.valid(dice, items, name, depth + 1) for _ in range(dice.randint(least, least + 3))]
        if kind in ("integer", "number"):
            return self._number(dice, schema, name)
        if kind == "boolean":
            return dice.random() < 0.5
        if kind == "null":
            return None
        return self._text(dice, schema, name)

    def _object(self, dice: random.Random, schema: dict[str, Any], name: str, depth: int) -> dict[str, Any]:
        required = set(schema.get("required", ()))
        found = {
            key: self.valid(dice, each, key, depth + 1)
            for key, each in schema.get("properties", {}).items()
            if key in required or dice.random() < 0.4 / (depth + 1) or key == "time_limit"
        }
        more = schema.get("additionalProperties")
        if isinstance(more, dict):
            for _ in range(dice.randint(0, 3)):
                found[self._text(dice, schema.get("propertyNames", {}), name)] = self.valid(
                    dice, more, name, 9
                )
        if {"user_id", "history"} <= set(found):  # one of the two
            del found[dice.choice(["user_id", "history"])]
        if {"item_id", "bundle_id"} <= set(found):
            del found[dice.choice(["item_id", "bundle_id"])]
        if {"expected_sales", "sells_like"} <= set(found):
            del found["sells_like"]
        return found

    def _number(self, dice: random.Random, schema: dict[str, Any], name: str) -> Any:
        if name == "time_limit":
            return SLOWEST_DESIGN
        least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        most = min(schema.get("maximum", schema.get("exclusiveMaximum", 100)), least + 1000)
        if schema["type"] == "integer":
            return dice.choice([least, most, dice.randint(int(least), min(int(most), int(least) + 20))])
        return dice.choice([least, most, round(dice.uniform(least, most), 2)])

    def _text(self, dice: random.Random, schema: dict[str, Any], name: str) -> str:
        if schema.get("format") == "date-time":
            return f"20{dice.randint(20, 26)}-0{dice.randint(1, 9)}-1{dice.randint(0, 9)}T12:00:00Z"
        if name == "key":
            return placeholder("key", dice.choice(self._roles)).decode()
        number, new = dice.randint(1, 250), dice.random() < 0.1
        if "user" in name or "after" in name:
            return f"visitor-{number}" if new else f"u{number:04}"
        if "tag" in name:
            return dice.choice(["Seafaring", "Puzzle", "Space", "Strategy", "none"])
        if name in ("bundle_id", "bundles", "sells_like") or (name in ("exclude", "among") and number % 2):
            return f"made-{number}" if new else f"b{number:04}"
        if name in ("title", "search", "version", "request_id"):
            return dice.choice(["a title", "u", "b00", "ä", f"{dice.getrandbits(48):012x}"])
        return f"thing-{number}" if new else f"g{number:04}"

    def _wild(self, dice: random.Random) -> Any:
        makers: list[Callable[[], Any]] = [
            lambda: dice.choice(_TEXTS),
            lambda: dice.choice(_NUMBERS),
            lambda: None,
            lambda: dice.random() < 0.5,
            list,
            dict,
            lambda: [dice.choice(_TEXTS)] * dice.choice([1, 3, 101]),
            lambda: {dice.choice(_TEXTS): dice.choice(_NUMBERS)},
            lambda: [[[[[[[[1]]]]]]]],
            lambda: [f"g{each:04}" for each in range(dice.choice([10, 101, 101, 10_001]))],
        ]
        return dice.choice(makers)()

    def _mutated(self, dice: random.Random, value: Any) -> Any:
        """The value with one change somewhere in it."""
        places = list(_places(value))
        if not places or dice.random() < 0.05:
            return self._wild(dice)
        holder, at = dice.choice(places)
        change = dice.random()
        if change < 0.6:
            holder[at] = self._wild(dice)
        elif change < 0.75:
            del holder[at]
        elif isinstance(holder, dict):
            holder[dice.choice(["unknown", "", "__proto__", f"{at} ", str(at).upper()])] = self._wild(dice)
        else:
            holder.extend(holder[:100] * dice.choice([1, 50]))
        return value

    # ── What is no HTTP, or only nearly ──────────────────────────────────────────────────────────

    def _garbage(self, number: int, dice: random.Random) -> Sent:
        get = b"GET /v1/users/u0007/bundles HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n"
        post = (
            b"POST /v1/recommend HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n"
            b"Content-Type: application/json\r\n" % placeholder("key", dice.choice(["read", "admin"]))
        )
        body = b'{"user_id": "u0007"}'
        chunked = post + b"Transfer-Encoding: chunked\r\n\r\n"
        count = dice.choice([10, 150])
        data = dice.choice(
            [
                dice.randbytes(dice.choice([1, 100, 5000])),
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + dice.randbytes(200),
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"GET /healthz\r\n\r\n",
                b"GET /healthz HTTP/9.9\r\n\r\n",
                b"GET http://evil.example/healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n",
                b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example\r\n\r\n",
                get[: dice.randrange(len(get))],
                get % b"",
                (get % b"") * dice.choice([2, 20]),
                get % b"".join(b"X-%d: y\r\n" % each for each in range(count)),
                get % (b"X: " + b"y" * dice.choice([9000, 70_000]) + b"\r\n"),
                get.replace(b"u0007", b"x" * dice.choice([9000, 70_000])) % b"",
                get % b" folded: yes\r\n",
                get % b"Bad Name: x\r\n",
                get % b"No-Colon\r\n",
                get % b"X: a\x00b\r\n",
                get % b"Host: again\r\n",
                (get % b"").replace(b"\r\n", b"\n"),
                post + b"Content-Length: 100\r\n\r\n" + body,
                post + b"Content-Length: 5\r\n\r\n" + body,
                post + b"Content-Length: -1\r\n\r\n" + body,
                post + b"Content-Length: x\r\n\r\n" + body,
                post + b"Content-Length: 99999999999999999999\r\n\r\n" + body,
                post + b"Content-Length: 20\r\nContent-Length: 21\r\n\r\n" + body,
                post
                + b"Content-Length: 20\r\nTransfer-Encoding: chunked\r\n\r\n14\r\n"
                + body
                + b"\r\n0\r\n\r\n",
                post + b"Transfer-Encoding: gzip, chunked\r\n\r\n14\r\n" + body + b"\r\n0\r\n\r\n",
                chunked + b"14\r\n" + body,
                chunked + b"zz\r\n" + body + b"\r\n0\r\n\r\n",
                chunked + b"ffffffffffffffffff\r\n" + body,
                chunked + b"14;" + b"x" * 5000 + b"\r\n" + body + b"\r\n0\r\n\r\n",
                chunked + b"14\r\n" + body + b"\r\n0\r\nTrailer: x\r\n\r\n",
                chunked + b"1\r\n{\r\n" * 200,
            ]
        )
        return Sent(number, "no HTTP", "none", data, is_http=False)


def _chunks(dice: random.Random, body: bytes) -> Iterator[bytes]:
    while body:
        size = dice.choice([1, 7, 100, 65_536]) if len(body) < 5000 else 65_536
        yield b"%x\r\n%s\r\n" % (len(body[:size]), body[:size])
        body = body[size:]
    yield b"0\r\n\r\n"


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """All places in a value that can be changed, as (dict or list, key or index)."""
    within = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for at, each in within:
        yield value, at
        yield from _places(each)
