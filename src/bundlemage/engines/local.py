"""This machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from bundlemage.engines.base import Engine, Progress, in_silence

if TYPE_CHECKING:
    from bundlemage.campaigns.settings import CampaignSummary
    from bundlemage.engines.campaigning import CampaignJob
    from bundlemage.engines.evaluating import EvaluationJob
    from bundlemage.engines.scoring import Scored, ScoringJob
    from bundlemage.engines.training import TrainingJob
    from bundlemage.evaluation.results import Evaluation
    from bundlemage.models.base import Model
    from bundlemage.training.history import Observer
    from bundlemage.training.loop import TrainingResult
    from bundlemage.tuning.study import Search, Study


class LocalEngine(Engine):
    """What a job needs is imported when it is done, so that a command starts at once."""

    name: ClassVar[str] = "local"

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or 1

    @property
    def alone(self) -> bool:
        return self.workers == 1

    def train(self, job: TrainingJob, model: Model, observers: Sequence[Observer] = ()) -> TrainingResult:
        from bundlemage.engines.processes import train

        return train(job, model, observers, self.workers)

    def evaluate(self, job: EvaluationJob, progress: Progress = in_silence) -> list[Evaluation]:
        from bundlemage.engines.evaluating import evaluate

        return evaluate(job, progress)

    def recommend_all(self, job: ScoringJob, progress: Progress = in_silence) -> Scored:
        from bundlemage.engines.scoring import score

        return score(job, progress)

    def campaign(self, job: CampaignJob, progress: Progress = in_silence) -> CampaignSummary:
        from bundlemage.engines.campaigning import run

        return run(job, progress)

    def tune(self, search: Search, progress: Progress = in_silence) -> Study:
        from bundlemage.tuning.optuna import tune

        return tune(search, progress, self.workers)
