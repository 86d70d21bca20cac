"""A campaign of a saved model: what both engines do alike, and all of it in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bundlemage.campaigns.limits import Whole
from bundlemage.campaigns.offer import Offer, Scored
from bundlemage.campaigns.run import Ask
from bundlemage.campaigns.settings import Campaign, CampaignSummary
from bundlemage.core.filters import Filter
from bundlemage.engines.base import Progress, in_silence
from bundlemage.recommender import Recommender


@dataclass(frozen=True)
class CampaignJob:
    """Bundles for every user of the model in a folder, or for these: plan, parts and summary to a folder."""

    model: Path
    output: Path
    users: tuple[str, ...] | None = None
    where: Filter | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of `campaigns.settings.Campaign`, by name."""
    resume: bool = False
    device: str = "auto"


def run(job: CampaignJob, progress: Progress = in_silence, ask: Ask | None = None) -> CampaignSummary:
    """Who is shown what is always decided here, user after user: limits follow what is left of them."""
    progress("models loaded", 0, 1)
    return Recommender.load(job.model, device=job.device).campaign(
        job.output,
        users=job.users,
        where=job.where,
        resume=job.resume,
        progress=lambda done, of: progress("users", done, of),
        ask=ask,
        **job.settings,
    )


def asking(job: CampaignJob) -> Callable[[Whole], Scored]:
    """What the model says of a block of users, in a process of its own."""
    loaded = Recommender.load(job.model, device=job.device)
    settings = Campaign.of(where=job.where or Filter(), **job.settings)
    return Offer.of(settings, loaded.model, loaded.shop, loaded.calibration).scored
