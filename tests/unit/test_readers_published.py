"""The pickled layouts, on small files written here: what is read, and what is said of broken ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundlemage.data.splits import PAD
from bundlemage.readers import authors, bgcn, pathak
from tests.published_files import (
    BUNDLES,
    HELD_OUT,
    ITEMS,
    USERS,
    matrix,
    pairs,
    problems,
    write_bgcn,
    write_generation,
    write_matching,
    write_pathak,
    write_pickles,
)


class TestAuthorsMatching:
    def test_joined_data_and_split(self, tmp_path: Path) -> None:
        folder = write_matching(tmp_path / "shop" / "authors" / "mat")
        assert authors.matches(folder)
        source = authors.read(folder)
        dataset, ready = source.dataset, source.ready
        assert dataset.name == "shop"
        assert dataset.sizes == {"users": USERS, "items": ITEMS, "bundles": BUNDLES}
        assert pairs(dataset.user_bundle) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 2), (1, 4), (2, 3)]
        assert set(dataset.user_item.data.tolist()) == {1.0}
        assert ready is not None
        assert ready.protocol == "authors-mat"
        assert pairs(ready.train.user_bundle) == [(0, 0), (0, 1), (1, 2)]
        assert ready.generation is None

    def test_given_negatives(self, tmp_path: Path) -> None:
        folder = write_matching(tmp_path / "shop" / "authors" / "mat")
        for place in (
            folder,
            folder / "candidates",
            folder.parent / "candidates",
            tmp_path / "shop" / "candidates",
        ):
            place.mkdir(exist_ok=True)
            file = place / "negatives_mat.npz"
            np.savez(file, negatives=np.array([[4, 4], [3, 0], [1, 0], [0, 1]], np.int16))
            ready = authors.read(folder).ready
            file.unlink()
            assert ready is not None
            assert not any("were drawn" in note for note in ready.dataset.notes)
            assert ready.validation is not None
            assert ready.test is not None
            assert ready.validation.users.tolist() == [0, 2]
            assert ready.validation.candidates is not None
            assert ready.validation.candidates.tolist() == [[2, 4, 4], [3, 1, 0]]
            assert pairs(ready.test.positives) == [(0, 3), (1, 4)]

    def test_negatives_are_drawn_where_none_are_given(self, tmp_path: Path) -> None:
        source = authors.read(write_matching(tmp_path / "shop"))
        again = authors.read(tmp_path / "shop")
        assert "drawn with seed 0" in source.dataset.notes[-1]
        assert source.ready is not None
        assert again.ready is not None
        cases, same = source.ready.test, again.ready.test
        assert cases is not None
        assert same is not None
        assert cases.candidates is not None
        np.testing.assert_array_equal(cases.candidates, same.candidates)
        for user, row in zip(cases.users, cases.candidates, strict=True):
            drawn = set(row[1:].tolist()) - {PAD}
            assert drawn == set(range(BUNDLES)) - set(source.dataset.user_bundle[user].indices.tolist())

    @pytest.mark.parametrize(
        ("negatives", "kind"),
        [
            (np.zeros((3, 2), int), "wrong-shape"),
            (np.zeros((4, 2)), "wrong-shape"),
            (np.full((4, 2), 5), "id-out-of-range"),
            (np.full((4, 2), 3), "negative-is-positive"),
            (np.array([[None]] * 4), "wrong-content"),
        ],
    )
    def test_wrong_negatives(self, tmp_path: Path, negatives: Any, kind: str) -> None:
        folder = write_matching(tmp_path / "shop")
        np.savez(folder / "negatives_mat.npz", negatives=negatives)
        assert [problem.kind for problem in problems(authors.read, folder)] == [kind]

    def test_the_folder_above_asks_which_split(self, tmp_path: Path) -> None:
        write_matching(tmp_path / "mat")
        write_generation(tmp_path / "gen")
        assert authors.matches(tmp_path)
        (problem,) = problems(authors.read, tmp_path)
        assert problem.kind == "which-split"
        assert str(tmp_path / "mat") in problem.fix
        assert str(tmp_path / "gen") in problem.fix

    def test_every_fault_is_told_at_once(self, tmp_path: Path) -> None:
        folder = write_matching(tmp_path / "shop")
        (folder / "train.pkl").unlink()
        (folder / "user_item.pkl").unlink()
        (folder / "valid.pkl").write_bytes(b"cposix\nsystem\n(S'true'\ntR.")
        (folder / "test.pkl").write_bytes(b"")
        write_pickles(folder, bundle_item={"not": "a matrix"})
        told = {Path(problem.where).name: problem.kind for problem in problems(authors.read, folder)}
        assert told == {
            "train.pkl": "missing-file",
            "user_item.pkl": "missing-file",
            "valid.pkl": "unsafe-pickle",
            "test.pkl": "empty-file",
            "bundle_item.pkl": "wrong-content",
        }

    def test_shapes_that_disagree(self, tmp_path: Path) -> None:
        folder = write_matching(tmp_path / "shop")
        write_pickles(folder, valid=matrix((USERS, 9), (0, 8)), user_item=matrix((USERS, 99), (0, 8)))
        told = problems(authors.read, folder)
        assert [problem.kind for problem in told] == ["wrong-shape"] * 2
        assert "(4, 9)" in str(told[0])
        assert "(4, 5)" in str(told[0])

    def test_absurd_sizes_are_refused_before_memory_is_taken(self, tmp_path: Path) -> None:
        folder = write_matching(tmp_path / "shop")
        write_pickles(folder, bundle_item=matrix((BUNDLES, 2**40), (0, 8)))
        assert [problem.kind for problem in problems(authors.read, folder)] == ["size-out-of-range"]


class TestAuthorsGeneration:
    def test_held_out_bundles_come_last_and_are_unknown_in_training(self, tmp_path: Path) -> None:
        source = authors.read(write_generation(tmp_path / "shop" / "gen"))
        dataset, ready = source.dataset, source.ready
        assert len(dataset.bundles) == BUNDLES + HELD_OUT
        assert pairs(dataset.user_bundle)[-3:] == [(2, 3), (2, 5), (2, 6)]
        assert pairs(dataset.bundle_item)[-3:] == [(5, 5), (6, 0), (6, 1)]
        assert ready is not None
        assert ready.protocol == "authors-gen"
        assert ready.train.bundle_item[BUNDLES:].nnz == 0
        assert ready.train.user_bundle[:, BUNDLES:].nnz == 0
        assert ready.validation is not None
        assert ready.validation.candidates is not None
        assert ready.validation.candidates.max() < BUNDLES

        cases = ready.generation
        assert cases is not None
        assert [*zip(cases.users.tolist(), cases.bundles.tolist(), strict=True)] == [(0, 1), (2, 0), (2, 1)]
        assert pairs(cases.partial) == [(1, 0)]
        assert pairs(cases.positives) == [(0, 5), (1, 1)]
        assert cases.candidates.tolist() == [[5, 0, 1, 2], [1, 3, 4, 5]]

    def test_negatives_that_are_right_answers(self, tmp_path: Path) -> None:
        folder = write_generation(tmp_path / "shop")
        write_pickles(folder, gen_neg=np.array([[0, 1, 5], [3, 4, 0]]))
        (problem,) = problems(authors.read, folder)
        assert (problem.kind, problem.more) == ("negative-is-positive", 1)

    def test_missing_generation_file(self, tmp_path: Path) -> None:
        folder = write_generation(tmp_path / "shop")
        (folder / "gen_neg.pkl").unlink()
        (problem,) = problems(authors.read, folder)
        assert problem.where.endswith("gen_neg.pkl")


class TestSteam:
    @pytest.mark.parametrize("write", [write_matching, write_generation])
    def test_user_item_is_reconstructed_and_says_so(
        self, tmp_path: Path, write: Callable[[Path], Path]
    ) -> None:
        folder = write(tmp_path / "steam" / "authors" / "mat")
        (folder / "user_item.pkl").unlink()
        dataset = authors.read(folder).dataset
        assert dataset.name == "steam-partial"
        assert "reconstructed" in dataset.notes[0]
        assert "Never compare" in dataset.notes[0]
        owned = (dataset.user_bundle @ dataset.bundle_item) > 0
        assert pairs(owned) == pairs(dataset.user_item)

    def test_first_publication(self, tmp_path: Path) -> None:
        folder = write_pathak(tmp_path / "pathak")
        assert pathak.matches(folder)
        source = pathak.read(folder)
        dataset = source.dataset
        assert (dataset.name, source.ready, source.warnings) == ("steam-partial", None, ())
        assert dataset.notes == (pathak.PARTIAL_NOTE,)
        assert pairs(dataset.user_item) == [(0, 0), (0, 1), (1, 1), (1, 2)]
        assert dataset.catalogue is not None
        items, bundles = dataset.catalogue.items, dataset.catalogue.bundles
        assert items["title"].to_pylist() == ["Seventy", "Ten", "Fünfzig"]
        assert items["price"].to_pylist() == [14.99, 0.0, None]
        assert items["tags"].to_pylist() == [None, ["Indie", "RPG"], []]
        assert bundles["price"].to_pylist() == [9.5, 8.5, 7.5]
        assert bundles["discount"].to_pylist() == [0.2, 0.0, 0.92]
        assert bundles["title"].null_count == 3

    def test_full_user_item_map(self, tmp_path: Path) -> None:
        dataset = pathak.read(write_pathak(tmp_path, user_item_map={0: {0, 2}, 2: [1]})).dataset
        assert (dataset.name, dataset.notes, len(dataset.users)) == ("steam", (), 3)
        assert pairs(dataset.user_item) == [(0, 0), (0, 2), (2, 1)]

    def test_undescribed_things_are_null_and_told(self, tmp_path: Path) -> None:
        folder = write_pathak(tmp_path, item_price_map=None, bundle_discount_map={1: 10.0})
        (folder / "item_price_map").unlink(missing_ok=True)
        source = pathak.read(folder)
        assert source.dataset.catalogue is not None
        assert source.dataset.catalogue.items["price"].null_count == 3
        assert source.dataset.catalogue.bundles["discount"].to_pylist() == [0.1, None, None]
        assert [Path(problem.where).name for problem in source.warnings] == ["item_price_map"]

    def test_catalogue_follows_another_numbering(self, tmp_path: Path) -> None:
        folder = write_pathak(tmp_path, bundle_item_map={0: {0, 1}, 1: {1}, 2: {2}, 3: {2}})
        numbered_anew = matrix((4, 3), (0, 2), (1, 1), (2, 0), (2, 1), (3, 2))
        catalogue = pathak.catalogue_for(folder, numbered_anew)
        assert catalogue.bundles["bundle_id"].to_pylist() == ["0", "1", "2", "3"]
        assert catalogue.bundles["price"].to_pylist() == [None, 8.5, 9.5, None]  # two bundles of game 2 alone

    @pytest.mark.parametrize(
        ("changed", "kind"),
        [
            ({"user_bundle_map": None}, "missing-file"),
            ({"user_bundle_map": [1, 2]}, "wrong-content"),
            ({"user_bundle_map": {0: {-1}}}, "wrong-content"),
            ({"bundle_item_map": {0: {"x"}}}, "wrong-content"),
            ({"bundle_item_map": {2**40: {1}}}, "size-out-of-range"),
            ({"all_items": {}}, "wrong-content"),
            ({"item_name_map": []}, "wrong-content"),
        ],
    )
    def test_broken_maps(self, tmp_path: Path, changed: dict[str, Any], kind: str) -> None:
        folder = write_pathak(tmp_path, **changed)
        (problem,) = problems(pathak.read, folder)
        assert problem.kind == kind
        assert Path(problem.where).name in changed

    def test_a_broken_catalogue_does_not_spoil_the_split(self, tmp_path: Path) -> None:
        folder = write_matching(tmp_path / "steam" / "authors" / "mat")
        described = write_pathak(tmp_path / "steam" / "pathak")
        assert [problem.kind for problem in authors.read(folder).warnings] == ["wrong-shape"]
        (described / "all_items").write_bytes(b"cos\nsystem\n.")
        source = authors.read(folder)
        assert source.dataset.catalogue is None
        assert [(problem.kind, problem.severity) for problem in source.warnings] == [
            ("unsafe-pickle", "warning")
        ]


def test_readers_know_their_own_layout_only(tmp_path: Path) -> None:
    folders = {
        authors: write_matching(tmp_path / "authors"),
        bgcn: write_bgcn(tmp_path / "bgcn"),
        pathak: write_pathak(tmp_path / "pathak"),
    }
    for reader, own in folders.items():
        assert [folder for folder in folders.values() if reader.matches(folder)] == [own]
        assert not reader.matches(tmp_path / "absent")
        assert not reader.matches(next(own.iterdir()))
