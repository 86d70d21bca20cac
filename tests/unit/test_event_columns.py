"""Times, weights, types of events and vectors: every reader takes the same from the same tables."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bundlemage.data.events import DAY, UNDATED
from bundlemage.errors import Problem
from bundlemage.readers.facts import read_fact

MOMENT = int(datetime(2026, 1, 31, 12, 30, 15, tzinfo=UTC).timestamp()) * 10**6
MIDNIGHT = int(datetime(2026, 1, 31, tzinfo=UTC).timestamp()) * 10**6


def locate(row: int) -> tuple[str, int]:
    return "table", row + 1


def converted(name: str, *chunks: Any) -> Any:
    values, problems = read_fact(name, chunks, locate, repr(name))
    assert not problems, problems
    return values


def problem_of(name: str, *chunks: Any) -> Problem:
    values, problems = read_fact(name, chunks, locate, repr(name))
    assert values is None
    (problem,) = problems
    return problem


NAIVE = datetime(2026, 1, 31, 12, 30, 15)
IN_UTC = NAIVE.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    "values",
    [
        ["2026-01-31T12:30:15", "2026-01-31 12:30:15"],
        ["2026-01-31T12:30:15Z", "2026-01-31T14:30:15+02:00"],
        ["2026-01-31T12:30:15", "2026-01-31T14:30:15+02:00", " 2026-01-31 12:30:15.000000Z "],
        ["2026-01-31T12:30:15.000000000"],
        [str(MOMENT // 10**6), str(MOMENT // 1000), str(MOMENT), str(MOMENT * 1000)],
        ["1769862615.0", "1769862615"],
        [MOMENT // 10**6, MOMENT // 1000, MOMENT, MOMENT * 1000],
        [MOMENT / 10**6, MOMENT / 1000.0],
        [NAIVE, NAIVE],
        [IN_UTC, IN_UTC],
    ],
    ids=str,
)
def test_a_time_in_many_forms(values: list[Any]) -> None:
    whole, one_by_one = converted("at", pa.array(values)), converted("at", values)
    assert whole.dtype == one_by_one.dtype == np.int64
    assert whole.tolist() == one_by_one.tolist() == [MOMENT] * len(values)
    assert converted("at", pa.array(values).dictionary_encode()).tolist() == [MOMENT] * len(values)
    assert converted("at", pa.array([*values, None])).tolist()[-1] == UNDATED


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["2026-01-31"]),
        pa.array([b"2026-01-31"]),
        pa.array([date(2026, 1, 31)]),
        pa.array([date(2026, 1, 31)]).cast(pa.date64()),
        pa.array([date(2026, 1, 31)]).cast(pa.timestamp("s")),
        pa.array([date(2026, 1, 31)]).cast(pa.timestamp("ms")),
        pa.array([date(2026, 1, 31)]).cast(pa.timestamp("ns")),
        pa.array([date(2026, 1, 31)]).cast(pa.timestamp("us", "Europe/Berlin")),
        pa.array([MIDNIGHT // 10**6], pa.uint32()),
    ],
    ids=lambda array: str(array.type),
)
def test_a_date_is_its_midnight_in_utc(array: pa.Array) -> None:
    assert converted("at", array).tolist() == [MIDNIGHT]


def test_fractions_of_a_second_and_times_before_1970() -> None:
    assert converted("at", pa.array(["1969-12-31T23:59:59.250000"])).tolist() == [-750_000]
    assert converted("at", pa.array([-0.75])).tolist() == converted("at", [-0.75]).tolist() == [-750_000]
    assert converted("at", pa.array(["-86400"])).tolist() == [-DAY]


def test_an_empty_time_is_not_known() -> None:
    assert converted("at", pa.array(["", " ", None, "2026-01-31"])).tolist() == [*[UNDATED] * 3, MIDNIGHT]
    assert converted("at", pa.nulls(2), pa.array(["2026-01-31"])).tolist() == [*[UNDATED] * 2, MIDNIGHT]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (["2026-02-30", "2026-01-31"], "'2026-02-30'"),
        (["31/01/2026"], "'31/01/2026'"),
        (["soon"], "'soon'"),
        (["12:30"], "'12:30'"),
        (["nan"], "'nan'"),
        (["20260131"], "'20260131'"),
        ([20260131], "20260131"),
        ([float("nan")], "nan"),
        ([float("inf")], "inf"),
        ([True], "True"),
        ([b"\xff\xfe"], "b'\\xff\\xfe'"),
        ([1 - 10**11], str(1 - 10**11)),
        ([[1]], "[1]"),
        ([timedelta(days=1)], "1 day, 0:00:00"),
    ],
    ids=str,
)
def test_what_is_no_time(values: list[Any], shown: str) -> None:
    good: Any = pa.array(["2026-01-31"] * 3)
    for bad in (pa.array(values), values):
        problem = problem_of("at", good, bad)
        assert (problem.kind, problem.line, problem.more) == ("bad-time", 4, 0)
        assert problem.message == f"'at' is {shown}; expected a date and time"


@pytest.mark.parametrize(
    "values",
    [[1, 2, 3], [1.0, 2.0, 3.0], ["1", " 2", "3.0"], ["1e0", "+2", "3"], [b"1", b"2", b"3"]],
    ids=str,
)
def test_weights(values: list[Any]) -> None:
    for column in (pa.array(values), values, pa.array(values).dictionary_encode()):
        assert converted("weight", column).tolist() == [1.0, 2.0, 3.0]
    assert converted("weight", pa.array([*values, None])).tolist() == [1.0, 2.0, 3.0, 1.0]


@pytest.mark.parametrize("value", [-1, "-1", "many", float("nan"), "nan", float("inf"), 1e13, True], ids=str)
def test_what_is_no_weight(value: Any) -> None:
    for bad in (pa.array([value, value]), [value, value]):
        problem = problem_of("weight", pa.array([1, 2]), bad)
        assert (problem.kind, problem.line, problem.more) == ("bad-weight", 3, 1)
        assert problem.message.startswith("'weight' is ")
        assert "expected a number from 0 to" in problem.message


VECTORS = [[0.5, -1.0], None, [2.0, 0.25]]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(VECTORS, pa.list_(pa.float32())),
        pa.array(VECTORS, pa.list_(pa.float64())),
        pa.array(VECTORS, pa.large_list(pa.float16())),
        pa.array(VECTORS, pa.list_(pa.float32(), 2)),
        pa.array([None, *VECTORS], pa.list_(pa.float32(), 2))[1:],
        pa.array(["[0.5, -1]", "", "[2, 0.25]"]),
        pa.array(["[0.5, -1]", None, "[2, 0.25]"]).dictionary_encode(),
        VECTORS,
    ],
    ids=lambda column: str(getattr(column, "type", "list")),
)
def test_vectors(column: Any) -> None:
    vectors = converted("vector", column)
    assert vectors.type == pa.list_(pa.float32())
    assert vectors.to_pylist() == VECTORS


@pytest.mark.parametrize(
    ("column", "row", "value"),
    [
        (pa.array([[1.0, 2.0], [1.0, float("nan")]]), 2, "a list with nan at place 2"),
        (pa.array([[1.0, None], [1.0, 3.0]]), 1, "a list with None at place 2"),
        (pa.array([[1.0, 1e300]]), 1, "a list with 1e+300 at place 2"),
        (pa.array([[1.0], []]), 2, "[]"),
        (pa.array(["[1, 2]", "[1, NaN]"]), 2, "'[1, NaN]'"),
        (pa.array(["[1, 2]", "1 2"]), 2, "'1 2'"),
        (pa.array(["[1, 2]", '["a", 2]']), 2, """'["a", 2]'"""),
        (pa.array([[True, False]]), 1, "a list with True at place 1"),
    ],
    ids=str,
)
def test_what_is_no_vector(column: Any, row: int, value: str) -> None:
    problem = problem_of("vector", column)
    assert (problem.kind, problem.line) == ("bad-vector", row)
    assert problem.message == f"'vector' is {value}; expected a list of numbers"


def test_vectors_of_different_lengths() -> None:
    problem = problem_of("vector", pa.array([None, [1.0, 2.0]]), pa.array([[1.0, 2.0, 3.0], [1.0]]))
    assert (problem.kind, problem.line, problem.more) == ("uneven-vectors", 3, 1)
    assert problem.message == "'vector' holds 3 numbers, but the first vector has 2"
