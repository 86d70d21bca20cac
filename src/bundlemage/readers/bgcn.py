"""Reads the text files of BGCN and CrossCBR. Each line has two numbers with a tab between them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from bundlemage.data.dataset import BundleDataset, binary_matrix
from bundlemage.data.splits import MatchingCases, Source, Split
from bundlemage.errors import DataError, Problem, collected
from bundlemage.readers.places import LARGEST, data_name, missing_files, too_large

Pairs = npt.NDArray[np.int64]  # [pairs, 2]

_WHOLE = "user_bundle.txt"
_SPLIT = ("user_bundle_train.txt", "user_bundle_tune.txt", "user_bundle_test.txt")
_MEMBERS = ("user_item.txt", "bundle_item.txt")
_SIZES = "*_data_size.txt"
_NEEDED = f"The layout needs {', '.join(_MEMBERS)} and either {_WHOLE} or {', '.join(_SPLIT)}."
_INTEGER = re.compile(rb"-?[0-9]{1,18}")


def matches(path: Path) -> bool:
    """Whether the folder has a file of this layout."""
    named = any((path / name).is_file() for name in (_WHOLE, *_SPLIT, *_MEMBERS))
    return named or (path.is_dir() and any(path.glob(_SIZES)))


def read(path: Path) -> Source:
    """Returns the data and the split, if the files define one. In that split, all bundles are candidates."""
    split = any((path / name).exists() for name in _SPLIT)
    names = ((_WHOLE,) if (path / _WHOLE).exists() and not split else _SPLIT) + _MEMBERS
    problems = missing_files(path, names, _NEEDED)
    tables: dict[str, Pairs] = {}
    for name in names:
        if (path / name).exists():
            with collected(problems):
                tables[name] = _read_pairs(path / name)
    size_file, sizes = _read_sizes(path, problems)
    if problems:
        raise DataError(problems)

    if not size_file:
        for name, pairs in tables.items():
            for kind, highest in zip(_kinds(name), pairs.max(axis=0).tolist(), strict=True):
                if highest >= LARGEST:
                    raise DataError(too_large(path / name, highest + 1, f"{kind}s"))
                sizes[kind] = max(sizes.get(kind, 0), highest + 1)
    for name, pairs in tables.items():
        problems += _outside(path / name, pairs, sizes)
    if problems:
        raise DataError(problems)
    matrices = {}
    for name, pairs in tables.items():
        rows, columns = (sizes[kind] for kind in _kinds(name))
        matrices[name] = binary_matrix(pairs[:, 0], pairs[:, 1], (rows, columns))
    parts = [matrices[name] for name in (_WHOLE, *_SPLIT) if name in matrices]
    dataset = BundleDataset.numbered(
        matrices["user_item.txt"],
        sum(parts[1:], start=parts[0]),
        matrices["bundle_item.txt"],
        name=size_file.name.removesuffix(_SIZES[1:]).lower() if size_file else data_name(path),
    )
    if _WHOLE in matrices:
        return Source(dataset)
    cases = []
    for held_out in parts[1:]:  # one case for each user with held-out bundles; all bundles are candidates
        users = np.flatnonzero(np.diff(held_out.indptr)).astype(np.int32)
        cases.append(MatchingCases(users, held_out[users], candidates=None))
    (validation, test), train = cases, dataset.with_interactions(user_bundle=parts[0])
    return Source(dataset, Split(dataset, train, validation, test, generation=None, protocol="bgcn"))


def _kinds(name: str) -> list[str]:
    """Returns the kinds of the two columns: `user` and `bundle` for `user_bundle_train.txt`."""
    return name.removesuffix(".txt").split("_")[:2]


def _read_sizes(path: Path, problems: list[Problem]) -> tuple[Path | None, dict[str, int]]:
    """Returns the size file and its numbers of users, bundles and items; None and {} without such a file."""
    files = sorted(path.glob(_SIZES))
    if not files:
        return None, {}
    fix = "Keep one such file: a line with the numbers of users, bundles and items, separated by tabs."
    if len(files) > 1:
        message = f"there are {len(files)} size files: {', '.join(file.name for file in files)}"
        problems.append(Problem("many-size-files", str(path), message, fix))
        return None, {}
    words = files[0].read_bytes().split() if files[0].is_file() else []
    if len(words) != 3 or not all(word.isdigit() for word in words):
        value = b" ".join(words)[:60].decode("utf-8", "replace")
        message = f"expected three whole numbers, found {value!r}"
        problems.append(Problem("bad-line", str(files[0]), message, fix, line=1, value=value))
        return files[0], {}
    sizes = dict(zip(("user", "bundle", "item"), map(int, words), strict=True))
    problems += [too_large(files[0], size, f"{kind}s") for kind, size in sizes.items() if size > LARGEST]
    return files[0], sizes


def _outside(path: Path, pairs: Pairs, sizes: dict[str, int]) -> list[Problem]:
    """Returns a problem for each column with ids that are negative or too large."""
    problems = []
    for column, kind in enumerate(_kinds(path.name)):
        ids, size = pairs[:, column], sizes[kind]
        wrong = np.flatnonzero((ids < 0) | (ids >= size))
        if wrong.size:
            value = str(ids[wrong[0]])
            message = f"{kind} {value} is outside 0 … {size - 1}, as there are {size:,} {kind}s"
            fix = f"Correct the id, or the number of {kind}s in the size file."
            line = [number for number, _ in _lines(path)][wrong[0]]
            problems.append(
                Problem("id-out-of-range", str(path), message, fix, line, value, more=wrong.size - 1)
            )
    return problems


def _read_pairs(path: Path) -> Pairs:
    """Returns the pairs of a tab-separated file; raises `DataError`. Blank lines are ignored."""
    if not path.is_file():
        message = "this is a folder, not a file"
        raise DataError.of("not-a-file", str(path), message, "Put the text file there.")
    if not any(True for _ in _lines(path)):
        raise DataError.of("empty-file", str(path), "the file is empty", "Download it again.")
    try:
        table = csv.read_csv(
            path,
            csv.ReadOptions(column_names=["left", "right"]),
            csv.ParseOptions(delimiter="\t", quote_char=False),
            # null_values=[] makes a missing number an error. Otherwise it would be read as null.
            csv.ConvertOptions(column_types={"left": pa.int64(), "right": pa.int64()}, null_values=[]),
        )
    except pa.ArrowInvalid:
        return _scan(path)
    return np.column_stack([table["left"].to_numpy(), table["right"].to_numpy()])


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that are not blank, with their 1-based numbers."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line.removeprefix(b"\xef\xbb\xbf")


def _scan(path: Path) -> Pairs:
    """Returns the pairs, read line by line. Any white space may separate the two numbers, not only tabs."""
    pairs, bad = [], []
    for number, line in _lines(path):
        words = line.split()
        if len(words) == 2 and all(map(_INTEGER.fullmatch, words)):
            pairs.append((int(words[0]), int(words[1])))
        else:
            bad.append((number, line.strip()[:60].decode("utf-8", "replace")))
    if not bad:
        return np.array(pairs, dtype=np.int64)
    number, value = bad[0]
    message = f"expected two whole numbers with a tab between them, found {value!r}"
    fix = "Correct or remove the line."
    raise DataError(Problem("bad-line", str(path), message, fix, number, value, more=len(bad) - 1))
