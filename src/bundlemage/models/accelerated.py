"""Our own PyTorch operators, and whether a tensor's device has Triton kernels for them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

_library = torch.library.Library("bundlemage", "FRAGMENT")  # type: ignore[no-untyped-call]


def operator(schema: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function a PyTorch operator, which profilers and recorded graphs see as one operation.

    (`torch.library.custom_op` does more, and takes seconds to import.)
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = schema.partition("(")[0]
        _library.define(schema)  # type: ignore[no-untyped-call]
        _library.impl(name, function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        registered: Callable[..., Any] = getattr(torch.ops.bundlemage, name).default
        return registered

    return register


def kernels_for(tensor: Tensor) -> ModuleType | None:
    """The Triton kernels for float32 on an NVIDIA GPU, else None: then plain PyTorch is used."""
    return _kernels() if tensor.is_cuda and tensor.dtype == torch.float32 else None


@cache
def _kernels() -> ModuleType | None:
    # On Windows PyTorch has no Triton, and before 2.8 no products of bfloat16 with float32 results.
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if importlib.util.find_spec("triton") is None or version < (2, 8):
        return None
    from bundlemage.models import kernels

    return kernels
