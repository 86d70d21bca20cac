"""The API's document: complete, true, and what the service does with all that it allows and forbids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
import schemathesis.engine
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events

from bundlemage.wire.design import SERVED_SECONDS
from tests.service.running import PROBLEM, Inside, copied, inside, new_key, ok

RELATED = [
    "GET /v1/users/{user_id}/bundles",
    "GET /v1/bundles/{bundle_id}/similar",
    "POST /v1/recommend",
    "POST /v1/complete",
    "POST /v1/design",
    "POST /v1/explain",
    "POST /v1/bundles:score",
    "POST /v1/bundles:buyers",
    "POST /v1/interactions",
    "PUT /v1/bundles/{bundle_id}",
    "PUT /v1/items/{item_id}",
    "PATCH /v1/bundles/{bundle_id}",
]
"""What a schema cannot say of a request: ids that must be in the shop, or must not, a range that must not be
empty, one of two fields. So a request that the document allows may be refused."""
UNSUITABLE = {
    "use_after_free": "DELETE withdraws: what was withdrawn can still be looked up",
    "missing_required_header": "the only one is the key's, and `ignored_auth` looks after that",
}
NOT_WITHOUT_KEYS = "ignored_auth"
SECONDS = 0.1
"""That designs may take here."""


@pytest.fixture(scope="module")
def document(
    sample_model: Path, sample_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    with (
        inside(sample_model, copied(sample_database, tmp_path_factory.mktemp("openapi"))) as running,
        running.client() as client,
    ):
        yield ok(client.get("/openapi.json"))


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for choice in schema.get("anyOf", ()):  # such as a body that may be left out
        if "$ref" in choice:
            return resolved(document, choice)
    return schema


def holds(document: dict[str, Any], schema: dict[str, Any], example: Any) -> None:
    whole = {**schema, "components": document["components"]}
    jsonschema_rs.validator_for(whole).validate(example)


def examples(document: dict[str, Any], content: dict[str, Any]) -> list[Any]:
    schema = resolved(document, content["schema"])
    beside = [each["value"] for each in content.get("examples", {}).values()]
    alone = [content["example"]] if "example" in content else []
    within = [schema["example"]] if "example" in schema else []
    return [*alone, *beside, *within, *(schema.get("examples") or content["schema"].get("examples", ()))]


def test_every_route_is_described_in_words(document: dict[str, Any]) -> None:
    assert document["info"]["title"] == "BundleMage"
    assert "Authorization: Bearer" in document["info"]["description"]
    for name, operation in operations(document):
        assert operation["summary"], name
        assert len(operation.get("description", "")) > 10, name
        assert operation["tags"], name
    ids = [operation["operationId"] for _, operation in operations(document)]
    assert len(set(ids)) == len(ids)


def test_a_route_is_named_by_a_sentence(document: dict[str, Any]) -> None:
    """And not by the name of a function, as /docs would show it otherwise."""
    operations = [each for path in document["paths"].values() for each in path.values()]
    summaries = {each["summary"] for each in operations}
    assert "Explain why bundles fit a user, or why an item fits a bundle" in summaries
    assert not summaries & {"Gate", "Work Of", "Score", "Bundles For User"}
    assert all(" ".join(each["description"].split()).startswith(each["summary"]) for each in operations)


def test_every_request_has_an_example_that_holds(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        for parameter in operation.get("parameters", ()):
            if parameter["required"]:
                given = parameter.get("examples", parameter["schema"].get("examples"))
                assert given, (name, parameter["name"])
                for each in given:
                    holds(document, parameter["schema"], each)
        body = operation.get("requestBody")
        if body is not None:
            content = body["content"]["application/json"]
            given = examples(document, content)
            assert given, name
            for each in given:
                holds(document, content["schema"], each)


def test_limits_are_in_the_document(document: dict[str, Any]) -> None:
    limits = {"minimum", "maximum", "exclusiveMaximum"}
    schemas = document["components"]["schemas"]
    for model, field in (
        ("ItemIn", "stock"),
        ("ItemIn", "price"),
        ("BundleIn", "discount"),
        ("Where", "min_price"),
        ("RecommendIn", "k"),
        ("RecommendIn", "diversity"),
        ("RecommendIn", "match_popularity"),
        ("CompleteIn", "k"),
        ("DesignIn", "n"),
        ("DesignIn", "diversity"),
        ("ScoreIn", "k"),
    ):
        schema = schemas[model]["properties"][field]
        number = next((choice for choice in schema.get("anyOf", ()) if choice["type"] != "null"), schema)
        assert len(limits & set(number)) == 2, (model, field, number)
    for parameter in document["paths"]["/v1/users/{user_id}/bundles"]["get"]["parameters"]:
        if parameter["name"] == "user_id":
            assert {"minLength", "maxLength", "pattern"} <= set(parameter["schema"])


def test_every_answer_has_an_example_that_holds(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        good = {status: answer for status, answer in operation["responses"].items() if status.startswith("2")}
        assert good, name
        for status, answer in good.items():
            if status == "204":
                assert "content" not in answer, name
                continue
            assert answer["description"], name
            for content in answer["content"].values():
                given = examples(document, content)
                assert given, (name, status)
                for each in given:
                    holds(document, content["schema"], each)


def test_every_refusal_is_documented_as_a_problem(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        refusals = {int(status) for status in operation["responses"] if status >= "400"}
        for status in refusals:
            answer = operation["responses"][str(status)]
            assert answer["description"], (name, status)
            assert set(answer["content"]) == {PROBLEM}, (name, status)
            content = answer["content"][PROBLEM]
            assert content["schema"] == {"$ref": "#/components/schemas/ProblemOut"}
            holds(document, content["schema"], content["example"])
            assert content["example"]["status"] == status
        assert refusals >= {429, 500}, name
        if operation.get("security"):
            assert refusals >= {401, 403}, name
        if operation.get("parameters") or "requestBody" in operation:
            assert 422 in refusals, name
        if "requestBody" in operation:
            assert 413 in refusals, name
        if "{" in name and not name.startswith("PUT"):
            assert 404 in refusals, name


# ── What a machine thinks of asking ──────────────────────────────────────────────────────────────


def configured(key: str | None, examples: int) -> SchemathesisConfig:
    off = {"enabled": False}
    checks: dict[str, Any] = dict.fromkeys(UNSUITABLE, off)
    if key is None:
        checks[NOT_WITHOUT_KEYS] = off
    # A list that is too long may make the body too large, too.
    refused = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, "5xx"]
    checks["negative_data_rejection"] = {"expected-statuses": refused}
    related = [{"include-name": name, "checks": {"positive_data_acceptance": off}} for name in RELATED]
    return SchemathesisConfig.from_dict(
        {
            "seed": 20261115,
            "continue-on-failure": True,
            "headers": {"Authorization": f"Bearer {key}"} if key else {},
            "generation": {
                "max-examples": examples,
                "deterministic": True,
                "with-security-parameters": key is not None,
            },
            "checks": checks,
            "operations": related,
        }
    )


@schemathesis.hook
def before_call(context: Any, case: schemathesis.Case[Any], kwargs: dict[str, Any]) -> None:
    """A search may take half a minute if that is asked for; the same question with less time is as good."""
    body = case.body
    if case.operation.label != "POST /v1/design" or not isinstance(body, dict):
        return
    seconds = body.get("time_limit", SERVED_SECONDS)
    if isinstance(seconds, int | float) and SECONDS < seconds <= SERVED_SECONDS:
        case.body = {**body, "time_limit": SECONDS}


def failures(running: Inside, key: str | None, examples: int) -> tuple[list[str], int]:
    """What Schemathesis finds in all its phases, and how many requests it sent."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    config = configured(key, examples)
    schema = schemathesis.openapi.from_url(f"{running.url}/openapi.json", config=config, headers=headers)
    found: dict[str, None] = {}
    asked = 0
    phases: dict[str, str] = {}
    for event in schemathesis.engine.from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            asked += len(event.recorder.interactions)
            for case, checks in event.recorder.checks.items():
                for check in checks:
                    if check.failure_info is not None:
                        failure = check.failure_info.failure
                        sent = event.recorder.cases[case].value.as_curl_command()
                        found[f"{check.name}: {failure.title}\n{failure.message}\n{sent[:2000]}"] = None
        elif isinstance(event, events.NonFatalError | events.FatalError):
            found[str(getattr(event, "value", None) or getattr(event, "exception", event))] = None
        elif isinstance(event, events.PhaseFinished):
            phases[event.phase.name.value] = event.status.value
    assert {"examples", "coverage", "fuzzing", "stateful"} <= set(phases)
    assert "skip" not in phases.values(), phases
    return list(found), asked


def explored(
    model: Path, database: Path, folder: Path, *, keys: bool, examples: int
) -> tuple[list[str], int]:
    with inside(model, copied(database, folder), rate_limit=1e6) as running:
        key = new_key(running.store, "admin") if keys else None
        return failures(running, key, examples)


def test_nothing_that_is_sent_finds_a_fault(
    sample_model: Path, sample_database: Path, tmp_path: Path
) -> None:
    found, asked = explored(sample_model, sample_database, tmp_path, keys=True, examples=5)
    assert not found, "\n\n".join(found[:10])
    assert asked > 500


@pytest.mark.slow
@pytest.mark.parametrize("keys", [False, True], ids=["without keys", "with a key"])
def test_nothing_that_is_sent_for_minutes_finds_a_fault(
    sample_model: Path, sample_database: Path, tmp_path: Path, keys: bool
) -> None:
    found, asked = explored(sample_model, sample_database, tmp_path, keys=keys, examples=300)
    assert not found, "\n\n".join(found[:10])
    assert asked > 5_000
