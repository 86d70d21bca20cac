"""What a cell ran on and how much memory it took."""

from __future__ import annotations

import gc
import os
import platform
import re
from pathlib import Path

import torch

_PROCESS = Path("/proc/self")


def device_in_words(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cores = f"{os.cpu_count() or 1} cores"
    return f"{_processor()}, {cores}" if device.type == "cpu" else f"{device.type}, {_processor()}, {cores}"


def _processor() -> str:
    try:
        named = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        named = None
    return named[1].strip() if named else platform.processor() or platform.machine() or "CPU"


class PeakMemory:
    """The most memory in use since this was made: on a GPU what was allocated, on a CPU what was added."""

    def __init__(self, device: torch.device) -> None:
        gc.collect()
        self.device = device
        self.start: int | None = None
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        elif device.type == "cpu":
            self.start = _reset_peak()

    def bytes(self) -> int | None:
        """None where the system does not say."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        peak = _peak() if self.start is not None else None
        return None if peak is None or self.start is None else max(0, peak - self.start)


def _reset_peak() -> int | None:
    try:
        (_PROCESS / "clear_refs").write_text("5")  # Linux: the peak becomes what is in use now
    except OSError:
        return None
    return _peak()


def _peak() -> int | None:
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB$", (_PROCESS / "status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
