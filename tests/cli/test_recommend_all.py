"""`recommend-all`, and filters on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cli.run import TINY, run, run_apart, run_json


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    run("train", "sample", "-o", folder, *TINY)
    return folder


def rows(file: Path, user: str) -> list[dict[str, Any]]:
    return [row for row in pq.read_table(file).to_pylist() if row["user_id"] == user]


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

    def test_what_is_no_parquet_file_is_never_replaced(self, model: Path, tmp_path: Path) -> None:
        diary = tmp_path / "diary.txt"
        diary.write_text("dear diary")
        refused = run("recommend-all", model, "-o", diary, "--overwrite", code=2)
        assert "is not a Parquet file" in refused.stderr
        assert diary.read_text() == "dear diary"
        refused = run("recommend-all", model, "-o", tmp_path, code=2)
        assert "holds other files, such as diary.txt" in refused.stderr

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["recommend", "--all"], "use 'bundlemage recommend-all DIR --output PATH'"),
            (["recommend", "--all", "-o", "x.parquet"], "use 'bundlemage recommend-all DIR --output PATH'"),
            (["recommend", "--user", "u0001", "-o", "x.parquet"], "No such option: -o"),
            (["recommend-all"], "Missing option '--output'"),
            (["recommend-all", "--user", "u0001", "-o", "x.parquet"], "No such option: --user"),
            (["recommend-all", "-o", "x.parquet", "-k", "0"], "k is 0"),
            (["recommend-all", "-o", "x.parquet", "--among", "b9999"], "unknown bundle id 'b9999'"),
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
        said = run("complete", model, "--user", "u0007", "--tag", "no such tag").stdout
        assert "There is no item left to recommend that the filters allow." in said

    def test_an_impossible_range_is_refused(self, model: Path) -> None:
        refused = run("recommend", model, "--user", "u0007", "--min-price", 9, "--max-price", 3, code=2)
        assert "'min_price' 9 is above its 'max_price' 3" in refused.stderr
