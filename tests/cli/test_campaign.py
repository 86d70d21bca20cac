"""`bundlemage campaign` on the command line, and killed in the middle of its work."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from benchmarks.campaign import faults, rows_of
from bundlemage import Recommender
from bundlemage.cli.campaign import _sentences
from bundlemage.wire.shop import ShopSettings
from tests.cli.run import BUNDLEMAGE, run, run_apart, run_json, stopped


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    run("train", "sample", "-o", folder, *BUNDLEMAGE)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


LIMITS = ["--stock", "--shown-at-most", 12, "--budget", 9000, "--value", "takings", "--part-users", 100]


def test_killed_and_resumed_the_files_are_the_same(model: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = run_json("campaign", model, "-o", whole, *LIMITS)
    stopped("part-*.parquet", 2, "campaign", model, "-o", killed, *LIMITS)
    assert not (killed / "campaign.json").exists()
    assert len(list((killed / "parts").glob("part-*"))) == 2
    resumed = json.loads(run_apart("campaign", model, "-o", killed, *LIMITS, "--resume", "--json"))
    assert {**resumed, "seconds": 0, "folder": ""} == {**done, "seconds": 0, "folder": ""}
    assert contents(killed) == contents(whole)
    table = ds.dataset(killed / "parts", format="parquet").to_table()
    data = Recommender.load(model).dataset
    limits = {"stock": True, "shown_at_most": 12, "budget": 9000.0, "value": "takings"}
    assert len(table) == done["shown"] > 0
    assert faults(rows_of(killed), data, data.users.ids, **limits) == []  # type: ignore[arg-type]


def test_people_get_sentences(model: Path, tmp_path: Path) -> None:
    said = run(
        "campaign", model, "-o", tmp_path / "c", "--different-at-most", 3, "--budget", 500, "--max-price", 80
    ).stdout
    assert "800 users are shown" in said
    assert "users get none" in said
    assert re.search(r"No plan within the limits can bring more than [\d.]+; without limits it", said)
    assert re.search(r"different at most: [123] of 3", said)
    assert " of 500.00" in said


@pytest.mark.parametrize(
    ("limit", "before", "after", "change", "line"),
    [
        ("stock", 10, 12, 11.926, "2 more of {} in stock: about 11.93 more"),
        ("shown_at_most", 40, 42, 4.17, "if each bundle could be shown to 2 more users: about 4.17 more"),
        ("shown_at_most", 4, 5, 0.00312, "if each bundle could be shown to 1 more user: about 0.0031 more"),
        ("different_at_most", 4, 5, 1.0, "if 1 more bundle could be shown: about 1.00 more"),
        ("per_user", 10, 12, 1.0, "if each user could be shown 2 more bundles: about 1.00 more"),
        ("budget", 100, 110, 1.0, "if the budget were 10.00 higher: about 1.00 more"),
        ("budget", 100, 110, 0.0, None),
    ],
)
def test_what_more_of_a_limit_would_bring(
    model: Path, tmp_path: Path, limit: str, before: float, after: float, change: float, line: str | None
) -> None:
    recommender = Recommender.load(model)
    data, summary = recommender.dataset, recommender.campaign(tmp_path / "c", shown_at_most=1)
    item = data.items[0] if limit == "stock" else None
    each = {"limit": limit, "item_id": item, "before": before, "after": after, "change": change}
    each |= {"low": change, "high": change, "basis": "new plan", "users": summary.users}
    said = _sentences(replace(summary, worth_more=[each]), recommender)
    expected = line and line.format(f"{data.item_title(0)} ({item})")
    assert [text for text in said if text.endswith(" more")] == [expected] * bool(expected)


def test_what_more_and_what_if(model: Path, tmp_path: Path) -> None:
    command = ["campaign", model, "-o", tmp_path / "c", "--budget", 500, "--value", "takings"]
    said = run(*command, "--what-if", "budget=+100").stdout
    assert re.search(r"^if the budget were 50.00 higher: about [\d.]+ more$", said, re.M)
    assert re.search(r"what if budget were 600.00 instead of 500.00: expected takings \+[\d.]+ \(", said)
    before = contents(tmp_path / "c")
    done = run_json(*command, "--what-if", "per_user=2", "--what-if", "different_at_most=5")
    assert [(each["limit"], each["before"], each["after"]) for each in done["what_if"]] == [
        ("per_user", 1, 2),
        ("different_at_most", None, 5),
    ]
    assert done["what_if"][0]["change"] >= 0 >= done["what_if"][1]["change"]
    assert contents(tmp_path / "c") == before


def test_new_bundles_with_the_items_of_others_are_named(model: Path, tmp_path: Path) -> None:
    loaded = Recommender.load(model)
    sold_out = loaded.shop.bundle_shelf.sold_out
    place = int((~sold_out).argmax())
    items = [loaded.dataset.items[n] for n in loaded.dataset.bundle_item[place].indices]
    (tmp_path / "new.csv").write_text("bundle_id,item_id\n" + "".join(f"box,{item}\n" for item in items))
    command = ["campaign", model, "-o", tmp_path / "c", "--new-bundles", tmp_path / "new.csv"]
    said = run(*command, "--shown-at-most", 5, "--what-if", "shown_at_most=1234567").stdout
    assert (
        f"left out because others have the same items: box (as {loaded.dataset.bundles[place]})"
        in " ".join(said.split())
    )
    assert "what if shown at most were 1,234,567 instead of 5" in said


def test_money_is_that_of_the_shop(model: Path, tmp_path: Path) -> None:
    """Budgets and takings, in the sentences about limits, too. Numbers of showings and sales are no money."""
    euros = Recommender.load(model)
    euros.shop_settings = ShopSettings(currency="EUR", locale="de")
    euros.save(tmp_path / "m")
    command = ["campaign", tmp_path / "m", "-o", tmp_path / "c", "--budget", 500, "--what-if", "budget=1400"]
    said = run(*command, "--value", "takings", "--shown-at-most", 1, "--what-if", "shown_at_most=2").stdout
    assert re.search(r"^if the budget were 50,00\s€ higher: about [\d.]+,\d\d\s€ more$", said, re.M)
    assert re.search(r"budget were 1.400,00\s€ instead of 500,00\s€: expected takings \+[\d.]+,\d\d\s€", said)
    assert "shown at most were 2 instead of 1" in said
    said = run(*command[:3], tmp_path / "d", *command[4:]).stdout
    assert re.search(r"^if the budget were 50,00\s€ higher: about [\d.]+ more$", said, re.M)


def test_users_of_a_file_as_json_lines(model: Path, tmp_path: Path) -> None:
    listed = tmp_path / "users.txt"
    listed.write_text("u0007\n\nu0003\n")
    done = run_json("campaign", model, "-o", tmp_path / "c", "--users", listed, "--format", "jsonl")
    assert (done["users"], done["folder"]) == (2, str(tmp_path / "c"))
    lines = (tmp_path / "c" / "parts" / "part-00000.jsonl").read_text().splitlines()
    assert [json.loads(line)["user_id"] for line in lines] == ["u0007", "u0003"]
    first = run_json("recommend", model, "--user", "u0007", "-k", 1)["bundles"][0]
    assert json.loads(lines[0])["bundle_id"] == first["id"]


def test_an_unknown_user_is_told_with_the_line(model: Path, tmp_path: Path) -> None:
    listed = tmp_path / "users.txt"
    listed.write_text("u0007\n\nnobody\n")
    told = f"{listed}, line 3: unknown user id 'nobody'"
    assert told in run("campaign", model, "-o", tmp_path / "c", "--users", listed, code=2).stderr
    for more in ([], ["--each"]):
        assert told in run("design", model, "--users", listed, "-n", 1, *more, code=2).stderr


def test_csv_killed_and_resumed(model: Path, tmp_path: Path) -> None:
    whole, killed, limits = tmp_path / "whole", tmp_path / "killed", [*LIMITS, "--format", "csv"]
    done = run_json("campaign", model, "-o", whole, *limits)
    stopped("part-*.csv", 2, "campaign", model, "-o", killed, *limits)
    run("campaign", model, "-o", killed, *limits, "--resume")
    assert contents(killed) == contents(whole)
    with (killed / "parts" / "part-00000.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    facts = ["price", "to_pay", "owned_items", "missing_items", "sold_out"]
    assert list(rows[0]) == ["user_id", "rank", "bundle_id", "chance", "value", *facts]
    assert 0 < len(rows) < done["shown"]
    assert 0 < float(rows[0]["chance"]) < 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--per-user", "0"], "'per_user' is 0"),
        (["--format", "xml"], "it should be 'parquet', 'csv' or 'jsonl'"),
        (["--users", "nowhere.txt"], "there is no file nowhere.txt"),
        (["--among", "b9999"], "unknown bundle id 'b9999'"),
        (["--what-if", "bugdet=3"], "'bugdet' is no limit of a campaign"),
        (["--what-if", "budget"], "--what-if 'budget': write it as NAME=VALUE"),
        (["--what-if", "per_user=some"], "what if per_user were 'some'? Give a number"),
        (["-o", "plan.csv"], "the name of a file: use -o plan --format csv"),
        (["-o", "plan.parquet", "--format", "csv"], "use -o plan --format parquet"),
    ],
)
def test_mistakes_are_told_and_nothing_is_written(
    model: Path, arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in run("campaign", model, "-o", "c", *arguments, code=2).stderr
    assert list(tmp_path.iterdir()) == []


def test_an_existing_campaign_is_refused(model: Path, tmp_path: Path) -> None:
    run("campaign", model, "-o", tmp_path / "c")
    assert "add --resume" in run("campaign", model, "-o", tmp_path / "c", code=2).stderr
    other = run("campaign", model, "-o", tmp_path / "c", "--resume", "--stock", code=2).stderr
    assert "stock was False and is True. Continue with the same settings and data" in other
