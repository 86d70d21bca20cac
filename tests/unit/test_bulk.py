"""Answers for everyone at once: as one at a time, in bounded memory, and a file only when it is whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bundlemage import History, Recommendation, Recommender, SplitPlan
from bundlemage.core.answering import slices
from bundlemage.core.filters import Filter
from bundlemage.core.ranking import SCHEMA
from bundlemage.data.dataset import BundleDataset
from bundlemage.data.row_files import read_rows, write_rows
from bundlemage.errors import ConfigError, UnknownIdError, UnsupportedError
from bundlemage.models.base import Histories
from bundlemage.models.ragged import Ragged
from tests.small_shop import QUICK, dataset_of, datasets, small_shop
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def shop() -> BundleDataset:
    return small_shop()


@pytest.fixture(scope="module", params=["bundlemage", "popularity", "bpr"])
def model(request: pytest.FixtureRequest, shop: BundleDataset) -> Recommender:
    """A model that encodes histories, one that is all ties, and one that knows only its own users."""
    quick = QUICK if request.param == "bundlemage" else {"device": "cpu"}
    more: dict[str, Any] = {"epochs": 2, "embedding_dim": 8} if request.param == "bpr" else {}
    return Recommender(request.param, **quick, **more).fit(shop)


@pytest.fixture(autouse=True)
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small shop needs several batches, the last one a short one."""
    monkeypatch.setattr("bundlemage.core.answering.ROWS_AT_A_TIME", 7)


def by_user(batches: Iterator[pa.RecordBatch]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for batch in batches:
        assert batch.schema == SCHEMA
        for row in batch.to_pylist():
            found.setdefault(row["user_id"], []).append(row)
    return found


def assert_same(rows: list[dict[str, Any]], answers: list[Recommendation]) -> None:
    """The same answers. A product of matrices rounds otherwise than one of a vector: what is apart by less
    than that may stand the other way round."""
    assert [(row["rank"], row["source"]) for row in rows] == [(one.rank, one.source) for one in answers]
    scores = [answer.score for answer in answers]
    assert [row["score"] for row in rows] == pytest.approx(scores, rel=1e-5)
    for row, answer in zip(rows, answers, strict=True):
        close = [other.id for other in answers if other.score == pytest.approx(answer.score, rel=1e-6)]
        assert row["bundle_id"] == answer.id or row["bundle_id"] in close


class TestEveryone:
    @pytest.mark.parametrize(
        "asked",
        [
            {},
            {"include_owned": True},
            {"where": Filter(max_price=60, exclude=["b0003", "b0007"])},
            {"where": Filter(among=["b0001", "b0002"])},
        ],
        ids=["plain", "owned", "filtered", "few"],
    )
    def test_every_user_gets_what_recommend_says(
        self, model: Recommender, shop: BundleDataset, asked: dict[str, Any]
    ) -> None:
        found = by_user(model.recommend_all(6, **asked))
        for user in shop.users:
            assert_same(found.get(user, []), model.recommend(user, 6, **asked))
        assert list(found) == [user for user in shop.users if user in found], "in the order of the data"

    @settings(deadline=None, max_examples=40)
    @given(datasets(), st.integers(1, 15))
    def test_of_any_shop_ties_and_all(self, data: BundleDataset, k: int) -> None:
        model = Recommender("popularity", device="cpu").fit(data, SplitPlan("none"))
        found = by_user(model.recommend_all(k))
        for user in data.users:
            expected = [
                (one.id, one.rank, np.float32(one.score), one.source) for one in model.recommend(user, k)
            ]
            rows = [
                (row["bundle_id"], row["rank"], row["score"], row["source"]) for row in found.get(user, [])
            ]
            assert rows == expected

    def test_of_equally_good_ones_the_first_come_first(self) -> None:
        taken = [[0, 1, 2, 3, 4, 5]] * 3 + [[]]
        data = dataset_of([[0]] * 4, taken, [[0]] * 6, 1)
        model = Recommender("popularity", device="cpu").fit(data, SplitPlan("none"))
        rows = by_user(model.recommend_all(4))["u3"]
        assert [row["bundle_id"] for row in rows] == ["b0", "b1", "b2", "b3"]
        assert [answer.id for answer in model.recommend("u3", 2)] == ["b0", "b1"]

    def test_users_of_ones_choice_in_the_order_asked_for(
        self, model: Recommender, shop: BundleDataset
    ) -> None:
        chosen = [shop.users[position] for position in (9, 3, 40, 4, 5, 6, 7, 8, 1)]
        found = by_user(model.recommend_all(3, users=iter(chosen)))
        assert list(found) == chosen
        for user in chosen:
            assert_same(found[user], model.recommend(user, 3))

    def test_nobody_is_asked_for(self, model: Recommender) -> None:
        assert list(model.recommend_all(3, users=[])) == []

    def test_batches_are_small_and_come_one_by_one(self, model: Recommender, shop: BundleDataset) -> None:
        batches = model.recommend_all(3)
        first = next(batches)
        assert len(first) == 21
        assert len(first.column("user_id").dictionary) == 7, "a batch carries the names of its own users only"
        assert not torch.is_inference_mode_enabled(), "whoever asked may train something meanwhile"
        assert sum(map(len, batches)) == 3 * (len(shop.users) - 7)

    def test_whoever_has_everything_has_no_row(self) -> None:
        data = dataset_of([[0], [0], []], [[0, 1], [0], []], [[0], [0]], 1)
        model = Recommender("owned-share", device="cpu").fit(data, SplitPlan("none"))
        found = by_user(model.recommend_all(5))
        assert {user: [row["source"] for row in rows] for user, rows in found.items()} == {
            "u1": ["model"],
            "u2": ["popular", "popular"],
        }

    @pytest.mark.parametrize("k", [0, -3, 2.5])
    def test_mistakes_are_told_before_the_first_batch(self, model: Recommender, k: Any) -> None:
        with pytest.raises(ConfigError, match="k is"):
            model.recommend_all(k)
        with pytest.raises(UnknownIdError, match=r"'u9999' \(and 1 more\)"):
            model.recommend_all(3, users=["u0001", "u9999", "u9998"])
        with pytest.raises(ConfigError, match=r"write \['u0001'\]"):
            model.recommend_all(3, users="u0001")
        with pytest.raises(UnknownIdError, match="unknown bundle id 'b9999'"):
            model.recommend_all(3, where=Filter(among=["b9999"]))

    def test_a_model_of_generation_alone_does_not_recommend(self, shop: BundleDataset) -> None:
        model = Recommender(**(QUICK | {"tasks": "generation", "epochs": 1})).fit(shop)
        with pytest.raises(UnsupportedError, match="does not recommend"):
            model.recommend_all()


class TestHistories:
    """By positions, for people whom the shop does not know."""

    PEOPLE = (
        [[0, 5, 9], [], [3], [1, 2], [], [7], [8], [4, 6], [2]],
        [[1], [], [2, 0], [], [3], [], [4], [5], []],
    )

    def test_strangers_get_what_recommend_says(self, shop: BundleDataset) -> None:
        model = Recommender(**QUICK).fit(shop)
        items, bundles = (Ragged.from_lists(rows) for rows in self.PEOPLE)
        rankings = list(model.rank_bundles(Histories(items, bundles), 5))
        assert [len(ranking) for ranking in rankings] == [7, 2]
        row = 0
        for ranking in rankings:
            for positions, chances, count, popular in zip(
                ranking.positions.tolist(),
                ranking.chances.tolist(),
                ranking.counts.tolist(),
                ranking.popular.tolist(),
                strict=True,
            ):
                history = History(
                    [shop.items[item] for item in self.PEOPLE[0][row]],
                    [shop.bundles[bundle] for bundle in self.PEOPLE[1][row]],
                )
                answers = model.recommend(history, 5)
                assert [shop.bundles[position] for position in positions[:count]] == [
                    one.id for one in answers
                ]
                assert chances[:count] == pytest.approx([one.score for one in answers], rel=1e-5)
                assert popular == (answers[0].source == "popular") == (row == 1)
                row += 1
        assert row == len(self.PEOPLE[0])

    def test_slices_are_the_rows_in_order(self) -> None:
        items, bundles = (Ragged.from_lists(rows) for rows in self.PEOPLE)
        users = torch.arange(9)
        parts = list(slices(Histories(items, bundles, users), 4))
        assert [len(part) for part in parts] == [4, 4, 1]
        assert torch.cat([part.items.values for part in parts]).tolist() == items.values.tolist()
        assert [part.items.lengths.tolist() for part in parts] == [[3, 0, 1, 2], [0, 1, 1, 2], [1]]
        assert [part.users.tolist() for part in parts if part.users is not None][1] == [4, 5, 6, 7]

    @pytest.mark.parametrize(
        ("items", "bundles", "message"),
        [
            ([[0]], [[0], [1]], "1 rows of items and 2 rows of bundles"),
            ([[90]], [[0]], "items at the positions 90 to 90: the shop has 90"),
            ([[0]], [[-1, 3]], "bundles at the positions -1 to 3: the shop has 40"),
        ],
    )
    def test_positions_outside_the_shop_are_refused(
        self, shop: BundleDataset, items: Any, bundles: Any, message: str
    ) -> None:
        model = Recommender("popularity", device="cpu").fit(shop)
        with pytest.raises(ConfigError, match=message):
            model.rank_bundles(Histories(Ragged.from_lists(items), Ragged.from_lists(bundles)))

    def test_a_model_of_its_own_users_refuses_strangers(self, shop: BundleDataset) -> None:
        model = Recommender("bpr", device="cpu", epochs=1).fit(shop)
        strangers = Histories(Ragged.from_lists([[0]]), Ragged.from_lists([[0]]))
        with pytest.raises(UnsupportedError, match="knows only the users it was trained on"):
            list(model.rank_bundles(strangers))


SLOWLY = """
import sys, time
from pathlib import Path
from bundlemage import Recommender
from bundlemage.core.answering import slices
from bundlemage.core.ranking import SCHEMA
from bundlemage.data.row_files import write_rows
from tests.small_shop import small_shop

model = Recommender("popularity", device="cpu").fit(small_shop())
def slowly():
    for batch in model.recommend_all(3):
        yield batch
        print("a batch is out", flush=True)
        time.sleep(60)
write_rows(slowly(), SCHEMA, Path(sys.argv[1]))
"""


class TestFile:
    def test_what_is_written_is_read_again(self, model: Recommender, tmp_path: Path) -> None:
        file = tmp_path / "answers.parquet"
        rows = write_rows(model.recommend_all(4), SCHEMA, file)
        table = pq.read_table(file)
        assert len(table) == rows
        assert table.schema.equals(SCHEMA)
        assert table.to_pylist() == pa.Table.from_batches(model.recommend_all(4)).to_pylist()
        assert [path.name for path in tmp_path.iterdir()] == ["answers.parquet"]

    @pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
    def test_every_format_holds_the_same_rows(
        self, form: str, model: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("bundlemage.data.row_files.ROWS_IN_A_GROUP", 50)  # several groups
        file = tmp_path / f"answers.{form}"
        rows = write_rows(model.recommend_all(4), SCHEMA, file)
        plain = pa.schema([(field.name, getattr(field.type, "value_type", field.type)) for field in SCHEMA])
        found = read_rows(file, plain).to_pylist()
        assert len(found) == rows > 100
        assert found == pa.Table.from_batches(model.recommend_all(4)).to_pylist()
        assert [path.name for path in tmp_path.iterdir()] == [file.name]

    @pytest.mark.parametrize("form", ["csv", "jsonl"])
    def test_odd_ids_come_back_as_they_were(self, form: str, tmp_path: Path) -> None:
        odd = ['Tea, "green"', "two\nlines", "007", " spaces ", "null", "é€", "=1+1"]
        schema = pa.schema([("user_id", pa.string()), ("price", pa.float64())])
        prices = [1 / 3, None, 1e-300, 7.0, 0.1, 1e300, 2.5]
        table = pa.table([odd, prices], schema=schema)
        write_rows(table.to_batches(), schema, tmp_path / f"odd.{form}")
        assert read_rows(tmp_path / f"odd.{form}", schema).to_pylist() == table.to_pylist()

    def test_row_groups_are_written_as_they_fill(
        self, model: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("bundlemage.data.row_files.ROWS_IN_A_GROUP", 50)
        seen: list[bool] = []

        def watched() -> Iterator[pa.RecordBatch]:
            for batch in model.recommend_all(4):
                seen.append((tmp_path / "answers.parquet").exists())
                yield batch

        write_rows(watched(), SCHEMA, tmp_path / "answers.parquet")
        assert seen == [False] * 12
        found = pq.ParquetFile(tmp_path / "answers.parquet").metadata
        assert [found.row_group(group).num_rows for group in range(found.num_row_groups)] == [56] * 5 + [40]

    def test_a_failure_leaves_what_was_there_and_nothing_else(
        self, model: Recommender, tmp_path: Path
    ) -> None:
        file = tmp_path / "answers.parquet"
        file.write_bytes(b"yesterday's")

        def broken() -> Iterator[pa.RecordBatch]:
            yield next(model.recommend_all(4))
            raise OSError("no space left")

        with pytest.raises(OSError, match="no space left"):
            write_rows(broken(), SCHEMA, file)
        assert file.read_bytes() == b"yesterday's"
        assert list(tmp_path.iterdir()) == [file]

    def test_a_shop_without_answers_gives_an_empty_table(self, model: Recommender, tmp_path: Path) -> None:
        assert write_rows(iter(()), SCHEMA, tmp_path / "none.parquet") == 0
        assert pq.read_table(tmp_path / "none.parquet").schema.equals(SCHEMA)

    def test_killed_in_the_middle_there_is_no_half_file(self, tmp_path: Path) -> None:
        file = tmp_path / "answers.parquet"
        process = subprocess.Popen(
            [sys.executable, "-c", SLOWLY, str(file)], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "a batch is out\n"
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert not file.exists()
        (left,) = tmp_path.iterdir()
        assert left.name == f".answers.parquet.{process.pid}.tmp"

        # The next run takes away what the killed one has left, and nothing of one that is still at work.
        other = tmp_path / f".answers.parquet.{os.getppid()}.tmp"
        other.touch()
        wait_until(lambda: not _exists(process.pid), "the end of the process")
        write_rows(iter(()), SCHEMA, file)
        assert sorted(tmp_path.iterdir()) == [other, file]


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
