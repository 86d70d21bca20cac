"""The settings of the service. An unknown setting is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from bundlemage.wire.design import LONG_SECONDS
from bundlemage.wire.shop import ShopSettings


def _checked_shop(values: dict[str, Any]) -> dict[str, Any]:
    ShopSettings.of(values)  # raises a ConfigError that names every wrong setting
    return values


class Settings(BaseModel):
    """The settings of a service."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """The address to listen on. API keys are needed if other machines can reach this address."""
    port: int = Field(default=8000, ge=0, le=65535)
    """The port to listen on; 0 chooses a free port."""
    db: str = "sqlite:///bundlemage.db"
    """The URL of the store: `sqlite:///FILE` or `postgresql://…`."""
    model: Path | None = None
    """A saved model to publish and serve; None serves the model that is published in the store."""
    shop: Annotated[dict[str, Any], AfterValidator(_checked_shop)] = Field(default={})
    """Settings of the shop that replace those saved with each model that is served: see `wire.shop`."""
    rate_limit: float = Field(default=2000, gt=0)
    """Maximum number of requests per second for each key, or for each address if there is no key. After a
    pause, up to twice this number may arrive at once."""
    login_limit: float = Field(default=10, gt=0)
    """Maximum number of login attempts per minute from one address."""
    body_limit: int = Field(default=1024 * 1024, ge=1)
    """Maximum number of bytes of a request body."""
    session_hours: float = Field(default=12, gt=0)
    """Number of hours after which a login of the web page expires."""
    served_days: int = Field(default=30, ge=1)
    """Number of days for which served answers are kept. They show which recommendations were bought."""
    answer_timeout_s: float = Field(default=10, gt=0)
    """Maximum number of seconds that a request waits for its answer."""
    long_limit_s: float = Field(default=LONG_SECONDS, gt=0)
    """Maximum number of seconds that a forecast, a design, an explanation or insights may take. Then the work
    is stopped, and the answer has status 504."""
    workers: int = Field(default=1, ge=1, le=64)
    """Number of processes that answer requests at the same address. Use at most one for each CPU core."""
    threads: int = Field(default=1, ge=1)
    """Number of CPU threads of the model in each process. Batches are small, so one thread is as fast as
    several, unless there are more than some hundred thousand bundles."""
    queue_target_s: float = Field(default=0.3, gt=0)
    """If a new request would wait longer than this number of seconds, it is refused with status 503."""
    connection_limit: int = Field(default=4000, ge=1)
    """Maximum number of connections of each process. Above it, the one that has been idle the longest is
    closed."""
    head_limit: int = Field(default=32 * 1024, ge=512)
    """Maximum number of bytes of the URL and the headers of a request."""
    head_timeout_s: float = Field(default=10, gt=0)
    """Number of seconds in which the headers of a request must arrive, and each further part of a body."""
    body_timeout_s: float = Field(default=30, gt=0)
    """Number of seconds in which a body must arrive."""
    idle_timeout_s: float = Field(default=5, gt=0)
    """Number of seconds after which a connection without a further request is closed."""
    write_timeout_s: float = Field(default=30, gt=0)
    """Number of seconds in which the caller must read an answer."""
    trust_proxy: bool = False
    """Whether to trust the headers X-Forwarded-For, -Proto and -Host. Set it only behind a proxy: otherwise
    callers could forge them."""
    debug: bool = False
    """Whether to log the messages of unexpected errors, which may contain personal data."""
