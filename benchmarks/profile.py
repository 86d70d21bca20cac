"""Where the time of an epoch goes: `python -m benchmarks.profile`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity

from benchmarks.clocks import Enough
from benchmarks.setting import Setting, youshu
from benchmarks.training import bundlemage_config
from bundlemage.recommender import Recommender
from bundlemage.training.history import EpochRecord, Observer

KINDS = (
    ("matrix products", r"gemm|nvjet|cutlass|splitKreduce|aten::(mm|addmm|addmm_|bmm)$"),
    (
        "softmax and its slopes",
        r"_softmax_kernel|_positives_kernel|aten::(exp_|sub_|amax)$|bundlemage::multinomial",
    ),
    ("gathering rows", r"_sum_kernel|embedding_bag|bundlemage::(mean_of_rows|sum_of_all)$"),
    ("handing gradients back to rows", r"_spread_kernel|bundlemage::mean_of_rows_back"),
    ("Adam", r"FusedAdam|fused_adam|multi_tensor_apply"),
    ("averaging weights", r"lerp"),
    ("dropout", r"dropout|bernoulli"),
    ("sums, e.g. gradients of biases", r"reduce_kernel|aten::sum$"),
)
ELSE = "everything else: copies, zeros, additions, small ones"


class Profiler(Observer):
    """Watches the steps of the third epoch, when nothing is compiled or recorded any more."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        cuda = [ProfilerActivity.CUDA] if setting.on_cuda else []
        self.profile: Any = torch.profiler.profile(activities=[ProfilerActivity.CPU, *cuda])
        self.steps, self.watching = 0, False

    def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
        self.left = steps_per_epoch

    def on_epoch(self, record: EpochRecord) -> None:
        if record.epoch == 2:
            self.setting.synchronise()
            self.profile.start()
            self.watching = True

    def on_step(self, phase: str) -> None:
        self.left -= self.watching
        if not self.left:
            self.setting.synchronise()
            self.profile.stop()
            raise Enough

    def seconds(self) -> dict[str, float]:
        """By the names of operators on a CPU, of kernels on a GPU."""
        found: dict[str, float] = {}
        for event in self.profile.key_averages():
            on_gpu = str(event.device_type).endswith("CUDA")
            if on_gpu == self.setting.on_cuda:
                micro = event.self_device_time_total if on_gpu else event.self_cpu_time_total
                found[event.key] = found.get(event.key, 0.0) + micro / 1e6
        return found


def main(
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    data: Annotated[Path | None, typer.Option(help="Youshu's folder.")] = None,
    every_pair: Annotated[
        bool, typer.Option(help="The paper's epoch; else the one of the default settings.")
    ] = True,
    names: Annotated[int, typer.Option(help="Show so many operators or kernels by name, too.")] = 0,
) -> None:
    """Profile the training steps of one epoch of BundleMage on Youshu, and add up what is of one kind."""
    if threads is not None:
        torch.set_num_threads(threads)
    setting = Setting(device, threads, False, str(data) if data else None, None, "")
    changed: dict[str, Any] = {} if every_pair else {"pairs_per_bundle": 4}
    config = bundlemage_config(setting, epochs=3, **changed)
    profiler = Profiler(setting)
    with suppress(Enough):
        Recommender("bundlemage", **config.model_dump()).fit(
            youshu(setting, "authors/mat"), observers=[profiler], progress=False, calibrate=False
        )
    seconds = profiler.seconds()
    total = sum(seconds.values())
    kinds = dict.fromkeys([*(kind for kind, _ in KINDS), ELSE], 0.0)
    for name, spent in seconds.items():
        kinds[next((kind for kind, pattern in KINDS if re.search(pattern, name)), ELSE)] += spent
    table = Table("what", "s/epoch", "share", title=f"{total:.4f} s of work in an epoch's steps")
    for kind, spent in sorted(kinds.items(), key=lambda pair: -pair[1]):
        table.add_row(kind, f"{spent:.4f}", f"{spent / total:.1%}")
    for name, spent in sorted(seconds.items(), key=lambda pair: -pair[1])[:names]:
        table.add_row(f"  {name[:80]}", f"{spent:.4f}", f"{spent / total:.1%}")
    console = Console()
    (console if console.is_terminal else Console(width=120)).print(table)


if __name__ == "__main__":
    typer.run(main)
