"""Commands that ask a saved model: `bundlemage recommend`, `recommend-all` and `complete`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundlemage.cli import show
from bundlemage.cli.options import (
    AsJson,
    Device,
    Diversity,
    EngineOptions,
    FilterOptions,
    IndexOptions,
    MatchPopularity,
    ModelFolder,
    OptionalCount,
    OutputFile,
    Overwrite,
    Owned,
    SoldOut,
    UserOptions,
    UserOrAll,
)
from bundlemage.cli.texts import ids, key_values, numbers, plural
from bundlemage.errors import ConfigError
from bundlemage.progress import Shown

if TYPE_CHECKING:
    import pyarrow as pa

    from bundlemage.core.filters import Filter
    from bundlemage.core.history import User
    from bundlemage.core.shop import Recommendation
    from bundlemage.recommender import Recommender
    from bundlemage.wire.shop import BundleRules


def recommend(
    folder: ModelFolder,
    user: UserOrAll,
    where: FilterOptions,
    recall: IndexOptions,
    k: int = 5,
    owned: Owned = None,
    stock: SoldOut = None,
    diversity: Diversity = None,
    match_popularity: MatchPopularity = None,
    output: OutputFile = None,
    overwrite: Overwrite = False,
    new_bundle: list[str] | None = None,
    expected_sales: list[str] | None = None,
    sells_like: list[str] | None = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Recommend the bundles that fit a user best, or write those for all users to a file.

    For all users on a cluster, or to a folder of files, use 'bundlemage recommend-all'.

    If an id contains a comma, write it in double quotes inside the list: '"Tea, green",7'.

    Options:
        -k, --k: The number of bundles.

    New bundles:
        --new-bundle NAME=ID,ID: The name and the items of a bundle that is not in the training data.
            Repeatable.
        --expected-sales NAME=NUMBER: The expected sales of a new bundle, for its rank. Repeatable.
        --sells-like NAME=ID: Rank a new bundle as if it sold as often as the bundle ID. Repeatable.
    """
    rules: BundleRules = {
        "owned": owned,
        "stock": stock,
        "diversity": diversity,
        "match_popularity": match_popularity,
    }
    if user is None:
        if new_bundle or expected_sales or sells_like:
            raise ConfigError("new bundles are ranked for one user at a time: give --user instead of --all")
        _recommend_to_all(folder, output, where, recall, k, rules, overwrite, device, as_json)
        return
    from bundlemage.core.ranking import SCHEMA
    from bundlemage.data.row_files import check_replaceable
    from bundlemage.recommender import Recommender

    if output is not None:
        check_replaceable(output, SCHEMA, overwrite=overwrite)
    model = Recommender.load(folder, device=device)
    if recall is not None:
        show.note(str(model.use_index(recall)))
    new = {name: ids([inside]) for name, inside in key_values(new_bundle, "--new-bundle").items()}
    sales = numbers(expected_sales, "--expected-sales", "expected a number of sales, 0 or more")
    asked = user_in_data(model, user)
    answers = model.recommend(
        asked,
        k,
        where=where,
        new_bundles=new,
        expected_sales=sales,
        sells_like=key_values(sells_like, "--sells-like"),
        **rules,
    )
    _note_by_sales(model, user, asked, answers)
    _note_too_many(k, len(model.dataset.bundles), "bundles")
    if output is not None:
        _write_answers(output, SCHEMA, user, answers, as_json)
    elif as_json:
        show.print_json({"user": known_id(user), "bundles": [asdict(answer) for answer in answers]})
    else:
        describe(model, asked, known_id(user))
        cards = (
            show.bundle_cards(model.dataset, answers, model.shop_settings, new)
            if answers
            else _none_left("bundle", where)
        )
        show.out.print(cards)


def _recommend_to_all(
    folder: str,
    output: Path | None,
    where: Filter | None,
    recall: float | None,
    k: int,
    rules: BundleRules,
    overwrite: bool,
    device: str,
    as_json: bool,
) -> None:
    """`recommend --all`: the same as `recommend-all`, in this process and to one file."""
    from bundlemage.data.row_files import ENDINGS, has_format
    from bundlemage.engines.base import engine

    if output is None:
        raise ConfigError("--all needs a file: add --output FILE, e.g. --output answers.csv")
    if not has_format(output):
        raise ConfigError(
            f"--output {output}: the name of the file must end in {ENDINGS}. For a folder of files, use "
            "'bundlemage recommend-all DIR --output FOLDER'"
        )
    recommend_all(
        folder,
        output,
        engine(),
        where,
        recall,
        k=k,
        **rules,
        overwrite=overwrite,
        device=device,
        as_json=as_json,
    )


def recommend_all(
    folder: ModelFolder,
    output: Path,
    engine: EngineOptions,
    where: FilterOptions,
    recall: IndexOptions,
    k: int = 5,
    owned: Owned = None,
    stock: SoldOut = None,
    diversity: Diversity = None,
    match_popularity: MatchPopularity = None,
    overwrite: bool = False,
    resume: bool = False,
    part_users: OptionalCount = None,
    users: Path | None = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write the bundles that fit each user best to files.

    The columns are user_id, rank, bundle_id, score, source, owned_items, missing_items, to_pay and sold_out.
    After an interruption, the same command
    with --resume continues, if the output is a folder. The files are the same as without interruption.

    Options:
        -o, --output PATH: A file to write (its name ends in .parquet, .csv or .jsonl), or a folder for
            several Parquet files (its name has no ending).
        -k, --k: The number of bundles for each user.
        --overwrite: Replace existing output.
        --resume: With a folder: continue work that was interrupted.
        --part-users N: With a folder: the number of users in one file (default 50,000). An interruption
            loses at most the work of one file.
        --users DIR: With a folder: use the users of this sharded layout instead of the training data.
    """
    from bundlemage.engines.scoring import PART_USERS, ScoringJob, is_file

    one_file = is_file(output)
    for name, value in (("--resume", resume), ("--part-users", part_users), ("--users", users)):
        if one_file and value:
            raise ConfigError(
                f"{name} is for a folder of files, and {output} is one file: give --output the name of a "
                "folder, without an ending"
            )
    job = ScoringJob(
        Path(folder),
        output,
        k=k,
        where=where,
        owned=owned,
        stock=stock,
        diversity=diversity,
        match_popularity=match_popularity,
        part_users=part_users or PART_USERS,
        users=users,
        device=device,
        least_recall=recall,
        resume=resume,
        overwrite=overwrite,
    )
    began = time.monotonic()
    with Shown(show.notes, "recommending") as progress:
        scored = engine.recommend_all(job, progress)
    seconds = time.monotonic() - began
    rate = scored.users / seconds
    if scored.about_index:
        show.note(scored.about_index)
    if as_json:
        show.print_json(
            {
                "users": scored.users,
                "rows": scored.rows,
                **({} if one_file else {"parts": scored.parts, "kept": scored.kept}),
                "seconds": round(seconds, 3),
                "users_per_second": round(rate, 1),
                "file" if one_file else "folder": str(output),
            }
        )
        return
    kept = f", {scored.kept:,} of {scored.parts:,} parts kept" if scored.kept else ""
    show.say(
        f"{scored.rows:,} answers for {scored.users:,} users in [bold]{show.plain(output)}[/], in "
        f"{seconds:,.1f} s ({rate:,.0f} users a second){kept}"
    )
    if not scored.rows:
        show.out.print(_none_left("bundle", where))


def complete(
    folder: ModelFolder,
    user: UserOptions,
    where: FilterOptions,
    items: list[str] | None = None,
    k: int = 5,
    owned: Owned = None,
    stock: SoldOut = None,
    output: OutputFile = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Recommend the items that best complete a partial bundle for a user.

    If an id contains a comma, write it in double quotes inside the list: '"Tea, green",7'.

    Options:
        --items ID,ID: The items that are already in the bundle.
        -k, --k: The number of items.
    """
    from bundlemage.core.ranking import ITEM_SCHEMA
    from bundlemage.data.row_files import check_replaceable
    from bundlemage.recommender import Recommender

    if output is not None:
        check_replaceable(output, ITEM_SCHEMA, overwrite=overwrite)
    partial = ids(items)
    model = Recommender.load(folder, device=device)
    asked = user_in_data(model, user)
    answers = model.complete(asked, partial, k, where=where, owned=owned, stock=stock)
    _note_by_sales(model, user, asked, answers)
    _note_too_many(k, len(model.dataset.items), "items")
    if output is not None:
        _write_answers(output, ITEM_SCHEMA, user, answers, as_json)
        return
    if as_json:
        rows = [asdict(answer) for answer in answers]
        show.print_json({"user": known_id(user), "bundle": partial, "items": rows})
        return
    describe(model, asked, known_id(user))
    inside = [show.item_name(model.dataset, position) for position in model.shop.item_positions(partial)]
    show.out.print(f"in the bundle: {show.names(inside)}")
    if answers:
        show.out.print(show.item_table(model.dataset, answers, "to complete it", model.shop_settings))
    else:
        show.out.print(_none_left("item", where))


def user_in_data(model: Recommender, user: User) -> User:
    """The user; for a user who is not in the data an empty history, if the model can answer for it."""
    from bundlemage.core.history import History

    known = not isinstance(user, str) or user in model.dataset.users
    return user if known or not model.model.knows_new_users else History()


def note_unknown(
    model: Recommender, user: User, asked: User, what: str = "this is for a user without a history"
) -> None:
    """Print a note on stderr if the user is not in the data, so that `asked` is an empty history instead.
    `what` says what the answer is then."""
    if asked is user:
        return
    from bundlemage.errors import UnknownIdError

    hint = UnknownIdError("user", [str(user)], model.dataset.users).hint
    show.note(f"[yellow]note:[/] the user {show.plain(repr(user))} is not in the data: {what}.{hint}")


def _note_by_sales(model: Recommender, user: User, asked: User, answers: Sequence[Recommendation]) -> None:
    """`note_unknown` for recommendations."""
    if not answers:
        note_unknown(model, user, asked)
    elif answers[0].source == "popular":
        note_unknown(model, user, asked, "these are best sellers")
    else:
        note_unknown(model, user, asked, "these fit the bundle, for a user without a history")


def _note_too_many(k: int, most: int, kind: str) -> None:
    """Print a note on stderr if there cannot be `k` answers. Only the shop limits the number of answers."""
    if k > most:
        show.note(f"[yellow]note:[/] k is {k:,}; the most is {most:,}, the number of {kind} in the shop")


def _write_answers(
    file: Path, schema: pa.Schema, user: User, answers: Sequence[Recommendation], as_json: bool
) -> None:
    """Write the answers for one user to a file, and tell the caller."""
    import pyarrow as pa

    from bundlemage.data.row_files import write_rows

    name = known_id(user)
    rows = [{"user_id": name, **_row(answer)} for answer in answers]
    table = pa.Table.from_pylist(rows, schema)
    write_rows(table.to_batches(), schema, file)
    if as_json:
        show.print_json({"user": name, "rows": len(rows), "file": str(file)})
    else:
        who = show.plain(name or "the visitor")
        show.say(f"{len(rows):,} answer{'s' * (len(rows) != 1)} for {who} in [bold]{show.plain(file)}[/]")


def _row(answer: Recommendation) -> dict[str, Any]:
    """The columns of an answer, without the user."""
    from bundlemage.core.shop import RecommendedBundle

    facts = vars(answer)
    shared = {name: facts[name] for name in ("rank", "score", "source")}
    if not isinstance(answer, RecommendedBundle):
        return {**shared, "item_id": answer.id, "owned": facts["owned"], "sold_out": facts["sold_out"]}
    return {
        **shared,
        "bundle_id": answer.id,
        "owned_items": len(answer.owned),
        "missing_items": len(answer.missing),
        "to_pay": answer.to_pay,
        "sold_out": bool(answer.sold_out),
    }


def _none_left(kind: str, where: Filter | None) -> str:
    return f"There is no {kind} left to recommend" + (" that the filters allow." if where else ".")


def known_id(user: User) -> str | None:
    """The id of a user, or None for a visitor, who has only a history."""
    return user if isinstance(user, str) else None


def describe(model: Recommender, user: User, name: str | None) -> None:
    """Print the items and bundles that the user has, so that a reader can judge the answers."""
    histories, _ = model.shop.encode([user])
    data = model.dataset
    items = [show.item_name(data, position) for position in histories.items.strong.values.tolist()]
    owned = histories.bundles.strong.values.tolist()
    bundles = [data.bundle_title(position) or data.bundles[position] for position in owned]
    show.out.print(f"[bold]{show.plain(name or 'the visitor')}[/] has {show.counted(items, 'item')}")
    total = plural(len(model.shop.items_of(user)), "item") if bundles else ""
    show.out.print(f"and {show.counted(bundles, 'bundle')}" + f"; together that is {total}" * bool(total))
