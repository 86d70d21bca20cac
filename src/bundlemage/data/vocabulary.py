"""Vocabularies translate between ids, as users write them, and positions in matrices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bundlemage.errors import UnknownIdError

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
    """An immutable list of distinct ids: the position of an id is its row or column in a matrix."""

    __slots__ = ("__dict__", "_ids", "kind")

    def __init__(self, kind: str, ids: Sequence[str] | range) -> None:
        """`kind` is `user`, `item` or `bundle`. A range stands for its numbers as text."""
        self.kind = kind
        self._ids: tuple[str, ...] | range = ids if isinstance(ids, range) else tuple(ids)

    @classmethod
    def canonical(cls, kind: str, ids: Iterable[str]) -> Vocabulary:
        """Returns the vocabulary of these ids in canonical order."""
        return cls(kind, canonical_order(ids))

    @classmethod
    def numbered(cls, kind: str, size: int) -> Vocabulary:
        """Returns the ids 0 … size-1, for data that has only positions. They take no memory."""
        return cls(kind, range(size))

    @cached_property
    def known_positions(self) -> Mapping[str, int]:
        """The position of each id."""
        positions = {name: position for position, name in enumerate(self)}
        if len(positions) != len(self):
            raise ValueError(f"duplicate {self.kind} ids in a vocabulary")
        return positions

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids in their order. Stored ids are not copied."""
        return tuple(self) if isinstance(self._ids, range) else self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[str]:
        return map(str, self._ids)

    def __getitem__(self, position: int) -> str:
        return str(self._ids[position])

    def __contains__(self, name: object) -> bool:
        return name in self.known_positions

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary) or len(self) != len(other):
            return False
        if type(self._ids) is type(other._ids):
            return self._ids == other._ids
        return all(one == another for one, another in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash((len(self), *map(str, self._ids[:3])))

    def __repr__(self) -> str:
        return f"Vocabulary({self.kind!r}, {len(self):,} ids)"

    def position(self, name: str) -> int:
        """Returns the position of an id; raises `UnknownIdError`."""
        position = self.known_positions.get(name)
        if position is None:
            raise UnknownIdError(self.kind, [name], self)
        return position

    def positions(self, names: Iterable[str]) -> npt.NDArray[np.int32]:
        """Returns the positions of many ids; raises one `UnknownIdError` that counts every unknown id."""
        wanted = list(names)
        positions = [self.known_positions.get(name, -1) for name in wanted]
        if -1 in positions:
            unknown = [name for name, position in zip(wanted, positions, strict=True) if position < 0]
            raise UnknownIdError(self.kind, unknown, self)
        return np.array(positions, dtype=np.int32)

    def known(self, names: Iterable[str]) -> list[str]:
        """Returns those of the names that are ids of this vocabulary."""
        return [name for name in names if name in self.known_positions]

    def to_arrow(self, start: int = 0, stop: int | None = None) -> pa.Array:
        """Returns all ids, or those of some positions, as Arrow strings."""
        ids = self._ids[start:stop]
        return pa.array(map(str, ids) if isinstance(ids, range) else ids, type=pa.string())
