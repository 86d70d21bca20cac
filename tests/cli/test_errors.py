"""Bad input: one clear message on stderr, exit code 2, no traceback."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from bundlemage.sample.generate import sample_shop, write_shop
from tests.broken import BROKEN
from tests.cli.run import BUNDLEMAGE, run, run_json
from tests.published_files import write_matching


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", BROKEN)
def test_broken_data(name: str, tmp_path: Path) -> None:
    case, folder = BROKEN[name], tmp_path / "shop"
    case.write(folder)
    message = case.message.replace("{path}", str(folder))
    checked = run("data", "check", folder, code=2 if case.severity == "error" else 0)
    assert flat(message) in flat(checked.stderr)
    if case.severity == "error":
        refused = run("train", folder, "-o", tmp_path / "model", *BUNDLEMAGE, code=2)
        assert flat(message) in flat(refused.stderr)
        assert "Traceback" not in refused.output
        assert not (tmp_path / "model").exists()


def test_check_says_everything_in_json(tmp_path: Path) -> None:
    case = BROKEN[next(iter(BROKEN))]
    case.write(tmp_path / "shop")
    import json

    found = json.loads(run("data", "check", tmp_path / "shop", "--json", code=2).stdout)
    assert found["ok"] is False
    assert found["problems"][0].keys() >= {"kind", "where", "line", "value", "more", "message", "fix"}


class _Attack:
    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.sentinel, "it ran"))


def test_a_malicious_pickle_is_refused_and_does_not_run(tmp_path: Path) -> None:
    folder = write_matching(tmp_path / "mat")
    sentinel = tmp_path / "sentinel"
    (folder / "train.pkl").write_bytes(pickle.dumps(_Attack(sentinel)))
    refused = run("train", folder, "-o", tmp_path / "model", *BUNDLEMAGE, code=2)
    assert "train.pkl" in refused.stderr
    assert not sentinel.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "-o", "m", "--set", "embeding_dim=8"], "unknown setting 'embeding_dim'"),
        (["train", "-o", "m", "--set", "dropout=2"], "setting 'dropout' is 2"),
        (["train", "-o", "m", "--set", "embedding_dim=7"], "multiple of 2"),
        (["train", "-o", "m", "--set", "epochs"], "write it as NAME=VALUE"),
        (["train", "-o", "m", "--model", "magic"], "unknown model 'magic'"),
        (["train", "-o", "m", "--device", "quantum"], "unknown device 'quantum'"),
        (["train", "-o", "m", "--device", "cuda:99"], "not present"),
        (["train", "-o", "m", "--protocol", "guess"], "unknown protocol 'guess'"),
        (["train", "-o", "m", "--recipe", "none.toml"], "none.toml cannot be read"),
        (["train", "-o", "m", "--table", "user_item=x"], "only for a database"),
        (["train", "sqlite:///nowhere.db", "-o", "m"], "nowhere.db"),
        (["train", "nowhere", "-o", "m"], "no such file or folder"),
        (["evaluate", "nowhere"], "no such folder"),
        (["recommend", "nowhere", "--user", "u1"], "no such folder"),
        (["data", "stats", "nowhere"], "no such file or folder"),
        (["data", "sample", "-o", "s", "--users", "1", "--items", "1", "--bundles", "1"], "items"),
        (["data", "sample", "-o", "s", "--format", "xml"], "unknown format 'xml'"),
        (["train"], "--output"),
        (["trian"], "No such command"),
    ],
)
def test_bad_arguments(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = run(*arguments, code=2)
    assert message in flat(refused.output)
    assert "Traceback" not in refused.output
    assert list(tmp_path.iterdir()) == []


def test_bad_recipes(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    for text, message in (
        ("settings = 3", "'settings' must be a dict"),
        ("colour = 'red'", "unknown key 'colour'"),
        ("= x", "not valid TOML"),
        ("[split]\nsize = 2", "unknown split setting 'size'"),
        ("[settings]\nepoch = 2", "unknown setting 'epoch'"),
    ):
        recipe.write_text(text)
        assert message in flat(run("train", "-o", tmp_path / "m", "--recipe", recipe, code=2).stderr)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    run("train", "-o", folder, *BUNDLEMAGE)
    return folder


def test_questions_that_cannot_be_answered(model: Path) -> None:
    for arguments, message in (
        (["recommend", model], "no user: give --user ID"),
        (["recommend", model, "--all"], "--all needs a file: add --output FILE"),
        (["recommend", model, "--all", "--user", "u0001"], "give --all or one user, not both"),
        (["design", model, "--user", "u0001", "--must", "g001"], "Did you mean"),
        (["recommend", model, "--user", "u0001", "--history-items", "g0001"], "not both"),
        (["recommend", model, "--user", "u0001", "-k", "0"], "a whole number, at least 1"),
        (["complete", model, "--user", "u0001", "--items", "g0001,x9"], "unknown item id 'x9'"),
        (["recommend", model, "--history-bundles", "x"], "unknown bundle id 'x'"),
        (["train", "-o", model], "--overwrite"),
    ):
        assert message in flat(run(*arguments, code=2).stderr)


def test_what_people_give_for_data_by_mistake(model: Path, tmp_path: Path) -> None:
    import sqlite3

    assert "this is a saved model" in run("train", model, "-o", tmp_path / "m", code=2).stderr
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("create table t (x)")
    for command in (["data", "check"], ["data", "stats"]):
        assert f"sqlite:///{tmp_path / 'shop.db'}" in flat(run(*command, tmp_path / "shop.db", code=2).stderr)


def test_a_split_that_leaves_nothing_to_learn_from_is_named(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    for name, rows in (
        ("user_item", "user_id,item_id\na,1\nb,2\n"),
        ("user_bundle", "user_id,bundle_id\na,x\nb,y\n"),
        ("bundle_item", "bundle_id,item_id\nx,1\ny,2\n"),
    ):
        (tmp_path / "shop" / f"{name}.csv").write_text(rows)
    paper = ("--protocol", "paper")
    warned = run("train", tmp_path / "shop", "-o", tmp_path / "m", *BUNDLEMAGE, *paper)
    assert "no user-bundle pair is left for training" in flat(warned.stderr)
    on_all = run("train", tmp_path / "shop", "-o", tmp_path / "all", *BUNDLEMAGE, "--protocol", "none")
    assert "learning from 2 of 2" in flat(on_all.stderr)
    everything = run("recommend", tmp_path / "all", "--history-bundles", "x,y").stdout
    assert "no bundle left" in everything


def test_resuming_where_nothing_was_begun_says_so(tmp_path: Path) -> None:
    assert "nothing to resume" in run("train", "-o", tmp_path / "m", *BUNDLEMAGE, "--resume").stderr


def test_an_open_quote_in_a_list_of_ids_is_refused(model: Path) -> None:
    assert "cannot be read" in run("complete", model, "--user", "u0001", "--items", '"g0001', code=2).stderr


def test_evaluating_ones_own_model_needs_the_place_of_its_data(tmp_path: Path) -> None:
    run("data", "sample", "-o", tmp_path / "mine", "--users", 50, "--items", 60, "--bundles", 20)
    run("train", tmp_path / "mine", "-o", tmp_path / "model", *BUNDLEMAGE)
    assert "no data to evaluate on" in run("evaluate", tmp_path / "model", code=2).stderr


def test_evaluating_on_other_data_is_refused(model: Path, tmp_path: Path) -> None:
    run("data", "sample", "-o", tmp_path / "other", "--users", 50, "--items", 60, "--bundles", 20)
    assert "other users" in run("evaluate", model, tmp_path / "other", code=2).stderr


def test_a_damaged_model_is_refused(model: Path, tmp_path: Path) -> None:
    import shutil

    copy = shutil.copytree(model, tmp_path / "copy")
    (copy / "model.safetensors").write_bytes((copy / "model.safetensors").read_bytes()[:-1])
    assert "model.safetensors" in run("recommend", copy, "--user", "u0001", code=2).stderr


def test_a_folder_that_is_no_model_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    assert "not a saved model" in run("train", "-o", tmp_path / "photos", "--overwrite", code=2).stderr
    assert (tmp_path / "photos" / "cat.jpg").read_bytes() == b"cat"


def test_warnings_beside_an_error_are_called_warnings(tmp_path: Path) -> None:
    write_shop(sample_shop(30, 40, 12).dataset, tmp_path / "shop", "csv")
    table = tmp_path / "shop" / "user_bundle.csv"
    table.write_text(table.read_text().replace("user_id", "person", 1))
    (tmp_path / "shop" / "reviews.csv").write_text("a,b\n1,2\n")
    lines = run("train", tmp_path / "shop", "-o", tmp_path / "model", code=2).stderr.splitlines()
    (error,) = [line for line in lines if line.startswith("error: ")]
    (warning,) = [line for line in lines if line.startswith("warning: ")]
    assert "user_bundle.csv" in error
    assert "reviews.csv" in warning


def test_debug_shows_the_traceback() -> None:
    from typer.testing import CliRunner

    from bundlemage.cli.main import app
    from bundlemage.errors import DataError

    result = CliRunner().invoke(app, ["--debug", "data", "stats", "nowhere"])
    assert isinstance(result.exception, DataError)


def test_answers_for_anyone_by_history(model: Path) -> None:
    by_history = run_json("recommend", model, "--history-items", "g0001,g0002", "-k", 3)["bundles"]
    assert [answer["source"] for answer in by_history] == ["model"] * 3
    empty = run_json("recommend", model, "--history-items", "", "-k", 3)["bundles"]
    assert [answer["source"] for answer in empty] == ["popular"] * 3


def test_ids_with_commas_are_quoted_as_in_csv() -> None:
    from bundlemage.cli.texts import ids

    assert ids(['"Tea, green",7', "x"]) == ["Tea, green", "7", "x"]
    assert ids(None) == []


def test_a_setting_of_the_shop_is_checked_before_data_is_read(tmp_path: Path) -> None:
    told = run("train", tmp_path / "nothing", "-o", tmp_path / "model", "--shop", "curency=EUR", code=2)
    assert "unknown setting 'curency'; did you mean 'currency'?" in " ".join(told.stderr.split())
    told = run("serve", tmp_path / "nothing", "--shop", "currency=EUT", code=2)
    assert "'currency' is 'EUT'; there is no such currency" in " ".join(told.stderr.split())
    told = run("serve", tmp_path / "nothing", "--shop", "EUR", code=2)
    assert "--shop 'EUR': write it as NAME=VALUE" in " ".join(told.stderr.split())


def test_a_service_does_not_start_with_a_wrong_catalogue_of_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "fr" / "LC_MESSAGES" / "messages.po"
    file.parent.mkdir(parents=True)
    file.write_text('msgid "Because %(reason)s."\nmsgstr "Car %(raison)s."\n')
    monkeypatch.setenv("BUNDLEMAGE_MESSAGES", str(tmp_path))
    told = run("serve", tmp_path / "nothing", "--port", 0, code=2)
    assert "unknown named placeholder 'raison'" in " ".join(told.stderr.split())
