"""Titles and tags are read as a shop means them, whatever its other programs have made of them."""

from __future__ import annotations

import csv
import html
import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundlemage.data.dataset import BundleDataset
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
        ("[" * 100_000 + "]" * 100_000, ["[" * 100_000 + "]" * 100_000]),
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


characters = st.characters(exclude_categories=["Cs"])
any_tags = st.lists(st.text(characters, min_size=1).map(str.strip).filter(bool), min_size=1)
plain_tags = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="|;,[]"), min_size=1)
    .map(str.strip)
    .filter(lambda tag: tag not in ("", "null", "None")),
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
