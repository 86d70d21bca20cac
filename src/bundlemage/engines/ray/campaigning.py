"""A campaign on a cluster: its processes ask the model ahead of the one that decides who is shown what."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from bundlemage.campaigns.settings import CampaignSummary
from bundlemage.engines import campaigning
from bundlemage.engines.base import Progress, written_out
from bundlemage.engines.campaigning import CampaignJob
from bundlemage.engines.ray.cluster import Cluster
from bundlemage.engines.ray.pool import in_order
from bundlemage.engines.ray.resources import device_here, resources


def run(job: CampaignJob, cluster: Cluster, progress: Progress) -> CampaignSummary:
    given = resources(cluster, job.device)
    ask = partial(in_order, given, partial(campaigning.asking, written_out(job)))
    return campaigning.run(replace(job, device=device_here(job.device)), progress, ask)
