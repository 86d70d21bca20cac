"""Titles and tags are read as a shop means them, whatever its other programs have made of them."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundlemage.data.dataset import BundleDataset
from bundlemage.errors import Problem
from bundlemage.readers.assemble import read_frames
from bundlemage.readers.load import read
from tests.shop_files import parquet, write


def with_item(**details: object) -> BundleDataset:
    pairs = {
        "user_item": {"user_id": ["ann"], "item_id": ["i&amp;1"]},
        "user_bundle": {"user_id": ["ann"], "bundle_id": ["b1"]},
        "bundle_item": {"bundle_id": ["b1"], "item_id": ["i&amp;1"]},
        "items": {"item_id": ["i&amp;1"], **{name: [value] for name, value in details.items()}},
    }
    return read_frames(**{table: pa.table(columns) for table, columns in pairs.items()}).dataset


def tags(value: object) -> list[str] | None:
    catalogue = with_item(tags=value).catalogue
    assert catalogue is not None
    found: list[str] | None = catalogue.items["tags"][0].as_py()
    return found


@pytest.mark.parametrize(
    ("written", "title"),
    [
        ("Tom &amp; Jerry", "Tom & Jerry"),
        ("Assassin&#39;s &#x201C;Creed&#X201d;", "Assassin's “Creed”"),
        ("&lt;b&gt;&nbsp;caf&eacute;", "<b>\xa0café"),
        ("&amp;amp;", "&amp;"),
        ("AT&T; R&D; &; &nothing; &notes; &copy 2024 &#; &#xyz;", None),
        ("&#0;&#xD800;&#1114112;", "\ufffd\ufffd\ufffd"),
        ("&#" + "9" * 5000 + ";", None),
    ],
    ids=["ampersand", "numbers", "names", "once only", "not entities", "not characters", "too long"],
)
def test_entities_in_titles(written: str, title: str | None) -> None:
    dataset = with_item(title=written)
    assert dataset.item_title(0) == (written if title is None else title)


def test_a_title_of_a_space_is_no_title() -> None:
    catalogue = with_item(title="&nbsp;").catalogue
    assert catalogue is not None
    assert catalogue.items["title"].to_pylist() == [None]


def test_ids_are_never_decoded() -> None:
    assert with_item(title="x").items.ids == ("i&amp;1",)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('["Action", "RPG"]', ["Action", "RPG"]),
        ("['Action', 'RPG']", ["Action", "RPG"]),
        ("[Action; RPG]", ["Action", "RPG"]),
        ("  [Role playing | Co-op, 2D]  ", ["Role playing", "Co-op", "2D"]),
        ("""["Rock 'n' Roll", 'say "hi"', "a, b; c|d"]""", ["Rock 'n' Roll", 'say "hi"', "a, b; c|d"]),
        (r"""["\u00e9\ud83d\ude00\/", 'it\'s', '\xe9\U0001F600']""", ["é😀/", "it's", "é😀"]),
        ('["a", null, 7, 2.5, "", None]', ["a", "7", "2.5"]),
        ("['tis, the season]", ["'tis", "the season"]),
        ("Tom &amp; Jerry;R&D;x&#44;y", ["Tom & Jerry", "R&D", "x,y"]),
        ("[Tom &amp; Jerry; R&amp;D]", ["Tom & Jerry", "R&D"]),
        ('["Tom &amp; Jerry"]', ["Tom & Jerry"]),
        ("[Early] access, [beta]", ["[Early] access", "[beta]"]),
        ("[]", None),
        ('[""]', None),
        ("Tom &amp;amp; Jerry;R&amp;#68;x", ["Tom &amp; Jerry", "R&#68;x"]),
        ("__import__('os').getcwd()", ["__import__('os').getcwd()"]),
        (["Salt &amp; Pepper", "a, b"], ["Salt & Pepper", "a, b"]),
    ],
)
def test_lists_of_tags(written: object, expected: list[str] | None) -> None:
    assert tags(written) == expected


def test_lists_and_entities_in_files(tmp_path: Path) -> None:
    row = ["i1", "Tom &amp; Jerry", '["Cartoon", "Cat &amp; mouse"]']
    text = io.StringIO()
    csv.writer(text).writerows([["item_id", "title", "tags"], row])
    write(tmp_path / "text", items_csv=text.getvalue())
    columns = {name: pa.array([value]) for name, value in zip(("item_id", "title", "tags"), row, strict=True)}
    write(tmp_path / "parquet", items_parquet=parquet(columns))
    for form in ("text", "parquet"):
        catalogue = read(tmp_path / form).dataset.catalogue
        assert catalogue is not None
        item = catalogue.items.to_pylist()[0]
        assert (item["title"], item["tags"]) == ("Tom & Jerry", ["Cartoon", "Cat & mouse"])


SCIENCE = {"id": 878, "name": "Science, fiction"}
OBJECTS = [{"id": 28, "name": "Action"}, {"id": 12, "name": "Role &amp; play"}, None]
FORMS: list[tuple[object, list[str] | None]] = [
    ([["Toys & Games", "Puzzles"], [], ["Kids", None]], ["Toys & Games", "Puzzles", "Kids"]),
    ([[["a"], ["b", "c, d"]]], ["a", "b", "c, d"]),
    (OBJECTS, ["Action", "Role & play"]),
    ([SCIENCE | {"parents": [1, 2]}], ["Science, fiction"]),
    (SCIENCE, ["Science, fiction"]),
]
"""Lists and objects, and the tags in them."""
TEXTS: list[tuple[str, list[str] | None]] = [
    ('{Action,"Role play"}', ["Action", "Role play"]),
    (
        """{C#,"say \\"hi\\", \\\\",it's,R&amp;D,genre:rpg,NULL}""",
        ["C#", 'say "hi", \\', "it's", "R&D", "genre:rpg"],
    ),
    ("{{a,b},{c,d}}", ["a", "b", "c", "d"]),
    ("{Action; Role play}", ["Action", "Role play"]),
    ("{'Action', 'Role play'}", ["Action", "Role play"]),
    ("('Action', 'Role, play')", ["Action", "Role, play"]),
    ("('Action',)", ["Action"]),
    ("[('a', 'b'), ('c',)]", ["a", "b", "c"]),
    ("['Action' 'Role play'\n 'Kids']", ["Action", "Role play", "Kids"]),
    ("(Early) access; (2D)", ["(Early) access", "(2D)"]),
    ("{}", None),
    ("()", None),
    ("[[], [[]]]", None),
]
"""Texts as programs write them, and the tags in them."""
NOT_UNDERSTOOD = [
    '{"1": "Action"}',
    "[{'id': 28}]",
    "{id: 28, name: Action}",
    '[{"name": "a"}, {"id": 1}]',
    '["a", "b"',
    "[a; b",
    "{a",
    "(a, 'b'",
    '["a"],["b"]',
    '{"id":1,"name":"a"},{"id":2,"name":"b"}',
    "[['a', 'b'], c d]",
    "[" * 10_000 + "]" * 10_000,
]


def tags_of_files(folder: Path, values: list[object]) -> list[tuple[list[list[str] | None], list[Problem]]]:
    """The tags and the warnings of items with these tags: in CSV if all are texts, in Parquet and a frame."""
    ids = [f"i{number}" for number in range(1, len(values) + 1)]
    rows = "".join(f"b1,{item}\n" for item in ids)
    pairs = {"bundle_item_csv": f"bundle_id,item_id\n{rows}b2,i1\n"}
    pairs["user_item_csv"] = "user_id,item_id\nann,i1\n"
    columns = {"item_id": pa.array(ids), "tags": pa.array(values)}
    write(folder / "parquet", **pairs, items_parquet=parquet(columns))
    if all(isinstance(value, str) for value in values):
        text = io.StringIO()
        csv.writer(text).writerows([["item_id", "tags"], *zip(ids, values, strict=True)])
        write(folder / "csv", **pairs, items_csv=text.getvalue())
    found = []
    for one in folder.iterdir():
        source = read(one)
        assert source.dataset.catalogue is not None
        found.append((source.dataset.catalogue.items["tags"].to_pylist(), list(source.warnings)))
    return found


@pytest.mark.parametrize(("written", "expected"), FORMS)
@pytest.mark.parametrize("write_text", [json.dumps, repr, None], ids=["JSON", "Python", "as it is"])
def test_lists_in_lists_and_objects(
    written: object, expected: list[str] | None, write_text: Callable[..., str] | None, tmp_path: Path
) -> None:
    value = written if write_text is None else write_text(written)
    found = tags_of_files(tmp_path, [value])
    assert found == [([expected], [])] * (1 if write_text is None else 2)


@pytest.mark.parametrize(("written", "expected"), TEXTS)
def test_lists_as_programs_write_them(written: str, expected: list[str] | None, tmp_path: Path) -> None:
    assert tags_of_files(tmp_path, [written]) == [([expected], [])] * 2


def test_what_is_not_understood_gives_one_warning_and_no_tags(tmp_path: Path) -> None:
    for found, warnings in tags_of_files(tmp_path, ["calm;blue", *NOT_UNDERSTOOD]):
        assert found == [["calm", "blue"], *[None] * len(NOT_UNDERSTOOD)]
        (warning,) = warnings
        in_text = warning.where.endswith(".csv")
        assert (warning.kind, warning.severity) == ("unread-tags", "warning")
        assert (warning.line, warning.more) == (3 if in_text else 2, len(NOT_UNDERSTOOD) - 1)
        assert """'tags' is '{"1": "Action"}', which is not read; expected a list""" in warning.message


@pytest.mark.parametrize("kind", [pa.map_(pa.string(), pa.string()), pa.list_(pa.struct({"id": pa.int8()}))])
def test_maps_and_objects_without_a_name_are_not_understood(kind: pa.DataType, tmp_path: Path) -> None:
    rows = [[("name", "Action")]] if pa.types.is_map(kind) else [[{"id": 1}]]
    ((found, (warning,)),) = tags_of_files(tmp_path, pa.array(rows, kind))
    assert found == [None]
    assert (warning.kind, warning.line) == ("unread-tags", 1)


characters = st.characters(exclude_categories=["Cs"])
any_tags = st.lists(st.text(characters, min_size=1).map(str.strip).filter(bool), min_size=1)
plain_tags = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="|;,[](){}"), min_size=1)
    .map(str.strip)
    .filter(lambda tag: tag not in ("", "null", "None", "NULL"))
    .filter(lambda tag: not re.search(r"&\w*$", tag)),  # before a semicolon, it looks like an entity
    min_size=1,
)


def escaped(texts: list[str]) -> list[str]:
    return [html.escape(text) for text in texts]


@given(any_tags, st.booleans())
def test_any_list_written_as_json_reads_back(texts: list[str], ascii_only: bool) -> None:
    assert tags(json.dumps(escaped(texts), ensure_ascii=ascii_only)) == texts


@given(any_tags)
def test_any_list_written_by_python_reads_back(texts: list[str]) -> None:
    assert tags(repr(escaped(texts))) == texts


@given(plain_tags, st.sampled_from(["{}", "[{}]"]), st.sampled_from([";", ", ", "|"]))
def test_any_list_with_separators_reads_back(texts: list[str], form: str, separator: str) -> None:
    assert tags(form.format(separator.join(escaped(texts)))) == texts


@given(st.text(characters))
def test_any_title_reads_back(text: str) -> None:
    catalogue = with_item(title=html.escape(text)).catalogue
    assert catalogue is not None
    assert catalogue.items["title"].to_pylist() == [text if text.strip() else None]
