"""Where ids as people write them meet the positions that matrices use. Nowhere else do the two meet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bundlemage.errors import UnknownIdError

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})\Z")


def canonical_order(ids: Iterable[str]) -> list[str]:
    """Sort unique ids so that a vocabulary does not depend on the order of rows or tables.

    Whole numbers sort as numbers when every id is one; anything else sorts by code point.
    """
    unique = set(ids)
    if all(map(_INTEGER.match, unique)):
        return sorted(unique, key=int)
    return sorted(unique)


class Vocabulary:
    """An immutable list of distinct ids: the position of an id is its row or column in a matrix."""

    __slots__ = ("__dict__", "_ids", "kind")

    def __init__(self, kind: str, ids: Sequence[str]) -> None:
        self.kind = kind
        self._ids = tuple(ids)

    @classmethod
    def canonical(cls, kind: str, ids: Iterable[str]) -> Vocabulary:
        return cls(kind, canonical_order(ids))

    @classmethod
    def numbered(cls, kind: str, size: int) -> Vocabulary:
        """The ids 0 … size-1, for published layouts that know only positions."""
        return cls(kind, [str(position) for position in range(size)])

    @cached_property
    def known_positions(self) -> dict[str, int]:
        """Id → position, to look up in."""
        positions = {name: position for position, name in enumerate(self._ids)}
        if len(positions) != len(self._ids):
            raise ValueError(f"duplicate {self.kind} ids in a vocabulary")
        return positions

    @property
    def ids(self) -> tuple[str, ...]:
        return self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __getitem__(self, position: int) -> str:
        return self._ids[position]

    def __contains__(self, name: object) -> bool:
        return name in self.known_positions

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self._ids == other._ids

    def __hash__(self) -> int:
        return hash(self._ids)

    def __repr__(self) -> str:
        return f"Vocabulary({self.kind!r}, {len(self):,} ids)"

    def position(self, name: str) -> int:
        found = self.known_positions.get(name)
        if found is None:
            raise UnknownIdError(self.kind, [name], self._ids)
        return found

    def positions(self, names: Iterable[str]) -> npt.NDArray[np.int32]:
        """Positions of many ids; raises one error that counts every unknown one."""
        wanted = list(names)
        found = [self.known_positions.get(name, -1) for name in wanted]
        if -1 in found:
            unknown = [name for name, position in zip(wanted, found, strict=True) if position < 0]
            raise UnknownIdError(self.kind, unknown, self._ids)
        return np.array(found, dtype=np.int32)

    def known(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self.known_positions]

    def to_arrow(self) -> pa.Array:
        return pa.array(self._ids, type=pa.string())
