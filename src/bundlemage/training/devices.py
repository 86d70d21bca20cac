"""Chooses a device, and makes results on it repeatable."""

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
    """The device of a name. `auto` is the fastest of this machine. Raises DeviceError if it is not
    present."""
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
    """Inside, the same seed gives the same result on one device. The caller's random state is not changed.

    On CUDA, matrix products run in TF32, which is several times faster and has 10 bits of mantissa.
    """
    # cuBLAS reads this when it starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    strictness, fill = torch.get_deterministic_debug_mode(), _settings.fill_uninitialized_memory
    precision = torch.get_float32_matmul_precision()
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        # (`use_deterministic_algorithms` does the same, and imports a compiler for seconds.)
        torch.set_deterministic_debug_mode("error" if device.type == "cuda" else "default")
        # No code here reads memory that it did not write, and filling costs a pass over each tensor.
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
    """On a CPU, keeps the memory that a step frees in the process for the next step.

    By default the C library asks the system for each large array again, and the first access costs as much as
    the work with it: 6% of an epoch on Youshu. With another C library than glibc this does nothing.
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
    """Seeds an epoch: what is random in it follows from the seed and its number, also after resuming."""
    torch.manual_seed(seed * 1_000_003 + epoch)
