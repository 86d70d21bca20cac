"""The sharded layout: what goes in comes out, whole or in part, and damage never gives a wrong answer."""

from __future__ import annotations

import hashlib
import json
import pickle
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bundlemage.data.dataset import BundleDataset, Vocabulary
from bundlemage.data.shard_columns import MATRICES
from bundlemage.data.shards import LAYOUT, Layout, write_layout
from bundlemage.errors import ConfigError, DataError
from bundlemage.readers.load import check, read
from bundlemage.sample.generate import sample_shop
from tests.small_shop import datasets, small_shop


def same(one: BundleDataset, other: BundleDataset) -> None:
    assert one.fingerprint() == other.fingerprint()
    assert (one.users, one.items, one.bundles) == (other.users, other.items, other.bundles)
    for name in ("user_item", "user_bundle", "bundle_item"):
        assert (getattr(one, name) != getattr(other, name)).nnz == 0
    assert one.catalogue == other.catalogue
    assert (one.name, one.notes) == (other.name, other.notes)


@pytest.fixture(scope="module")
def shop() -> BundleDataset:
    return small_shop()


@pytest.fixture
def layout(shop: BundleDataset, tmp_path: Path) -> Layout:
    return write_layout(shop, tmp_path / "layout", 30)


class TestRoundTrip:
    @given(datasets(), st.integers(1, 15), st.data())
    @settings(deadline=None, max_examples=40)
    def test_any_dataset_any_size_of_shard_any_part(
        self, dataset: BundleDataset, shard_rows: int, data: st.DataObject
    ) -> None:
        dataset = replace(dataset, notes=("a note",))
        with TemporaryDirectory() as folder:
            layout = write_layout(dataset, Path(folder) / "layout", shard_rows)
            same(layout.dataset(), dataset)
            assert layout.sizes == dataset.sizes
            start = data.draw(st.integers(0, len(dataset.users)))
            users = range(start, data.draw(st.integers(start, len(dataset.users))))
            part = layout.dataset(users, ids=data.draw(st.booleans()))
        assert part.fingerprint() == dataset.fingerprint()
        expected = dataset.user_item.toarray()
        expected[[user for user in range(len(expected)) if user not in users]] = 0
        np.testing.assert_array_equal(part.user_item.toarray(), expected)
        np.testing.assert_array_equal(part.user_bundle.toarray(), dataset.user_bundle.toarray())

    def test_with_a_catalogue(self, tmp_path: Path) -> None:
        shop = sample_shop().dataset
        layout = write_layout(shop, tmp_path / "layout", 100)
        same(layout.dataset(), shop)
        assert {part.rows for part in layout.parts("users")} == {100}
        assert [part.rows for part in layout.parts("bundles")] == [100, 100, 40]

    def test_every_command_takes_it(self, shop: BundleDataset, layout: Layout) -> None:
        same(read(layout.folder).dataset, shop)
        assert check(layout.folder) == []

    def test_a_layout_of_an_earlier_version_is_opened(self, shop: BundleDataset, layout: Layout) -> None:
        """Its list says nothing about the tables."""
        path = layout.folder / LAYOUT
        content = json.loads(path.read_text())
        assert content.pop("about_tables") == []
        del content["sha256"]
        described = {name: value for name, value in content.items() if name not in ("format", "version")}
        checksum = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
        path.write_text(json.dumps({**content, "sha256": checksum}))
        opened = Layout.open(layout.folder)
        same(opened.dataset(), shop)
        assert opened.about_tables == ()

    def test_the_digests_are_those_of_the_data(self, shop: BundleDataset, layout: Layout) -> None:
        assert layout.digests == shop.digests() == layout.dataset().digests()
        assert layout.pairs == {name: getattr(shop, name).nnz for name in MATRICES}

    def test_no_ids_are_kept_where_none_are_asked_for(self, layout: Layout) -> None:
        part = layout.dataset(range(10, 20), ids=False)
        assert part.users[79] == "79"
        assert pickle.loads(pickle.dumps(part)).fingerprint() == layout.dataset().fingerprint()
        assert part.catalogue is None

    def test_of_every_user_only_some_items(self, shop: BundleDataset, layout: Layout) -> None:
        part = layout.dataset(ids=False, items=range(3, 7))
        whole = shop.user_item.toarray()
        whole[:, :3] = whole[:, 7:] = 0
        assert (part.user_item.toarray() == whole).all()
        assert (part.bundle_item != shop.bundle_item).nnz == 0
        assert part.fingerprint() == shop.fingerprint()

    def test_what_a_split_replaces_is_no_longer_the_whole(self, layout: Layout) -> None:
        part = layout.dataset(range(40))
        whole = layout.dataset()
        assert part.user_item.nnz < whole.user_item.nnz
        empty = replace(part, user_item=whole.user_item[:, ::-1])
        assert empty.fingerprint() != part.fingerprint() == whole.fingerprint()


class TestDamage:
    @pytest.mark.parametrize("kind", ["users", "items", "bundles"])
    @pytest.mark.parametrize("how", ["cut", "altered", "gone"])
    def test_a_damaged_file_is_named(self, layout: Layout, kind: str, how: str) -> None:
        file = layout.folder / layout.parts(kind)[-1].name
        content = file.read_bytes()
        if how == "gone":
            file.unlink()
        else:
            file.write_bytes(content[:-9] if how == "cut" else content[:50] + b"!" + content[51:])
        (problem,) = check(layout.folder)
        assert problem.kind == "damaged-layout"
        assert problem.where == str(file)
        with pytest.raises(DataError, match="Copy the folder again"):
            layout.dataset()

    @pytest.mark.parametrize(
        "content", ["", "{", "[]", "{}", '{"format": "other", "version": 1, "sha256": ""}']
    )
    def test_a_list_that_is_none(self, layout: Layout, content: str) -> None:
        (layout.folder / LAYOUT).write_text(content)
        with pytest.raises(DataError, match=LAYOUT):
            Layout.open(layout.folder)

    def test_an_altered_list(self, layout: Layout) -> None:
        content = json.loads((layout.folder / LAYOUT).read_text())
        content["digests"]["user_item"] = "0" * 64
        (layout.folder / LAYOUT).write_text(json.dumps(content))
        with pytest.raises(DataError, match="altered"):
            Layout.open(layout.folder)

    def test_another_format(self, layout: Layout) -> None:
        content = json.loads((layout.folder / LAYOUT).read_text())
        (layout.folder / LAYOUT).write_text(json.dumps(content | {"version": 9}))
        with pytest.raises(DataError, match="format is 9"):
            Layout.open(layout.folder)


class TestWriting:
    def test_nothing_is_replaced_unasked(self, shop: BundleDataset, layout: Layout) -> None:
        with pytest.raises(ConfigError, match="--overwrite"):
            write_layout(shop, layout.folder)

    def test_nothing_but_a_layout_is_replaced(self, shop: BundleDataset, tmp_path: Path) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.txt").write_text("years of work")
        with pytest.raises(ConfigError, match="does not replace"):
            write_layout(shop, tmp_path / "mine", overwrite=True)
        assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"

    def test_a_layout_is_replaced_as_a_whole(self, shop: BundleDataset, layout: Layout) -> None:
        assert len(layout.parts("users")) == 3
        again = write_layout(shop, layout.folder, 1000, overwrite=True)
        assert len(list((again.folder / "users").iterdir())) == 1
        assert [path.name for path in again.folder.parent.iterdir()] == ["layout"]
        same(again.dataset(), shop)

    def test_one_that_fails_leaves_what_was_there(
        self, shop: BundleDataset, layout: Layout, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise OSError("the disk is full")

        monkeypatch.setattr("bundlemage.data.shards.write_whole", fail)
        with pytest.raises(OSError, match="full"):
            write_layout(shop, layout.folder, 1000, overwrite=True)
        assert [path.name for path in layout.folder.parent.iterdir()] == ["layout"]
        same(Layout.open(layout.folder).dataset(), shop)


class TestNumbers:
    """Vocabularies that are only numbers are made when they are asked for."""

    def test_they_are_as_if_written_down(self) -> None:
        lazy, plain = Vocabulary.numbered("user", 12), Vocabulary("user", [str(n) for n in range(12)])
        assert lazy == plain
        assert plain == lazy
        assert hash(lazy) == hash(plain)
        assert lazy.ids == plain.ids
        assert list(lazy) == list(plain)
        assert lazy.to_arrow().equals(plain.to_arrow())
        assert lazy.positions(["3", "11"]).tolist() == [3, 11]
        assert lazy.known(["3", "12", "03", "-1", "x", ""]) == ["3"]
        assert dict(lazy.known_positions) == plain.known_positions
        assert lazy != Vocabulary("user", [*plain.ids[:-1], "x"])
        assert lazy != Vocabulary.numbered("user", 11)
