"""Scores for bundles that were added after training, for models that know a bundle only by its buyers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from bundlemage.models.ragged import Ragged, Unchanging


@dataclass(frozen=True)
class LaterBundles(Unchanging):
    """The known bundles that are similar to each later bundle: they have items in common.

    The similarity is the cosine of two sets of items. A later bundle scores like its similar bundles, which
    are weighted by the squared similarity. The less similar they are, the closer its score is to the mean of
    all bundles.
    """

    similar: Ragged  # for each later bundle, known bundles
    weights: Tensor  # [entries], each row adds up to the row's `closeness`
    closeness: Tensor  # [later], the highest similarity: 1 for a bundle with the same items

    @classmethod
    def of(cls, contents: Ragged, known: int, items: int) -> LaterBundles:
        """Compares the bundles after the first `known` ones of `contents` with those."""
        offsets, values = contents.offsets.cpu().numpy(), contents.values.cpu().numpy()
        ones = np.ones(len(values), np.float32)
        matrix = sparse.csr_matrix((ones, values, offsets), shape=(len(contents), items))
        lengths = np.sqrt(np.maximum(np.diff(offsets), 1)).astype(np.float32)
        shared = (matrix[known:] @ matrix[:known].T).tocsr()  # [later, known]
        row = np.repeat(np.arange(shared.shape[0]), np.diff(shared.indptr))
        cosines = shared.data / (lengths[known:][row] * lengths[:known][shared.indices])
        closeness = np.zeros(shared.shape[0], np.float32)
        np.maximum.at(closeness, row, cosines)
        totals = np.bincount(row, cosines**2, minlength=shared.shape[0])
        weights = cosines**2 * (closeness / np.maximum(totals, 1e-12))[row]
        device = contents.device
        return cls(
            Ragged.from_csr(shared, device),
            torch.from_numpy(weights.astype(np.float32)).to(device),
            torch.from_numpy(closeness).to(device),
        )

    def scores(self, known: Tensor) -> Tensor:
        """The scores of the later bundles, from the scores of the known ones."""  # [rows, later]
        near = self.similar.weighted_sum_of(known.T.contiguous(), self.weights.to(known.dtype)).T
        return near + (1 - self.closeness.to(known.dtype)) * known.mean(1, keepdim=True)
