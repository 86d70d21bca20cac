"""Measurements of training: an epoch against its arithmetic, memory, time to accuracy, the whole recipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from statistics import mean, median
from typing import Any

import torch

from benchmarks.clocks import Enough, EpochClock, FirstSteps
from benchmarks.figures import Figure
from benchmarks.generated import ShopSize, generated_data
from benchmarks.products import LAYOUTS, Layout, Softmax, products_seconds
from benchmarks.setting import Setting, peak_bytes, peak_gpu_bytes, youshu
from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import Split, SplitPlan
from bundlemage.models.base import Learner, Sizes, require
from bundlemage.models.config import BundleMageConfig, ModelConfig
from bundlemage.models.registry import build, make_config
from bundlemage.recipe import Recipe
from bundlemage.recommender import Recommender
from bundlemage.training.history import EpochRecord, Observer

RECIPE = "youshu/bundlemage"
FULL_RANKING = "youshu-full/bundlemage"
SEEDS = (0, 1, 2)
EPOCHS = 12
"""For the time to accuracy on Youshu: the defaults, stopped after so many epochs."""
MANY_STEPS = 100_000
"""With more users than this an epoch has hundreds of steps."""
TINY = {"embedding_dim": 8, "batch_size": 256}
FULL = {
    **{"pairs_per_bundle": 0, "every_bundle": False, "select_by": "matching", "sampled_softmax": 0},
    **{"embedding_dim": 200, "batch_size": 2000, "min_steps": 1},
}
"""Every pair, against every candidate: the epoch of the paper, whatever the defaults leave out of one. Only
such epochs can be set against the authors' program, against bare products, or against each other in size."""
SAMPLED = {"sampled_softmax": 4096}
NETEASE: ShopSize = {
    "users": 18_528,
    "items": 123_628,
    "bundles": 22_864,
    "items_per_user": 1_128_065 / 18_528,
    "bundles_per_user": 302_303 / 18_528,
    "items_per_bundle": 1_778_838 / 22_864,
}
"""The numbers of users, items, bundles and pairs of the paper's NetEase data."""
TINY_NETEASE: ShopSize = {
    "users": 300,
    "items": 400,
    "bundles": 60,
    "items_per_user": 8,
    "bundles_per_user": 4,
    "items_per_bundle": 6,
}
FIVE_MILLION: ShopSize = {
    "users": 20_000,
    "items": 5_000_000,
    "bundles": 10_000,
    "items_per_user": 10,
    "bundles_per_user": 2,
    "items_per_bundle": 10,
}


def bundlemage_config(setting: Setting, **settings: Any) -> ModelConfig:
    """BundleMage as it comes, but with full epochs; small on tiny sizes."""
    small = TINY if setting.tiny else {}
    return make_config("bundlemage", {"device": setting.device, **FULL, **small, **settings})


def fit(setting: Setting, config: ModelConfig, split: Split, *observers: Observer) -> Recommender:
    """Train BundleMage until its epochs are over, or until an observer has had enough of it."""
    recommender = Recommender("bundlemage", **config.model_dump())
    with suppress(Enough):
        recommender.fit(split, observers=observers, progress=False, calibrate=False)
    setting.synchronise()
    return recommender


# ── An epoch against its three bare matrix products ──────────────────────────────────────────────


def softmaxes(config: Any, data: BundleDataset, steps: Mapping[str, int]) -> list[Softmax]:
    """The tasks of an epoch that had these steps, with the exact softmax."""
    size, dim = config.batch_size, config.embedding_dim
    everything = {
        "matching": Softmax(len(data.users), len(data.bundles), size, dim),
        "generation": Softmax(data.user_bundle.nnz, len(data.items), size, dim),
    }
    tasks = []
    for phase, count in steps.items():
        task = everything[phase]
        # An epoch that leaves rows out has fewer steps; that its last one is short is then not known.
        tasks.append(task if len(task.batches) == count else replace(task, rows=count * size))
    return tasks


Way = tuple[str, Layout, torch.dtype]


class _Interleaved(Observer):
    """Times the bare products after each epoch, so that every epoch but the first has them on both sides."""

    def __init__(self, setting: Setting, tasks_of: Callable[[], list[Softmax]]) -> None:
        self.where, self.tasks_of = setting.where, tasks_of
        self.tasks: list[Softmax] = []
        kinds = [("", torch.float32)]
        if setting.on_cuda:
            kinds = [("TF32, ", torch.float32), ("bfloat16, ", torch.bfloat16)]
        self.ways: list[Way] = [(kind, layout, dtype) for kind, dtype in kinds for layout in LAYOUTS]
        self.seconds: dict[Way, list[float]] = {way: [] for way in self.ways}

    def on_epoch(self, record: EpochRecord) -> None:
        self.tasks = self.tasks_of()
        for way in self.ways:
            self.seconds[way].append(products_seconds(self.tasks, way[1], self.where, way[2]))

    def fastest(self, kind: str) -> Way:
        return min((way for way in self.ways if way[0] == kind), key=lambda way: sum(self.seconds[way]))

    def around(self, way: Way) -> list[float]:
        """For every epoch but the first, the mean of the products before it and after it."""
        times = self.seconds[way]
        return [(before + after) / 2 for before, after in pairwise(times)]


def epoch(setting: Setting) -> list[Figure]:
    """Seconds an epoch on Youshu, and how many times its bare matrix products that is."""
    split = youshu(setting, "authors/mat")
    measured = 10 if setting.on_cuda else 2
    config: Any = bundlemage_config(setting, epochs=1 + measured)
    clock = EpochClock(setting)
    products = _Interleaved(setting, lambda: softmaxes(config, split.train, clock.steps))
    fit(setting, config, split, products, clock)
    training, validation = clock.training[1:], clock.validation[1:]
    pairs = f"all {split.train.user_bundle.nnz:,} pairs; median of {measured}, after a warm-up one"
    figures = [
        Figure("training, a full epoch", median(training), "s/epoch", note=pairs),
        Figure("validation", median(validation), "s/epoch"),
        _default_epoch(setting, split, measured),
    ]
    operations = sum(task.operations for task in products.tasks)
    for way in products.ways:
        seconds = median(products.seconds[way])
        speed = f"{operations / seconds / 1e9:,.0f} GFLOP/s"
        figures.append(Figure(f"bare products, {way[0]}{way[1]}", seconds, "s/epoch", note=speed))
    for kind in dict.fromkeys(way[0] for way in products.ways):
        way = products.fastest(kind)
        ratios = [mine / floor for mine, floor in zip(training, products.around(way), strict=True)]
        wanted, note = setting.wanted(cpu="≤ 1.5"), f"the faster products: {way[1]}"
        figures.append(Figure(f"training / {kind}bare products", median(ratios), "×", wanted, note))
    return figures


def _default_epoch(setting: Setting, split: Split, measured: int) -> Figure:
    """An epoch as the defaults have it, which may leave pairs out."""
    clock = EpochClock(setting)
    settings = {key: BundleMageConfig.model_fields[key].default for key in FULL}
    fit(setting, bundlemage_config(setting, epochs=1 + measured, **settings), split, clock)
    words = ", ".join(f"{key} = {value}" for key, value in settings.items())
    note = f"{clock.steps_per_epoch} steps: {words}"
    return Figure("training, an epoch by default", median(clock.training[1:]), "s/epoch", note=note)


def memory(setting: Setting) -> list[Figure]:
    """The most memory that a process needs which reads Youshu, trains and validates."""
    fit(setting, bundlemage_config(setting, epochs=2), youshu(setting, "authors/mat"))
    return memory_figures(setting, cpu="≤ 1.2")


def memory_figures(setting: Setting, cpu: str = "", cuda: str = "") -> list[Figure]:
    """Peak memory of this process so far, and of the GPU where there is one."""
    note = "tensors on the GPU alone" if setting.on_cuda else "the whole process, libraries included"
    peak = peak_gpu_bytes(setting) if setting.on_cuda else peak_bytes()
    return [Figure("peak memory", peak / 1e9, "GB", setting.wanted(cpu=cpu, cuda=cuda), note)]


# ── To an accuracy, and to the end ───────────────────────────────────────────────────────────────


def accuracy(setting: Setting) -> list[Figure]:
    """Seconds from the start of a process until a model of few epochs is trained and tested."""
    recipe = Recipe.find(setting.recipe) if setting.recipe else Recipe()
    small = {**TINY, "epochs": 2} if setting.tiny else {"epochs": EPOCHS}
    changed = recipe.changed({**small, "device": setting.device}, {})
    split = youshu(setting, "authors/mat")
    recommender = changed.recommender().fit(split, progress=False, calibrate=False)
    found = recommender.evaluate(split).matching or {}
    seconds = time.time() - setting.started
    assert recommender.training is not None
    note = f"{len(recommender.history)} epochs, the best was {recommender.training.best_epoch}; "
    note += setting.recipe or "default settings"
    return [
        Figure("cold start to a tested model", seconds, "s", setting.wanted(cpu="≤ 240"), note),
        Figure("its test nDCG@5", found["ndcg@5"], "", "" if setting.tiny else "≥ 0.53"),
        *memory_figures(setting),
    ]


def whole(setting: Setting) -> list[Figure]:
    """The recipes of Youshu from beginning to end: matching, full ranking, generation, three seeds each."""
    small = {**TINY, "epochs": 2} if setting.tiny else {}
    figures = []
    for title, task, part, name in (
        ("matching", "matching", "authors/mat", RECIPE),
        ("generation", "generation", "authors/gen", RECIPE),
        ("full ranking", "matching", "bgcn", FULL_RANKING),
    ):
        recipe = Recipe.find(name).changed({**small, "device": setting.device}, {})
        split = youshu(setting, part)
        tested: list[dict[str, float]] = []
        for seed in SEEDS:
            clock, began = EpochClock(setting), time.perf_counter()
            recommender = recipe.changed({"seed": seed}, {}).recommender()
            recommender.fit(split, observers=[clock], progress=False, calibrate=False)
            tested.append(recommender.evaluate(split).to_json()[task])
            setting.synchronise()
            figures += _times(setting, title, seed, time.perf_counter() - began, clock)
        figures += _test_figures(setting, title, tested)
    return [*figures, *memory_figures(setting)]


def _times(setting: Setting, title: str, seed: int, seconds: float, clock: EpochClock) -> list[Figure]:
    """Of the first training, which starts the GPU and compiles kernels, and of the second."""
    if seed not in SEEDS[:2] or (seed == SEEDS[0] and title != "matching"):
        return []
    epochs = len(clock.training)
    evaluated = f"{epochs} epochs of {clock.steps_per_epoch} steps, each validated, and the test"
    if seed == SEEDS[0]:
        evaluated += "; the first training of its process"
        return [Figure(f"{title}: first training and test", seconds, "s", note=evaluated)]
    return [
        Figure(f"{title}: training and test", seconds, "s", setting.wanted(cuda="≤ 6"), evaluated),
        Figure(
            f"{title}: training",
            sum(clock.training) / epochs,
            "s/epoch",
            note=f"mean; the median is {median(clock.training):.4g}",
        ),
    ]


_ACCURACY_WANTED = {
    "matching": {"ndcg@5": "≥ 0.538", "ndcg@20": "≥ 0.595"},
    "generation": {"ndcg@5": "≥ 0.525", "ndcg@20": "≥ 0.66"},
    "full ranking": {"recall@20": "≥ 0.302", "ndcg@20": "≥ 0.181"},
}


def _test_figures(setting: Setting, task: str, found: list[dict[str, float]]) -> list[Figure]:
    wanted = {} if setting.tiny else _ACCURACY_WANTED[task]
    figures = []
    for metric in ("ndcg@5", "ndcg@10", "ndcg@20", "recall@5", "recall@20"):
        values = [one[metric] for one in found]
        each = "mean of " + ", ".join(f"{value:.4f}" for value in values)
        figures.append(Figure(f"{task}: test {metric}", mean(values), "", wanted.get(metric, ""), each))
    return figures


# ── Generated data ───────────────────────────────────────────────────────────────────────────────


def train_on(
    setting: Setting,
    data: BundleDataset,
    *,
    wanted: str = "",
    first: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> tuple[Figure, Recommender]:
    """Seconds a full epoch of both tasks; or of all of one, and the `first` steps of the other, scaled."""
    split = SplitPlan("none").divide(data)
    if first is not None:
        config = bundlemage_config(setting, epochs=1, **(settings or {}))
        cut = FirstSteps(require(build("bundlemage", config, Sizes(1, 2, 1)), Learner).phases[-1].name, first)
        recommender = fit(setting, config, split, cut)
        return Figure("training", cut.epoch_seconds, "s/epoch", wanted, cut.made), recommender
    # Among many steps the first, which warm up, are not seen; with few, a whole epoch is left out.
    warm_up = setting.on_cuda or len(data.users) <= MANY_STEPS
    measured = 3 if warm_up else 1
    clock = EpochClock(setting)
    config = bundlemage_config(setting, epochs=warm_up + measured, **(settings or {}))
    recommender = fit(setting, config, split, clock)
    note = f"median of {measured} after a warm-up one" if warm_up else "the first epoch"
    return Figure("training", median(clock.training[warm_up:]), "s/epoch", wanted, note), recommender


def netease(setting: Setting) -> list[Figure]:
    """An epoch of both tasks on generated data of NetEase's size."""
    data = generated_data(TINY_NETEASE if setting.tiny else NETEASE, setting)
    first = None if setting.on_cuda else 2 if setting.tiny else 5
    figure, _ = train_on(setting, data, wanted=setting.wanted(cuda="≤ 1.5"), first=first)
    return [figure, *memory_figures(setting, cuda="≤ 6")]


def sampled(setting: Setting) -> list[Figure]:
    """An epoch of both tasks over five million items, with a sampled softmax."""
    data = generated_data(TINY_NETEASE if setting.tiny else FIVE_MILLION, setting)
    figure, _ = train_on(setting, data, settings=dict.fromkeys(SAMPLED, 64) if setting.tiny else SAMPLED)
    return [figure, *memory_figures(setting)]
