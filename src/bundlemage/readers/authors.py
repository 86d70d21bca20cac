"""The BundleMage authors' files: SciPy matrices in pickles, one folder for each of their two splits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import sparse

from bundlemage.data.dataset import BundleDataset, Positions, binary_matrix
from bundlemage.data.splits import GenerationCases, MatchingCases, Split, leave_one_out, padded
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.errors import DataError, Problem
from bundlemage.readers import pathak
from bundlemage.readers.authors_files import (
    GENERATION,
    MATCHING,
    Files,
    HeldOut,
    Negatives,
    file,
    load,
    load_negatives,
)
from bundlemage.readers.published import data_name
from bundlemage.readers.source import Source

_NEGATIVES, _SEED = 99, 0
_DRAWN_NOTE = (
    f"no file negatives_{{split}}.npz was found, so the {_NEGATIVES} negatives of each case were drawn with "
    f"seed {_SEED} from the bundles that the user has nowhere: compare only figures on the same draw."
)
_NUMBERING_NOTE = (
    "the generation split numbers bundles as its own files do, held-out bundles last: a bundle's number is "
    "not the one it has in the matching split."
)


def matches(path: Path) -> bool:
    return any(_holds_split(folder) for folder in (path, *_inner_folders(path)))


def read(path: Path) -> Source:
    """Everything joined as the dataset, and the authors' split of it."""
    if not _holds_split(path):
        inner = [str(folder) for folder in _inner_folders(path) if _holds_split(folder)]
        message = "this folder does not hold a split itself"
        fix = f"Name one split: {' or '.join(inner) or 'the folder with train.pkl in it'}."
        raise DataError(Problem("which-split", str(path), message, fix))
    files = load(path)
    negatives = load_negatives(path, files)
    dataset = _dataset(data_name(path), files)
    if negatives is None:
        note = _DRAWN_NOTE.format(split=files.split)
        dataset = replace(dataset, notes=(*dataset.notes, note))
    dataset, warnings = _with_catalogue(path, dataset)
    return Source(dataset, _split(dataset, files, negatives), warnings)


def _inner_folders(path: Path) -> tuple[Path, Path]:
    return path / "mat", path / "gen"


def _holds_split(folder: Path) -> bool:
    return any(file(folder, name).is_file() for name in (*MATCHING, *GENERATION))


def _dataset(name: str, files: Files) -> BundleDataset:
    (users, known), items = files.train.shape, files.bundle_item.shape[1]
    held_out = files.held_out
    bundles = known + (held_out.shown.shape[0] if held_out else 0)
    taken = [(part, 0, 0) for part in (files.train, files.valid, files.test)]
    contents = [(files.bundle_item, 0, 0)]
    if held_out:  # the held-out bundles come after the others
        taken.append((held_out.users, 0, known))
        contents += [(held_out.shown, known, 0), (held_out.hidden, known, 0)]
    user_bundle, bundle_item = _joined(taken, (users, bundles)), _joined(contents, (bundles, items))
    user_item, notes = files.user_item, ((_NUMBERING_NOTE,) if held_out else ())
    if user_item is None:
        user_item = pathak.items_of_bundles(user_bundle, bundle_item)
        name, notes = pathak.PARTIAL_NAME, (pathak.PARTIAL_NOTE, *notes)
    return BundleDataset(
        user_item=user_item,
        user_bundle=user_bundle,
        bundle_item=bundle_item,
        users=Vocabulary.numbered("user", users),
        items=Vocabulary.numbered("item", items),
        bundles=Vocabulary.numbered("bundle", bundles),
        name=name,
        notes=notes,
    )


def _joined(parts: list[tuple[sparse.csr_matrix, int, int]], shape: tuple[int, int]) -> sparse.csr_matrix:
    """One matrix of all pairs, each part moved down and right by its offsets."""
    placed = [(part.tocoo(), down, right) for part, down, right in parts]
    rows = np.concatenate([part.row.astype(np.int64) + down for part, down, _ in placed])
    columns = np.concatenate([part.col.astype(np.int64) + right for part, _, right in placed])
    return binary_matrix(rows, columns, shape)


def _with_catalogue(path: Path, dataset: BundleDataset) -> tuple[BundleDataset, tuple[Problem, ...]]:
    """Steam's first publication describes its games; a fault in there does not spoil the split."""
    folder = path.resolve().parent.parent / "pathak"
    if not pathak.matches(folder):
        return dataset, ()
    try:
        catalogue = pathak.catalogue_for(folder, dataset.bundle_item)
    except DataError as error:
        return dataset, tuple(replace(problem, severity="warning") for problem in error.problems)
    if catalogue.items.num_rows != len(dataset.items):
        message = f"describes {catalogue.items.num_rows:,} items where the split has {len(dataset.items):,}"
        fix = "Titles and prices are left out: put the pathak folder of the same data there."
        return dataset, (Problem("wrong-shape", str(folder), message, fix, severity="warning"),)
    return replace(dataset, catalogue=catalogue), ()


def _split(dataset: BundleDataset, files: Files, negatives: Negatives | None) -> Split:
    train = dataset.with_interactions(
        user_bundle=_joined([(files.train, 0, 0)], dataset.user_bundle.shape),
        bundle_item=_joined([(files.bundle_item, 0, 0)], dataset.bundle_item.shape),
    )
    random = np.random.default_rng(_SEED)
    validation, test = (_cases(dataset, pairs, negatives, random) for pairs in (files.valid, files.test))
    return Split(
        dataset,
        train,
        validation,
        test,
        generation=_generation(files.held_out) if files.held_out else None,
        protocol=f"authors-{files.split}",
    )


def _pairs(matrix: sparse.csr_matrix) -> tuple[Positions, Positions]:
    pairs = matrix.tocoo()
    return pairs.row.astype(np.int32), pairs.col.astype(np.int32)


def _cases(
    dataset: BundleDataset,
    pairs: sparse.csr_matrix,
    negatives: Negatives | None,
    random: np.random.Generator,
) -> MatchingCases:
    """One question for each held-out pair: the bundle, then the user's negatives."""
    users, bundles = _pairs(pairs)
    if negatives is None:
        held_out = np.arange(len(dataset.bundles)) >= pairs.shape[1]
        return leave_one_out(dataset, users, bundles, held_out, _NEGATIVES, random)
    positives = binary_matrix(np.arange(len(users)), bundles, (len(users), len(dataset.bundles)))
    return MatchingCases(users, positives, np.column_stack([bundles, negatives[users]]).astype(np.int32))


def _generation(held_out: HeldOut) -> GenerationCases:
    """One question for each user of each held-out bundle."""
    users, bundles = _pairs(held_out.users)
    hidden = np.split(held_out.hidden.indices, held_out.hidden.indptr[1:-1])
    candidates = [np.concatenate(row) for row in zip(hidden, held_out.negatives, strict=True)]
    return GenerationCases(users, bundles, held_out.shown, held_out.hidden, padded(candidates))
