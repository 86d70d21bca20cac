"""Where ids meet positions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bundlemage.data.dataset import Vocabulary, canonical_order
from bundlemage.errors import UnknownIdError

ids = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), unique=True, max_size=20)


@given(ids)
@settings(deadline=None)
def test_every_id_comes_back_from_its_position(names: list[str]) -> None:
    vocabulary = Vocabulary("item", names)
    assert len(vocabulary) == len(names)
    assert list(vocabulary) == list(vocabulary.ids) == names
    assert [vocabulary[vocabulary.position(name)] for name in names] == names
    assert vocabulary.positions(names).tolist() == list(range(len(names)))
    assert vocabulary.positions(names).dtype == np.int32
    assert vocabulary.to_arrow().to_pylist() == names


@given(ids, st.randoms())
@settings(deadline=None)
def test_the_canonical_order_does_not_depend_on_the_order_of_rows(names: list[str], random: object) -> None:
    shuffled = [*names, *names]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert canonical_order(shuffled) == canonical_order(names)
    assert sorted(canonical_order(names)) == sorted(names)


def test_whole_numbers_sort_as_numbers_and_all_else_as_text() -> None:
    assert canonical_order(["10", "9", "-3", "0"]) == ["-3", "0", "9", "10"]
    assert canonical_order(["10", "9", "x"]) == ["10", "9", "x"]
    assert canonical_order(["010", "9"]) == ["010", "9"], "010 is not how 10 is written, so it is a name"
    assert canonical_order([]) == []


def test_names_that_look_alike_stay_apart() -> None:
    names = ["1", "01", "1.0", " 1", "1 ", "A", "a", "é", "e\u0301"]
    vocabulary = Vocabulary("item", canonical_order(names))
    assert len(vocabulary) == len(names)
    assert {vocabulary[vocabulary.position(name)] for name in names} == set(names)


def test_numbered_ids_are_their_positions() -> None:
    vocabulary = Vocabulary.numbered("user", 12)
    assert vocabulary.position("11") == 11
    assert "12" not in vocabulary


def test_an_unknown_id_is_named_with_its_kind_and_the_nearest() -> None:
    vocabulary = Vocabulary("bundle", ["winter-sale", "winter-set", "summer"])
    with pytest.raises(UnknownIdError, match=r"unknown bundle id 'winter-sail'.*'winter-sale'"):
        vocabulary.position("winter-sail")


def test_many_unknown_ids_are_counted_in_one_error() -> None:
    with pytest.raises(UnknownIdError, match=r"unknown item id 'x' \(and 2 more\)") as error:
        Vocabulary("item", ["a", "b"]).positions(["a", "x", "b", "y", "z"])
    assert error.value.unknown == ("x", "y", "z")
    assert error.value.kind == "item"


def test_nothing_alike_gives_no_suggestion() -> None:
    with pytest.raises(UnknownIdError) as error:
        Vocabulary("item", ["apple"]).position("zebra")
    assert "Did you mean" not in str(error.value)


def test_zeros_that_a_spreadsheet_has_dropped_are_suggested() -> None:
    with pytest.raises(UnknownIdError, match="Did you mean '00007'"):
        Vocabulary("user", ["00006", "00007", "70007"]).position("7")


def test_known_keeps_the_known_in_order() -> None:
    assert Vocabulary("item", ["a", "b", "c"]).known(["c", "x", "a"]) == ["c", "a"]


def test_no_ids_have_no_positions() -> None:
    empty = Vocabulary("item", [])
    assert empty.positions([]).tolist() == []
    with pytest.raises(UnknownIdError, match="unknown item id 'a'"):
        empty.position("a")


def test_an_id_given_twice_is_refused_before_it_can_mislead() -> None:
    with pytest.raises(ValueError, match="duplicate item ids"):
        Vocabulary("item", ["a", "b", "a"]).position("b")


def test_vocabularies_are_equal_by_their_ids_in_order() -> None:
    assert Vocabulary("item", ["a", "b"]) == Vocabulary("item", ["a", "b"])
    assert Vocabulary("item", ["a", "b"]) != Vocabulary("item", ["b", "a"])
    assert hash(Vocabulary("item", ["a", "b"])) == hash(Vocabulary("item", ["a", "b"]))
    assert Vocabulary("item", ["a"]) != ["a"]
