"""A campaign on a cluster: its processes ask the model ahead of the one that decides who is shown what."""

from __future__ import annotations

from functools import partial

from bundlemage.designer.campaign.settings import CampaignSummary
from bundlemage.engines import campaigning
from bundlemage.engines.base import Progress
from bundlemage.engines.campaigning import CampaignJob
from bundlemage.engines.ray.cluster import Cluster
from bundlemage.engines.ray.pool import in_order


def run(job: CampaignJob, cluster: Cluster, progress: Progress) -> CampaignSummary:
    ask = partial(in_order, cluster, job.device, partial(campaigning.asking, job))
    return campaigning.run(job, progress, ask)
