"""Registers PyTorch operators, and chooses between our Triton kernels and plain PyTorch."""

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
    """Decorator that registers a function as a PyTorch operator with this schema, and returns the operator.

    Profilers and recorded graphs see one operation. (`torch.library.custom_op` takes seconds to import.)
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = schema.partition("(")[0]
        _library.define(schema)  # type: ignore[no-untyped-call]
        _library.impl(name, function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        registered: Callable[..., Any] = getattr(torch.ops.bundlemage, name).default
        return registered

    return register


def kernels_for(tensor: Tensor) -> ModuleType | None:
    """Returns the Triton kernels for a float32 tensor on an NVIDIA GPU, else None: use plain PyTorch."""
    return _kernels() if tensor.is_cuda and tensor.dtype == torch.float32 else None


@cache
def _kernels() -> ModuleType | None:
    # PyTorch has no Triton on Windows. Before 2.8 it cannot multiply bfloat16 into float32 results.
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if importlib.util.find_spec("triton") is None or version < (2, 8):
        return None
    from bundlemage.models import kernels

    return kernels
