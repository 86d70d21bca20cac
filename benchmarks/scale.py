"""What a training step costs as a shop grows, measured piece by piece, and what follows for a size that does
not fit on this machine. docs/scale.md says what the terms mean.

    python -m benchmarks.scale --device cuda           measures, and prints a line of JSON for each piece
    python -m benchmarks.scale --only plan             from measured figures to a shop of 10⁸ users
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import Tensor

from bundlemage.models.base import Interactions, Phase, Sizes
from bundlemage.models.bundlemage import BundleMage
from bundlemage.models.config import BundleMageConfig
from bundlemage.models.division import DividedItems, Processes
from bundlemage.models.losses import multinomial_loss
from bundlemage.models.ragged import Ragged
from bundlemage.training.steps import Adam

DIM = 200
ITEMS_PER_BUNDLE, ITEMS_PER_USER, BUNDLES_PER_USER = 10, 50, 5
FLOAT = 4


@dataclass(frozen=True)
class Silent(Processes):
    """One of several processes whose others say nothing: what is left is the work of one."""

    def add_(self, tensor: Tensor) -> Tensor:
        return tensor

    def highest_(self, tensor: Tensor) -> Tensor:
        return tensor


def rows(count: int, each: int, columns: int, device: torch.device) -> Ragged:
    """So many entries a row, at random."""
    values = torch.randint(columns, (count * each,), device=device)
    return Ragged(values, torch.arange(0, count * each + 1, each, device=device))


def seconds(work: Callable[[], Any], device: torch.device, times: int = 5) -> float:
    """The median, after a rehearsal."""
    found = []
    for number in range(times + 1):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if number:
            found.append(time.perf_counter() - began)
    return sorted(found)[len(found) // 2]


def softmax(device: torch.device, small: bool) -> Iterator[dict[str, Any]]:
    """Three products of batch × catalogue × d: 6 · batch · catalogue · d operations; as one process does it,
    and as one of several does its share."""
    batch = 256 if small else 8192
    for catalogue in (10_000, 50_000) if small else (125_000, 1_250_000):
        table = torch.randn(catalogue, DIM, device=device) * 0.05
        z = torch.randn(batch, DIM, device=device, requires_grad=True)
        positives, weights = (
            rows(batch, ITEMS_PER_BUNDLE, catalogue, device),
            torch.ones(batch, device=device),
        )
        operations = 6 * batch * catalogue * DIM
        whole = partial(multinomial_loss, z, table, positives, weights)
        share = partial(whole, group=Silent(0, 2), counts=positives.lengths)
        for who, loss in (("one process", whole), ("a share", share)):
            took = seconds(partial(_back, loss), device)
            yield {
                "who": who,
                "catalogue": catalogue,
                "batch": batch,
                "ms": round(took * 1e3, 3),
                "tflops": round(operations / took / 1e12, 2),
            }


def _back(loss: Callable[[], Tensor]) -> None:
    loss().backward()  # type: ignore[no-untyped-call]


def adam(device: torch.device, small: bool) -> Iterator[dict[str, Any]]:
    """Weights, gradient and two memories are read, and all but the gradient written: 7 floats a weight."""
    count = 100_000 if small else 1_250_000
    table = torch.nn.Parameter(torch.randn(count, DIM, device=device))
    optimiser = Adam([table], 0.001)
    table.grad = torch.randn_like(table)
    took = seconds(optimiser.step, device)
    moved = 7 * FLOAT * table.numel()
    yield {"rows": count, "ms": round(took * 1e3, 3), "gb_per_s": round(moved / took / 1e9, 1)}


def bundles(device: torch.device, small: bool) -> Iterator[dict[str, Any]]:
    """The table of bundles from that of items, and the way back: a row is read for each item of a bundle."""
    count, items = (20_000, 50_000) if small else (1_000_000, 1_250_000)
    model = _model(Sizes(10, items, count), device)
    data = _data(Sizes(10, items, count), device)
    model.observe(data)

    def table() -> Tensor:
        return model.bundle_embeddings(model.matching_embeddings(), data.bundle_item).sum()

    took = seconds(partial(_back, table), device)
    moved = 2 * FLOAT * DIM * count * (ITEMS_PER_BUNDLE + 1)
    yield {
        "bundles": count,
        "items": items,
        "ms": round(took * 1e3, 2),
        "gb_per_s": round(moved / took / 1e9, 1),
    }


def step(device: torch.device, small: bool) -> Iterator[dict[str, Any]]:
    """Whole steps of one of `ranks` processes, with all its work and nothing of what it tells the others."""
    shapes = [(1, 20_000, 4_000, 256), (2, 40_000, 8_000, 256)]
    if not small:
        shapes = [(1, 1_000_000, 100_000, 8192), (8, 10_000_000, 1_000_000, 8192)]
    for ranks, items, count, batch in shapes:
        sizes = Sizes(100_000, items, count)
        division = DividedItems(Silent(0, ranks), items, count)
        model = _model(Sizes(sizes.users, len(division.items), count), device)  # its share alone
        model.division, model.sizes = division, sizes
        data = division.part_of(_data(sizes, torch.device("cpu"))).to(device)
        model.observe(data)
        optimiser = Adam(model.parameters(), 0.001)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        for phase in model.phases:
            where = torch.randint(sizes.users, (batch,), device=device)

            work = partial(_whole_step, model, optimiser, phase, where, data)
            yield {
                "ranks": ranks,
                "items": items,
                "bundles": count,
                "batch": batch,
                "phase": phase.name,
                "ms": round(seconds(work, device, 3) * 1e3, 2),
                "gb": round(torch.cuda.max_memory_allocated() / 2**30, 2) if device.type == "cuda" else None,
            }


def _whole_step(model: BundleMage, optimiser: Adam, phase: Phase, where: Tensor, data: Interactions) -> None:
    optimiser.forget_gradients()
    model.loss(phase, where, data).backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def _model(sizes: Sizes, device: torch.device) -> BundleMage:
    config = BundleMageConfig.model_validate({"embedding_dim": DIM, "pairs_per_bundle": 0})
    return BundleMage(config, sizes).to(device)


def _data(sizes: Sizes, device: torch.device) -> Interactions:
    return Interactions(
        rows(sizes.users, ITEMS_PER_USER, sizes.items, device),
        rows(sizes.users, BUNDLES_PER_USER, sizes.bundles, device),
        rows(sizes.bundles, ITEMS_PER_BUNDLE, sizes.items, device),
        sizes.items,
    )


def host(_: torch.device, small: bool) -> Iterator[dict[str, Any]]:
    """What the CPU does in each epoch: an order of all users."""
    count = 1_000_000 if small else 10_000_000
    took = seconds(lambda: torch.randperm(count), torch.device("cpu"), 3)
    each = sys.getsizeof("u-000000001") + sys.getsizeof((1, 2)) - sys.getsizeof((1,))
    yield {
        "users": count,
        "seconds": round(took, 3),
        "ns_per_user": round(took / count * 1e9, 1),
        "bytes_an_id": each,
    }


def exchange(device: torch.device, _: bool) -> Iterator[dict[str, Any]]:
    """Two processes add up a tensor, over this machine's own network and memory (gloo)."""
    for megabytes in (1, 80):
        with TemporaryDirectory() as folder:
            arguments = (f"file://{folder}/meet", str(device), megabytes, f"{folder}/took")
            processes.spawn(_exchange, args=arguments, nprocs=2)  # type: ignore[no-untyped-call, attr-defined]
            with open(f"{folder}/took") as file:  # noqa: PTH123
                took = float(file.read())
        yield {
            "megabytes": megabytes,
            "device": str(device),
            "ms": round(took * 1e3, 3),
            "gb_per_s": round(megabytes / 1e3 / took, 3),
        }


def _exchange(rank: int, meet: str, device: str, megabytes: int, out: str) -> None:
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2)
    tensor = torch.ones(megabytes * 250_000, device=device)
    took = seconds(lambda: dist.all_reduce(tensor), torch.device(device), 9)
    if rank == 0:
        with open(out, "w") as file:  # noqa: PTH123
            file.write(str(took))
    dist.destroy_process_group()


@dataclass(frozen=True)
class Measured:
    """What the plan is made of: figures that the pieces above have printed, and one that is assumed."""

    softmax: tuple[tuple[float, float], tuple[float, float]]
    """Two sizes of a share of a catalogue, and at each the operations a second."""
    memory: float
    """Bytes a second that Adam moves, and whatever else goes through a table row by row."""
    gather: float
    """Bytes a second where rows are picked."""
    network: float
    """Bytes a second that a GPU sends to others: assumed, as one GPU cannot tell."""
    permutation: float
    """Seconds for each user to put in order."""

    def operations(self, catalogue: float) -> float:
        (small, slow), (large, fast) = self.softmax
        share = min(1.0, max(0.0, (math.log(catalogue) - math.log(small)) / math.log(large / small)))
        return slow + share * (fast - slow)


H200 = Measured(((125e3, 95.9e12), (1.25e6, 78.8e12)), 3.43e12, 2.12e12, 360e9, 31e-9)
"""`python -m benchmarks.scale --device cuda` on an NVIDIA H200; the network is 80% of NVLink's data sheet."""

PASSES = {"matching": (17, 12), "generation": (12, 24)}
"""How often a step reads or writes each number of the table of bundles, and of a table of items, besides the
softmax, the gathering and Adam: counted in the code."""


def terms(
    measured: Measured, items: float, bundles: float, gpus: int, batch: int
) -> dict[str, dict[str, float]]:
    """Seconds of a step of each phase, with item tables sharded by rows."""
    width = DIM // 2 * 3  # shared, matching, generation: a row of an item
    ring = 2 * (gpus - 1) / gpus  # what each sends of a tensor that all add up
    table, own = bundles * DIM * FLOAT, items / gpus * DIM * FLOAT
    vectors = batch * DIM * FLOAT
    found = {}
    for phase, catalogue in (("matching", bundles / gpus), ("generation", items / gpus)):
        of_bundles, of_items = PASSES[phase]
        sent = 2 * table + 2 * vectors if phase == "matching" else table + 3 * vectors
        found[phase] = {
            "softmax": 6 * batch * catalogue * DIM / measured.operations(catalogue),
            "table of bundles": 2 * FLOAT * DIM * bundles * (ITEMS_PER_BUNDLE / gpus + 1) / measured.gather,
            "passes over tables": (of_bundles * table + of_items * own) / measured.memory,
            "Adam": 7 * FLOAT * width * items / gpus / measured.memory,
            "network": ring * sent / measured.network,
        }
    return found


def plan(
    measured: Measured = H200,
    *,
    users: float = 1e8,
    items: float = 1e7,
    bundles: float = 1e6,
    gpus: int = 8,
    batch: int = 8192,
    pairs_per_bundle: int = 4,
) -> dict[str, Any]:
    """Bytes and seconds of a step and an epoch of a shop that is not there."""
    work = terms(measured, items, bundles, gpus, batch)
    steps = {"matching": users / batch, "generation": bundles * pairs_per_bundle / batch}
    epoch = sum(sum(work[phase].values()) * steps[phase] for phase in work) + users * measured.permutation
    width, table = DIM // 2 * 3, bundles * DIM * FLOAT
    return {
        "ms": {
            phase: {term: round(took * 1e3, 1) for term, took in of.items()} for phase, of in work.items()
        },
        "ms_a_step": {phase: round(sum(of.values()) * 1e3, 1) for phase, of in work.items()},
        "tflop_a_gpu": {
            phase: round(6 * batch * count / gpus * DIM / 1e12, 2)
            for phase, count in (("matching", bundles), ("generation", items))
        },
        "gb_sent_a_step": {
            phase: round(of["network"] * measured.network / 1e9, 2) for phase, of in work.items()
        },
        "steps": {phase: round(count) for phase, count in steps.items()},
        "epoch_s": round(epoch),
        "gb_a_gpu": {
            "weights, gradient, Adam, average": round(5 * FLOAT * width * items / gpus / 1e9, 1),
            "tables of bundles": round(6 * table / 1e9, 1),
            "users' items": round(8 * users * ITEMS_PER_USER / gpus / 1e9, 1),
            "users' bundles": round(8 * users * BUNDLES_PER_USER / 1e9, 1),
            "offsets": round(2 * 8 * users / 1e9, 1),
        },
        "gb_a_host": {
            "users' items, for each process as it reads": round(12 * users * ITEMS_PER_USER / gpus / 1e9, 1),
            "users' bundles, the same": round(12 * users * BUNDLES_PER_USER / 1e9, 1),
            "the first process: ids, items and bundles of all": round(
                users * (68 + 12 * (ITEMS_PER_USER + BUNDLES_PER_USER)) / 1e9
            ),
        },
    }


PIECES = {
    "softmax": softmax,
    "adam": adam,
    "bundles": bundles,
    "step": step,
    "host": host,
    "exchange": exchange,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", action="append", choices=[*PIECES, "plan"])
    parser.add_argument("--small", action="store_true", help="sizes for a CPU; so it is without a GPU")
    chosen = parser.parse_args()
    device = torch.device(chosen.device)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    for name in chosen.only or PIECES:
        if name == "plan":
            for shape in ((1e6, 1e5, 1, 8192), (1e7, 1e6, 8, 8192)):  # those of the piece `step`
                alone = {phase: {**of, "network": 0} for phase, of in terms(H200, *shape).items()}
                ms = {phase: round(sum(of.values()) * 1e3, 1) for phase, of in alone.items()}
                print(json.dumps({"piece": "plan", "ranks": shape[2], "ms without network": ms}))
            print(json.dumps({"piece": "plan", **plan()}))
            continue
        for found in PIECES[name](device, chosen.small or device.type == "cpu"):
            print(json.dumps({"piece": name, **found}), flush=True)


if __name__ == "__main__":
    main()
