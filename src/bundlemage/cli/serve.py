"""`bundlemage serve`, `keys` and `retrain`: the live service, its API keys, and its retraining."""

from __future__ import annotations

import errno
import gc
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from bundlemage.cli import show
from bundlemage.cli.commands import FromModel, add
from bundlemage.cli.options import AsJson, OtherDevice
from bundlemage.cli.texts import only_given
from bundlemage.cli.texts import settings as parsed
from bundlemage.errors import BundleMageError, ConfigError, MissingExtraError
from bundlemage.progress import Shown

if TYPE_CHECKING:
    from bundlemage.data.splits import Split
    from bundlemage.retraining.run import Retrained
    from bundlemage.service.settings import Settings
    from bundlemage.store.records import Key
    from bundlemage.store.repository import Store

SAMPLE = Path("bundlemage-sample")
_NEEDED = ("fastapi", "fastapi_swagger", "httptools", "prometheus_client", "sqlalchemy", "uvicorn")

SETTINGS = FromModel(
    "bundlemage.service.settings.Settings",
    only=("host", "port", "workers", "rate_limit", "threads", "trust_proxy"),
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
    shop: list[str] | None = None,
) -> None:
    """Serve a model live: an HTTP API, and a web page.

    At the first start the database imports the model's catalogue and histories. After that,
    requests change the database, and every answer uses its current state. Without --db, the database is the
    file MODEL.db in the same folder as MODEL.

    Options:
        model [MODEL]: A folder that 'bundlemage train' has written. If left out: the model that the database
            names, or a model of the sample shop.
        --set NAME=VALUE: Any other setting, e.g. served_days=7 or session_hours=1. Repeatable.
        --shop KEY=VALUE: A setting of the shop that replaces the model's, as long as this service runs:
            currency=EUR, locale=de_DE, price_ending=0.99, pays=missing, owned=show, stock=hide,
            mostly_owned=0.8 or diversity=0.3. Repeatable.
    """
    from bundlemage.messages import check_catalogues
    from bundlemage.models.config import parse_config
    from bundlemage.service.settings import Settings

    check_catalogues()
    if model is None and db is None:
        model = _sample_model()
    values = {**settings, "model": model, "db": database_url(db, model), **parsed(set_)}
    if shop:
        values["shop"] = parsed(shop, "--shop")
    checked = parse_config(Settings, values)
    with ExitStack() as stack:
        sockets = [stack.enter_context(each) for each in _bound(checked.host, checked.port, checked.workers)]
        _serve(checked, sockets)


def _serve(settings: Settings, sockets: Sequence[socket.socket]) -> None:
    """Load the model, then serve it: in this process, or in one forked process for each socket."""
    check_extra()
    import torch

    from bundlemage.service import logs, workers
    from bundlemage.service.app import create_server, open_live, start_service
    from bundlemage.service.security import check_may_listen
    from bundlemage.service.shared import Shared
    from bundlemage.store.repository import Store

    if settings.workers > 1:
        workers.check_possible()
        torch.set_num_threads(1)  # a process with several of them cannot be forked
    with closing(open_store(settings.db)) as store:
        check_may_listen(settings.host, store.has_keys(), settings.trust_proxy)
        with Shown(show.notes, "importing the shop's data") as progress:
            live = open_live(settings, store, progress)
        shop = store.url
    host, port = sockets[0].getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    name = show.plain(live.recommender.dataset.name)
    several = f" with {settings.workers} worker processes" if settings.workers > 1 else ""
    show.say(
        f"BundleMage serves {name} (model {live.record.version}) at [bold]http://{shown}:{port}/[/]{several}\n"
        f"  the page   http://{shown}:{port}/\n"
        f"  the API    http://{shown}:{port}/v1/users/USER/bundles?k=3   (all of it: /docs)\n"
        f"  the store  {show.plain(shop)}\n"
        "Ctrl-C stops the service. Every change that it has confirmed is on disk."
    )
    if live.recommender.held_out:
        show.warn(
            f"this model has not learned from {live.recommender.held_out:,} purchases, which were held out "
            "to test it. For a live shop, train it with --final, which learns from all"
        )
    logs.configure(debug=settings.debug)
    with suppress(ImportError, OSError, ValueError):
        import resource

        # Allow as many open files as the system permits: the usual limit is 1,024 connections.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # Exclude all objects so far from garbage collection, which would otherwise delay requests by 0.2 s.
    gc.collect()
    gc.freeze()
    shared = Shared(settings)

    def work(number: int) -> None:
        shared.number = number
        if settings.workers > 1:
            logs.configure(debug=settings.debug, worker=number)
        service = start_service(settings, Store.open(settings.db), live, shared)
        server = create_server(service)
        with suppress(KeyboardInterrupt):  # the server raises it again after it has stopped
            server.run(sockets=[sockets[number - 1]])

    if settings.workers == 1:
        work(1)
        return
    with closing(shared):
        stopped_by = workers.Workers(settings.workers, work).run()
    if stopped_by == signal.SIGTERM:
        signal.raise_signal(signal.SIGTERM)  # so that whoever started this process sees how it ended


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
    """The URL of the database. A plain path is a SQLite file. The default is MODEL.db next to the model."""
    if db is None:
        if model is None:
            raise ConfigError("name a database with --db")
        return f"sqlite:///{model.resolve()}.db"
    return db if "://" in db else f"sqlite:///{db}"


def _sample_model() -> Path:
    """Returns the folder of the sample shop's model. The model is trained at the first start."""
    from bundlemage.artifact.files import artifact_version
    from bundlemage.cli.train import train
    from bundlemage.engines.base import engine

    folder = SAMPLE / "model"
    try:
        artifact_version(folder)
    except BundleMageError:
        train(folder, engine(), overwrite=True, final=True)
    return folder


def _bound(host: str, port: int, count: int) -> list[socket.socket]:
    """Returns sockets that listen, one for each worker: the system divides new connections among them.

    They are opened first, so that an address in use is reported at once.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening: list[socket.socket] = []
    try:
        if count > 1:
            with socket.socket(family) as trial:  # the options below would share an address that is in use
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind((host, port))
                port = trial.getsockname()[1]
        for _ in range(count):
            each = socket.socket(family)
            listening.append(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if count > 1:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind((host, port))
            each.listen(2048)
            each.set_inheritable(True)
    except OSError as error:
        for each in listening:
            each.close()
        in_use = error.errno == errno.EADDRINUSE
        reason = "it is in use already; choose another with --port" if in_use else error.strerror
        raise ConfigError(f"cannot listen on {host}, port {port}: {reason}") from None
    return listening


# ── API keys ─────────────────────────────────────────────────────────────────────────────────────

keys = typer.Typer(no_args_is_help=True, help="Create, list and revoke API keys of the live service.")


def create(role: str, db: Database = None, name: str = "", as_json: AsJson = False) -> None:
    """Create a key and print it. It is shown only once: the database keeps only a digest of it.

    As soon as there is a key, the service refuses requests without one. A running service needs at most 5
    seconds to notice.

    Options:
        --role ROLE: read, write or admin; each includes those before it.
        --name: The owner of the key, to tell keys apart later.
    """
    with _opened(db) as store:
        from bundlemage.service.security import ROLES, make_key

        if role not in ROLES:
            raise ConfigError(f"unknown role {role!r}; the roles are: {', '.join(ROLES)}")
        if len(name) > 200 or not name.isprintable():
            raise ConfigError(f"--name: expected one line of at most 200 characters, found {name[:40]!r}")
        text, key = make_key(role, name)
        store.add_key(key)
    if as_json:
        show.print_json({"key": text, **_described(key)})
        return
    print(text)  # alone on stdout, for a shell's $(…)
    show.note(
        f"A key of role [bold]{role}[/]. It is shown only now: keep it where you keep secrets. Send it in "
        f"the header 'Authorization: Bearer KEY'.\n'bundlemage keys revoke {key.id}' revokes it."
    )


def list_(db: Database = None, as_json: AsJson = False) -> None:
    """List all keys, also revoked ones, without their secrets."""
    with _opened(db) as store:
        records = store.keys()
    if as_json:
        show.print_json([_described(key) for key in records])
        return
    if not records:
        show.out.print("no key yet: everyone who can reach the service has full access")
        return
    table = Table("id", "role", "name", "created", "revoked")
    for key in records:
        revoked = f"{key.revoked_at:%Y-%m-%d %H:%M}" if key.revoked_at else ""
        table.add_row(key.id, key.role, show.plain(key.name), f"{key.created_at:%Y-%m-%d %H:%M}", revoked)
    show.out.print(table)


def revoke(key_id: str, db: Database = None) -> None:
    """Revoke a key and end its logins. A running service accepts it for at most 5 more seconds.

    Options:
        key_id ID: The id that 'bundlemage keys list' shows.
    """
    with _opened(db) as store:
        if not store.revoke_key(key_id):
            # A user may paste the whole secret key here, so only a text as short as an id is repeated.
            shown = f"key {key_id!r}" if len(key_id) <= 12 else "such key"
            raise ConfigError(f"there is no {shown} to revoke; 'bundlemage keys list' shows the ids")
        last = not store.has_keys()
    show.out.print(f"{key_id} is revoked")
    if last:
        show.warn(
            "that was the last key. A service that only this machine can reach is now open "
            "to everybody on this machine; any other service refuses all requests until there is a new key"
        )


@contextmanager
def _opened(db: str | None) -> Iterator[Store]:
    """The store. If it is new, a note says so, because a mistyped --db creates a new database.

    A new database is not an error: a service for other machines needs a key before its first start.
    """
    with closing(open_store(database_url(db, None))) as store:
        if store.is_empty() and not store.keys():
            show.note(
                f"[yellow]note:[/] {show.plain(store.url)} is a new database, without a shop and without "
                "keys. If a service is already running, it uses another database: check --db"
            )
        yield store


def _described(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "role": key.role,
        "name": key.name,
        "created_at": key.created_at.isoformat(),
        "revoked_at": key.revoked_at.isoformat() if key.revoked_at else None,
    }


add(keys, create, list_, revoke)


# ── Retraining ───────────────────────────────────────────────────────────────────────────────────


def retrain(
    db: Database = None,
    model: str | None = None,
    set_: list[str] | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    device: OtherDevice = None,
    models: Path | None = None,
    keep: int = 3,
    places: int = 20,
    tolerance: float = 0.0,
    force: bool = False,
    as_json: AsJson = False,
) -> None:
    """Train the serving model again on the database's data, and publish it if it is not worse.

    Both models are tested on bundles that neither has learned from, and that had not been shown to the user
    before the purchase. The better one is trained again on all data before it is published. A running service
    switches to it by itself. The command is safe to run from cron: only one training runs at a time, and if
    it is killed, the old model keeps serving.

    Options:
        --model NAME: Train another model, with its default settings: 'bundlemage models' lists the names.
        --set NAME=VALUE: A setting that differs from the serving model's, e.g. embedding_dim=64. Repeatable.
        --epochs: The maximum number of passes over the data.
        --seed: Seed of the training, and of the choice of held-out cases.
        --models DIR: Folder for new models. Default: the folder of the serving model.
        --keep: How many models of retrainings to keep. The folders of older ones are removed.
        --places: How many bundles at the top of a list count as shown to the user.
        --tolerance: How far the new model's nDCG@10 may be below the serving model's.
        --force: Publish the new model even if it is worse, or if nothing can be compared.
    """
    check_extra()
    from bundlemage.retraining.comparison import DECISIVE
    from bundlemage.retraining.run import retrain as retrained

    changed = {**parsed(set_), **only_given({"epochs": epochs, "device": device})}
    store = open_store(database_url(db, None), must_exist=True)
    with closing(store), Shown(show.notes) as progress:
        outcome = retrained(
            store,
            model=model,
            settings=changed,
            models=models,
            force=force,
            tolerance=tolerance,
            keep=keep,
            places=places,
            seed=seed,
            on_split=_announce,
            progress=progress,
        )
    show.warn(*outcome.warnings)
    if not as_json:
        _show(outcome, DECISIVE)
        return
    training = outcome.training
    plain = ("published", "reason", "serving", "version", "cases", "prompted", "with_list", "new_bundles")
    show.print_json(
        {
            **{name: getattr(outcome, name) for name in plain},
            "since": None if outcome.since is None else outcome.since.isoformat(),
            "path": None if outcome.path is None else str(outcome.path),
            "decided_by": DECISIVE,
            "tolerance": tolerance,
            "comparison": None if outcome.comparison is None else vars(outcome.comparison),
            "generation": None if outcome.generation is None else vars(outcome.generation),
            "removed": [str(path) for path in outcome.removed],
            "not_removed": [str(path) for path in outcome.not_removed],
            "warnings": outcome.warnings,
            "epochs": len(training.history) if training else 0,
            "seconds": round(training.seconds, 3) if training else 0.0,
            "device": training.device if training else None,
            "test": [row.to_json() for row in outcome.test],
        }
    )


def _announce(split: Split, outcome: Retrained) -> None:
    """Print the size of the training data, and how many users the comparison covers."""
    show.note(show.described(split.dataset))
    if split.test:
        chosen = (
            "chosen at random, because too few purchases have different times"
            if outcome.since is None
            else f"all since {outcome.since:%Y-%m-%d %H:%M} UTC"
        )
        show.note(
            f"{len(split.test):,} purchases that are new to the serving model {outcome.serving} test both "
            f"models; they are {chosen}"
        )
    else:
        show.note(f"nothing is compared with the serving model {outcome.serving}")
    if outcome.prompted:
        show.note(f"{outcome.prompted:,} others are left out: the bundle had been shown to the user before")
    learned, known = split.train.user_bundle.nnz, split.dataset.user_bundle.nnz
    show.note(
        f"learning from {learned:,} of {known:,} user-bundle pairs; if the new model is published, it is "
        "trained again on all of them"
    )


def _show(outcome: Retrained, decisive: str) -> None:
    from bundlemage.evaluation import Evaluation

    matching, generation = outcome.comparison, outcome.generation
    if matching is not None:
        rows = [
            Evaluation(
                name,
                "store",
                "retrain",
                getattr(matching, side),
                matching.cases,
                getattr(generation, side, None),
                generation.cases if generation else 0,
            )
            for name, side in (("serving", "serving"), ("new", "candidate"))
        ]
        show.out.print(show.evaluations(rows))
    if generation is not None:
        show.say(
            f"In completing bundles, {decisive} differs by {generation.difference:+.4f}, with a standard "
            f"error of {generation.standard_error:.4f}."
        )
    elif outcome.new_bundles is not None:
        show.say(
            f"Completing bundles was not compared: {outcome.new_bundles:,} bundles are new to the serving "
            "model, which is too few."
        )
    if outcome.path is None:
        show.say(f"[bold]Not published[/], {outcome.serving} continues to serve: {outcome.reason}.")
        return
    show.say(
        f"[bold]Published[/] {outcome.version} as {show.plain(_from_here(outcome.path))}: {outcome.reason}.\n"
        "A running service switches to it with its next answer."
    )
    for path in outcome.removed:
        show.say(f"Removed the old model {show.plain(_from_here(path))}.")


def _from_here(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
