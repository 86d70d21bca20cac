"""`recommend` to files, for one user and for all, and filters on the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cli.run import BUNDLEMAGE, run, run_apart, run_json

FACTS = ["owned_items", "missing_items", "to_pay", "sold_out"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    run("train", "sample", "-o", folder, *BUNDLEMAGE)
    return folder


def rows(file: Path, user: str) -> list[dict[str, Any]]:
    return [row for row in pq.read_table(file).to_pylist() if row["user_id"] == user]


def rows_of(file: Path) -> list[dict[str, Any]]:
    """The rows of a file in any format, read without the package."""
    if file.suffix == ".parquet":
        return list(pq.read_table(file).to_pylist())
    with file.open(newline="", encoding="utf-8") as opened:
        if file.suffix == ".jsonl":
            return [json.loads(line) for line in opened]
        return [
            {**row, "user_id": row["user_id"] or None, "rank": int(row["rank"]), "score": float(row["score"])}
            for row in csv.DictReader(opened)
        ]


class TestEveryone:
    def test_the_file_says_what_recommend_says(self, model: Path, tmp_path: Path) -> None:
        file = tmp_path / "deep" / "answers.parquet"
        done = run_json("recommend-all", model, "-o", file, "-k", 3, "--max-price", 80)
        assert done["file"] == str(file)
        assert (done["users"], done["rows"]) == (800, len(pq.read_table(file)))
        assert done["users_per_second"] == pytest.approx(800 / done["seconds"], rel=0.2)
        for user in ("u0001", "u0007", "u0800"):
            asked = run_json("recommend", model, "--user", user, "-k", 3, "--max-price", 80)["bundles"]
            assert [row["bundle_id"] for row in rows(file, user)] == [answer["id"] for answer in asked]
            assert [row["score"] for row in rows(file, user)] == pytest.approx(
                [answer["score"] for answer in asked], rel=1e-5
            )

    def test_lists_are_steered_as_asked_or_as_the_model_has_it(self, model: Path, tmp_path: Path) -> None:
        def lists(name: str, *options: object, of: Path = model) -> list[str]:
            file = tmp_path / f"{name}.parquet"
            run("recommend-all", of, "-o", file, "-k", 6, *options)
            return [row["bundle_id"] for row in pq.read_table(file).to_pylist()]

        plain, varied = lists("plain"), lists("varied", "--diversity", 0.6)
        matched = lists("matched", "--match-popularity", 0.6)
        assert len({*map(tuple, (plain, varied, matched))}) == 3
        assert lists("off", "--diversity", 0, "--match-popularity", 0) == plain
        one = run_json("recommend", model, "--user", "u0001", "-k", 6, "--diversity", 0.6)["bundles"]
        assert [each["id"] for each in one] == varied[:6]
        folder = tmp_path / "saved"
        run("train", "sample", "-o", folder, *BUNDLEMAGE, "--shop", "diversity=0.6")
        assert lists("saved-lists", of=folder) == varied
        assert lists("saved-off", "--diversity", 0, of=folder) == plain
        refused = run("recommend", model, "--user", "u0001", "--diversity", 2, code=2).stderr
        assert "--diversity" in refused

    def test_a_folder_is_not_continued_with_another_weight(self, model: Path, tmp_path: Path) -> None:
        folder = tmp_path / "answers"
        run("recommend-all", model, "-o", folder, "-k", 2, "--diversity", 0.5)
        again = run("recommend-all", model, "-o", folder, "-k", 2, "--diversity", 0.4, "--resume", code=2)
        assert "diversity" in again.stderr

    def test_evaluate_says_what_steering_costs(self, model: Path) -> None:
        told = run("evaluate", model, "--steering").stdout
        assert "Lists of ten bundles by diversity" in told
        assert "Lists of ten bundles by match_popularity" in told
        points = run_json("evaluate", model, "--steering")["steering"]
        assert [point["diversity"] for point in points[:11]] == [step / 10 for step in range(11)]
        assert points[8]["metrics"]["cosine@10"] < points[0]["metrics"]["cosine@10"]
        assert points[18]["metrics"]["misplaced@10"] < points[0]["metrics"]["misplaced@10"]
        assert "steering" not in run_json("evaluate", model)

    @pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
    @pytest.mark.parametrize("command", [["recommend", "--all"], ["recommend-all"]], ids=" ".join)
    def test_the_ending_chooses_the_format(
        self, model: Path, command: list[str], form: str, tmp_path: Path
    ) -> None:
        file = tmp_path / f"answers.{form}"
        asked = [command[0], model, *command[1:], "-o", file, "-k", 2, "--max-price", 80]
        done = run_json(*asked)
        found = rows_of(file)
        assert (done["file"], done["rows"], done["users"]) == (str(file), len(found), 800)
        assert list(found[0]) == ["user_id", "rank", "bundle_id", "score", "source", *FACTS]
        known = run_json("recommend", model, "--user", "u0007", "-k", 2, "--max-price", 80)["bundles"]
        mine = [row for row in found if row["user_id"] == "u0007"]
        assert [(row["rank"], row["bundle_id"], row["source"]) for row in mine] == [
            (answer["rank"], answer["id"], answer["source"]) for answer in known
        ]
        assert [row["score"] for row in mine] == pytest.approx([each["score"] for each in known], rel=1e-5)
        assert "exists already" in run(*asked, code=2).stderr
        assert run_json(*asked, "--overwrite")["rows"] == len(found)
        assert [path.name for path in tmp_path.iterdir()] == [file.name]

    def test_people_get_a_sentence(self, model: Path, tmp_path: Path) -> None:
        said = run("recommend-all", model, "-o", tmp_path / "a.parquet", "-k", 2).stdout
        assert "1,600 answers for 800 users" in said
        assert "users a second" in said

    def test_in_a_process_of_its_own_only_json_is_on_stdout(self, model: Path, tmp_path: Path) -> None:
        printed = run_apart("recommend-all", model, "-o", tmp_path / "a.parquet", "--json")
        assert set(json.loads(printed)) == {"users", "rows", "seconds", "users_per_second", "file"}

    def test_nothing_left_is_said_in_words(self, model: Path, tmp_path: Path) -> None:
        said = run("recommend-all", model, "-o", tmp_path / "a.parquet", "--max-price", 0).stdout
        assert "0 answers for 800 users" in said
        assert "no bundle left to recommend that the filters allow" in said
        assert len(pq.read_table(tmp_path / "a.parquet")) == 0

    def test_a_file_is_replaced_only_on_request(self, model: Path, tmp_path: Path) -> None:
        file = tmp_path / "a.parquet"
        run("recommend-all", model, "-o", file, "-k", 1)
        refused = run("recommend-all", model, "-o", file, "-k", 2, code=2)
        assert "exists already: add --overwrite" in refused.stderr
        assert len(pq.read_table(file)) == 800
        run("recommend-all", model, "-o", file, "-k", 2, "--overwrite")
        assert len(pq.read_table(file)) == 1600

    def test_what_is_no_file_of_answers_is_never_replaced(self, model: Path, tmp_path: Path) -> None:
        for name in ("diary.parquet", "diary.csv", "diary.jsonl", "diary.txt"):
            diary = tmp_path / name
            diary.write_text("dear diary")
            refused = run("recommend-all", model, "-o", diary, "--overwrite", code=2)
            other = "holds something else than such answers"
            assert ("ends in .parquet, .csv or .jsonl" if name.endswith("txt") else other) in refused.stderr
            assert diary.read_text() == "dear diary"
        refused = run("recommend-all", model, "-o", tmp_path, code=2)
        assert "holds other files, such as diary." in refused.stderr

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["recommend", "--all"], "add --output FILE, e.g. --output answers.csv"),
            (["recommend", "--all", "-o", "answers"], "use 'bundlemage recommend-all DIR --output FOLDER'"),
            (["recommend", "--all", "-o", "x.xlsx"], "must end in .parquet, .csv or .jsonl"),
            (["recommend", "--all", "-o", "x.csv", "--new-bundle", "n=g0001"], "for one user at a time"),
            (["recommend", "--user", "u0001", "-o", "x.xlsx"], "must end in .parquet, .csv or .jsonl"),
            (["complete", "--user", "u0001", "-o", "x"], "x has no ending"),
            (["recommend-all", "-o", "x.xlsx"], "a file whose name ends in .parquet, .csv or .jsonl"),
            (["recommend-all"], "Missing option '--output'"),
            (["recommend-all", "--user", "u0001", "-o", "x.parquet"], "No such option: --user"),
            (["recommend-all", "-o", "x.parquet", "-k", "0"], "k is 0"),
            (["recommend-all", "-o", "x.parquet", "--among", "b9999"], "unknown bundle id 'b9999'"),
            (["recommend-all", "-o", "new/sub/x.csv", "--among", "b9999"], "unknown bundle id 'b9999'"),
            (["recommend", "--all", "-o", "new/sub/x.csv", "-k", "0"], "k is 0"),
            (["recommend", "--user", "u1", "-o", "new/x.csv", "--among", "b9999"], "unknown bundle id"),
        ],
    )
    def test_mistakes_are_told_and_nothing_is_written(
        self,
        model: Path,
        arguments: list[str],
        message: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        command, *options = arguments
        assert message in run(command, model, *options, code=2).stderr
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("asked", [["recommend", "--all"], ["complete", "--user", "u0001"]], ids=" ".join)
class TestWhereAFileCannotBe:
    def refused(self, model: Path, asked: list[str], file: object) -> str:
        command, *options = asked
        refused = run(command, model, *options, "-o", file, code=2).stderr
        assert len(refused.splitlines()) == 1
        return refused

    @pytest.mark.parametrize("below", ["x.csv", "sub/x.csv"])
    def test_below_a_file(self, model: Path, asked: list[str], below: str, tmp_path: Path) -> None:
        file = tmp_path / "afile"
        file.touch()
        said = self.refused(model, asked, file / below)
        assert f"{file / below} cannot be written: {file} is not a folder" in said
        assert list(tmp_path.iterdir()) == [file]

    @pytest.mark.parametrize("file", ["/proc/x.csv", "/proc/sub/x.csv"])
    @pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")
    def test_where_the_system_allows_no_file(self, model: Path, asked: list[str], file: str) -> None:
        said = self.refused(model, asked, file)
        assert f"{file} cannot be written: no " in said
        assert " in /proc" in said

    def test_missing_folders_are_made(self, model: Path, asked: list[str], tmp_path: Path) -> None:
        command, *options = asked
        run(command, model, *options, "-o", tmp_path / "new" / "sub" / "x.csv")
        assert rows_of(tmp_path / "new" / "sub" / "x.csv")


def test_odd_ids_come_back_from_a_file_as_they_are(tmp_path: Path) -> None:
    odd = [
        "Tea, green",
        'say "hi"',
        "two\nlines",
        "a/b c",
        "\u00fc\u5bff\u53f8\U0001f3ae",
        "=1+1",
        "007",
        "NA",
        "it's",
        "a;b|c",
    ]
    users = [f"{name}{number}" for name in odd for number in range(4)]
    bundles = [f"{number}{name}" for name in odd for number in range(2)]
    tables = {
        "user_item": (("user_id", "item_id"), [(user, f"i{n % 7}") for n, user in enumerate(users)]),
        "user_bundle": (
            ("user_id", "bundle_id"),
            [(user, bundles[n % len(bundles)]) for n, user in enumerate(users)],
        ),
        "bundle_item": (
            ("bundle_id", "item_id"),
            [(bundle, f"i{(n + m) % 7}") for n, bundle in enumerate(bundles) for m in range(2)],
        ),
    }
    (tmp_path / "shop").mkdir()
    for table, (names, pairs) in tables.items():
        with (tmp_path / "shop" / f"{table}.csv").open("w", newline="", encoding="utf-8") as opened:
            csv.writer(opened).writerows([names, *pairs])
    run("train", tmp_path / "shop", "-o", tmp_path / "model", "--model", "popularity", "--device", "cpu")
    file = tmp_path / "x.csv"
    run("recommend", tmp_path / "model", "--all", "-o", file, "-k", len(bundles))
    found = {(row["user_id"], row["bundle_id"]) for row in rows_of(file)}
    inside: dict[str, set[str]] = {bundle: set() for bundle in bundles}
    for bundle, item in tables["bundle_item"][1]:
        inside[bundle].add(item)
    owned = {user: {item} for user, item in tables["user_item"][1]}
    for user, bundle in tables["user_bundle"][1]:
        owned[user] |= inside[bundle]
    assert found == {(user, bundle) for user in users for bundle in bundles if inside[bundle] - owned[user]}
    assert len(rows_of(file)) == len(found)


class TestOneUser:
    @pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
    @pytest.mark.parametrize("command", ["recommend", "complete"])
    def test_the_file_says_what_the_command_says(
        self, model: Path, command: str, form: str, tmp_path: Path
    ) -> None:
        kind = "bundle" if command == "recommend" else "item"
        file = tmp_path / f"answers.{form}"
        said = run_json(command, model, "--user", "u0007", "-k", 3)[f"{kind}s"]
        told = run_json(command, model, "--user", "u0007", "-k", 3, "-o", file)
        assert told == {"user": "u0007", "rows": 3, "file": str(file)}
        found = rows_of(file)
        facts = FACTS if kind == "bundle" else ["owned", "sold_out"]
        assert list(found[0]) == ["user_id", "rank", f"{kind}_id", "score", "source", *facts]
        assert [(row["user_id"], row["rank"], row[f"{kind}_id"], row["source"]) for row in found] == [
            ("u0007", answer["rank"], answer["id"], answer["source"]) for answer in said
        ]
        assert [row["score"] for row in found] == pytest.approx([each["score"] for each in said], rel=1e-5)
        assert "exists already" in run(command, model, "--user", "u0007", "-o", file, code=2).stderr
        replaced = run(command, model, "--user", "u0008", "-k", 1, "-o", file, "--overwrite").stdout
        assert "1 answer for u0008" in replaced

    def test_a_visitor_has_no_id(self, model: Path, tmp_path: Path) -> None:
        for file in (tmp_path / "a.csv", tmp_path / "a.parquet"):
            run("recommend", model, "--history-items", "g0001", "-k", 2, "-o", file)
            assert [row["user_id"] for row in rows_of(file)] == [None, None]


def test_a_k_that_the_shop_cannot_give_is_noted(model: Path) -> None:
    for command, most, kind in (("recommend", 240, "bundles"), ("complete", 600, "items")):
        asked = [command, model, "--user", "u0007", "--json", "-k"]
        assert f"k is 5,000; the most is {most}, the number of {kind}" in run(*asked, 5000).stderr
        assert "the most is" not in run(*asked, most).stderr


class TestUnknownUser:
    """As in the service: best sellers, and a note."""

    def test_best_sellers_are_recommended_with_a_note(self, model: Path) -> None:
        done = run("recommend", model, "--user", "x", "-k", 3, "--json")
        assert "the user 'x' is not in the data: these are best sellers." in done.stderr
        answer = json.loads(done.stdout)
        nobody = run_json("recommend", model, "--history-items", "", "-k", 3)["bundles"]
        assert answer == {"user": "x", "bundles": nobody}
        assert {each["source"] for each in answer["bundles"]} == {"popular"}
        assert "x has no item" in run("recommend", model, "--user", "x").stdout

    def test_a_similar_id_is_suggested(self, model: Path) -> None:
        assert "Did you mean 'u0" in run("recommend", model, "--user", "u001").stderr

    def test_a_bundle_is_completed_for_a_user_without_a_history(self, model: Path) -> None:
        done = run("complete", model, "--user", "x", "--items", "g0022", "-k", 3, "--json")
        assert "the user 'x' is not in the data: these fit the bundle" in done.stderr
        nobody = run_json("complete", model, "--history-items", "", "--items", "g0022", "-k", 3)["items"]
        assert json.loads(done.stdout)["items"] == nobody
        done = run("complete", model, "--user", "x", "-k", 3, "--json")
        assert "these are best sellers" in done.stderr
        assert {each["source"] for each in json.loads(done.stdout)["items"]} == {"popular"}

    def test_it_is_said_too_if_no_answer_is_left(self, model: Path) -> None:
        for command in ("recommend", "complete"):
            done = run(command, model, "--user", "u001", "--max-price", 0)
            assert "the user 'u001' is not in the data: this is for a user without" in done.stderr
            assert "Did you mean 'u0" in done.stderr
            assert "left to recommend" in done.stdout

    def test_python_still_refuses(self, model: Path) -> None:
        from bundlemage import Recommender
        from bundlemage.errors import UnknownIdError

        with pytest.raises(UnknownIdError, match="unknown user id 'x'"):
            Recommender.load(model).recommend("x")

    def test_a_model_of_its_own_users_still_refuses(self, tmp_path: Path) -> None:
        run("train", "sample", "-o", tmp_path / "bpr", "--model", "bpr", "--epochs", "1", "--device", "cpu")
        refused = run("recommend", tmp_path / "bpr", "--user", "u001", code=2)
        assert "unknown user id 'u001'" in refused.stderr


class TestFilters:
    def test_recommend(self, model: Path) -> None:
        whole = run_json("recommend", model, "--user", "u0007", "-k", 500)["bundles"]
        first, second, third = (answer["id"] for answer in whole[:3])
        without = run_json("recommend", model, "--user", "u0007", "--exclude", f"{first},{third}")["bundles"]
        assert [answer["id"] for answer in without][:1] == [second]
        only = run_json("recommend", model, "--user", "u0007", "--among", third, "--among", second)["bundles"]
        assert [(answer["id"], answer["rank"]) for answer in only] == [(second, 1), (third, 2)]
        assert [answer["score"] for answer in only] == [whole[1]["score"], whole[2]["score"]]

    def test_complete(self, model: Path) -> None:
        question = ["complete", model, "--user", "u0007", "--items", "g0022", "-k", 1000]
        whole = run_json(*question)["items"]
        bounds = ["--min-price", 5, "--max-price", 10, "--in-stock", "--tag", "Horror", "--tag", "Puzzle"]
        some = run_json(*question, *bounds)["items"]
        assert 0 < len(some) < len(whole)
        from bundlemage import Recommender

        items = Recommender.load(model).dataset.catalogue.items.to_pylist()  # type: ignore[union-attr]
        fitting = {
            item["item_id"]
            for item in items
            if 5 <= item["price"] <= 10 and item["stock"] > 0 and {"Horror", "Puzzle"} & set(item["tags"])
        }
        assert [answer["id"] for answer in some] == [one["id"] for one in whole if one["id"] in fitting]

    def test_nothing_left_is_said_in_words(self, model: Path) -> None:
        said = run("recommend", model, "--user", "u0007", "--max-price", 0).stdout
        assert "There is no bundle left to recommend that the filters allow." in said
        said = run("complete", model, "--user", "u0007", "--max-price", 0).stdout
        assert "There is no item left to recommend that the filters allow." in said

    def test_an_impossible_range_is_refused(self, model: Path) -> None:
        refused = run("recommend", model, "--user", "u0007", "--min-price", 9, "--max-price", 3, code=2)
        assert "'min_price' 9 is above its 'max_price' 3" in refused.stderr


class TestOwned:
    def test_no_answer_is_wholly_owned(self, model: Path, tmp_path: Path) -> None:
        """All 800 users: of the default, nothing is wholly owned. With `show` some is."""
        file = tmp_path / "answers.parquet"
        run("recommend-all", model, "-o", file, "-k", 20)
        assert all(row["missing_items"] for row in rows_of(file))
        run("recommend-all", model, "-o", file, "-k", 20, "--owned", "show", "--overwrite")
        assert not all(row["missing_items"] for row in rows_of(file))

    def test_one_answer_says_what_is_owned(self, model: Path, tmp_path: Path) -> None:
        file = tmp_path / "answers.parquet"
        run("recommend-all", model, "-o", file, "-k", 3)
        for user in ("u0001", "u0007"):
            asked = run_json("recommend", model, "--user", user, "-k", 3)["bundles"]
            assert [
                (row["owned_items"], row["missing_items"], row["to_pay"]) for row in rows(file, user)
            ] == [(len(each["owned"]), len(each["missing"]), each["to_pay"]) for each in asked]
            said = run("recommend", model, "--user", user, "-k", 3).stdout
            for each in asked:
                if each["owned"]:
                    of = len(each["owned"] + each["missing"])
                    assert f"owns {len(each['owned'])} of {of} items" in said
            box = ("--new-bundle", "box=g0022,g0401", "--sells-like", "box=b0166", "-k", 240)
            new = {each["id"]: each for each in run_json("recommend", model, "--user", user, *box)["bundles"]}
            said = run("recommend", model, "--user", user, *box).stdout
            assert new["box"]["price"] > 0
            assert f"{new['box']['price']:.2f}" in said.split(". box ─", 1)[1].split("· box", 1)[0]

    def test_sold_out_bundles_come_last_or_not_at_all(self, model: Path, tmp_path: Path) -> None:
        found = {}
        for rule in ("show", "last", "hide"):
            asked = ("recommend", model, "--user", "u0007", "-k", 500, "--stock", rule)
            found[rule] = [bool(each["sold_out"]) for each in run_json(*asked)["bundles"]]
        assert any(found["show"])
        assert found["last"] == sorted(found["show"])
        assert found["hide"] == [False] * found["show"].count(False)

    def test_an_unknown_rule_is_refused(self, model: Path) -> None:
        refused = run("recommend", model, "--user", "u0007", "--owned", "yes", code=2)
        assert "'yes' is not one of" in refused.stderr
