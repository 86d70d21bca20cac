"""`bundlemage design` and `bundlemage explain`: whole bundles under conditions, and reasons."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from math import exp
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand

from bundlemage.cli.ask import HistoryBundles, HistoryItems, KnownUser, describe, who
from bundlemage.cli.options import AsJson, Device, ModelFolder, ids, key_values
from bundlemage.errors import BundleMageError, ConfigError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from rich.panel import Panel
    from rich.table import Table

    from bundlemage.core.history import User
    from bundlemage.recommender import Recommender
    from bundlemage.wire.design_answers import Design, DesignedItem, Designs, Explanation

RULES = "What must hold"
WISHES = "What is wished for"
SEARCH = "The search"
_PANELS = {
    "start": None,
    **dict.fromkeys(("discount", "diversity", "margin", "costs", "n", "apart", "reasons"), WISHES),
    **dict.fromkeys(("method", "seed", "time_limit"), SEARCH),
}
"""Where the help shows a wish; all others stand under what must hold."""
_NAMES = {
    "n": ("-n", "--n"),
    "in_stock": ("--in-stock/--any-stock",),
    "not_owned": ("--not-owned/--include-owned",),
}
"""Options that are not called like their wish."""
_METAVARS = {"at_least": "TAG=N", "at_most": "TAG=N", "costs": "ID=COST", "one_per": "TAG"}
"""How several values are written, if not as a list of ids."""
_KINDS = {"item": "has the item", "bundle": "has the bundle", "partial": "in the bundle"}


class WithWishes(TyperCommand):
    """Adds one option for each field of `DesignRequest` to a command, in place of its parameter `wishes`.

    The options are made when the command is used: the model takes longer to import than `bundlemage --help`.
    """

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        command = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        command.command(self.name, context_settings=dict(self.context_settings))(_with_options(design))
        return typer.main.get_command(command).make_context(info_name, args, parent, **extra)


def design(
    folder: ModelFolder,
    user: KnownUser = None,
    history_items: HistoryItems = None,
    history_bundles: HistoryBundles = None,
    wishes: Annotated[Any, typer.Option(hidden=True, parser=str)] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Design whole bundles for a user that keep every condition, each with its price, score and reasons.

    If no bundle is possible, the answer names the conditions that cannot hold together, and changes that
    would make one possible.

    An id with a comma in it is written in double quotes inside the list: '"Tea, green",7'.
    """
    from bundlemage.cli import show
    from bundlemage.recommender import Recommender
    from bundlemage.wire.design import DesignRequest

    request = DesignRequest.of(**wishes)  # a wrong wish is reported before a model is loaded
    someone = who(user, history_items, history_bundles)
    model = Recommender.load(folder, device=device)
    designs = _designs(model, someone, dict(request))
    if as_json:
        show.print_json({"user": user, **designs.model_dump(mode="json")})
        return
    describe(model, someone)
    for each in designs:
        show.out.print(_card(each))
    if designs.proven:
        show.out.print("No other bundle has a higher value than the first.")
    if not designs.complete:
        show.notes.print("[yellow]note:[/] time ran out; these are the best bundles so far")


def explain(
    folder: ModelFolder,
    user: KnownUser = None,
    history_items: HistoryItems = None,
    history_bundles: HistoryBundles = None,
    bundle: Annotated[str | None, typer.Option("--bundle", metavar="ID", help="Why this bundle.")] = None,
    item: Annotated[
        str | None, typer.Option("--item", metavar="ID", help="Instead of --bundle: why this item.")
    ] = None,
    items: Annotated[
        list[str] | None,
        typer.Option("--items", metavar="ID,ID", help="With --item: what is in the bundle already."),
    ] = None,
    most: Annotated[int, typer.Option("--most", help="How many reasons are shown.", min=1)] = 10,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Why a bundle is for a user, or an item for a bundle: each thing is left out in turn.

    An id with a comma in it is written in double quotes inside the list: '"Tea, green",7'.
    """
    from bundlemage.cli import show
    from bundlemage.recommender import Recommender

    if (bundle is None) == (item is None):
        raise ConfigError("why what? Give --bundle ID, or --item ID and what it is added to as --items ID,ID")
    if items and item is None:
        raise ConfigError("--items is what an --item is added to: give it with one")
    someone = who(user, history_items, history_bundles)
    model = Recommender.load(folder, device=device)
    found = model.explain(someone, bundle=bundle, item=item, items=ids(items))
    if as_json:
        asked = {"bundle": bundle} if item is None else {"item": item, "items": ids(items)}
        show.print_json({"user": user, **asked, **found.model_dump(mode="json")})
        return
    data = model.dataset
    if bundle is not None:
        title = data.bundle_title(data.bundles.position(bundle))
    else:
        title = data.item_title(data.items.position(item or ""))
    show.out.print(show.name(title, bundle or item or ""))
    if found.gate is not None:
        show.out.print(f"item history speaks for {found.gate:.0%}, bundle history for {1 - found.gate:.0%}")
    if found.reasons:
        show.out.print(_reasons(found, most))
    show.out.print(show.plain(found.words))


# ── From the model of requests to options, and from options to wishes ───────────────────────────


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each wish in place of its parameter `wishes`."""
    fields = dict(_fields())
    own = dict(inspect.signature(command, eval_str=True).parameters)
    del own["wishes"]
    options = {name: _option(name, field) for name, field in fields.items()}

    def run(**values: Any) -> None:
        given = {name: values.pop(name) for name in fields}
        wishes = {
            name: _read(name, fields[name], value) for name, value in given.items() if value is not None
        }
        tags = {name: wishes.pop(name, {}) for name in ("at_least", "at_most")}
        command(**values, wishes=wishes | {"tags": tags})

    parameters = [*own.values(), *options.values()]
    run.__dict__["__signature__"] = inspect.Signature(
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    )
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = command.__doc__
    return run


def _fields() -> Iterator[tuple[str, FieldInfo]]:
    """Each wish by its name. Those of a part of the request, such as `tags`, stand for the part."""
    from bundlemage.wire.design import DesignRequest, TagCounts

    for name, field in DesignRequest.model_fields.items():
        if field.annotation is TagCounts:
            yield from TagCounts.model_fields.items()
        else:
            yield name, field


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    kind, default, metavar = _plain(field.annotation), field.default, None
    names, words = _NAMES.get(name, (_flag(name),)), field.description
    if get_origin(kind) in (tuple, dict):
        metavar = _METAVARS.get(name, "ID,ID")
        kind, default = list[str] | None, None
        words = f"{words} Repeatable."
    elif _is_range(kind):
        metavar = "N|N-N"
        if default is None:
            metavar, words = "MOST|LEAST-MOST", f"{words} '20-' is at least 20."
        kind, default = str | None, None if default is None else f"{default.least}-{default.most}"
    elif get_origin(kind) is Literal:
        kind = str
    elif kind is bool and name not in _NAMES:
        names = (f"{_flag(name)}/--no-{name.replace('_', '-')}",)
    annotation = kind | None if default is None else kind
    option = typer.Option(*names, metavar=metavar, help=words, rich_help_panel=_PANELS.get(name, RULES))
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, option]
    )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _read(name: str, field: FieldInfo, value: Any) -> Any:
    """What was written as an option, as `DesignRequest.of` takes it."""
    kind, option = _plain(field.annotation), _flag(name)
    if get_origin(kind) is dict:
        pairs = key_values(value, option)
        return {key: _number(text, f"{option} '{key}={text}'") for key, text in pairs.items()}
    if get_origin(kind) is tuple:
        return value if name in _METAVARS else ids(value)
    return _range(value, option) if _is_range(kind) else value


def _plain(kind: Any) -> Any:
    """A type without its constraints, and without None."""
    if get_origin(kind) is Annotated:
        return _plain(get_args(kind)[0])
    if NoneType in get_args(kind):
        return _plain(next(each for each in get_args(kind) if each is not NoneType))
    return kind


def _is_range(kind: Any) -> bool:
    return {"least", "most"} == set(getattr(kind, "model_fields", ()))


def _range(text: str, option: str) -> Any:
    least, dash, most = text.partition("-")
    try:
        both = [float(end) if end else None for end in (least, most)]
    except ValueError:
        both = []
    if not both or not (least or most):
        raise ConfigError(f"{option} {text!r}: write it as 4, as 3-5, or as 3- for at least 3")
    return both if dash else both[0]


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{where}: a number comes after the '=', as in NAME=2") from None


def _designs(model: Recommender, someone: User, wishes: dict[str, Any]) -> Designs:
    from bundlemage.wire.design import ImpossibleDesignError

    try:
        return model.design(someone, **wishes)
    except ImpossibleDesignError as error:
        together = "cannot hold together" if len(error.conflict) > 1 else "cannot hold"
        lines = [f"no bundle is possible. What {together}:", *(f"  {rule}" for rule in error.conflict)]
        if error.changes:
            lines += ["It would be possible:", *(f"  {change}" for change in error.changes)]
        raise BundleMageError("\n".join(lines)) from error


# ── How it looks ─────────────────────────────────────────────────────────────────────────────────


def _card(found: Design) -> Panel:
    from rich.panel import Panel

    from bundlemage.cli import show

    lines = [line for item in found.items for line in _item_lines(item)]
    off = f"  [green]−{found.discount:.0%}[/]" if found.discount else ""
    before = f"  [dim][strike]{found.list_price:,.2f}[/][/]" if found.discount and found.list_price else ""
    price = "" if found.price is None else f"[bold]{found.price:,.2f}[/]{off}{before}   "
    body = "\n".join([*lines, "", f"{price}[cyan]{found.score:.2%}[/] [dim]value {found.value:.3f}[/]"])
    known = "" if found.same_as is None else f", as in {show.plain(found.same_as)}"
    return Panel(body, title=f"{found.rank}. {len(found.items)} items{known}", title_align="left", width=100)


def _item_lines(item: DesignedItem) -> list[str]:
    from bundlemage.cli import show

    if item.given:
        return [f"◦ {show.name(item.title, item.id)}{show.amount(item.price)}  [dim]there already[/]"]
    line = f"• {show.name(item.title, item.id)}{show.amount(item.price)}  [cyan]{item.score:.1%}[/]"
    return [line] if item.why is None else [line, f"  [dim]{show.plain(item.why.words)}[/]"]


def _reasons(found: Explanation, most: int) -> Table:
    from rich.table import Table

    from bundlemage.cli import show

    table = Table("reason", "", title="what makes it likelier (over 1), or less so", title_justify="left")
    table.add_column("times", justify="right")
    table.add_column("fit without it", justify="right")
    for reason in found.reasons[:most]:
        table.add_row(
            show.name(reason.title, reason.id),
            _KINDS[reason.kind],
            f"{exp(reason.effect):.2f}",
            f"{reason.without:.3f}",
        )
    left = len(found.reasons) - most
    if left > 0:
        table.caption = f"and {left:,} more"
    return table
