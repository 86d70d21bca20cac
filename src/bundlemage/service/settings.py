"""How the service is set up. Each setting is written once, with its meaning; an unknown one is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from bundlemage.models.config import parse_config


class Settings(BaseModel):
    """What `create_app` is told."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """The address to listen on. Any other than this machine's own needs API keys."""
    port: int = Field(default=8000, ge=0, le=65535)
    """The port to listen on; 0 takes a free one."""
    db: str = "sqlite:///bundlemage.db"
    """Where the store is: `sqlite:///FILE` or `postgresql://…`."""
    model: Path | None = None
    """A saved model to publish and serve; None serves the one that the store names."""
    rate_limit: float = Field(default=2000, gt=0)
    """Requests per second and caller (a key, or an address where there is none). Twice as many may come at
    once after a pause."""
    login_limit: float = Field(default=10, gt=0)
    """Attempts to log in per minute and address."""
    body_limit: int = Field(default=1024 * 1024, ge=1)
    """The most bytes of a request's body."""
    session_hours: float = Field(default=12, gt=0)
    """How long a login of the page lasts."""
    served_days: int = Field(default=30, ge=1)
    """How long answers are remembered for attribution."""
    answer_timeout_s: float = Field(default=10, gt=0)
    """How long a question may wait for its answer before it is given up."""
    threads: int = Field(default=1, ge=1)
    """How many CPU threads the model may use. For the few rows of a batch one is as fast as several, which
    would wait for each other, until there are some hundred thousand bundles."""
    queue_limit: int = Field(default=2000, ge=1)
    """How many questions may wait; one more is sent away with 503."""
    trust_proxy: bool = False
    """Whether a proxy stands before the service, so that X-Forwarded-For, -Proto and -Host are to be
    believed. Without one anybody could write them."""
    debug: bool = False
    """Log the messages of unexpected errors as well; they may hold personal data."""


def parse_settings(given: Mapping[str, Any]) -> Settings:
    """Settings, or one message that names every wrong one."""
    return parse_config(Settings, given)
