"""What the catalogue says about an item, as the item's vectors: for items that came after training.

After training, a ridge regression learns to predict the vectors of known items from their features. Nothing
about the known items changes. An item that nobody has seen yet gets the predicted vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from scipy import linalg, sparse
from torch import Tensor, nn

from bundlemage.data.dataset import ITEM_SCHEMA
from bundlemage.data.features import KINDS, MOST_USED, SLOTS, FeaturePlan, Mask
from bundlemage.models.ragged import Ragged

Floats = npt.NDArray[np.floating]

PENALTY = 2.0
"""λ: how much the regression shrinks towards the mean item. The mean weight of an item is 1."""
MOST_ITEMS = 100_000
"""In a larger catalogue, the regression learns from this many items, those that were seen most often."""
_OF_PLAN = ("columns", "idf", "bounds", "vector_mean")


def ridge(features: sparse.csr_matrix, vectors: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Returns the weighted mean vector μ, and the B that minimises Σ_i w_i ‖y_i − μ − x_i B‖² + λ‖B‖².

    The smaller of two systems is solved: with a row for each feature, or for each item.
    """
    weights = weights / weights.mean()
    mean = np.average(vectors, axis=0, weights=weights)
    root = sparse.diags(np.sqrt(weights))
    rows, rest = sparse.csr_matrix(root @ features), root @ (vectors - mean)  # √W X, √W (Y − μ)
    items, size = rows.shape
    product = (rows.T @ rows if size <= items else rows @ rows.T).toarray()
    product[np.diag_indices_from(product)] += PENALTY
    if size <= items:
        return mean, linalg.solve(product, rows.T @ rest, assume_a="pos")
    return mean, rows.T @ linalg.solve(product, rest, assume_a="pos")


class ContentMap(nn.Module):
    """Predicts the vectors of an item from its record in the catalogue. Empty until `learn`."""

    def __init__(self, items: int, width: int) -> None:
        """The model has `items` items, and the vectors of an item have `width` numbers together."""
        super().__init__()
        self.items, self.width = items, width
        for name in ("columns", "idf", "bounds", "vector_mean", "mean", "map", "unseen"):
            # In a saved model, tensors of 8-byte numbers come first. So these small ones, of any length, do
            # not change how the large tables are aligned, which processes share.
            kind = torch.int64 if name in ("columns", "unseen") else torch.float64
            kind = torch.float32 if name == "map" else kind
            shape = (0, width) if name == "map" else (0,)
            # Without a device, it would be lost if the model is built without memory to be loaded.
            self.register_buffer(name, torch.zeros(shape, dtype=kind, device="cpu"))
        self.columns: Tensor
        self.mean: Tensor
        self.map: Tensor
        self.unseen: Tensor
        """Positions of items of the training catalogue that nobody had: known by content, too."""

    def __bool__(self) -> bool:
        """Whether it has learned anything."""
        return len(self.mean) > 0

    @property
    def plan(self) -> FeaturePlan:
        """How features are computed."""
        columns, *others = (getattr(self, name).numpy() for name in _OF_PLAN)
        return FeaturePlan(columns, *(each.astype(np.float32) for each in others))

    def learn(self, items: pa.Table, vectors: Tensor, counts: npt.NDArray[np.integer], unseen: Mask) -> None:
        """Learns from the items with a count. `counts` says how often an item was seen: its vectors are then
        better known, and weigh more. Learns nothing if the catalogue says nothing about these items."""
        seen = np.flatnonzero(counts)
        if len(seen) > MOST_ITEMS:
            seen = np.sort(seen[np.argsort(-counts[seen], kind="stable")[:MOST_ITEMS]])
        known = items.take(pa.array(seen))
        plan = FeaturePlan.fit(known)
        features = plan.of(known)
        if not plan.says_something(features).any():
            return
        targets = vectors.detach().cpu().numpy()[seen]
        mean, matrix = ridge(features, targets, np.sqrt(counts[seen]))
        for name in _OF_PLAN:
            values = getattr(plan, name)
            kind = np.int64 if name == "columns" else np.float64
            setattr(self, name, torch.from_numpy(values.astype(kind)))
        self.mean = torch.from_numpy(mean.astype(np.float64))
        padded = np.zeros((_padded(plan.size), self.width), np.float32)
        padded[: plan.size] = matrix
        self.map = torch.from_numpy(padded).to(vectors)
        places = np.flatnonzero(unseen)
        described = self.knows(items.take(pa.array(places))) if len(places) else np.zeros(0, bool)
        self.unseen = torch.from_numpy(places[described])

    def knows(self, items: pa.Table) -> Mask:
        """For each item: whether the model can use what the catalogue says about it."""
        plan = self.plan
        return plan.says_something(plan.of(items))

    def vectors(self, items: pa.Table) -> Tensor:
        """μ + x B for each item."""  # [items, width]
        features = self.plan.of(items)
        rows = Ragged.from_csr(features, self.map.device)
        weights = torch.from_numpy(features.data).to(self.map)
        return self.mean.to(self.map) + rows.weighted_sum_of(self.map, weights)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Moves or casts only the map: some devices have no float64."""
        self.map = fn(self.map)
        return self

    # A model without content is saved as before, and loads what was saved before.

    def _save_to_state_dict(self, *arguments: Any) -> None:
        if self:
            super()._save_to_state_dict(*arguments)

    def _load_from_state_dict(
        self, state: Any, prefix: str, metadata: Any, strict: bool, missing: Any, unexpected: Any, errors: Any
    ) -> None:
        if not any(name.startswith(prefix) for name in state):
            return
        saved = {name: state[prefix + name] for name in self._buffers if prefix + name in state}
        for name, tensor in saved.items():
            buffer = getattr(self, name)
            if tensor.ndim == buffer.ndim:
                setattr(self, name, torch.empty_like(tensor, device=buffer.device))
        before = len(errors)
        super()._load_from_state_dict(state, prefix, metadata, strict, missing, unexpected, errors)
        fault = None if len(errors) > before or len(saved) < len(self._buffers) else self._fault(saved)
        if fault is not None:
            errors.append(f"{prefix}{fault}")

    def _fault(self, saved: dict[str, Tensor]) -> str | None:
        """What is wrong with saved buffers that a forger may have written; None if nothing is."""
        columns, bounds, unseen = (saved[name] for name in ("columns", "bounds", "unseen"))
        whole = columns.dtype == unseen.dtype == torch.int64
        if not whole or any(tensor.ndim != 1 for name, tensor in saved.items() if name != "map"):
            return "columns and the other buffers have a wrong type or shape"
        size = len(columns) + (len(bounds) + 1 if len(bounds) else 0) + len(saved["vector_mean"])
        if len(columns) > MOST_USED or not _rising(columns, 0, len(KINDS) * SLOTS):
            return "columns are not ascending positions of hashed features"
        expected = [_padded(size), self.width]
        if len(saved["idf"]) != len(columns) or list(saved["map"].shape) != expected:
            return f"map has the shape {list(saved['map'].shape)}; expected {expected}"
        if len(saved["mean"]) != self.width or not bool((bounds.diff() > 0).all()):
            return "mean or bounds do not fit"
        if not _rising(unseen, 0, self.items):
            return "unseen has a position that is not an item's"
        return None


def _padded(rows: int) -> int:
    """The number of rows of the map: with a multiple of 16, the tables after it in a file are aligned."""
    return -(-rows // 16) * 16


def _rising(values: Tensor, low: int, high: int) -> bool:
    """Whether the values are ascending, each once, from `low` to below `high`."""
    if not len(values):
        return True
    return bool((values.diff() > 0).all()) and int(values[0]) >= low and int(values[-1]) < high


def items_table(records: Sequence[Any]) -> pa.Table:
    """Returns the columns that models use, from records with the fields title, description, price, tags and
    vector. A vector is given as the bytes of float32 numbers."""
    columns: dict[str, list[Any]] = {
        name: [getattr(record, name) for record in records] for name in ("title", "description", "price")
    }
    columns["tags"] = [list(record.tags) for record in records]
    columns["vector"] = [
        None if record.vector is None else np.frombuffer(record.vector, "<f4") for record in records
    ]
    return pa.table(
        {name: pa.array(values, ITEM_SCHEMA.field(name).type) for name, values in columns.items()}
    )
