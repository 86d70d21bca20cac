"""A Ray cluster, or Ray on this machine alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from bundlemage.engines.base import Engine, Progress, in_silence
from bundlemage.engines.ray.cluster import Cluster

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


class RayEngine(Engine):
    """Each job connects to the cluster and leaves it again. Nothing of Ray is imported before."""

    name: ClassVar[str] = "ray"

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self.cluster = Cluster(address, workers)

    def train(self, job: TrainingJob, model: Model, observers: Sequence[Observer] = ()) -> TrainingResult:
        with self.cluster.joined("training on Ray"):
            from bundlemage.engines.ray.training import train

            return train(job, self.cluster, model, observers)

    def evaluate(self, job: EvaluationJob, progress: Progress = in_silence) -> list[Evaluation]:
        with self.cluster.joined("evaluating on Ray"):
            from bundlemage.engines.ray.evaluating import evaluate

            return evaluate(job, self.cluster, progress)

    def recommend_all(self, job: ScoringJob, progress: Progress = in_silence) -> Scored:
        with self.cluster.joined("recommending on Ray"):
            from bundlemage.engines.ray.scoring import score

            return score(job, self.cluster, progress)

    def campaign(self, job: CampaignJob, progress: Progress = in_silence) -> CampaignSummary:
        with self.cluster.joined("a campaign on Ray"):
            from bundlemage.engines.ray.campaigning import run

            return run(job, self.cluster, progress)

    def tune(self, search: Search, progress: Progress = in_silence) -> Study:
        with self.cluster.joined("tuning on Ray"):
            from bundlemage.engines.ray.tuning import tune

            return tune(search, self.cluster, progress)
