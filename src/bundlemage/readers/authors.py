"""Reads the BundleMage authors' files: pickled SciPy matrices, in one folder for each of the two splits."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from bundlemage.data.dataset import BundleDataset, as_binary, binary_matrix, pairs_of
from bundlemage.data.splits import GenerationCases, MatchingCases, Source, Split, leave_one_out, padded
from bundlemage.errors import DataError, Problem, collected
from bundlemage.readers import pathak
from bundlemage.readers.places import LARGEST, data_name, missing_files, too_large
from bundlemage.readers.unpickle import safe_load

_MATCHING = ("train", "valid", "test", "bundle_item")
_GENERATION = ("gen_bundle_item_input", "gen_bundle_item_output", "gen_user_bundle", "gen_neg")
_AGAIN = "Download the authors' files again."
_STEAM_USERS, _STEAM_ITEMS = 29_634, 2_819
_NEGATIVES, _SEED = 99, 0
_DRAWN_NOTE = (
    f"no file negatives_{{split}}.npz was found, so the {_NEGATIVES} negatives of each case were drawn with "
    f"seed {_SEED} from bundles that the user does not have: compare only metrics on the same negatives."
)
_NUMBERING_NOTE = (
    "bundles are numbered as in the files of the generation split, with the held-out bundles last: the same "
    "bundle has another number in the matching split."
)

Negatives = npt.NDArray[np.int64]
Files = dict[str, Any]
"""The contents of one folder's files, by file name. The shapes agree:

- train, valid, test [users, bundles]; bundle_item [bundles, items]
- user_item [users, items], which is not published for Steam
- only in the generation split: gen_bundle_item_input (items shown) and gen_bundle_item_output (items hidden)
  [held-out bundles, items]; gen_user_bundle [users, held-out bundles]; gen_neg [held-out bundles, negatives],
  an array of items. Held-out bundles are numbered separately, from 0.
"""


def _split_name(files: Files) -> str:
    return "gen" if "gen_neg" in files else "mat"


def matches(path: Path) -> bool:
    """Whether the folder, or its subfolder `mat` or `gen`, has a file of this layout."""
    return any(_holds_split(folder) for folder in (path, path / "mat", path / "gen"))


def read(path: Path) -> Source:
    """Returns the data set (train, validation and test data together), and the authors' split of it."""
    if not _holds_split(path):
        inner = [str(folder) for folder in (path / "mat", path / "gen") if _holds_split(folder)]
        message = "this folder does not hold a split itself"
        fix = f"Name one split: {' or '.join(inner) or 'the folder with train.pkl in it'}."
        raise DataError.of("which-split", str(path), message, fix)
    files = _load(path)
    negatives = _load_negatives(path, files)
    dataset = _dataset(data_name(path), files)
    if negatives is None:
        note = _DRAWN_NOTE.format(split=_split_name(files))
        dataset = replace(dataset, notes=(*dataset.notes, note))
    dataset, warnings = _with_catalogue(path, dataset)
    return Source(dataset, _split(dataset, files, negatives), warnings)


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.pkl"


def _holds_split(folder: Path) -> bool:
    return any(_file(folder, name).is_file() for name in (*_MATCHING, *_GENERATION))


# Loading and checking


def _load(folder: Path) -> Files:
    generation = any(_file(folder, name).exists() for name in _GENERATION)
    needed = (*_MATCHING, *(_GENERATION if generation else ()))
    problems = missing_files(folder, (f"{name}.pkl" for name in needed), _AGAIN)
    loaded: Files = {}
    for name in (*needed, "user_item"):
        if _file(folder, name).exists():
            with collected(problems):
                loaded[name] = _checked(_file(folder, name), safe_load(_file(folder, name)))
    # Steam is recognised by the folder's name or, if that was changed, by the numbers of users and games.
    sizes = [loaded[name].shape[axis] for name, axis in (("train", 0), ("bundle_item", 1)) if name in loaded]
    steam = data_name(folder).lower().startswith("steam") or sizes == [_STEAM_USERS, _STEAM_ITEMS]
    if not _file(folder, "user_item").exists() and not steam:
        fix = f"{_AGAIN} Only the Steam data can be read without this file."
        problems += missing_files(folder, ["user_item.pkl"], fix)
    problems = problems or _disagreements(folder, loaded)
    if problems:
        raise DataError(problems)
    return loaded


def _checked(path: Path, value: Any) -> Any:
    """Returns the file's binary matrix or array of negatives; raises `DataError` for anything else."""
    is_array = path.stem == "gen_neg"
    is_matrix: bool = sparse.issparse(value)
    if is_array and isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype.kind in "iu":
        return value.astype(np.int64)
    if is_array or not is_matrix:
        expected = "a table of whole numbers" if is_array else "a sparse matrix"
        message = f"holds a {type(value).__name__} where {expected} is expected"
        raise DataError.of("wrong-content", str(path), message, _AGAIN)
    if max(value.shape) > LARGEST:
        raise DataError(too_large(path, max(value.shape), "ids"))
    return as_binary(value)


def _disagreements(folder: Path, loaded: Files) -> list[Problem]:
    """Returns the problems of files that are valid but do not fit together."""
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
            message = f"has shape {loaded[name].shape} but the other files need {shape}"
            problems.append(Problem("wrong-shape", str(_file(folder, name)), message, _AGAIN))
    if problems or "gen_neg" not in loaded:
        return problems
    whole = loaded["gen_bundle_item_input"] + loaded["gen_bundle_item_output"]
    return _unusable(_file(folder, "gen_neg"), loaded["gen_neg"], whole, "item")


def _load_negatives(folder: Path, files: Files) -> Negatives | None:
    """Returns the users' negatives [users, 99] from this folder or a `candidates` folder near it, or None."""
    here = folder.resolve()
    near = [here, *(base / "candidates" for base in (here, here.parent, here.parent.parent))]
    candidates = (place / f"negatives_{_split_name(files)}.npz" for place in near)
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        return None
    try:
        with np.load(path, allow_pickle=False) as archive:
            negatives: Negatives = archive["negatives"]
    except (OSError, EOFError, ValueError, KeyError, MemoryError, zipfile.BadZipFile) as error:
        message = f"has no readable array `negatives` ({type(error).__name__})"
        raise DataError.of("wrong-content", str(path), message, "Make or download it again.") from None
    users = files["train"].shape[0]
    if negatives.ndim != 2 or len(negatives) != users or negatives.dtype.kind not in "iu":
        message = f"has shape {negatives.shape} where a row for each of {users:,} users is expected"
        fix = "Use the negatives that were drawn for this split, or remove the file: others are then drawn."
        raise DataError.of("wrong-shape", str(path), message, fix)
    problems = _unusable(path, negatives, files["valid"] + files["test"], "bundle")
    if problems:
        raise DataError(problems)
    return negatives.astype(np.int64)


def _unusable(path: Path, negatives: Negatives, positives: sparse.csr_matrix, kind: str) -> list[Problem]:
    """Returns a problem if a negative does not exist or is also a positive: metrics would be wrong."""
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
        message = f"{kind} {value} in row {clash.row[0]} is both a negative and a right answer"
        return [Problem("negative-is-positive", where, message, _AGAIN, value=value, more=clash.nnz - 1)]
    return []


# The data set and its split


def _dataset(name: str, files: Files) -> BundleDataset:
    user_bundle = files["train"] + files["valid"] + files["test"]
    bundle_item = files["bundle_item"]
    notes: tuple[str, ...] = ()
    if "gen_neg" in files:  # the held-out bundles come after the others
        held_out = files["gen_bundle_item_input"] + files["gen_bundle_item_output"]
        user_bundle = sparse.hstack([user_bundle, files["gen_user_bundle"]], "csr")
        bundle_item = sparse.vstack([bundle_item, held_out], "csr")
        notes = (_NUMBERING_NOTE,)
    user_item = files.get("user_item")
    if user_item is None:
        user_item = pathak.items_of_bundles(user_bundle, bundle_item)
        name, notes = pathak.PARTIAL_NAME, (pathak.PARTIAL_NOTE, *notes)
    return BundleDataset.numbered(user_item, user_bundle, bundle_item, name=name, notes=notes)


def _with_catalogue(path: Path, dataset: BundleDataset) -> tuple[BundleDataset, tuple[Problem, ...]]:
    """Add the catalogue in the folder `pathak` beside `authors`, if any. Its problems are only warnings."""
    folder = path.resolve().parent.parent / "pathak"
    if not pathak.matches(folder):
        return dataset, ()
    try:
        catalogue = pathak.catalogue_for(folder, dataset.bundle_item)
    except DataError as error:
        return dataset, tuple(replace(problem, severity="warning") for problem in error.problems)
    if catalogue.items.num_rows != len(dataset.items):
        message = f"describes {catalogue.items.num_rows:,} items where the split has {len(dataset.items):,}"
        fix = "Titles and prices are left out: replace this folder by the one that belongs to this data."
        return dataset, (Problem("wrong-shape", str(folder), message, fix, severity="warning"),)
    return replace(dataset, catalogue=catalogue), ()


def _split(dataset: BundleDataset, files: Files, negatives: Negatives | None) -> Split:
    train = dataset.with_interactions(
        user_bundle=binary_matrix(*pairs_of(files["train"]), dataset.user_bundle.shape),
        bundle_item=binary_matrix(*pairs_of(files["bundle_item"]), dataset.bundle_item.shape),
    )
    random = np.random.default_rng(_SEED)
    validation, test = (_cases(dataset, files[name], negatives, random) for name in ("valid", "test"))
    if "gen_neg" not in files:
        return Split(dataset, train, validation, test, None, protocol="authors-mat")
    # One case for each pair of a held-out bundle and a user who has it.
    users, bundles = pairs_of(files["gen_user_bundle"])
    shown, hidden = files["gen_bundle_item_input"], files["gen_bundle_item_output"]
    hidden_items = np.split(hidden.indices, hidden.indptr[1:-1])
    candidates = [np.concatenate(row) for row in zip(hidden_items, files["gen_neg"], strict=True)]
    generation = GenerationCases(users, bundles, shown, hidden, padded(candidates))
    return Split(dataset, train, validation, test, generation, protocol="authors-gen")


def _cases(
    dataset: BundleDataset,
    pairs: sparse.csr_matrix,
    negatives: Negatives | None,
    random: np.random.Generator,
) -> MatchingCases:
    """Returns one case for each held-out pair. Its candidates are the bundle, then the user's negatives."""
    users, bundles = pairs_of(pairs)
    if negatives is None:
        held_out = np.arange(len(dataset.bundles)) >= pairs.shape[1]
        return leave_one_out(dataset, users, bundles, held_out, _NEGATIVES, random)
    positives = binary_matrix(np.arange(len(users)), bundles, (len(users), len(dataset.bundles)))
    return MatchingCases(users, positives, np.column_stack([bundles, negatives[users]]).astype(np.int32))
