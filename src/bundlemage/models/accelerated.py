"""Whether a tensor's device has kernels of our own."""

from __future__ import annotations

import importlib.util
from functools import cache
from types import ModuleType

import torch
from torch import Tensor


def kernels_for(tensor: Tensor) -> ModuleType | None:
    """The Triton kernels, for float32 on an NVIDIA GPU; else none, and plain PyTorch does it."""
    return _kernels() if tensor.is_cuda and tensor.element_size() == 4 else None


@cache
def _kernels() -> ModuleType | None:
    # PyTorch without Triton, as on Windows, or too old for products of narrow numbers that end in wide ones.
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if importlib.util.find_spec("triton") is None or version < (2, 8):
        return None
    from bundlemage.models import kernels

    return kernels
