"""`bundlemage serve`: the live service and its page."""

from __future__ import annotations

import errno
import gc
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bundlemage.cli.options import settings as parsed
from bundlemage.errors import BundleMageError, ConfigError

if TYPE_CHECKING:
    from bundlemage.service.settings import Settings
    from bundlemage.store.repository import Store

SAMPLE = Path("bundlemage-sample")

Database = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        envvar="BUNDLEMAGE_DB",
        help="sqlite:///FILE, a FILE, or postgresql://USER:PASSWORD@HOST/NAME.",
        show_default=False,
    ),
]


def serve(
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="[MODEL]",
            help="A folder that 'bundlemage train' has written. Left out: the model that the database names, "
            "or else a sample shop.",
        ),
    ] = None,
    db: Database = None,
    host: Annotated[
        str,
        typer.Option(envvar="BUNDLEMAGE_HOST", help="Where to listen. Elsewhere than here needs API keys."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="BUNDLEMAGE_PORT", help="0 takes a free one.")] = 8000,
    rate_limit: Annotated[
        float, typer.Option(envvar="BUNDLEMAGE_RATE_LIMIT", help="Requests per second and caller.")
    ] = 2000,
    threads: Annotated[
        int,
        typer.Option(
            envvar="BUNDLEMAGE_THREADS",
            help="CPU threads of the model; more for hundreds of thousands of bundles.",
        ),
    ] = 1,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other setting, e.g. served_days=7 or session_hours=1. Repeatable.",
        ),
    ] = None,
    trust_proxy: Annotated[
        bool,
        typer.Option(
            "--trust-proxy",
            envvar="BUNDLEMAGE_TRUST_PROXY",
            help="A proxy stands before the service: believe its X-Forwarded headers.",
        ),
    ] = False,
) -> None:
    """Serve a model live: an HTTP API, and a page to look at it.

    At first the database takes over what the model knows of the shop; from then on it has what the shop
    posts, and every answer goes by it. Without a database it is a file beside the model, MODEL.db.
    """
    from bundlemage.service.settings import parse_settings

    if model is None and db is None:
        model = _sample_model()
    settings = parse_settings(
        {
            "model": model,
            "db": database_url(db, model),
            "host": host,
            "port": port,
            "rate_limit": rate_limit,
            "threads": threads,
            "trust_proxy": trust_proxy,
            **parsed(setting),
        }
    )
    with _bound(host, port) as listening:
        _serve(settings, listening)


def _serve(settings: Settings, listening: socket.socket) -> None:
    check_extra()
    import uvicorn

    from bundlemage.cli import show
    from bundlemage.service import logs
    from bundlemage.service.app import create_app, open_service
    from bundlemage.service.security import check_may_listen

    store = open_store(settings.db)
    try:
        check_may_listen(settings.host, store.has_keys(), settings.trust_proxy)
        with show.counting("taking over the shop's data") as progress:
            service = open_service(settings, store, progress)
    except BaseException:
        store.close()
        raise
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    serving = service.answerer.serving
    name = show.plain(serving.live.recommender.dataset.name)
    show.out.print(
        f"BundleMage serves {name} (model {serving.record.version}) at [bold]http://{shown}:{port}/[/]\n"
        f"  the page   http://{shown}:{port}/\n"
        f"  the API    http://{shown}:{port}/v1/users/USER/bundles?k=3   (all of it: /openapi.json)\n"
        f"  the store  {show.plain(store.url)}\n"
        "Ctrl-C stops it. Everything that was acknowledged is on disk.",
        soft_wrap=True,
    )
    logs.configure(debug=settings.debug)
    _allow_many_connections()
    # What is there now stays: a collection that walked all of it would hold up whoever asks for 0.2 s.
    gc.collect()
    gc.freeze()
    config = uvicorn.Config(
        create_app(service),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",  # there are none, and its log lines would have paths in them
        timeout_graceful_shutdown=10,
    )
    with suppress(KeyboardInterrupt):  # which the server raises again when it has stopped
        uvicorn.Server(config).run(sockets=[listening])


def _allow_many_connections() -> None:
    """As many as the system lets us have: each takes a file, and the usual 1,024 are soon used up."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def check_extra() -> None:
    """Says how to install what the live service needs."""
    from bundlemage.errors import MissingExtraError

    try:
        import alembic  # noqa: F401
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import sqlalchemy  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("serve", "The live service") from error


def open_store(url: str, *, must_exist: bool = False) -> Store:
    check_extra()
    from bundlemage.store.repository import Store

    file = url.removeprefix("sqlite:///")
    if must_exist and file != url and not Path(file).exists():
        raise ConfigError(f"there is no database {file}: check --db")
    return Store.open(url)


def database_url(given: str | None, model: Path | None) -> str:
    """A URL; a plain path is a SQLite file, and without any it lies beside the model."""
    if given is None:
        if model is None:
            raise ConfigError("name a database with --db")
        return f"sqlite:///{model.resolve()}.db"
    return given if "://" in given else f"sqlite:///{given}"


def _sample_model() -> Path:
    """The model of the sample shop, trained at the first start."""
    from bundlemage.artifact.files import artifact_version
    from bundlemage.cli.train import train

    folder = SAMPLE / "model"
    try:
        artifact_version(folder)
    except BundleMageError:
        train(output=folder, overwrite=True)
    return folder


def _bound(host: str, port: int) -> socket.socket:
    """Known before anything else takes time: whether the address is free."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(kind)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        taken = (
            "it is in use already; choose another with --port"
            if error.errno == errno.EADDRINUSE
            else error.strerror
        )
        raise ConfigError(f"cannot listen on {host}, port {port}: {taken}") from None
    except OverflowError:
        listening.close()
        raise ConfigError(f"--port {port}: a port is a number from 0 to 65535") from None
    listening.set_inheritable(True)
    return listening
