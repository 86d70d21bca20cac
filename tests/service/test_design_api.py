"""Designs, reasons and audiences over the API: the same as in Python."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bundlemage.core.history import History
from bundlemage.designer import conflict
from bundlemage.recommender import Recommender
from bundlemage.service.routes import forecasts
from bundlemage.wire.design import DesignIn, DesignRequest
from tests.designing import numbers
from tests.service.running import Inside, copied, inside, ok, problem

SOMEONE = "u0007"


@pytest.fixture(scope="module")
def service(
    sample_model: Path, sample_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Inside]:
    with inside(sample_model, copied(sample_database, tmp_path_factory.mktemp("design"))) as running:
        yield running


@pytest.fixture
def client(service: Inside) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


def asked(client: httpx.Client, **wishes: Any) -> httpx.Response:
    return client.post("/v1/design", json={"user_id": SOMEONE, **wishes})


def near(found: float) -> Any:
    return pytest.approx(found, abs=1e-4, rel=1e-4)


# ── Designs ──────────────────────────────────────────────────────────────────────────────────────


def test_a_design_keeps_its_budget_and_tags_and_is_that_of_the_recommender(
    client: httpx.Client, recommender: Recommender
) -> None:
    answer = ok(
        asked(
            client,
            start=["g0022"],
            size={"least": 3, "most": 4},
            budget={"least": 20, "most": 40},
            tags={"at_least": {"Seafaring": 2}, "at_most": {"Horror": 0}},
            discount=0.2,
            n=3,
            details=True,
        )
    )
    assert answer["user_id"] == SOMEONE
    assert answer["history"] == {"items": 14, "bundles": 4, "not_in_model": 0}
    assert (answer["method"], answer["complete"], answer["proven"]) == ("beam", True, False)
    owned = {item["id"] for item in ok(client.get(f"/v1/users/{SOMEONE}"))["items"]}
    assert [bundle["rank"] for bundle in answer["bundles"]] == [1, 2, 3]
    for bundle in answer["bundles"]:
        items = bundle["items"]
        sold = [ok(client.get(f"/v1/items/{item['id']}")) for item in items]
        assert [(each["title"], each["price"], each["tags"]) for each in sold] == [
            (item["title"], item["price"], item["tags"]) for item in items
        ]
        assert 3 <= len({item["id"] for item in items}) == len(items) <= 4
        assert bundle["list_price"] == pytest.approx(sum(each["price"] for each in sold))
        assert bundle["price"] == pytest.approx(bundle["list_price"] * 0.8, abs=0.006)
        assert 20 <= bundle["price"] <= 40
        assert sum("Seafaring" in each["tags"] for each in sold) >= 2
        assert not any("Horror" in each["tags"] for each in sold)
        assert [item["given"] for item in items] == [True] + [False] * (len(items) - 1)
        assert (items[0]["id"], items[0]["score"], items[0]["why"]) == ("g0022", None, None)
        assert all(each["stock"] for each in sold[1:])
        assert owned.isdisjoint(item["id"] for item in items[1:])
        assert [item["owned"] for item in items] == [item["id"] in owned for item in items]
        assert [item["sold_out"] for item in items] == [each["stock"] == 0 for each in sold]
        assert bundle["to_pay"] == bundle["price"]
        assert bundle["value"] == pytest.approx(sum(bundle["terms"].values()))

    expected = recommender.design(
        SOMEONE,
        start=["g0022"],
        size=(3, 4),
        budget=(20, 40),
        tags={"at least": {"Seafaring": 2}, "at most": {"Horror": 0}},
        discount=0.2,
        n=3,
    )
    assert [[item["id"] for item in each["items"]] for each in answer["bundles"]] == [
        each.ids for each in expected
    ]
    assert [each["score"] for each in answer["bundles"]] == [near(each.score) for each in expected]
    why, designed = answer["bundles"][0]["items"][1]["why"], expected[0].items[1].why
    assert designed is not None
    assert why["words"] == designed.words
    why, told = why["details"], numbers(designed)
    assert (why["fit"], why["gate"]) == (near(told.fit), near(told.gate or 0))
    assert len(why["reasons"]) == 10
    assert why["more"] == len(told.reasons) - 10
    assert [reason["effect"] for reason in why["reasons"]] == [
        near(reason.effect) for reason in told.reasons[:10]
    ]


def test_for_someone_whom_the_shop_does_not_know(client: httpx.Client, recommender: Recommender) -> None:
    history = {"items": ["g0022", "g0022"], "bundles": ["b0013"]}
    answer = ok(client.post("/v1/design", json={"history": history, "n": 1, "reasons": False}))
    (expected,) = recommender.design(History(["g0022"], ["b0013"]), n=1, reasons=False)
    assert answer["user_id"] is None
    assert answer["history"] == {"items": 1, "bundles": 1, "not_in_model": 0}
    (found,) = answer["bundles"]
    assert [item["id"] for item in found["items"]] == expected.ids
    assert all(item["why"] is None for item in found["items"])


def test_what_is_not_said_is_as_the_designer_has_it() -> None:
    assert set(DesignIn.model_fields) - {"user_id", "history", "details"} == set(DesignRequest.model_fields)
    defaults = DesignRequest.of()
    for request in (DesignIn(user_id="u"), DesignIn(**DesignIn(user_id="u").model_dump())):
        said = {name: getattr(request, name) for name in DesignRequest.model_fields}
        assert said == dict(defaults) | {"buyers": False}  # they are read from the store


def test_an_impossible_design_says_what_cannot_hold_and_what_would_help(client: httpx.Client) -> None:
    wishes: dict[str, Any] = {"must": ["g0022"], "budget": {"most": 3}, "size": {"least": 3, "most": 5}}
    told = problem(asked(client, **wishes), 422, "at most 3.00", "'g0022'")
    assert (told["title"], told["type"]) == ("Impossible design", "urn:bundlemage:problem:impossible-design")
    assert "errors" not in told
    rules = {(rule["kind"], rule["key"]) for rule in told["conflict"]}
    assert rules == {("budget_max", None), ("must", "g0022")}
    assert all(rule["text"] in told["detail"] for rule in told["conflict"])
    assert told["smallest"]
    change = told["changes"][0]
    assert change["text"] in told["detail"]
    (step,) = change["steps"]
    assert (step["kind"], step["key"]) == ("budget_max", None)
    enough = {**wishes, "budget": {"most": step["value"]}, "reasons": False}
    assert ok(asked(client, **enough))["bundles"][0]["price"] <= step["value"]
    problem(asked(client, **{**enough, "budget": {"most": step["value"] - 0.01}}), 422)
    assert "conflict" not in problem(asked(client, n=0), 422)


def changed(wishes: dict[str, Any], steps: list[dict[str, Any]]) -> dict[str, Any]:
    """The request after the steps of a change, as a program would apply them."""
    after = copy.deepcopy(wishes)
    for step in steps:
        kind, key, value = step["kind"], step["key"], step["value"]
        name, end = kind.rsplit("_", 1) if kind.startswith(("size", "budget")) else (kind, "")
        if end:
            after[name][{"min": "least", "max": "most"}[end]] = value
        elif kind in ("at_least", "at_most"):
            after["tags"][kind] |= {key: value}
        elif key is not None:
            after[kind].remove(key)
        else:
            after[kind] = [] if kind == "forbid" else False
    return after


FIVE: dict[str, Any] = {"least": 3, "most": 5}


@pytest.mark.parametrize(
    "wishes",
    [
        {"size": FIVE, "budget": {"least": 40.1, "most": 40.6}},
        {"size": FIVE, "budget": {"least": 900}, "discount": 0.2},
        {"size": FIVE, "must": ["g0001", "g0004"], "forbid": ["g0001"], "budget": {"most": 9}},
        {"size": FIVE, "tags": {"at_least": {"Horror": 6}, "at_most": {"Survival": 0}}},
        {"size": {"least": 20, "most": 20}, "one_per": ["*"], "in_stock": True, "not_owned": True},
        {"size": {"least": 1, "most": 2}, "start": ["g0001", "g0004"], "forbid": ["g0004"]},
    ],
    ids=lambda wishes: "+".join(wishes),
)
def test_each_change_makes_a_bundle_possible(client: httpx.Client, wishes: dict[str, Any]) -> None:
    told = problem(asked(client, **wishes), 422)
    assert told["conflict"]
    assert told["changes"]
    for change in told["changes"]:
        answer = ok(asked(client, **changed(wishes, change["steps"]), reasons=False, n=1))
        assert answer["bundles"], change["text"]


def test_a_conflict_of_many_wishes_says_whether_it_is_the_smallest(
    client: httpx.Client, recommender: Recommender, monkeypatch: pytest.MonkeyPatch
) -> None:
    wishes: dict[str, Any] = {"size": {"least": 6, "most": 6}, "not_owned": False, "in_stock": False}
    wishes["must"] = list(recommender.dataset.items.ids[:12])
    monkeypatch.setattr(conflict, "MORE_SECONDS", 0)
    told = problem(asked(client, **wishes), 422, "there may be a smaller set")
    assert not told["smallest"]
    assert sorted(rule["kind"] for rule in told["conflict"]) == [*["must"] * 7, "size_max"]
    assert told["changes"]


@pytest.mark.parametrize(
    ("wishes", "word"),
    [
        ({"sise": 3}, "sise"),
        ({"where": {}}, "where"),
        ({"include_owned": True}, "include_owned"),
        ({"size": 3}, "size"),
        ({"size": {"least": 3}}, "size.most"),
        ({"size": {"least": 5, "most": 3}}, "the minimum must come first"),
        ({"budget": {"most": "40"}}, "budget.most"),
        ({"budget": "40"}, "budget: should be an object, such as {"),
        ({"size": 3}, "size: should be an object, such as {"),
        ({"tags": ["Horror"]}, "tags: should be an object, such as {"),
        ({"tags": {"at_most": 5}}, "at_most: should be an object, such as {"),
        ({"size": None}, "size: should be an object, such as {"),
        ({"costs": 5}, "costs: should be an object, such as {"),
        ({"one_per": 5}, "one_per: should be a list, such as ["),
        ({"must": "g0022"}, "must: should be a list, such as ["),
        ({"n": 21}, "n:"),
        ({"n": True}, "n:"),
        ({"discount": 1}, "discount"),
        ({"time_limit": 31}, "time_limit"),
        ({"time_limit": 0}, "time_limit"),
        ({"method": "magic"}, "method"),
        ({"tags": {"at least": {}}}, "tags"),
        ({"tags": {"at_least": {"Seafairing": 1}}}, "Did you mean 'Seafaring'"),
        ({"one_per": ["nothing:*"]}, "begins with"),
        ({"start": ["g9999"]}, "'g9999'"),
        ({"must": ["g9999"]}, "'g9999'"),
        ({"costs": {"g9999": 1}}, "'g9999'"),
        ({"history": {}}, "not both"),
    ],
    ids=str,
)
def test_a_wrong_wish_is_told(client: httpx.Client, wishes: dict[str, Any], word: str) -> None:
    problem(asked(client, **wishes), 422, word)


def test_a_search_that_gives_up_says_so(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether any bundle costs just that is hard to find out. No fault of the service, and not to be tried
    again as it is, as a client does after 503."""
    monkeypatch.setattr(conflict, "SECONDS", 0.01)
    puzzle = {"budget": {"least": 123.45, "most": 123.45}, "size": {"least": 8, "most": 12}}
    answer = asked(client, **puzzle, one_per=["*"], discount=0.13, time_limit=0.001)
    assert problem(answer, 422, "in time")["title"] == "No answer in time"


# ── Reasons ──────────────────────────────────────────────────────────────────────────────────────


def test_reasons_for_bundles_are_those_of_the_recommender(
    client: httpx.Client, recommender: Recommender
) -> None:
    names = [each.id for each in recommender.recommend(SOMEONE, 3)]
    body = {"user_id": SOMEONE, "bundles": names, "details": True}
    answer = ok(client.post("/v1/explain", json=body))
    assert answer["history"] == {"items": 14, "bundles": 4, "not_in_model": 0}
    assert [each["id"] for each in answer["explanations"]] == names
    for each in answer["explanations"]:
        explained, words = recommender.explain(SOMEONE, bundle=each["id"]), each["why"]["words"]
        expected, why = numbers(explained), each["why"]["details"]
        assert each["title"] == ok(client.get(f"/v1/bundles/{each['id']}"))["title"]
        assert (why["fit"], words) == (near(expected.fit), explained.words)
        assert (len(why["reasons"]), why["more"], why["not_asked"]) == (18, 0, 0)
        found = {(reason["kind"], reason["id"]): reason for reason in why["reasons"]}
        for reason in expected.reasons:
            told = found[reason.kind, reason.id]
            assert (told["title"], told["effect"]) == (reason.title, near(reason.effect))
            assert told["effect"] == near(why["fit"] - told["without"])


def test_a_reason_is_a_sentence_in_the_language_and_for_the_reader_of_the_request(
    client: httpx.Client, recommender: Recommender
) -> None:
    bundle = recommender.recommend(SOMEONE, 1)[0].id
    languages_and_readers: Any = ({}, {"language": "de"}, {"language": "de-AT", "to": "shop"}, {"to": "shop"})
    for said in languages_and_readers:
        body = {"user_id": SOMEONE, "bundles": [bundle], **said}
        (found,) = ok(client.post("/v1/explain", json=body))["explanations"]
        expected = recommender.explain(SOMEONE, bundle=bundle, **said)
        assert found["why"] == {
            "words": expected.words,
            "evidence": [fact.model_dump() for fact in expected.evidence],
            "details": None,
        }
        wishes = {"user_id": SOMEONE, "start": ["g0022"], "n": 1, **said}
        (design,) = ok(client.post("/v1/design", json=wishes))["bundles"]
        why = design["items"][1]["why"]
        assert why["details"] is None
        assert why["words"].startswith("Weil " if "language" in said else "Because ")


def test_a_reason_is_what_its_absence_changes(client: httpx.Client) -> None:
    """Asked again without the strongest reason, the service gives the fit that it named before."""
    user = ok(client.get(f"/v1/users/{SOMEONE}"))
    history = {kind: [each["id"] for each in user[kind]] for kind in ("items", "bundles")}
    asked_for = {"item": "g0401", "items": ["g0022", "g0004"]}
    body = {"history": history, **asked_for, "details": True}
    (whole,) = ok(client.post("/v1/explain", json=body))["explanations"]
    kinds = {reason["kind"] for reason in whole["why"]["details"]["reasons"]}
    assert kinds == {"item", "bundle", "partial"}
    for kind in kinds:
        reason = next(each for each in whole["why"]["details"]["reasons"] if each["kind"] == kind)
        less = {name: [each for each in given if each != reason["id"]] for name, given in history.items()}
        left = [each for each in asked_for["items"] if kind != "partial" or each != reason["id"]]
        again = {"history": less, "item": "g0401", "items": left, "details": True}
        (without,) = ok(client.post("/v1/explain", json=again))["explanations"]
        assert without["why"]["details"]["fit"] == near(reason["without"])


def test_a_long_history_has_more_reasons_than_are_told(client: httpx.Client) -> None:
    items = [item["id"] for item in ok(client.get("/v1/items", params={"limit": 120}))["items"]]
    body = {"history": {"items": items}, "bundles": ["b0013"], "details": True}
    (found,) = ok(client.post("/v1/explain", json=body))["explanations"]
    assert (len(found["why"]["details"]["reasons"]), found["why"]["details"]["more"]) == (100, 20)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "either 'bundles' or 'item'"),
        ({"bundles": ["b0013"], "item": "g0022"}, "either 'bundles' or 'item'"),
        ({"bundles": ["b0013"], "items": ["g0022"]}, "give 'item' as well"),
        ({"bundles": []}, "bundles"),
        ({"bundles": ["b0013"] * 51}, "bundles"),
        ({"bundles": ["b9999"]}, "'b9999'"),
        ({"item": "g9999"}, "'g9999'"),
        ({"item": "g0022", "items": ["g9999"]}, "'g9999'"),
        ({"item": "g0022", "k": 3}, "k:"),
        ({"bundles": ["b0013"], "language": "xx"}, "the languages are: de, en"),
        ({"bundles": ["b0013"], "to": "nobody"}, "to:"),
    ],
    ids=str,
)
def test_a_wrong_question_for_reasons_is_told(client: httpx.Client, body: Any, word: str) -> None:
    problem(client.post("/v1/explain", json={"user_id": SOMEONE, **body}), 422, word)


# ── The audience of a new bundle ─────────────────────────────────────────────────────────────────


def test_the_audience_is_that_of_the_recommender_and_erased_users_are_not_in_it(
    sample_model: Path,
    sample_database: Path,
    tmp_path: Path,
    recommender: Recommender,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    items = ["g0022", "g0401", "g0004"]
    body = {"items": items, "discount": 0.25, "k": 5}
    expected = recommender.score_bundle(items, discount=0.25, k=5)
    monkeypatch.setattr(forecasts, "USERS_AT_A_TIME", 300)  # so that there are several pages
    with inside(sample_model, copied(sample_database, tmp_path)) as running, running.client() as client:
        told = ok(client.post("/v1/bundles:score", json=body))
        assert expected.expected is not None
        assert (told["asked"], told["above"]) == (expected.asked, expected.above)
        assert told["expected"] == near(expected.expected)
        assert told["expected_takings"] == near(expected.expected_takings or 0)
        assert (told["price"], told["list_price"]) == (expected.price, expected.list_price)
        assert told["people"] == [
            {"id": each.id, "chance": near(each.chance or 0), "score": near(each.score)}
            for each in expected.people
        ]
        assert [each["id"] for each in told["nearest"]] == [each.id for each in expected.nearest]
        assert told["weakest"]["id"] == getattr(expected.weakest, "id", None)
        assert (told["replacement"] or {}).get("id") == getattr(expected.replacement, "id", None)

        first = told["people"][0]["id"]
        assert client.delete(f"/v1/users/{first}").status_code == 204
        after = ok(client.post("/v1/bundles:score", json=body))
        assert after["asked"] == told["asked"] - 1
        assert [each["id"] for each in after["people"][:4]] == [each["id"] for each in told["people"][1:]]
        everybody = ok(client.post("/v1/bundles:score", json={**body, "k": 100}))["people"]
        assert len(everybody) == 100
        assert first not in {each["id"] for each in everybody}
        # Someone who comes counts at once, and who has it all will not buy it.
        for item in items:
            taken = {"interactions": [{"user_id": "newcomer", "item_id": item}]}
            assert client.post("/v1/interactions", json=taken).is_success
        last = ok(client.post("/v1/bundles:score", json={**body, "k": 100}))
        assert last["asked"] == after["asked"] + 1
        assert last["expected"] == near(after["expected"])
        assert "newcomer" not in {each["id"] for each in last["people"]}


def test_a_price_makes_takings_and_a_discount_may_be_said_instead(client: httpx.Client) -> None:
    body = {"items": ["g0022", "g0401"], "k": 1}
    told = ok(client.post("/v1/bundles:score", json={**body, "price": 20}))
    assert told["price"] == 20
    assert told["expected_takings"] == near(20 * told["expected"])
    problem(client.post("/v1/bundles:score", json={**body, "price": 20, "discount": 0.1}), 422, "not both")
    problem(client.post("/v1/bundles:score", json={"items": []}), 422, "items")
    problem(client.post("/v1/bundles:score", json={"items": ["g9999"]}), 422, "'g9999'")
    answer = client.get("/v1/bundles:score")
    problem(answer, 405)
    assert answer.headers["allow"] == "POST"


def test_a_bundle_may_be_called_like_the_route(client: httpx.Client) -> None:
    assert client.put("/v1/bundles/:score", json={"items": ["g0022"]}).status_code == 201
    assert ok(client.get("/v1/bundles/:score"))["id"] == ":score"
    assert client.delete("/v1/bundles/:score").status_code == 204


def test_what_is_newer_than_the_model_is_said(client: httpx.Client) -> None:
    assert client.put("/v1/items/newest", json={"title": "New", "price": 3, "stock": 2}).is_success
    assert client.put("/v1/bundles/newest", json={"items": ["newest"]}).is_success
    someone = {"user_id": SOMEONE}
    for path, body in (
        ("/v1/design", {**someone, "start": ["newest"]}),
        ("/v1/design", {**someone, "must": ["newest"]}),
        ("/v1/explain", {**someone, "item": "newest"}),
        ("/v1/explain", {**someone, "bundles": ["b0013", "newest"]}),
        ("/v1/bundles:score", {"items": ["g0022", "newest"]}),
    ):
        told = problem(client.post(path, json=body), 409, "'newest'", "newer than the model", "retrain")
        assert told["title"] == "Not in the model"
    # Where it can be passed over it is, and counted.
    history = {"items": ["g0022", "newest"], "bundles": ["newest"]}
    wishes = {"n": 1, "costs": {"newest": 2, "g0022": 1}, "forbid": ["newest"], "margin": 1}
    answer = ok(client.post("/v1/design", json={"history": history, **wishes}))
    assert answer["history"] == {"items": 1, "bundles": 0, "not_in_model": 2}
    assert ok(client.post("/v1/explain", json={**someone, "item": "g0022", "items": ["newest"]}))


def test_counts_are_those_of_the_catalogue_also_for_items_that_are_newer_than_the_model(
    client: httpx.Client,
) -> None:
    """The model ignores a new item, but the customer has it."""
    new = {"title": "A new game", "tags": ["Seafaring"]}
    assert client.put("/v1/items/new-sea-game", json=new).status_code == 201
    items = ["g0022", "g0004", "g0401", "new-sea-game"]
    tags = [ok(client.get(f"/v1/items/{item}"))["tags"] for item in items]
    body = {"history": {"items": items}, "bundles": ["b0013"]}
    (found,) = ok(client.post("/v1/explain", json=body))["explanations"]
    (share,) = [fact for fact in found["why"]["evidence"] if fact["code"] == "tag_share"]
    assert (share["count"], share["of"]) == (sum(share["tag"] in each for each in tags), 4)


def test_buyers_are_estimated_only_if_asked_for(client: httpx.Client) -> None:
    (without,) = asked(client, user_id="u0007", n=1).json()["bundles"]
    answer = asked(client, user_id="u0007", n=1, buyers=True).json()
    (found,) = answer["bundles"]
    assert without["expected_buyers"] is None
    assert found["expected_rank"] == without["expected_rank"] >= 1
    assert found["expected_buyers"] is not None or answer["note"]
