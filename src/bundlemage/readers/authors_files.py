"""Loading and checking the files of one of the authors' splits, before anything is made of them."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from bundlemage.data.dataset import binary_matrix
from bundlemage.errors import DataError, Problem
from bundlemage.readers.published import LARGEST, data_name, missing_files, too_large
from bundlemage.readers.unpickle import safe_load

MATCHING = ("train", "valid", "test", "bundle_item")
GENERATION = ("gen_bundle_item_input", "gen_bundle_item_output", "gen_user_bundle", "gen_neg")
_AGAIN = "Download the authors' files again."
_STEAM_USERS, _STEAM_ITEMS = 29_634, 2_819

Negatives = npt.NDArray[np.int64]
Matrices = dict[str, sparse.csr_matrix]


@dataclass(frozen=True)
class HeldOut:
    """The bundles kept from training in the generation split."""

    shown: sparse.csr_matrix  # [held-out bundles, items]
    hidden: sparse.csr_matrix  # [held-out bundles, items]
    users: sparse.csr_matrix  # [users, held-out bundles]
    negatives: Negatives  # [held-out bundles, negatives], items


@dataclass(frozen=True)
class Files:
    """One folder's matrices, of shapes that agree. Bundles count the held-out ones apart."""

    train: sparse.csr_matrix  # [users, bundles]
    valid: sparse.csr_matrix  # [users, bundles]
    test: sparse.csr_matrix  # [users, bundles]
    bundle_item: sparse.csr_matrix  # [bundles, items]
    user_item: sparse.csr_matrix | None  # [users, items]; None for Steam, where it is not published
    held_out: HeldOut | None

    @property
    def split(self) -> str:
        return "mat" if self.held_out is None else "gen"


def file(folder: Path, name: str) -> Path:
    return folder / f"{name}.pkl"


def load(folder: Path) -> Files:
    generation = any(file(folder, name).exists() for name in GENERATION)
    needed = (*MATCHING, *(GENERATION if generation else ()))
    problems = missing_files(folder, (f"{name}.pkl" for name in needed), _AGAIN)
    loaded: dict[str, Any] = {}
    for name in (*needed, "user_item"):
        if file(folder, name).exists():
            try:
                loaded[name] = _checked(file(folder, name), safe_load(file(folder, name)))
            except DataError as error:
                problems += error.problems
    if not file(folder, "user_item").exists() and not _is_steam(folder, loaded):
        fix = f"{_AGAIN} Only for Steam, where it is not published, can a part of it be reconstructed."
        problems += missing_files(folder, ["user_item.pkl"], fix)
    problems = problems or _disagreements(folder, loaded)
    if problems:
        raise DataError(problems)
    return Files(
        **{name: loaded[name] for name in MATCHING},
        user_item=loaded.get("user_item"),
        held_out=HeldOut(*(loaded[name] for name in GENERATION)) if generation else None,
    )


def _is_steam(folder: Path, loaded: dict[str, Any]) -> bool:
    """By the folder's name or, as people rename folders, by the numbers of users and games."""
    named = data_name(folder).lower().startswith("steam")
    sizes = [loaded[name].shape[axis] for name, axis in (("train", 0), ("bundle_item", 1)) if name in loaded]
    return named or sizes == [_STEAM_USERS, _STEAM_ITEMS]


def _checked(path: Path, value: Any) -> Any:
    """A binary matrix, or the array of negatives."""
    is_array = path.stem == "gen_neg"
    is_matrix: bool = sparse.issparse(value)
    if is_array and isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype.kind in "iu":
        return value.astype(np.int64)
    if is_array or not is_matrix:
        wanted = "a table of whole numbers" if is_array else "a sparse matrix"
        message = f"holds a {type(value).__name__} where {wanted} is expected"
        raise DataError(Problem("wrong-content", str(path), message, _AGAIN))
    if max(value.shape) > LARGEST:
        raise DataError(too_large(path, max(value.shape), "ids"))
    pairs = value.tocoo()
    stored = pairs.data != 0
    return binary_matrix(pairs.row[stored], pairs.col[stored], value.shape)


def _disagreements(folder: Path, loaded: dict[str, Any]) -> list[Problem]:
    """Files that are each sound, and do not belong together."""
    (users, bundles), items = loaded["train"].shape, loaded["bundle_item"].shape[1]
    shapes = {"valid": (users, bundles), "test": (users, bundles), "bundle_item": (bundles, items)}
    shapes["user_item"] = (users, items)
    if "gen_neg" in loaded:
        held_out = loaded["gen_bundle_item_input"].shape[0]
        shapes["gen_bundle_item_input"] = shapes["gen_bundle_item_output"] = (held_out, items)
        shapes["gen_user_bundle"] = (users, held_out)
        shapes["gen_neg"] = (held_out, loaded["gen_neg"].shape[1])
    problems = []
    for name, shape in shapes.items():
        if name in loaded and loaded[name].shape != shape:
            message = f"has shape {loaded[name].shape} where the other files say {shape}"
            problems.append(Problem("wrong-shape", str(file(folder, name)), message, _AGAIN))
    if problems or "gen_neg" not in loaded:
        return problems
    whole = loaded["gen_bundle_item_input"] + loaded["gen_bundle_item_output"]
    return _unusable(file(folder, "gen_neg"), loaded["gen_neg"], whole, "item")


def load_negatives(folder: Path, files: Files) -> Negatives | None:
    """The users' negatives [users, 99], if the folder or a `candidates` folder near it has them."""
    here = folder.resolve()
    near = [here, *(base / "candidates" for base in (here, here.parent, here.parent.parent))]
    path = next((place / f"negatives_{files.split}.npz" for place in near if _has(place, files.split)), None)
    if path is None:
        return None
    try:
        with np.load(path, allow_pickle=False) as archive:
            negatives: Negatives = archive["negatives"]
    except (OSError, EOFError, ValueError, KeyError, MemoryError, zipfile.BadZipFile) as error:
        message = f"has no readable array `negatives` ({type(error).__name__})"
        raise DataError(Problem("wrong-content", str(path), message, "Make or download it again.")) from None
    fix = "Use the negatives that were drawn for this split, or remove the file to have others drawn."
    if negatives.ndim != 2 or len(negatives) != files.train.shape[0] or negatives.dtype.kind not in "iu":
        message = (
            f"has shape {negatives.shape} where a row for each of {files.train.shape[0]:,} users is expected"
        )
        raise DataError(Problem("wrong-shape", str(path), message, fix))
    problems = _unusable(path, negatives, files.valid + files.test, "bundle")
    if problems:
        raise DataError(problems)
    return negatives.astype(np.int64)


def _has(place: Path, split: str) -> bool:
    return (place / f"negatives_{split}.npz").is_file()


def _unusable(path: Path, negatives: Negatives, positives: sparse.csr_matrix, kind: str) -> list[Problem]:
    """Negatives that do not exist, or that are right answers: either would make figures wrong."""
    where, size = str(path), positives.shape[1]
    outside = negatives[(negatives < 0) | (negatives >= size)]
    if outside.size:
        value = str(outside[0])
        message = f"{kind} {value} is outside 0 … {size - 1}"
        return [Problem("id-out-of-range", where, message, _AGAIN, value=value, more=outside.size - 1)]
    rows = np.repeat(np.arange(len(negatives)), negatives.shape[1])
    clash = binary_matrix(rows, negatives.ravel(), positives.shape).multiply(positives).tocoo()
    if clash.nnz:
        value = str(clash.col[0])
        message = f"{kind} {value} in row {clash.row[0]} is among the negatives, and is a right answer too"
        return [Problem("negative-is-positive", where, message, _AGAIN, value=value, more=clash.nnz - 1)]
    return []
