"""Every kind of broken data is named with its file, line, value and what to do; all of them at once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from bundlemage.errors import DataError
from bundlemage.readers.load import check, read
from tests.broken import BROKEN, Broken
from tests.shop_files import GOOD, ITEMS, parquet, write


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_says_what_is_wrong_where_and_what_to_do(broken: Broken, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    broken.write(folder)

    problems = {problem.kind: problem for problem in check(folder)}

    assert str(problems[broken.kind]) == broken.message.replace("{path}", str(folder))
    assert problems[broken.kind].severity == broken.severity
    assert len(str(problems[broken.kind])) < 300 + len(str(folder))


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_errors_stop_the_reading_and_warnings_do_not(broken: Broken, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    broken.write(folder)

    if broken.severity == "warning":
        assert broken.kind in {problem.kind for problem in read(folder).warnings}
    else:
        with pytest.raises(DataError) as raised:
            read(folder)
        assert broken.message.replace("{path}", str(folder)) in str(raised.value)


def test_there_are_twenty_kinds_and_more() -> None:
    assert len({broken.kind for broken in BROKEN.values()}) >= 20


def test_every_problem_of_every_table_at_once(tmp_path: Path) -> None:
    write(
        tmp_path / "shop",
        user_item_csv="user_id,item_id\nann,\n,i1\n",
        user_bundle_csv="user_id,thing\nann,b1\n",
        bundle_item_csv="bundle_id,item_id\nb1,i1\nb1 ,i9\n",
        items_csv=ITEMS.replace("9.99,3", "cheap,few"),
    )

    found = [
        (problem.where, problem.line, problem.kind, problem.value) for problem in check(tmp_path / "shop")
    ]

    assert found == [
        ("user_item.csv", 3, "missing-id", ""),
        ("user_item.csv", 2, "missing-id", ""),
        ("user_bundle.csv", None, "unknown-column", "user_id"),
        ("items.csv", 2, "bad-number", "cheap"),
        ("items.csv", 2, "bad-number", "few"),
        ("bundle_item.csv", 3, "id-with-spaces", "b1 "),
    ]


def test_a_good_folder_has_no_problems(tmp_path: Path) -> None:
    write(tmp_path / "shop", items_csv=ITEMS)
    assert check(tmp_path / "shop") == []


@pytest.mark.parametrize("cut", range(0, 120, 7))
def test_a_file_damaged_anywhere_never_raises_anything_else(cut: int, tmp_path: Path) -> None:
    whole = parquet({"user_id": pa.array(["ann"] * 50), "item_id": pa.array(["i1"] * 50)})
    at = cut * len(whole) // 120
    damaged = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
    write(tmp_path / "shop", user_item_csv=None, user_item_parquet=damaged)
    check(tmp_path / "shop")


def test_a_quoted_last_field_of_several_lines_is_no_open_quote(tmp_path: Path) -> None:
    write(tmp_path / "shop", user_item_csv=GOOD["user_item.csv"] + 'bob,"i\n3"')
    assert check(tmp_path / "shop") == []
    write(tmp_path / "other", user_item_csv=GOOD["user_item.csv"] + 'x\nbob,"i\n3"')
    assert [problem.kind for problem in check(tmp_path / "other")] == ["ragged-row"]


def test_an_open_quote_in_a_column_that_is_not_read(tmp_path: Path) -> None:
    rows = "".join(f"u{n},i{n},fine\n" for n in range(1000))
    write(tmp_path / "shop", user_item_csv='user_id,item_id,note\nann,i1,"so\n' + rows)
    found = [(problem.kind, problem.line) for problem in check(tmp_path / "shop")]
    assert found == [("unclosed-quote", 2), ("unused-column", None)]
