"""Where ids as people write them meet the positions that matrices use. Nowhere else do the two meet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bundlemage.errors import UnknownIdError

INTEGER = r"0|-?[1-9][0-9]{0,17}"
"""A whole number as text, written in the one way there is; it fits into 64 bits."""
_INTEGER = re.compile(rf"({INTEGER})\Z")


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
        self._ids: Sequence[str] = ids if isinstance(ids, _Numbers) else tuple(ids)

    @classmethod
    def canonical(cls, kind: str, ids: Iterable[str]) -> Vocabulary:
        return cls(kind, canonical_order(ids))

    @classmethod
    def numbered(cls, kind: str, size: int) -> Vocabulary:
        """The ids 0 … size-1, for published layouts that know only positions. They take no memory."""
        return cls(kind, _Numbers(size))

    @cached_property
    def known_positions(self) -> Mapping[str, int]:
        """Id → position, to look up in."""
        if isinstance(self._ids, _Numbers):
            return _NumberPositions(self._ids)
        positions = {name: position for position, name in enumerate(self._ids)}
        if len(positions) != len(self._ids):
            raise ValueError(f"duplicate {self.kind} ids in a vocabulary")
        return positions

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __getitem__(self, position: int) -> str:
        return self._ids[position]

    def __contains__(self, name: object) -> bool:
        return name in self.known_positions

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary) or len(self) != len(other):
            return False
        if type(self._ids) is type(other._ids):
            return self._ids == other._ids
        return all(one == another for one, another in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash((len(self), *self._ids[:3]))

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

    def to_arrow(self, start: int = 0, stop: int | None = None) -> pa.Array:
        """All ids, or those of some positions."""
        return pa.array(self._ids[start:stop], type=pa.string())


class _Numbers(Sequence[str]):
    """The texts 0 … size-1, each made when it is asked for."""

    def __init__(self, size: int) -> None:
        self._range = range(size)

    def __len__(self) -> int:
        return len(self._range)

    def __iter__(self) -> Iterator[str]:
        return map(str, self._range)

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[str]: ...
    def __getitem__(self, position: int | slice) -> str | Sequence[str]:
        if isinstance(position, slice):
            return [str(number) for number in self._range[position]]
        return str(self._range[position])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Numbers) and len(self) == len(other)

    def __hash__(self) -> int:
        return hash(self._range)


class _NumberPositions(Mapping[str, int]):
    """What the dictionary of their positions would say."""

    def __init__(self, numbers: _Numbers) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __getitem__(self, name: str) -> int:
        if isinstance(name, str) and _INTEGER.match(name) and 0 <= int(name) < len(self._numbers):
            return int(name)
        raise KeyError(name)
