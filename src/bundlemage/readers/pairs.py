"""Lines of two whole numbers: fast where the file is good, exact about every fault where it is not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from bundlemage.errors import Problem

Pairs = npt.NDArray[np.int64]  # [pairs, 2]

_INTEGER = re.compile(rb"-?[0-9]{1,18}")
_NO_PAIRS: Pairs = np.empty((0, 2), dtype=np.int64)


def read_pairs(path: Path) -> tuple[Pairs, list[Problem]]:
    """The pairs of a tab-separated file, and what is wrong with it. Blank lines do not count."""
    if not path.is_file():
        fix = "Put the text file there."
        return _NO_PAIRS, [Problem("not-a-file", str(path), "a folder stands where a file should", fix)]
    if not any(True for _ in _lines(path)):
        return _NO_PAIRS, [Problem("empty-file", str(path), "the file is empty", "Download it again.")]
    try:
        table = csv.read_csv(
            path,
            csv.ReadOptions(column_names=["left", "right"]),
            csv.ParseOptions(delimiter="\t", quote_char=False),
            # Without null values an absent number is a fault, not a null.
            csv.ConvertOptions(column_types={"left": pa.int64(), "right": pa.int64()}, null_values=[]),
        )
    except pa.ArrowInvalid:
        return _scan(path)
    return np.column_stack([table["left"].to_numpy(), table["right"].to_numpy()]), []


def lines_of(path: Path) -> list[int]:
    """The 1-based line of each pair."""
    return [number for number, _ in _lines(path)]


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line.removeprefix(b"\xef\xbb\xbf")


def _scan(path: Path) -> tuple[Pairs, list[Problem]]:
    """Line by line. Any blank between the numbers will do: not every copy of these files has tabs."""
    pairs, bad = [], []
    for number, line in _lines(path):
        words = line.split()
        if len(words) == 2 and all(map(_INTEGER.fullmatch, words)):
            pairs.append((int(words[0]), int(words[1])))
        else:
            bad.append((number, line.strip()[:60].decode("utf-8", "replace")))
    if not bad:
        return np.array(pairs, dtype=np.int64), []
    number, value = bad[0]
    message = f"expected two whole numbers with a tab between them, found {value!r}"
    fix = "Correct or remove the line."
    problem = Problem("bad-line", str(path), message, fix, number, value, more=len(bad) - 1)
    return _NO_PAIRS, [problem]
