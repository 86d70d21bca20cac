"""The text layout of BGCN and CrossCBR, on small files: what is read, and what is said of broken ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from bundlemage.readers import bgcn
from tests.published_files import pairs, problems, write_bgcn


class TestBgcn:
    def test_split_for_full_ranking(self, tmp_path: Path) -> None:
        folder = write_bgcn(tmp_path)
        assert bgcn.matches(folder)
        source = bgcn.read(folder)
        dataset, ready = source.dataset, source.ready
        assert dataset.name == "netease"
        assert dataset.sizes == {"users": 4, "items": 7, "bundles": 5}
        assert dataset.user_bundle.nnz == 8
        assert ready is not None
        assert ready.protocol == "bgcn"
        assert pairs(ready.train.user_bundle) == [(0, 0), (0, 1), (1, 2)]
        assert ready.validation is not None
        assert ready.test is not None
        assert ready.validation.users.tolist() == [0, 2]
        assert ready.test.candidates is None
        assert ready.test.users.tolist() == [0, 1]
        assert pairs(ready.test.positives) == [(0, 3), (0, 4), (1, 4)]

    def test_without_split_and_sizes(self, tmp_path: Path) -> None:
        unsplit = dict.fromkeys(
            ("user_bundle_train", "user_bundle_tune", "user_bundle_test", "NetEase_data_size")
        )
        source = bgcn.read(write_bgcn(tmp_path / "netease", user_bundle="0\t0\n3\t2\n", **unsplit))
        assert source.ready is None
        assert source.dataset.name == "netease"
        assert source.dataset.sizes == {"users": 4, "items": 6, "bundles": 5}

    @pytest.mark.parametrize(
        "text", ["0 0\n0 5\n2 3", "0\t0\r\n\r\n0\t5\r\n2\t3\r\n", "\ufeff0\t0\n0\t5 \n\n2\t3\n"]
    )
    def test_other_blanks_and_line_ends(self, tmp_path: Path, text: str) -> None:
        dataset = bgcn.read(write_bgcn(tmp_path, user_item=text)).dataset
        assert pairs(dataset.user_item) == [(0, 0), (0, 5), (2, 3)]

    @pytest.mark.parametrize(
        "bad", ["1,2", "1\tx", "1", "1\t2\t3", "1\t", "1.5\t2", "1\t\0", "1\t" + "9" * 30]
    )
    def test_bad_lines(self, tmp_path: Path, bad: str) -> None:
        folder = write_bgcn(tmp_path, user_item=f"0\t1\n\n{bad}\n{bad}\n2\t3\n")
        (problem,) = problems(bgcn.read, folder)
        assert (problem.kind, problem.line, problem.more) == ("bad-line", 3, 1)
        assert problem.value == bad.strip()
        assert "user_item.txt:3: expected two whole numbers" in str(problem)

    def test_ids_out_of_range(self, tmp_path: Path) -> None:
        folder = write_bgcn(tmp_path, bundle_item="0\t0\n\n7\t0\n0\t8\n-1\t9\n")
        told = problems(bgcn.read, folder)
        assert [(problem.line, problem.value, problem.more) for problem in told] == [(3, "7", 1), (4, "8", 1)]
        assert "bundle 7 is outside 0 … 4" in str(told[0])

    def test_every_fault_is_told_at_once(self, tmp_path: Path) -> None:
        folder = write_bgcn(
            tmp_path, user_bundle_tune=None, user_item="", bundle_item="\n \n", NetEase_data_size="4\t5\n"
        )
        (folder / "user_bundle_test.txt").unlink()
        (folder / "user_bundle_test.txt").mkdir()
        told = {Path(problem.where).name: problem.kind for problem in problems(bgcn.read, folder)}
        assert told == {
            "user_bundle_tune.txt": "missing-file",
            "user_bundle_test.txt": "not-a-file",
            "user_item.txt": "empty-file",
            "bundle_item.txt": "empty-file",
            "NetEase_data_size.txt": "bad-line",
        }

    def test_absurd_sizes(self, tmp_path: Path) -> None:
        (problem,) = problems(bgcn.read, write_bgcn(tmp_path / "a", NetEase_data_size="4\t5\t99999999999\n"))
        assert problem.kind == "size-out-of-range"
        without = write_bgcn(tmp_path / "b", NetEase_data_size=None, user_item="0\t99999999999\n")
        (problem,) = problems(bgcn.read, without)
        assert (problem.kind, problem.value) == ("size-out-of-range", "100000000000")

    def test_two_size_files(self, tmp_path: Path) -> None:
        (problem,) = problems(bgcn.read, write_bgcn(tmp_path, Youshu_data_size="4\t5\t7\n"))
        assert problem.kind == "many-size-files"
