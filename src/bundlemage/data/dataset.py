"""The form of data that models use: three binary matrices, three vocabularies and a catalogue.

A vocabulary translates between ids, as users write them, and positions in matrices.
"""

from __future__ import annotations

import hashlib
import operator
import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import sparse

from bundlemage.data.events import FACTS, NOTHING_KNOWN, Events
from bundlemage.data.layered import MOST_CHANGES, changed
from bundlemage.errors import UnknownIdError

Positions = npt.NDArray[np.int32]

ITEM_SCHEMA = pa.schema(
    [
        ("item_id", pa.string()),
        ("title", pa.string()),
        ("price", pa.float64()),
        ("tags", pa.list_(pa.string())),
        ("stock", pa.int64()),
        ("cost", pa.float64()),  # what the shop pays for it
        ("image_url", pa.string()),
        ("description", pa.string()),
        ("vector", pa.list_(pa.float32())),  # what a text or image model says about it
    ]
)
BUNDLE_SCHEMA = pa.schema(
    [
        ("bundle_id", pa.string()),
        ("title", pa.string()),
        ("price", pa.float64()),
        ("tags", pa.list_(pa.string())),
        ("discount", pa.float64()),  # a fraction: 0.2 is 20% off
        ("image_url", pa.string()),
    ]
)
EVENTS_OF = {"user_item": "item_events", "user_bundle": "bundle_events"}
"""For each matrix with events: the field that holds what is known about its pairs."""
INTEGER = r"0|-?[1-9][0-9]{0,17}"
"""A whole number in canonical form that fits into 64 bits."""
_INTEGER = re.compile(rf"({INTEGER})\Z")


def canonical_order(ids: Iterable[str]) -> list[str]:
    """Returns the unique ids sorted, so that a vocabulary does not depend on the order of rows or tables.

    If every id is a whole number, they sort as numbers; otherwise all sort by code point.
    """
    unique = set(ids)
    if all(map(_INTEGER.match, unique)):
        return sorted(unique, key=int)
    return sorted(unique)


class Vocabulary:
    """An immutable list of distinct ids: the position of an id is its row or column in a matrix.

    The ids are in their canonical order, except those that `with_more` has added at the end.
    """

    __slots__ = ("__dict__", "_first", "_ids", "_later", "kind")

    def __init__(self, kind: str, ids: Sequence[str] | range) -> None:
        """`kind` is `user`, `item` or `bundle`. A range stands for its numbers as text."""
        self.kind = kind
        self._ids: tuple[str, ...] | range = ids if isinstance(ids, range) else tuple(ids)
        self._later: tuple[str, ...] = ()  # the ids after `_ids`
        self._first: Vocabulary | None = None  # the ids without those that `with_more` has added

    @classmethod
    def numbered(cls, kind: str, size: int) -> Vocabulary:
        """Returns the ids 0 … size-1, for data that has only positions. They take no memory."""
        return cls(kind, range(size))

    def with_more(self, names: Sequence[str]) -> Vocabulary:
        """Returns a vocabulary with new ids at the end. It shares memory with this one."""
        if not names:
            return self
        later = (*self._later, *names)
        is_small = len(later) <= MOST_CHANGES
        more = Vocabulary(self.kind, self._ids if is_small else (*map(str, self._ids), *later))
        more._later = later if is_small else ()
        more._first = self._first or self
        if (known := vars(self).get("by_id")) is not None:
            vars(more)["by_id"] = more._put_in(known, len(self))
        places = {name: place for place, name in enumerate(names, start=len(self))}
        vars(more)["known_positions"] = changed(self.known_positions, places)
        return more

    @cached_property
    def known_positions(self) -> Mapping[str, int]:
        """The position of each id."""
        positions = {name: position for position, name in enumerate(self)}
        if len(positions) != len(self):
            raise ValueError(f"duplicate {self.kind} ids in a vocabulary")
        return positions

    @cached_property
    def by_id(self) -> npt.NDArray[np.int64] | None:
        """All positions in the order of their ids; None if the ids are in order already.

        If the ids without the added ones are whole numbers, numbers come first.
        """
        return None if self._first is None else self._put_in(np.arange(len(self._first)), len(self._first))

    @cached_property
    def _are_numbers(self) -> bool:
        return isinstance(self._ids, range) or all(map(_INTEGER.match, self))

    def _put_in(self, ordered: npt.NDArray[np.int64], start: int) -> npt.NDArray[np.int64]:
        """Put the positions from `start` on into `ordered`, the lower positions in the order of their ids."""
        numbers = (self._first or self)._are_numbers

        def key(position: int) -> tuple[bool, int, str]:
            name = self[position]
            is_number = numbers and _INTEGER.match(name) is not None
            return not is_number, int(name) if is_number else 0, name

        new = sorted(range(start, len(self)), key=key)
        places = [bisect(ordered, key(position), key=key) for position in new]
        return np.insert(ordered, places, new)

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids in their order. Stored ids are not copied."""
        return tuple(self) if isinstance(self._ids, range) or self._later else self._ids

    def __len__(self) -> int:
        return len(self._ids) + len(self._later)

    def __iter__(self) -> Iterator[str]:
        return map(str, chain(self._ids, self._later))

    def __getitem__(self, position: int) -> str:
        after = position - len(self._ids)
        return str(self._ids[position]) if after < 0 else self._later[after]

    def __contains__(self, name: object) -> bool:
        return name in self.known_positions

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary) or len(self) != len(other):
            return False
        if isinstance(self._ids, range) and isinstance(other._ids, range) and not self._later + other._later:
            return self._ids == other._ids
        return all(map(operator.eq, self, other))

    def __hash__(self) -> int:
        return hash((len(self), *islice(self, 3)))

    def __repr__(self) -> str:
        return f"Vocabulary({self.kind!r}, {len(self):,} ids)"

    def position(self, name: str) -> int:
        """Returns the position of an id; raises `UnknownIdError` if there is no such id."""
        position = self.known_positions.get(name)
        if position is None:
            raise UnknownIdError(self.kind, [name], self)
        return position

    def positions(self, names: Iterable[str]) -> Positions:
        """Returns the positions of many ids; raises one `UnknownIdError` for all unknown ids."""
        ids = list(names)
        positions = [self.known_positions.get(name, -1) for name in ids]
        if -1 in positions:
            unknown = [name for name, position in zip(ids, positions, strict=True) if position < 0]
            raise UnknownIdError(self.kind, unknown, self)
        return np.array(positions, dtype=np.int32)

    def known(self, names: Iterable[str]) -> list[str]:
        """Returns those of the names that are ids of this vocabulary."""
        return [name for name in names if name in self.known_positions]

    def to_arrow(self, start: int = 0, stop: int | None = None) -> pa.Array:
        """Returns all ids, or those of some positions, as Arrow strings."""
        ids = self.ids[start:stop] if self._later else self._ids[start:stop]
        return pa.array(map(str, ids) if isinstance(ids, range) else ids, type=pa.string())


def binary_matrix(rows: npt.ArrayLike, columns: npt.ArrayLike, shape: tuple[int, int]) -> sparse.csr_matrix:
    """Returns a CSR matrix with ones at these positions, with sorted rows and read-only arrays.

    A pair that occurs twice counts once. Raises `ValueError` if a position is outside `shape`.
    """
    row, column = np.asarray(rows, dtype=np.int64), np.asarray(columns, dtype=np.int64)
    if row.size and (row.min() < 0 or column.min() < 0 or row.max() >= shape[0] or column.max() >= shape[1]):
        raise ValueError(f"a position is outside a matrix of shape {shape}")
    keys = row * max(shape[1], 1) + column
    keys.sort()  # np.unique hashes, which is several times slower for ten million pairs
    keys = keys[np.diff(keys, prepend=-1) > 0]
    counts = np.bincount(keys // max(shape[1], 1), minlength=shape[0])
    indptr = np.concatenate([[0], np.cumsum(counts)])
    indices = (keys % max(shape[1], 1)).astype(np.int32)
    return frozen(sparse.csr_matrix((np.ones(len(keys), np.float32), indices, indptr), shape=shape))


def with_rows(
    matrix: sparse.csr_matrix, rows: Mapping[int, Sequence[int]], row_count: int
) -> sparse.csr_matrix:
    """Returns a binary matrix with other columns in some rows. `rows` has the columns, sorted, each once.

    The result has `row_count` rows. All other rows are copied as they are, without sorting.
    """
    places = sorted(rows)
    before = np.pad(matrix.indptr, (0, row_count - matrix.shape[0]), mode="edge")
    lengths = np.diff(before)
    lengths[places] = [len(rows[place]) for place in places]
    parts, end = [], 0
    for place, start, stop in zip(places, before[places], before[[row + 1 for row in places]], strict=True):
        parts += [matrix.indices[end:start], np.array(rows[place], np.int32)]
        end = stop
    indices = np.concatenate([*parts, matrix.indices[end:]])
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    ones = np.ones(len(indices), np.float32)
    result = sparse.csr_matrix((ones, indices, indptr), shape=(row_count, matrix.shape[1]))
    result.has_canonical_format = True  # otherwise SciPy would look at all entries to find it out
    return frozen(result)


def with_columns(matrix: sparse.csr_matrix, columns: int) -> sparse.csr_matrix:
    """Returns a matrix with empty columns at the end. It shares memory with this one."""
    wider = sparse.csr_matrix((matrix.data, matrix.indices, matrix.indptr), (matrix.shape[0], columns))
    wider.has_canonical_format = True  # otherwise SciPy would look at all entries to find it out
    return wider


def row_of(matrix: sparse.csr_matrix, row: int) -> Positions:
    """The columns of the entries in one row."""
    columns: Positions = matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]
    return columns


def frozen(matrix: sparse.csr_matrix) -> sparse.csr_matrix:
    """Makes the arrays of a matrix read-only, and returns it."""
    for array in (matrix.data, matrix.indices, matrix.indptr):
        array.setflags(write=False)
    return matrix


def pairs_of(matrix: sparse.csr_matrix) -> tuple[Positions, Positions]:
    """Returns the row and the column of each pair, in the order of rows."""
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int32), np.diff(matrix.indptr))
    return rows, matrix.indices


def as_binary(matrix: Any) -> sparse.csr_matrix:
    """Converts a matrix of any kind to the form of `binary_matrix`, with ones where it is not zero."""
    coo = sparse.coo_matrix(matrix)
    stored = coo.data != 0
    return binary_matrix(coo.row[stored], coo.col[stored], coo.shape)


class PartDigest:
    """Computes the digest of a vocabulary or of a binary matrix that is added piece by piece, in order."""

    def __init__(self, kind: str = "") -> None:
        """`kind` is the kind of a vocabulary, such as `user`; it is empty for a matrix."""
        self._kind, self._count = kind, 0
        self._lengths, self._contents = hashlib.sha256(), hashlib.sha256()

    def add_ids(self, ids: pa.Array) -> None:
        """Adds the next ids, as Arrow strings."""
        if not len(ids):
            return
        _, offsets_buffer, texts = ids.buffers()
        width = "<i8" if pa.types.is_large_string(ids.type) else "<i4"
        offsets = np.frombuffer(offsets_buffer, width)[ids.offset : ids.offset + len(ids) + 1]
        self._count += len(ids)
        self._lengths.update(np.diff(offsets).astype("<i8").tobytes())
        if texts is not None:
            self._contents.update(memoryview(texts)[int(offsets[0]) : int(offsets[-1])])

    def add_rows(self, counts: npt.NDArray[np.integer], columns: npt.NDArray[np.integer]) -> None:
        """Adds the next rows of a matrix: the number of entries in each row, and their columns in order."""
        self._lengths.update(counts.astype("<i8").tobytes())
        self._contents.update(np.ascontiguousarray(columns, dtype="<i4").data)

    def hexdigest(self) -> str:
        header = f"{self._kind}:{self._count}\n" if self._kind else ""
        whole = header.encode() + self._lengths.digest() + self._contents.digest()
        return hashlib.sha256(whole).hexdigest()


def fingerprint(digests: Mapping[str, str]) -> str:
    """Combines the digests of the three vocabularies and the three matrices into one."""
    listed = "".join(f"{name} {digests[name]}\n" for name in sorted(digests))
    return hashlib.sha256(listed.encode()).hexdigest()


def _digest(part: Vocabulary | sparse.csr_matrix | npt.NDArray[Any], piece: int = 1_000_000) -> str:
    if isinstance(part, np.ndarray):
        return hashlib.sha256(part.astype(part.dtype.newbyteorder("<"), copy=False).tobytes()).hexdigest()
    if isinstance(part, Vocabulary):
        digest = PartDigest(part.kind)
        for start in range(0, len(part), piece):
            digest.add_ids(part.to_arrow(start, start + piece))
    else:
        digest = PartDigest()
        digest.add_rows(np.diff(part.indptr), part.indices)
    return digest.hexdigest()


def empty_catalogue(schema: pa.Schema, vocabulary: Vocabulary) -> pa.Table:
    """Returns a catalogue table for these ids in which everything else is null."""
    return catalogue_table(schema, {schema.names[0]: vocabulary.to_arrow()})


def catalogue_table(schema: pa.Schema, columns: Mapping[str, Any]) -> pa.Table:
    """Returns a catalogue table with these columns, which include the ids. All other columns are null."""
    size = len(columns[schema.names[0]])
    nulls = {field.name: pa.nulls(size, field.type) for field in schema if field.name not in columns}
    return pa.table({**columns, **nulls}, schema=schema)


@dataclass(frozen=True)
class Catalogue:
    """Titles, prices, tags and so on of items and bundles. Row n describes position n."""

    items: pa.Table
    """`ITEM_SCHEMA`; unknown values are null."""
    bundles: pa.Table
    """`BUNDLE_SCHEMA`; unknown values are null."""


@dataclass(frozen=True)
class BundleDataset:
    """The items and bundles of each user, and the items of each bundle. Immutable and validated."""

    user_item: sparse.csr_matrix  # [users, items]
    user_bundle: sparse.csr_matrix  # [users, bundles]
    bundle_item: sparse.csr_matrix  # [bundles, items]
    users: Vocabulary
    items: Vocabulary
    bundles: Vocabulary
    catalogue: Catalogue | None = None
    name: str = "dataset"
    notes: tuple[str, ...] = field(default=())
    """Facts to know before comparing figures, such as that a matrix was reconstructed."""
    item_events: Events = NOTHING_KNOWN
    """When and how strongly users took items: facts about the pairs of `user_item`."""
    bundle_events: Events = NOTHING_KNOWN
    """The same for `user_bundle`."""
    event_weights: Mapping[str, float] | None = None
    """The weight of each type of event with which the tables were read. None: none were given."""
    known_digests: tuple[tuple[object, Mapping[str, str]], ...] = field(default=(), repr=False, compare=False)
    """Pairs: a vocabulary, a matrix or events that were not read completely, and the digests of the complete
    ones by their names in `digests`."""

    def __post_init__(self) -> None:
        shapes = {
            "user_item": (len(self.users), len(self.items)),
            "user_bundle": (len(self.users), len(self.bundles)),
            "bundle_item": (len(self.bundles), len(self.items)),
        }
        for attribute, shape in shapes.items():
            matrix = getattr(self, attribute)
            if matrix.shape != shape:
                raise ValueError(f"{attribute} has shape {matrix.shape}, but the vocabularies need {shape}")
            is_binary = (
                isinstance(matrix, sparse.csr_matrix)
                and matrix.dtype == np.float32
                and not matrix.data.flags.writeable
                and matrix.has_canonical_format
                and bool((matrix.data == 1).all())
            )
            if not is_binary:
                object.__setattr__(self, attribute, as_binary(matrix))
        for attribute, field_name in EVENTS_OF.items():
            getattr(self, field_name).check(getattr(self, attribute), attribute)
        if self.catalogue is not None:
            catalogue = self.catalogue
            for table, ids in ((catalogue.items, self.items), (catalogue.bundles, self.bundles)):
                if not table.column(0).combine_chunks().equals(ids.to_arrow()):
                    raise ValueError(
                        f"the catalogue's {ids.kind} ids, or their order, differ from those of the data"
                    )

    @classmethod
    def numbered(cls, user_item: Any, user_bundle: Any, bundle_item: Any, **more: Any) -> BundleDataset:
        """Returns a data set whose ids are numbers. `more` holds the other fields."""
        sizes = {"user": user_item.shape[0], "item": user_item.shape[1], "bundle": user_bundle.shape[1]}
        users, items, bundles = (Vocabulary.numbered(kind, size) for kind, size in sizes.items())
        return cls(user_item, user_bundle, bundle_item, users, items, bundles, **more)

    def with_interactions(self, **matrices: sparse.csr_matrix) -> BundleDataset:
        """Returns a data set with other matrices but the same vocabularies and catalogue, for a split.

        What is known about the pairs follows them.
        """
        events = {
            field_name: getattr(self, field_name).of(getattr(self, name), matrices[name])
            for name, field_name in EVENTS_OF.items()
            if name in matrices
        }
        return replace(self, **matrices, **events)

    def with_item_events(self, same: Events) -> BundleDataset:
        """Returns a data set whose `item_events` are another object with the same facts."""
        known = (same, self._known(self.item_events))
        return replace(self, item_events=same, known_digests=(known, *self.known_digests))

    @property
    def weighted(self) -> bool:
        """Whether some pairs are stronger than others."""
        return self.item_events.weight is not None or self.bundle_events.weight is not None

    @property
    def bought_bundles(self) -> sparse.csr_matrix:
        """`user_bundle` with only the purchases. It is the same matrix if there are no weaker events."""
        return self.bundle_events.bought(self.user_bundle)

    @property
    def bought_items(self) -> sparse.csr_matrix:
        """The same for `user_item`."""
        return self.item_events.bought(self.user_item)

    def only_bundles(self, kept: Positions) -> BundleDataset:
        """Returns a data set with only the bundles at these positions, in this order."""
        bundles = Vocabulary(self.bundles.kind, [self.bundles[position] for position in kept.tolist()])
        catalogue = self.catalogue
        if catalogue is not None:
            catalogue = replace(catalogue, bundles=catalogue.bundles.take(kept))
        matrices = {"user_bundle": self.user_bundle[:, kept], "bundle_item": self.bundle_item[kept]}
        events = self.bundle_events.columns(self.user_bundle, kept)
        return replace(self, **matrices, bundles=bundles, catalogue=catalogue, bundle_events=events)

    def with_items(self, items: pa.Table) -> BundleDataset:
        """Returns a data set with more items at the end, which nobody has and no bundle contains. `items` is
        their catalogue. Matrices share memory with this data set."""
        vocabulary = self.items.with_more(items[ITEM_SCHEMA.names[0]].to_pylist())
        catalogue = self.catalogue or Catalogue(
            empty_catalogue(ITEM_SCHEMA, self.items), empty_catalogue(BUNDLE_SCHEMA, self.bundles)
        )
        catalogue = replace(catalogue, items=pa.concat_tables([catalogue.items, items]))
        rejected = self.item_events.rejected
        if rejected is not None:
            rejected = with_columns(rejected, len(vocabulary))
        return replace(
            self,
            user_item=with_columns(self.user_item, len(vocabulary)),
            bundle_item=with_columns(self.bundle_item, len(vocabulary)),
            items=vocabulary,
            catalogue=catalogue,
            item_events=replace(self.item_events, rejected=rejected),
        )

    def item_title(self, position: int) -> str | None:
        return None if self.catalogue is None else self.catalogue.items["title"][position].as_py()

    def bundle_title(self, position: int) -> str | None:
        return None if self.catalogue is None else self.catalogue.bundles["title"][position].as_py()

    def fingerprint(self) -> str:
        """Returns a SHA-256 over ids and pairs. It is equal for equal data, whichever reader was used."""
        return fingerprint(self.digests())

    def digests(self) -> dict[str, str]:
        """Returns a SHA-256 of each vocabulary, of each matrix and of what is known about its pairs."""
        digests = {}
        for name in ("users", "items", "bundles", "user_item", "user_bundle", "bundle_item"):
            part = getattr(self, name)
            digests[name] = self._known(part).get(name) or _digest(part)
        for name, field_name in EVENTS_OF.items():
            events = getattr(self, field_name)
            digests |= self._known(events) or {
                f"{name}_{fact}": _digest(part)
                for fact in FACTS
                # Data without events keeps the fingerprint that it always had.
                if (part := getattr(events, fact)) is not None
            }
        return digests

    def _known(self, part: object) -> Mapping[str, str]:
        # Compared by identity: a part that was replaced, as in a split, has another digest.
        return next((digests for owner, digests in self.known_digests if owner is part), {})

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"users": len(self.users), "items": len(self.items), "bundles": len(self.bundles)}

    def __repr__(self) -> str:
        return (
            f"BundleDataset({self.name!r}: {len(self.users):,} users, {len(self.bundles):,} bundles, "
            f"{len(self.items):,} items; {self.user_bundle.nnz:,} user-bundle, "
            f"{self.user_item.nnz:,} user-item, {self.bundle_item.nnz:,} bundle-item pairs)"
        )
