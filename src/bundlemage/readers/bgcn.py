"""The text layout of BGCN and CrossCBR: two numbers on a line, a tab between them, split by the files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy import sparse

from bundlemage.data.dataset import BundleDataset, binary_matrix
from bundlemage.data.splits import MatchingCases, Split
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.errors import DataError, Problem
from bundlemage.readers.pairs import Pairs, lines_of, read_pairs
from bundlemage.readers.published import LARGEST, data_name, missing_files, too_large
from bundlemage.readers.source import Source

_WHOLE = "user_bundle.txt"
_SPLIT = ("user_bundle_train.txt", "user_bundle_tune.txt", "user_bundle_test.txt")
_MEMBERS = ("user_item.txt", "bundle_item.txt")
_SIZES = "*_data_size.txt"
_NEEDED = f"The layout needs {', '.join(_MEMBERS)} and either {_WHOLE} or {', '.join(_SPLIT)}."


def matches(path: Path) -> bool:
    named = any((path / name).is_file() for name in (_WHOLE, *_SPLIT, *_MEMBERS))
    return named or (path.is_dir() and any(path.glob(_SIZES)))


def read(path: Path) -> Source:
    """The data and, where the files make one, their split for full ranking over all bundles."""
    names = (*_user_bundle_files(path), *_MEMBERS)
    problems = missing_files(path, names, _NEEDED)
    tables: dict[str, Pairs] = {}
    for name in names:
        if (path / name).exists():
            tables[name], found = read_pairs(path / name)
            problems += found
    size_file, sizes = _read_sizes(path, problems)
    if problems:
        raise DataError(problems)

    sizes = sizes or _sizes_from_ids(path, tables)
    for name, pairs in tables.items():
        problems += _outside(path / name, pairs, sizes)
    if problems:
        raise DataError(problems)
    name = size_file.name.removesuffix(_SIZES[1:]).lower() if size_file else data_name(path)
    matrices = {
        table: binary_matrix(pairs[:, 0], pairs[:, 1], (sizes[_kinds(table)[0]], sizes[_kinds(table)[1]]))
        for table, pairs in tables.items()
    }
    return _source(name, matrices, sizes)


def _user_bundle_files(path: Path) -> tuple[str, ...]:
    split = any((path / name).exists() for name in _SPLIT)
    return (_WHOLE,) if (path / _WHOLE).exists() and not split else _SPLIT


def _kinds(name: str) -> list[str]:
    """What the two columns number: `user_bundle_train.txt` holds users and bundles."""
    return name.removesuffix(".txt").split("_")[:2]


def _read_sizes(path: Path, problems: list[Problem]) -> tuple[Path | None, dict[str, int]]:
    """The file that gives the numbers of users, bundles and items, and what it says, if it is there."""
    files = sorted(path.glob(_SIZES))
    if not files:
        return None, {}
    fix = "Write the numbers of users, bundles and items in one line, tabs between them, in one such file."
    if len(files) > 1:
        message = f"there are {len(files)} size files: {', '.join(file.name for file in files)}"
        problems.append(Problem("many-size-files", str(path), message, fix))
        return None, {}
    words = files[0].read_bytes().split() if files[0].is_file() else []
    if len(words) != 3 or not all(word.isdigit() for word in words):
        shown = b" ".join(words)[:60].decode("utf-8", "replace")
        message = f"expected three whole numbers, found {shown!r}"
        problems.append(Problem("bad-line", str(files[0]), message, fix, line=1, value=shown))
        return files[0], {}
    sizes = dict(zip(("user", "bundle", "item"), map(int, words), strict=True))
    problems += [too_large(files[0], size, f"{kind}s") for kind, size in sizes.items() if size > LARGEST]
    return files[0], sizes


def _sizes_from_ids(path: Path, tables: dict[str, Pairs]) -> dict[str, int]:
    sizes = {"user": 0, "bundle": 0, "item": 0}
    for name, pairs in tables.items():
        for kind, highest in zip(_kinds(name), pairs.max(axis=0).tolist(), strict=True):
            if highest >= LARGEST:
                raise DataError(too_large(path / name, highest + 1, f"{kind}s"))
            sizes[kind] = max(sizes[kind], highest + 1)
    return sizes


def _outside(path: Path, pairs: Pairs, sizes: dict[str, int]) -> list[Problem]:
    problems = []
    for column, kind in enumerate(_kinds(path.name)):
        ids, size = pairs[:, column], sizes[kind]
        wrong = np.flatnonzero((ids < 0) | (ids >= size))
        if wrong.size:
            value = str(ids[wrong[0]])
            message = f"{kind} {value} is outside 0 … {size - 1}, as there are {size:,} {kind}s"
            fix = f"Correct the id, or the number of {kind}s in the size file."
            line = lines_of(path)[wrong[0]]
            problems.append(
                Problem("id-out-of-range", str(path), message, fix, line, value, more=wrong.size - 1)
            )
    return problems


def _source(name: str, matrices: dict[str, sparse.csr_matrix], sizes: dict[str, int]) -> Source:
    taken = [matrices[file] for file in (_WHOLE, *_SPLIT) if file in matrices]
    dataset = BundleDataset(
        user_item=matrices["user_item.txt"],
        user_bundle=sum(taken[1:], start=taken[0]),
        bundle_item=matrices["bundle_item.txt"],
        users=Vocabulary.numbered("user", sizes["user"]),
        items=Vocabulary.numbered("item", sizes["item"]),
        bundles=Vocabulary.numbered("bundle", sizes["bundle"]),
        name=name,
    )
    if _WHOLE in matrices:
        return Source(dataset)
    train, tune, test = (matrices[file] for file in _SPLIT)
    ready = Split(
        dataset,
        train=dataset.with_interactions(user_bundle=train),
        validation=_full_ranking(tune),
        test=_full_ranking(test),
        generation=None,
        protocol="bgcn",
    )
    return Source(dataset, ready)


def _full_ranking(held_out: sparse.csr_matrix) -> MatchingCases:
    """One question for each user with something held out: rank every bundle."""
    users = np.flatnonzero(np.diff(held_out.indptr)).astype(np.int32)
    return MatchingCases(users, held_out[users], candidates=None)
