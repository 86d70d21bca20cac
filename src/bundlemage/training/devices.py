"""Choosing a device, and making what runs there repeat."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bundlemage.errors import DeviceError

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _USUAL = -1, -3, 128 * 1024  # of glibc: malloc.h, and its defaults
_settings: Any = torch.utils.deterministic


def resolve_device(name: str) -> torch.device:
    """`auto` takes the fastest present; any other name must be one that is present."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(f"unknown device {name!r}; use auto, cpu, cuda, cuda:N or mps") from None
    present = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if device.type not in present:
        raise DeviceError(f"unsupported device {name!r}; use auto, cpu, cuda, cuda:N or mps")
    if not present[device.type]:
        raise DeviceError(f"device {name!r} is not present on this machine; use auto or cpu")
    return device


def present(name: str) -> bool:
    """Whether this machine has a device of that name."""
    try:
        resolve_device(name)
    except DeviceError:
        return False
    return True


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """The same seed gives the same result twice on one device, and the caller's random state is untouched.

    On CUDA, matrix products meanwhile run in TF32, several times as fast, with 10 bits after the point.
    """
    # cuBLAS reads this once, when it starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    strictness, fill = torch.get_deterministic_debug_mode(), _settings.fill_uninitialized_memory
    precision = torch.get_float32_matmul_precision()
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        # (`use_deterministic_algorithms` is the same and first imports a compiler, for seconds.)
        torch.set_deterministic_debug_mode("error" if device.type == "cuda" else "default")
        # Nothing here reads memory that it did not write, and filling it costs a pass over each tensor.
        _settings.fill_uninitialized_memory = False
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
            torch.set_deterministic_debug_mode(strictness)
            _settings.fill_uninitialized_memory = fill


@contextmanager
def memory_kept(device: torch.device) -> Iterator[None]:
    """On a CPU, memory that a step frees stays with the process for the next one.

    Left alone, the C library asks the system for each large array anew, and to touch it the first time costs
    as much as to work with it: 6% of an epoch on Youshu. Where the library is another, nothing is done.
    """
    library: Any = ctypes.CDLL(None) if device.type == "cpu" and os.name == "posix" else None
    if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        yield
        return
    library.mallopt(_MMAP_THRESHOLD, 2**31 - 1)
    library.mallopt(_TRIM_THRESHOLD, -1)  # never
    try:
        yield
    finally:
        for what in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            library.mallopt(what, _USUAL)
        library.malloc_trim(0)


def seed_epoch(seed: int, epoch: int) -> None:
    """All that is random in an epoch follows from the seed and its number, so resuming needs no more."""
    torch.manual_seed(seed * 1_000_003 + epoch)
