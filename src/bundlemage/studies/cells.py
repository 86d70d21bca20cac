"""A cell of a study: one contender on one split with one seed. Its outcome is kept in the cache.

The tasks of a model may depend on its settings, so they are read from a tiny instance of the model.
"""

from __future__ import annotations

import gc
import hashlib
import inspect
import json
import os
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache as remembered
from functools import cached_property, lru_cache, partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bundlemage import __version__
from bundlemage.data.dataset import BundleDataset, Vocabulary
from bundlemage.data.splits import Split, SplitPlan
from bundlemage.errors import BundleMageError, CheckpointError, NoModelYetError
from bundlemage.evaluation import case_metrics, evaluation_of
from bundlemage.measures.lists import list_measures
from bundlemage.models.base import Completer, Interactions, Learner, Matcher, Model, Sizes, can
from bundlemage.models.config import ModelConfig
from bundlemage.models.ragged import Ragged
from bundlemage.models.registry import (
    build,
    check_ensemble,
    make_config,
    model_class,
    model_names,
    names_taken,
)
from bundlemage.recipe import Recipe
from bundlemage.recommender import Recommender
from bundlemage.studies.outcome import CASE_METRICS, FORMAT, KS, Cache, Outcome
from bundlemage.training.checkpoint import RunFolder
from bundlemage.training.devices import resolve_device
from bundlemage.training.history import SELECTION_METRIC, EpochRecord, Observer, mean_validation

_TINY = Sizes(8, 8, 8)


@dataclass(frozen=True)
class Contender:
    """A registered model with its settings. `label` is its name in the study."""

    label: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that differ from the defaults. The cell sets `seed` and `device`."""
    ensemble: int = 1
    """Number of models that are trained and averaged; 1 for a single model."""

    @classmethod
    def parse(cls, text: str) -> Contender:
        """Returns a contender for the name of a model or recipe, or a path (`a/wide.toml` is named `wide`).

        Raises ConfigError for an unknown name and for a model that cannot be loaded.
        """
        if text.endswith(".toml") or ("/" in text and text not in model_names()):
            recipe = Recipe.find(text)
            label = PurePath(text).stem if text.endswith(".toml") else text
            return cls(label, recipe.model, recipe.settings, recipe.ensemble)
        model_class(text)
        return cls(text, text)

    @property
    def known_settings(self) -> set[str]:
        """The names of all settings that the model has."""
        return set(model_class(self.model).config_class.model_fields)

    def with_settings(self, settings: Mapping[str, Any]) -> Contender:
        """Returns the same contender with some settings changed."""
        return replace(self, settings={**self.settings, **settings})

    def config(self, seed: int = 0, device: str = "auto") -> ModelConfig:
        """Returns the settings for a seed of the study. For an ensemble they are those of its first member.

        The other members have the following seeds, so two ensembles with different seeds share no member.
        """
        check_ensemble(self.ensemble, self.model)
        first = seed * self.ensemble
        return make_config(self.model, {**self.settings, "seed": first, "device": device})

    def abilities(self) -> Abilities:
        """Returns the tasks that the model can do, and whether it learns and depends on the seed."""
        return abilities(self.model, {**self.settings, "seed": 0, "device": "cpu"})


@dataclass(frozen=True)
class Cell:
    """One contender on one split with one seed."""

    contender: Contender
    split: Split
    seed: int

    @cached_property
    def key(self) -> str:
        """A SHA-256 of everything that the result depends on. The label and the device are not part of it.

        The code of a model is included only if another package defines the model, because its author may
        change it between two comparisons. Results of this package's models are kept when their code changes;
        `fresh` computes them again.
        """
        settings = self.contender.config(self.seed).model_dump(mode="json", exclude={"device"})
        parts = [FORMAT, self.contender.model, settings, self.split.key]
        if self.contender.ensemble != 1:  # results from before ensembles existed keep their keys
            parts.append({"ensemble": self.contender.ensemble})
        kind = model_class(self.contender.model)
        if kind.__module__.partition(".")[0] != "bundlemage":
            source = ""
            with suppress(OSError, TypeError):  # not written in a file
                source = inspect.getsource(inspect.getmodule(kind) or kind)
            parts.append(source)
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def can_be_tested(self) -> bool:
        """Whether the split has test cases of a task that the contender can do."""
        able, split = self.contender.abilities(), self.split
        return bool((able.matches and split.test) or (able.generates and split.generation))


def find(cell: Cell, cache: Cache, *, quiet: bool = False) -> Outcome | None:
    """Returns a cell's outcome from the cache, or None. A damaged one causes a warning, unless `quiet`."""
    outcome = cache.load(cell.key, quiet=quiet)
    return None if outcome is None else replace(outcome, label=cell.contender.label)


def run(
    cell: Cell,
    cache: Cache,
    device: str,
    begin: Callable[[], Sequence[Observer]],
    *,
    fresh: bool = False,
    jobs: int = 1,
) -> tuple[Outcome, bool]:
    """Returns a cell's outcome, and whether it came from the cache because another process has computed it.

    `begin` is called before the cell runs, and returns observers of its training. `fresh` runs the cell even
    if the cache has its outcome. `jobs` is the number of cells that run at a time; it is only stored in the
    outcome. Ctrl-C raises KeyboardInterrupt and keeps the checkpoint. The next call continues from it.
    """
    with cache.working(cell.key) as folder:  # waits for another process that works on this cell
        if not fresh and (known := find(cell, cache, quiet=True)):
            return known, True
        if fresh:
            RunFolder(folder).discard()
        outcome = replace(_fit_and_test(cell, folder, device, begin()), jobs=jobs)
        cache.save(cell.key, outcome)
        RunFolder(folder).discard()
    return outcome, False


def _fit_and_test(cell: Cell, folder: Path, device: str, observers: Sequence[Observer]) -> Outcome:
    contender, split = cell.contender, cell.split
    config = contender.config(cell.seed, device)
    where = resolve_device(config.device)
    _warm_up(str(where))
    memory, resumed = _peak_memory(where), _Resumed()
    recommender = fitted(cell, device, folder, [*observers, resumed])
    training = recommender.training
    assert training is not None
    started = time.perf_counter()
    data = recommender.model.interactions(split.train, where)
    metrics = case_metrics(recommender.model, split, data, KS)
    tested = evaluation_of(recommender.model, split, metrics)
    evaluate_seconds, peak = time.perf_counter() - started, memory()
    (lists,) = list_measures([recommender.model], split, data)
    return Outcome(
        label=contender.label,
        model=contender.model,
        settings=config.model_dump(mode="json"),
        dataset=tested.dataset,
        protocol=tested.protocol,
        split=split.key,
        seed=cell.seed,
        seeded=contender.abilities().seeded,
        matching=tested.matching,
        matching_cases=tested.matching_cases,
        generation=tested.generation,
        generation_cases=tested.generation_cases,
        validation=mean_validation(training.history),
        epochs=len(training.history),
        best_epoch=training.best_epoch,
        fit_seconds=round(training.seconds + sum(resumed.seconds.values()), 3),
        evaluate_seconds=round(evaluate_seconds, 3),
        memory=peak,
        device=device_in_words(where),
        version=__version__,
        torch=str(torch.__version__),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        curve=[
            round(record.validation[SELECTION_METRIC], 5)
            for record in training.history
            if SELECTION_METRIC in record.validation and contender.ensemble == 1
        ],
        ensemble=contender.ensemble,
        lists=None if lists is None else asdict(lists),
        cases={
            f"{task}.{name}": values[name].float().cpu().numpy()
            for task, values in metrics.items()
            for name in CASE_METRICS
        },
    )


def fitted(cell: Cell, device: str, folder: Path, observers: Sequence[Observer]) -> Recommender:
    """Returns a cell's fitted model. Training continues from the checkpoint in `folder` if it can be read."""
    config = cell.contender.config(cell.seed, device)
    recommender = Recommender(cell.contender.model, ensemble=cell.contender.ensemble, **config.model_dump())
    options: dict[str, Any] = {"folder": folder, "resume": True, "observers": observers}
    fit = partial(recommender.fit, cell.split, progress=False, calibrate=False, **options)
    try:
        try:
            fit()
        except CheckpointError:  # damaged: only the checkpoint is lost
            RunFolder(folder).discard()
            fit()
    except NoModelYetError:  # Ctrl-C before the first epoch is not a failure of the model
        raise KeyboardInterrupt from None
    if recommender.training is not None and recommender.training.interrupted:
        raise KeyboardInterrupt
    return recommender


class _Resumed(Observer):
    """Records the training time of earlier, interrupted processes, for each member of an ensemble."""

    def __init__(self) -> None:
        self.member, self.seconds = 1, dict[int, float]()

    def on_member(self, number: int, of: int) -> None:
        self.member = number

    def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
        self.seconds[self.member] = sum(record.seconds for record in done)


@remembered
def _warm_up(device: str) -> None:
    """Train a tiny model once, to keep torch's start-up time and memory out of the first measurement."""
    pairs = np.eye(2, dtype=np.float32)
    users, items, bundles = (Vocabulary(kind, ["0", "1"]) for kind in ("user", "item", "bundle"))
    data = BundleDataset(pairs, pairs, pairs, users, items, bundles)
    Recommender("bundlemage", embedding_dim=2, epochs=1, device=device).fit(
        SplitPlan("none").divide(data), progress=False
    )


# ── What a model can do ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Abilities:
    """The tasks that a model can do, and whether it learns and depends on a seed."""

    matches: bool
    generates: bool
    learns: bool
    """Whether the model learns by gradient steps."""
    seeded: bool
    """Whether another seed could give another result."""


def abilities(model: str, settings: Mapping[str, Any] | None = None) -> Abilities:
    """Returns the abilities of a registered model with these settings."""
    return _abilities(model, json.dumps(dict(settings or {}), sort_keys=True))


@lru_cache(maxsize=1024)
def _abilities(name: str, settings_json: str) -> Abilities:
    settings = json.loads(settings_json)
    model = build(name, make_config(name, settings), _TINY)
    learns = can(model, Learner)
    return Abilities(
        can(model, Matcher), can(model, Completer), learns, learns or _seed_matters(name, settings)
    )


@dataclass(frozen=True)
class ModelFacts:
    """A row of the list of models. If `error` is set, the other fields except `name` are empty."""

    name: str
    title: str = ""
    matches: bool = False
    generates: bool = False
    learns: bool = False
    knows_new_users: bool = False
    publication: str = ""
    error: str | None = None


def every_model() -> list[ModelFacts]:
    """Returns all registered models, also of other packages. A model that fails to load has an `error`."""
    models = []
    for name in model_names():
        try:
            kind, able = model_class(name), abilities(name)
            tasks = (able.matches, able.generates, able.learns)
            models.append(ModelFacts(name, kind.title, *tasks, kind.knows_new_users, kind.publication))
        except Exception as error:  # another package's model may fail in any way
            known = isinstance(error, BundleMageError)
            reason = f"{error}" if known else f"it cannot be built: {type(error).__name__}: {error}"
            models.append(ModelFacts(name, error=reason))
    return models + [
        ModelFacts(name, error=f"{where} registers a name that is taken: rename it there")
        for name, where in names_taken().items()
    ]


def _seed_matters(name: str, settings: Mapping[str, Any]) -> bool:
    """Returns whether two seeds give different weights or different scores on a tiny shop."""
    try:
        first, second = (_observed(name, {**settings, "seed": seed}) for seed in (1, 2))
        return not all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    except Exception:  # it may fail on such a small shop: running every seed is always correct
        return True


def _observed(name: str, settings: Mapping[str, Any]) -> list[Tensor]:
    """Returns the weights and the scores of an untrained model on a tiny shop."""
    config = make_config(name, {**settings, "device": "cpu"})
    model: Model = build(name, config, _TINY).eval()
    rows = Ragged.from_lists([[row, (row + 1) % 8, (row + 3) % 8] for row in range(8)], torch.device("cpu"))
    data = Interactions(rows, rows, rows, 8)
    histories = data.histories(torch.arange(8))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)
        model.observe(data)
        answers = [*model.state_dict().values()]
        if can(model, Matcher):
            answers.append(model.score_bundles(histories, rows))
        if can(model, Completer):
            answers.append(model.score_items(histories, rows, rows))
    return answers


# ── The machine ──────────────────────────────────────────────────────────────────────────────────


def device_in_words(device: torch.device) -> str:
    """Returns the name of the GPU, or the name of the processor and its number of cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    match = None
    with suppress(OSError):
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    name = match[1].strip() if match else platform.processor() or platform.machine() or "CPU"
    kind = "" if device.type == "cpu" else f"{device.type}, "
    return f"{kind}{name}, {os.cpu_count() or 1} cores"


def _peak_memory(device: torch.device) -> Callable[[], int | None]:
    """Start to measure memory. The returned function returns the peak since then, in bytes.

    On a GPU it is the memory allocated there, on a CPU the growth of the process; None if it is unknown.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return partial(torch.cuda.max_memory_allocated, device)
    start = _peak(reset=True) if device.type == "cpu" else None

    def added() -> int | None:
        peak = _peak()
        return None if peak is None or start is None else max(0, peak - start)

    return added


def _peak(*, reset: bool = False) -> int | None:
    """Returns the peak memory of this process in bytes. `reset` first sets the peak to the memory in use."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")  # Linux
        line = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(line[1]) * 1024 if line else None
