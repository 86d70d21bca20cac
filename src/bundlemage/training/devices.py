"""Chooses a device, and makes results on it repeatable."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bundlemage.errors import DeviceError

# The first two are from glibc's malloc.h. The third is the default value of both thresholds, in bytes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _DEFAULT = -1, -3, 128 * 1024
_settings: Any = torch.utils.deterministic


def resolve_device(name: str) -> torch.device:
    """Returns the device with this name. `auto` is the fastest device of this machine.

    Raises DeviceError if the machine does not have the device."""
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
    """Whether this machine has a device with this name."""
    try:
        resolve_device(name)
    except DeviceError:
        return False
    return True


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Within this context, the same seed gives the same result on one device.

    The caller's random state is not changed. On CUDA, matrix products use TF32: it is several times faster
    than float32, with a mantissa of 10 bits.
    """
    # cuBLAS reads this when it starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    strictness, fill = torch.get_deterministic_debug_mode(), _settings.fill_uninitialized_memory
    precision = torch.get_float32_matmul_precision()
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        # `use_deterministic_algorithms` does the same, but first imports a compiler, which takes seconds.
        torch.set_deterministic_debug_mode("error" if device.type == "cuda" else "default")
        # Filling takes a pass over each new tensor, and this code never reads uninitialised memory.
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
    """Within this context, a CPU training keeps the memory that one step frees, and uses it for the next.

    By default, the C library requests new memory from the system for each large array. The first access to
    new memory is slow: this takes 6% of an epoch on Youshu. The context has an effect only with glibc.
    """
    library: Any = ctypes.CDLL(None) if device.type == "cpu" and os.name == "posix" else None
    if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        yield
        return
    library.mallopt(_MMAP_THRESHOLD, 2**31 - 1)
    library.mallopt(_TRIM_THRESHOLD, -1)  # never return memory
    try:
        yield
    finally:
        for setting in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            library.mallopt(setting, _DEFAULT)
        library.malloc_trim(0)
