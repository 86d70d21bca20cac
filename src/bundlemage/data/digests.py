"""What data is equal to, in a few digits that can be worked out part by part, whatever the parts are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class IdDigest:
    """Of a vocabulary, given in pieces in its order."""

    def __init__(self, kind: str) -> None:
        self._kind, self._count = kind, 0
        self._lengths, self._texts = hashlib.sha256(), hashlib.sha256()

    def add(self, ids: pa.Array) -> None:
        """The ids that come next, as Arrow strings."""
        if not len(ids):
            return
        _, offsets_buffer, texts = ids.buffers()
        width = "<i8" if pa.types.is_large_string(ids.type) else "<i4"
        offsets = np.frombuffer(offsets_buffer, width)[ids.offset : ids.offset + len(ids) + 1]
        self._count += len(ids)
        self._lengths.update(np.diff(offsets).astype("<i8").tobytes())
        if texts is not None:
            self._texts.update(memoryview(texts)[int(offsets[0]) : int(offsets[-1])])

    def hexdigest(self) -> str:
        whole = f"{self._kind}:{self._count}\n".encode() + self._lengths.digest() + self._texts.digest()
        return hashlib.sha256(whole).hexdigest()


class RowDigest:
    """Of a binary matrix, given in pieces of rows from the top."""

    def __init__(self) -> None:
        self._counts, self._columns = hashlib.sha256(), hashlib.sha256()

    def add(self, counts: npt.NDArray[np.integer], columns: npt.NDArray[np.integer]) -> None:
        """The rows that come next: how many columns each has, and which, in order."""
        self._counts.update(counts.astype("<i8").tobytes())
        self._columns.update(np.ascontiguousarray(columns, dtype="<i4").data)

    def hexdigest(self) -> str:
        return hashlib.sha256(self._counts.digest() + self._columns.digest()).hexdigest()


def fingerprint(digests: Mapping[str, str]) -> str:
    """One for all six: of the three vocabularies and of the three matrices."""
    listed = "".join(f"{name} {digests[name]}\n" for name in sorted(digests))
    return hashlib.sha256(listed.encode()).hexdigest()
