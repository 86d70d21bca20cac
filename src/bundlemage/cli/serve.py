"""`bundlemage serve`: the live service and its page."""

from __future__ import annotations

import errno
import gc
import socket
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bundlemage.cli import show
from bundlemage.cli.model_options import FromModel
from bundlemage.cli.options import settings as parsed
from bundlemage.errors import BundleMageError, ConfigError, MissingExtraError
from bundlemage.progress import Shown

if TYPE_CHECKING:
    from bundlemage.service.settings import Settings
    from bundlemage.store.repository import Store

SAMPLE = Path("bundlemage-sample")
_NEEDED = ("fastapi", "prometheus_client", "sqlalchemy", "uvicorn")

SETTINGS = FromModel(
    "bundlemage.service.settings",
    "Settings",
    only=("host", "port", "rate_limit", "threads", "trust_proxy"),
    environment="BUNDLEMAGE_",
)
Database = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        envvar="BUNDLEMAGE_DB",
        help="sqlite:///FILE, a FILE, or postgresql://USER:PASSWORD@HOST/NAME.",
    ),
]


def serve(
    settings: Annotated[dict[str, Any], SETTINGS],
    model: Path | None = None,
    db: Database = None,
    set_: list[str] | None = None,
) -> None:
    """Serve a model live: an HTTP API, and a web page.

    At the first start the database imports the model's catalogue and histories. From then on the shop
    changes them, and every answer uses them. Without --db the database is a file beside the model, MODEL.db.

    Options:
        model [MODEL]: A folder that 'bundlemage train' has written. If left out: the model that the database
            names, or a model of the sample shop.
        --set NAME=VALUE: Any other setting, e.g. served_days=7 or session_hours=1. Repeatable.
    """
    from bundlemage.service.settings import parse_settings

    if model is None and db is None:
        model = _sample_model()
    checked = parse_settings({**settings, "model": model, "db": database_url(db, model), **parsed(set_)})
    with _bound(checked.host, checked.port) as listening:
        _serve(checked, listening)


def _serve(settings: Settings, listening: socket.socket) -> None:
    check_extra()
    import uvicorn

    from bundlemage.service import logs
    from bundlemage.service.app import create_app, open_service
    from bundlemage.service.security import check_may_listen

    store = open_store(settings.db)
    try:
        check_may_listen(settings.host, store.has_keys(), settings.trust_proxy)
        with Shown(show.notes, "importing the shop's data") as progress:
            service = open_service(settings, store, progress)
    except BaseException:
        store.close()
        raise
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    serving = service.answerer.serving
    name = show.plain(serving.live.recommender.dataset.name)
    show.say(
        f"BundleMage serves {name} (model {serving.record.version}) at [bold]http://{shown}:{port}/[/]\n"
        f"  the page   http://{shown}:{port}/\n"
        f"  the API    http://{shown}:{port}/v1/users/USER/bundles?k=3   (all of it: /openapi.json)\n"
        f"  the store  {show.plain(store.url)}\n"
        "Ctrl-C stops it. Everything that was acknowledged is on disk."
    )
    logs.configure(debug=settings.debug)
    _allow_many_connections()
    # These objects stay. Without this, a garbage collection would delay requests by 0.2 s.
    gc.collect()
    gc.freeze()
    config = uvicorn.Config(
        create_app(service),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",  # there are none, and their log lines would contain paths
        timeout_graceful_shutdown=10,
    )
    with suppress(KeyboardInterrupt):  # the server raises it again after it has stopped
        uvicorn.Server(config).run(sockets=[listening])


def _allow_many_connections() -> None:
    """Allow as many open files as the system permits, because the usual limit is 1,024 connections."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def check_extra() -> None:
    """Raise an error that says how to install the `serve` extra, if it is not installed."""
    if any(find_spec(name) is None for name in _NEEDED):
        raise MissingExtraError("serve", "The live service")


def open_store(url: str, *, must_exist: bool = False) -> Store:
    """Open the database. With `must_exist` a SQLite file is not created."""
    check_extra()
    from bundlemage.store.repository import Store

    file = url.removeprefix("sqlite:///")
    if must_exist and file != url and not Path(file).exists():
        raise ConfigError(f"there is no database {file}: check --db")
    return Store.open(url)


def database_url(db: str | None, model: Path | None) -> str:
    """The URL of the database. A plain path is a SQLite file; without --db it is beside the model."""
    if db is None:
        if model is None:
            raise ConfigError("name a database with --db")
        return f"sqlite:///{model.resolve()}.db"
    return db if "://" in db else f"sqlite:///{db}"


def _sample_model() -> Path:
    """The model of the sample shop, trained at the first start."""
    from bundlemage.artifact.files import artifact_version
    from bundlemage.cli.train import train
    from bundlemage.engines.base import engine

    folder = SAMPLE / "model"
    try:
        artifact_version(folder)
    except BundleMageError:
        train(folder, engine(), overwrite=True)
    return folder


def _bound(host: str, port: int) -> socket.socket:
    """Listen on an address. This comes first, so that an address in use is reported at once."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        in_use = error.errno == errno.EADDRINUSE
        reason = "it is in use already; choose another with --port" if in_use else error.strerror
        raise ConfigError(f"cannot listen on {host}, port {port}: {reason}") from None
    listening.set_inheritable(True)
    return listening
