"""Runs a campaign with a saved model. Workers compute scores in advance; the main process decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bundlemage.campaigns.limits import Whole
from bundlemage.campaigns.offer import Offer, Scored
from bundlemage.campaigns.run import run_campaign
from bundlemage.campaigns.settings import Campaign, CampaignSummary
from bundlemage.core.filters import Filter
from bundlemage.engines.base import ModelJob, Workers
from bundlemage.progress import Progress


@dataclass(frozen=True)
class CampaignJob(ModelJob):
    """Choose bundles for all users of a model, or for `users`. The results are written to a folder."""

    output: Path
    users: tuple[str, ...] | None = None
    where: Filter | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `campaigns.settings.Campaign`, by name."""
    resume: bool = False

    @property
    def campaign(self) -> Campaign:
        """The settings after validation."""
        return Campaign.of(where=self.where or Filter(), **self.settings)


def run(job: CampaignJob, workers: Workers, progress: Progress) -> CampaignSummary:
    """Run the campaign. This process decides for one user at a time, because users share the limits."""
    model = job.recommender
    return run_campaign(
        job.campaign,
        job.output,
        model.model,
        model.shop,
        model.calibration,
        job.users,
        resume=job.resume,
        progress=progress,
        ask=partial(workers.each, _asking, job),
    )


def _asking(job: CampaignJob) -> Callable[[Whole], Scored]:
    """Returns a function that computes the model's scores for a block of users."""
    model = job.recommender
    return Offer(job.campaign, model.model, model.shop, model.calibration).scored
