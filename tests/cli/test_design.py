"""`bundlemage design` and `bundlemage explain`, as one types them."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from bundlemage import History, Segment
from bundlemage.cli.design import _card as card
from bundlemage.cli.design import _would_buy as would_buy
from bundlemage.data.dataset import row_of
from bundlemage.designer import conflict
from bundlemage.recommender import Recommender
from bundlemage.wire.design_answers import Evidence, Explanation
from bundlemage.wire.shop import ShopSettings
from tests.cli.run import run, run_json
from tests.designing import numbers
from tests.small_shop import QUICK, small_shop


@pytest.fixture(scope="module")
def model() -> Recommender:
    return Recommender(**QUICK).fit(small_shop())


@pytest.fixture(scope="module")
def folder(model: Recommender, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.save(tmp_path_factory.mktemp("designs") / "model")


@pytest.fixture(scope="module")
def user(model: Recommender) -> str:
    return model.dataset.users[3]


@pytest.fixture(scope="module")
def tag(model: Recommender) -> str:
    """The one that most items have."""
    assert model.dataset.catalogue is not None
    tags: list[str] = [tag for row in model.dataset.catalogue.items["tags"].to_pylist() for tag in row or ()]
    return max(sorted(set(tags)), key=tags.count)


def flat(text: str) -> str:
    """Without the frames and line ends of cards."""
    return " ".join(re.sub("[│╭╮╰╯─┃]", " ", text).split())


def test_designs_are_those_of_the_recommender(model: Recommender, folder: Path, user: str, tag: str) -> None:
    start, must, forbid = model.dataset.items[0], model.dataset.items[1], model.dataset.items[2]
    arguments = ["design", folder, "--user", user, "--device", "cpu", "--start", start, "--must", must]
    arguments += ["--forbid", forbid, "--size", "3-4", "--budget", "5-150", "--at-least", f"{tag}=1"]
    arguments += ["--at-most", f"{tag}=3", "--any-stock", "--include-owned", "--discount", 0.2, "-n", 2]
    arguments += ["--diversity", 0.5, "--margin", 0.1, "--apart", 0.6, "--method", "greedy", "--seed", 3]
    told = run_json(*arguments)
    expected = model.design(
        user,
        start=[start],
        must=[must],
        forbid=[forbid],
        size=(3, 4),
        budget=(5, 150),
        tags={"at least": {tag: 1}, "at most": {tag: 3}},
        in_stock=False,
        not_owned=False,
        discount=0.2,
        n=2,
        diversity=0.5,
        margin=0.1,
        apart=0.6,
        method="greedy",
        seed=3,
    )
    assert (told["user"], told["method"], told["complete"]) == (user, "greedy", True)
    assert [[item["id"] for item in each["items"]] for each in told["bundles"]] == [
        each.ids for each in expected
    ]
    first, designed = told["bundles"][0], expected[0]
    assert (first["price"], first["value"]) == (designed.price, pytest.approx(designed.value))
    why = designed.items[-1].why
    assert why is not None
    assert first["items"][-1]["why"]["words"] == why.words
    assert first["items"][0]["why"] is None
    assert (first["to_pay"], first["items"][0]["owned"]) == (designed.to_pay, designed.items[0].owned)

    cards = flat(run(*arguments).stdout)
    assert f"1. {len(designed.items)} items" in cards
    assert f"{designed.price:,.2f} −20% {designed.list_price:,.2f}" in cards
    assert cards.count("in the bundle already") == len(expected)
    for item in designed.items:
        assert item.id in cards
        assert f"{item.price:,.2f}" in cards
        if item.why is not None:
            assert flat(item.why.words) in cards


def test_for_someone_new_with_as_little_as_can_be_said(model: Recommender, folder: Path) -> None:
    item = model.dataset.items[5]
    told = run_json("design", folder, "--history-items", item, "-n", 1)
    assert told["user"] is None
    (bundle,) = told["bundles"]
    assert 3 <= len(bundle["items"]) <= 5
    assert item not in {each["id"] for each in bundle["items"]}


def test_a_user_who_is_not_in_the_data_is_someone_new(model: Recommender, folder: Path) -> None:
    bundle = model.dataset.bundles[0]
    for command in (["design", "-n", 1], ["explain", "--bundle", bundle]):
        asked = [command[0], folder, "--device", "cpu", *command[1:], "--json"]
        done = run(*asked, "--user", "nobody")
        assert "the user 'nobody' is not in the data: this is for a user without a history" in done.stderr
        new = run(*asked, "--history-items", "")
        assert new.stderr == ""
        answer, expected = json.loads(done.stdout), json.loads(new.stdout)
        assert answer | {"seconds": 0} == expected | {"user": "nobody", "seconds": 0}
    shown = run("explain", folder, "--user", "nobody", "--bundle", bundle, "--device", "cpu", "--details")
    assert "weight of the item history" not in shown.stdout
    run("design", folder, "--user", "nobody", "-n", 1, "--device", "cpu")


@pytest.mark.parametrize(
    ("text", "kept"),
    [("40", (None, 40)), ("20-60", (20, 60)), ("20-", (20, None)), ("20.5-60.25", (20.5, 60.25))],
)
def test_a_budget_is_written_in_several_ways(
    folder: Path, user: str, text: str, kept: tuple[float | None, float | None]
) -> None:
    for bundle in run_json("design", folder, "--user", user, "--budget", text, "--size", 3)["bundles"]:
        assert len(bundle["items"]) == 3
        assert (kept[0] or 0) <= bundle["price"] <= (kept[1] or 1e9)


def test_an_impossible_design_ends_with_2_and_says_why_and_what_would_help(
    model: Recommender, folder: Path, user: str, tag: str
) -> None:
    refused = run(
        "design",
        folder,
        "--user",
        user,
        "--size",
        3,
        "--at-least",
        f"{tag}=3",
        "--at-most",
        f"{tag}=1",
        code=2,
    )
    lines = refused.stderr.splitlines()
    assert all(line.startswith("error: ") for line in lines)
    assert f"error:   at least 3 items with the tag {tag!r}" in lines
    assert f"error:   at most 1 item with the tag {tag!r}" in lines
    assert f"error:   with at most 3 items with the tag {tag!r} instead of 1" in lines
    assert refused.stdout == ""


def test_a_conflict_that_may_not_be_the_smallest_says_so(
    model: Recommender, folder: Path, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflict, "MORE_SECONDS", 0)
    must = ",".join(model.dataset.items.ids[:4])
    given = ("--user", user, "--must", must, "--size", 2, "--include-owned", "--any-stock")
    lines = run("design", folder, *given, code=2).stderr.splitlines()
    assert lines[0].endswith("These conditions exclude each other (there may be a smaller set):")
    assert "error:   with at most 4 items instead of 2" in lines


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--size", "some"], "--size 'some': write a number, such as 4, or a range, such as 3-5"),
        (["--size", "5-3"], "--size 5-3: the smaller number must come first, as in 3-5"),
        (
            ["--budget", "cheap"],
            "--budget 'cheap': write a number, such as 40, or a range, such as 20-40 or 20-",
        ),
        (["--at-least", "Horror"], "--at-least 'Horror': write it as NAME=VALUE"),
        (["--at-most", "Horror=few"], "--at-most 'Horror=few': write a number from 0 up after the '='"),
        (["--budget", "-4"], "--budget '-4': write a number, such as 40, or a range, such as 20-40 or 20-"),
        (["--budget", "4O"], "--budget '4O': write a number, such as 40"),
        (["--size", "-4"], "--size '-4': write a number, such as 4, or a range, such as 3-5"),
        (["--size", "900"], "'size' is 900; it must be at most 100"),
        (["--discount", "1"], "'discount' is 1; it must be at most 0.99"),
        (["--discount", "20"], "'discount' is 20; it must be at most 0.99; for 20% write 0.2"),
        (["--discount", "20%"], "'20%' is not a number; write 0.2 for 20%"),
        (["--at-least", "Horror=-1"], "--at-least 'Horror=-1': write a number from 0 up"),
        (["-n", "many"], "'many' is not a whole number"),
        (["-n", "0"], "'n' is 0"),
        (["--method", "magic"], "'method' is 'magic'"),
        (["--start", "nothing"], "unknown item id 'nothing'"),
        (["--one-per", "nothing*"], "no tag of an item begins with 'nothing'"),
        (["--history-items", "x"], "give --user or a history"),
    ],
    ids=str,
)
def test_a_wrong_wish_is_told(folder: Path, user: str, arguments: list[str], words: str) -> None:
    refused = run("design", folder, "--user", user, *arguments, code=2)
    assert words in flat(refused.stderr)
    assert "Traceback" not in refused.output


def test_bundles_for_a_segment(model: Recommender, folder: Path, tag: str) -> None:
    asked = ("design", folder, "--tag", tag, "--least-bundles", 3, "--size", 3, "-n", 1, "--device", "cpu")
    users = model.users_in(Segment(tag=tag, least_bundles=3))
    told = run_json(*asked)
    assert told["users"] == len(users)
    expected = model.design_many(users, size=3, n=1)
    assert [item["id"] for item in told["bundles"][0]["items"]] == expected[0].ids
    assert f"bundles for {len(users):,} users together" in run(*asked).stdout


def test_designs_become_candidates_of_a_campaign(model: Recommender, folder: Path, tmp_path: Path) -> None:
    listed, designs, plan = tmp_path / "users.txt", tmp_path / "designs.csv", tmp_path / "plan"
    listed.write_text("\n".join(model.dataset.users.ids[:4]))
    run("design", folder, "--users", listed, "--each", "--size", 3, "--discount", 0.2, "-o", designs)
    found = model.design_each(model.dataset.users.ids[:4], size=3, discount=0.2)
    with designs.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["item_id"] for row in rows] == [item for design, _ in found for item in design.ids]
    names = list(dict.fromkeys(row["bundle_id"] for row in rows))
    bundles = len(model.dataset.bundles) + len(names)
    run("campaign", folder, "-o", plan, "--new-bundles", designs, "--per-user", bundles, "--format", "csv")
    with (plan / "parts" / "part-00000.csv").open(newline="") as file:
        shown = {row["bundle_id"]: float(row["price"]) for row in csv.DictReader(file)}
    prices = {name: design.price for name, (design, _) in zip(names, found, strict=True)}
    assert {name: shown[name] for name in names} == pytest.approx(prices)


def test_designs_for_a_segment_are_written_too(model: Recommender, folder: Path, tmp_path: Path) -> None:
    designs = tmp_path / "designs.csv"
    asked = ("design", folder, "--least-bundles", 3, "--size", 3, "-n", 2, "-o", designs)
    assert "written to" in run(*asked).stdout.replace("\n", " ")
    found = model.design_many(Segment(least_bundles=3), size=3, n=2)
    with designs.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["item_id"] for row in rows] == [item for design in found for item in design.ids]
    assert len({row["bundle_id"] for row in rows}) == 2
    run("campaign", folder, "-o", tmp_path / "plan", "--new-bundles", designs)


def test_a_card_says_which_price_is_missing(model: Recommender, user: str) -> None:
    design = model.design(user, n=1)[0]
    first = design.items[0].model_copy(update={"price": None})
    unpriced = design.model_copy(update={"price": None, "items": (first, *design.items[1:])})
    assert f"not known, because {first.title} [dim]{first.id}" in str(
        card(unpriced, ShopSettings(), "users").renderable
    )
    none = [item.model_copy(update={"price": None}) for item in design.items]
    shop_without_prices = design.model_copy(update={"price": None, "items": tuple(none)})
    assert "not known" not in str(card(shop_without_prices, ShopSettings(), "users").renderable)


def test_a_card_leaves_out_a_reason_without_words(model: Recommender, user: str) -> None:
    design = model.design(user, n=1)[0]
    lines = str(card(design, ShopSettings(), "users").renderable).count("\n")
    silent = Explanation(words="", evidence=(Evidence(code="nothing"),))
    first = design.items[0].model_copy(update={"why": silent})
    quiet = design.model_copy(update={"items": (first, *design.items[1:])})
    assert str(card(quiet, ShopSettings(), "users").renderable).count("\n") == lines - 1


@pytest.mark.parametrize(
    ("expected", "high", "users", "told"),
    [
        (0.051, 0, "these 3 users", "probably none of these 3 users would buy it (expected: 0.051)"),
        (0.051, 0, "1 user", "the user would probably not buy it (expected: 0.051)"),
        (0.7, 2, "these 3 users", "about [bold]0.7[/] of these 3 users would buy it (0 to 2)"),
        (16.42, 2000, "3,000 users", "about [bold]16.4[/] of 3,000 users would buy it (0 to 2,000)"),
    ],
)
def test_how_many_would_buy(expected: float, high: int, users: str, told: str) -> None:
    assert would_buy(expected, 0, high, users) == told


def test_the_user_is_described_as_the_reasons_count(model: Recommender, folder: Path, user: str) -> None:
    """Items in bundles count, too. The reasons count the same ones."""
    data = model.dataset
    place = data.users.position(user)
    inside = [set(row_of(data.bundle_item, bundle)) for bundle in row_of(data.user_bundle, place)]
    every = set(row_of(data.user_item, place)).union(*inside)
    shown = flat(run("recommend", folder, "--user", user, "-k", 1).stdout)
    assert f"; together that is {len(every)} items" in shown


def test_a_card_says_what_the_percent_is(model: Recommender, folder: Path, user: str) -> None:
    best = model.recommend(user, 1)[0]
    shown = flat(run("recommend", folder, "--user", user, "-k", 1).stdout)
    assert f"{best.score:.1%} chance among all bundles · {best.id}" in shown
    best = model.recommend(History(), 1)[0]
    shown = flat(run("recommend", folder, "--history-items", "", "-k", 1).stdout)
    assert f"best seller, {best.score:.1%} of sales · {best.id}" in shown


def test_a_card_says_what_is_owned_and_sold_out_and_what_the_user_pays(model: Recommender, user: str) -> None:
    owned = sorted(model.shop.items_of(user))[:1]
    design = model.design(user, n=1, start=owned, discount=0.2)[0]
    assert design.items[0].owned
    first = design.items[0].model_copy(update={"sold_out": True})
    told = design.model_copy(update={"items": (first, *design.items[1:]), "to_pay": 7.0})
    text = str(card(told, ShopSettings(currency="EUR"), "800 users").renderable)
    assert text.count("owned[/]") == text.count("sold out[/]") == 1
    assert "the user pays €7.00" in text
    assert "the user pays" not in str(card(design, ShopSettings(), "800 users").renderable)


def test_bundles_of_the_shop_are_not_written_as_new_ones(
    model: Recommender, folder: Path, user: str, tmp_path: Path
) -> None:
    listed, designs = tmp_path / "users.txt", tmp_path / "designs.csv"
    listed.write_text(user)
    items = [model.dataset.items[place] for place in row_of(model.dataset.bundle_item, 0)]
    asked = ["design", folder, "--users", listed, "--each", "--must", ",".join(items), "--size", len(items)]
    asked += ["--include-owned", "--any-stock"]
    said = flat(run(*asked, "-o", designs).stdout)
    assert f"as in {model.dataset.bundles[0]}" in said
    assert "1 bundle for 1 user " in said
    assert "without 1 that the shop already has" in said
    assert designs.read_text().splitlines() == ["bundle_id,item_id,price"]
    assert run_json(*asked)["bundles"][0]["same_as"] == model.dataset.bundles[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bundle,item\nx,g0001\n", "the header is 'bundle, item'; expected bundle_id,item_id"),
        ("bundle_id,item_id\n", "has no bundles"),
        ("bundle_id,item_id\nx,\n", "line 2: a row needs a bundle_id and an item_id"),
        ("bundle_id,item_id,price\nx,g0001,cheap\n", "line 2: the price is 'cheap'; expected a number"),
        ("bundle_id,item_id,price\nx,g0001,3\nx,g0002,4\n", "line 3: the bundle 'x' has another price"),
        ("bundle_id,item_id\nx,g9999\n", "unknown item id 'g9999'"),
        ("bundle_id,item_id\nb0001,g0001\n", "'b0001' has the id of a bundle that the shop already has"),
        (b"bundle_id,item_id\n\xff,g0001\n", "cannot be read"),
        (None, "cannot be read"),
    ],
    ids=str,
)
def test_a_wrong_file_of_new_bundles_is_told(
    folder: Path, text: str | bytes | None, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "new.csv"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert message in run("campaign", folder, "-o", tmp_path / "c", "--new-bundles", file, code=2).stderr
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--everyone", "--user", "u0001"], "give only one of these: --user, --users or --tag"),
        (["--everyone", "--tag", "Horror"], "give only one of these: --user, --users or --tag"),
        (["--user", "u0001", "--each"], "--each needs several users: give --users FILE, --tag TAG or"),
        (["--user", "u0001", "-o", "designs.csv"], "--output needs several users"),
        (["--users", "nowhere.txt"], "there is no file nowhere.txt"),
        (["--least-bundles", "1000"], "no user is in this segment"),
    ],
)
def test_wrong_users_are_told(folder: Path, arguments: list[str], words: str) -> None:
    assert words in flat(run("design", folder, *arguments, code=2).stderr)


def test_reasons_are_those_of_the_recommender(model: Recommender, folder: Path, user: str) -> None:
    bundle = model.recommend(user, 1)[0].id
    explained = model.explain(user, bundle=bundle)
    expected = numbers(explained)
    told: dict[str, Any] = run_json("explain", folder, "--user", user, "--bundle", bundle, "--details")
    assert (told["user"], told["bundle"]) == (user, bundle)
    assert told["details"]["fit"] == pytest.approx(expected.fit, abs=1e-5)
    assert told["words"] == explained.words
    assert {(each["kind"], each["id"]) for each in told["details"]["reasons"]} == {
        (each.kind, each.id) for each in expected.reasons
    }
    table = flat(run("explain", folder, "--user", user, "--bundle", bundle, "--details", "--most", 2).stdout)
    assert expected.gate is not None
    assert f"weight of the item history {expected.gate:.0%}, of the bundle history" in table
    assert expected.reasons[0].id in table
    assert "what it is" in table
    assert "score without it" in table
    assert "a score of 0 is an average bundle" in table
    assert f"and {len(expected.reasons) - 2} more" in table

    item, inside = model.dataset.items[4], list(model.dataset.items)[:2]
    told = run_json(
        "explain", folder, "--user", user, "--item", item, "--items", ",".join(inside), "--details"
    )
    assert told["items"] == inside
    partial = {each["id"] for each in told["details"]["reasons"] if each["kind"] == "partial"}
    assert partial == set(inside)


def test_a_reason_is_one_line_in_the_language_and_for_the_reader(
    model: Recommender, folder: Path, user: str
) -> None:
    bundle = model.recommend(user, 1)[0].id
    expected = model.explain(user, bundle=bundle, language="de", to="shop")
    asked = ["explain", folder, "--user", user, "--bundle", bundle, "--language", "de", "--to", "shop"]
    assert run(*asked).stdout.splitlines()[1:] == [expected.words]
    told = run_json(*asked)
    assert told["details"] is None
    assert [fact["code"] for fact in told["evidence"]] == [fact.code for fact in expected.evidence]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to explain: give either"),
        (["--bundle", "b", "--item", "i"], "nothing to explain: give either"),
        (["--bundle", "b", "--items", "i"], "give --item as well"),
        (["--bundle", "b"], "unknown bundle id 'b'"),
        (["--item", "i"], "unknown item id 'i'"),
        (["--bundle", "b", "--language", "xx"], "the languages are: de, en"),
        (["--bundle", "b", "--to", "nobody"], "'nobody' is not one of"),
    ],
    ids=str,
)
def test_a_wrong_question_for_reasons_is_told(
    folder: Path, user: str, arguments: list[str], words: str
) -> None:
    assert words in flat(run("explain", folder, "--user", user, *arguments, code=2).stderr)
