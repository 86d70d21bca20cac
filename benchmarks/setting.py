"""What a measurement is told: where to run, on what, how large."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from bundlemage.data.splits import Split

ROOT = Path(__file__).resolve().parents[1]


class Skipped(Exception):  # noqa: N818, it is no error
    """A measurement that cannot be made here, and why."""


@dataclass(frozen=True)
class Setting:
    device: str
    threads: int | None
    tiny: bool
    data: str | None
    """A folder of Youshu that was named; None looks in the usual places."""
    recipe: str | None
    """A recipe for the time to accuracy; None takes the library's defaults."""
    scratch: str
    """Where generated shops are kept while the bench runs."""
    started: float = 0.0
    """`time.time()` just before this process was started."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Setting:
        return cls(**content)

    @cached_property  # asked for at each step, and looking for devices takes milliseconds
    def where(self) -> torch.device:
        from bundlemage.training.devices import resolve_device

        return resolve_device(self.device)

    @property
    def on_cuda(self) -> bool:
        return self.where.type == "cuda"

    def wanted(self, *, cpu: str = "", cuda: str = "") -> str:
        """What issue and documentation promise on this kind of device; tiny sizes promise nothing."""
        return "" if self.tiny else cuda if self.on_cuda else cpu

    def synchronise(self) -> None:
        """Wait until the device has done what it was given."""
        if self.on_cuda:
            import torch

            torch.cuda.synchronize(self.where)


def youshu(setting: Setting, part: str) -> Split:
    """A split of Youshu, such as `authors/mat`; on tiny sizes the sample shop, unless a folder was named."""
    from bundlemage.data.splits import SplitPlan
    from bundlemage.readers.load import read

    if setting.tiny and setting.data is None:
        return SplitPlan("paper").divide(read("sample").dataset)
    folder = youshu_folder(setting.data)
    if folder is None:
        raise Skipped("Youshu is not here: name its folder with --data, or set BUNDLEMAGE_DATA")
    source = read(folder / part)
    return SplitPlan().divide(source.dataset, source.ready)


def youshu_folder(named: str | None) -> Path | None:
    """The named folder as it is; else the one in BUNDLEMAGE_DATA or beside the repository, if there."""
    if named is not None:
        return Path(named)
    root = Path(os.environ.get("BUNDLEMAGE_DATA") or ROOT.parent / "shared" / "datasets")
    return root / "youshu" if (root / "youshu").is_dir() else None


def peak_bytes() -> int:
    """The most main memory that this process had so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_gpu_bytes(setting: Setting) -> int:
    """The most GPU memory that tensors of this process had so far."""
    if not setting.on_cuda:
        return 0
    import torch

    return int(torch.cuda.max_memory_allocated(setting.where))
