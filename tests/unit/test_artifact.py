"""A model saved and loaded: all of it comes back, and a damaged folder is an error and no answer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from bundlemage import History, Recommender, SplitPlan
from bundlemage.artifact.files import FORMAT_VERSION, MANIFEST, load_artifact, save_artifact
from bundlemage.data.folders import _exchange
from bundlemage.errors import ArtifactError
from tests.small_shop import QUICK, dataset_of, pairs_of, small_shop

FILES = (
    "README.md",
    "bundle_item.parquet",
    "bundles.parquet",
    "config.json",
    "history.jsonl",
    "items.parquet",
    MANIFEST,
    "metrics.json",
    "model.safetensors",
    "user_bundle.parquet",
    "user_item.parquet",
    "users.parquet",
)


@pytest.fixture(scope="module")
def model() -> Recommender:
    shop = replace(small_shop(), name="señor shop", notes=("Reconstructed in part.", "Zweite Notiz: ü"))
    fitted = Recommender(**(QUICK | {"seed": 3, "weight_average": 0.5})).fit(shop, SplitPlan("paper", seed=2))
    fitted.metrics = {"test": [{"model": "BundleMage", "matching": {"ndcg@5": 0.25}, "generation": None}]}
    return fitted


@pytest.fixture(scope="module")
def whole(model: Recommender, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model that no test changes."""
    return model.save(tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture
def saved(whole: Path, tmp_path: Path) -> Path:
    """A saved model to damage."""
    return Path(shutil.copytree(whole, tmp_path / "model"))


def answers(model: Recommender) -> list[Any]:
    history = History(items=["g0002"], bundles=["b0004", ["g0001"]])
    return [
        model.recommend("u0001", 9),
        model.recommend(history, 9, new_bundles={"fresh": ["g0005"]}),
        model.complete("u0002", ["g0003"], 9),
        model.recommend(History(), 9),
    ]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


class TestRoundTrip:
    def test_answers_are_the_same(self, model: Recommender, whole: Path) -> None:
        assert answers(Recommender.load(whole, device="cpu")) == answers(model)

    def test_weights_are_the_same(self, model: Recommender, whole: Path) -> None:
        before, after = model.model.state_dict(), Recommender.load(whole, device="cpu").model.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)

    def test_the_dataset_comes_back_whole(self, model: Recommender, whole: Path) -> None:
        before, after = model.dataset, Recommender.load(whole, device="cpu").dataset
        assert after.fingerprint() == before.fingerprint()
        for matrix in ("user_item", "user_bundle", "bundle_item"):
            assert pairs_of(getattr(after, matrix)) == pairs_of(getattr(before, matrix))
        assert (after.users, after.items, after.bundles) == (before.users, before.items, before.bundles)
        assert (after.name, after.notes) == ("señor shop", ("Reconstructed in part.", "Zweite Notiz: ü"))
        assert before.catalogue is not None
        assert after.catalogue is not None
        assert after.catalogue.items.equals(before.catalogue.items)
        assert after.catalogue.bundles.equals(before.catalogue.bundles)

    def test_settings_plan_metrics_and_history_come_back(self, model: Recommender, whole: Path) -> None:
        loaded = Recommender.load(whole, device="cpu")
        assert loaded.model_name == model.model_name
        assert loaded.config == model.config
        assert loaded.plan == model.plan == SplitPlan("paper", seed=2)
        assert loaded.metrics == model.metrics
        assert loaded.history == model.history
        assert len(loaded.history) == 3

    def test_a_loaded_model_measures_the_same(self, model: Recommender, whole: Path) -> None:
        loaded = Recommender.load(whole, device="cpu")
        split = model.plan.divide(model.dataset)
        assert loaded.evaluate(loaded.plan.divide(loaded.dataset)) == model.evaluate(split)

    def test_a_loaded_model_can_be_saved_and_loaded_again(self, whole: Path, tmp_path: Path) -> None:
        loaded = Recommender.load(whole, device="cpu")
        again = loaded.save(tmp_path / "again")
        assert answers(Recommender.load(again, device="cpu")) == answers(loaded)
        for name in ("config.json", "metrics.json", "history.jsonl", "README.md", "model.safetensors"):
            assert (again / name).read_bytes() == (whole / name).read_bytes()

    def test_no_catalogue_stays_none(self, tmp_path: Path) -> None:
        strange = dataset_of([[0], []], [[0], []], [[0], []], 1)
        bare = Recommender(**QUICK).fit(strange, SplitPlan("none")).save(tmp_path / "bare")
        loaded = Recommender.load(bare, device="cpu")
        assert loaded.dataset.catalogue is None
        assert (loaded.dataset.bundles.ids, loaded.dataset.items.ids) == (("b0", "b1"), ("i0",))
        assert loaded.recommend(History(items=["i0"]), 1, owned="show")[0].title is None

    def test_the_card_says_what_the_model_is(self, whole: Path) -> None:
        card = (whole / "README.md").read_text(encoding="utf-8")
        for part in ("BundleMage", "señor shop", "80 users", "`paper`", "seed 2", "Zweite Notiz", "0.2500"):
            assert part in card
        assert "| `weight_average` | 0.5 |" in card


class TestFolder:
    def test_it_holds_what_is_promised(self, whole: Path) -> None:
        assert sorted(contents(whole)) == sorted(FILES)

    def test_the_manifest_lists_every_other_file(self, whole: Path) -> None:
        manifest = json.loads((whole / MANIFEST).read_text())
        assert sorted(manifest["files"]) == sorted(set(FILES) - {MANIFEST})
        assert manifest["version"] == FORMAT_VERSION
        for name, described in manifest["files"].items():
            assert described["bytes"] == (whole / name).stat().st_size
            assert len(described["sha256"]) == 64

    def test_there_is_no_pickle_in_it(self, whole: Path) -> None:
        for name, content in contents(whole).items():
            match Path(name).suffix:
                case ".json":
                    json.loads(content)
                case ".jsonl":
                    assert all(json.loads(line) for line in content.splitlines())
                case ".parquet":
                    assert content[:4] == content[-4:] == b"PAR1"
                    assert not any(b"pickle" in key for key in pq.read_metadata(whole / name).metadata or {})
                case ".safetensors":
                    length = int.from_bytes(content[:8], "little")
                    assert "item_shared" in json.loads(content[8 : 8 + length])
                case ".md":
                    content.decode()
                case other:
                    pytest.fail(f"a file of an unknown kind: {other}")

    def test_nothing_else_is_left_beside_it(self, model: Recommender, tmp_path: Path) -> None:
        model.save(tmp_path / "deep" / "er" / "model")
        assert [file.name for file in tmp_path.iterdir()] == ["deep"]
        assert [file.name for file in (tmp_path / "deep" / "er").iterdir()] == ["model"]

    def test_a_path_may_be_text(self, model: Recommender, tmp_path: Path) -> None:
        path = model.save(str(tmp_path / "model"))
        assert Recommender.load(str(path), device="cpu").model_name == "bundlemage"


class TestDamage:
    @pytest.mark.parametrize("name", FILES)
    def test_a_missing_file_is_named(self, saved: Path, name: str) -> None:
        (saved / name).unlink()
        with pytest.raises(ArtifactError, match=name):
            Recommender.load(saved)

    @pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
    @pytest.mark.parametrize("name", FILES)
    def test_a_cut_file_is_named(self, saved: Path, name: str, share: float) -> None:
        content = (saved / name).read_bytes()
        (saved / name).write_bytes(content[: int(len(content) * share)])
        with pytest.raises(ArtifactError, match=name):
            Recommender.load(saved)

    @pytest.mark.parametrize("place", [0.0, 0.5, 0.999])
    @pytest.mark.parametrize("name", [name for name in FILES if name != MANIFEST])
    def test_one_altered_byte_is_noticed_and_the_file_named(
        self, saved: Path, name: str, place: float
    ) -> None:
        content = bytearray((saved / name).read_bytes())
        content[int(len(content) * place)] ^= 1
        (saved / name).write_bytes(content)
        with pytest.raises(ArtifactError, match=f"{name} was altered"):
            Recommender.load(saved)

    def test_any_altered_byte_of_the_manifest_is_noticed_or_harmless(self, saved: Path) -> None:
        good = (saved / MANIFEST).read_bytes()
        fingerprint = load_artifact(saved).dataset.fingerprint()
        noticed = 0
        for place in range(len(good)):
            (saved / MANIFEST).write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
            with suppress(ArtifactError):
                noticed += 1
                assert load_artifact(saved).dataset.fingerprint() == fingerprint
                noticed -= 1
        assert noticed > len(good) / 2

    @pytest.mark.parametrize(
        "change",
        [
            lambda manifest: manifest["files"].pop("items.parquet"),
            lambda manifest: manifest["files"]["items.parquet"].pop("sha256"),
            lambda manifest: manifest.update(files=[]),
            lambda manifest: manifest.update(files={}),
        ],
        ids=["file-not-listed", "no-checksum", "a-list", "no-files"],
    )
    def test_a_manifest_that_lacks_something_is_an_error(
        self, saved: Path, change: Callable[[dict[str, Any]], object]
    ) -> None:
        manifest = json.loads((saved / MANIFEST).read_text())
        change(manifest)
        (saved / MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(ArtifactError, match=MANIFEST):
            Recommender.load(saved)

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version": 1}', "\ufeff{}"])
    def test_a_manifest_that_is_none_is_damaged(self, saved: Path, text: str) -> None:
        (saved / MANIFEST).write_text(text, encoding="utf-8")
        with pytest.raises(ArtifactError, match=rf"{MANIFEST} is damaged"):
            Recommender.load(saved)

    def test_the_folder_of_another_program_is_refused(self, saved: Path) -> None:
        manifest = json.loads((saved / MANIFEST).read_text())
        (saved / MANIFEST).write_text(json.dumps(manifest | {"format": "another"}))
        with pytest.raises(ArtifactError):
            Recommender.load(saved)

    @pytest.mark.parametrize("version", [0, 2, "1", None])
    def test_another_version_is_named(self, saved: Path, version: object) -> None:
        manifest = json.loads((saved / MANIFEST).read_text())
        (saved / MANIFEST).write_text(json.dumps(manifest | {"version": version}))
        with pytest.raises(ArtifactError, match=f"format version {version}.*reads version {FORMAT_VERSION}"):
            Recommender.load(saved)

    @pytest.mark.parametrize("changed", [{"settings": {"popularity_bias": 0.5}}, {"model": "gone"}])
    def test_settings_of_another_version_say_to_train_again(
        self, whole: Path, tmp_path: Path, changed: dict[str, Any]
    ) -> None:
        saved = load_artifact(whole)
        save_artifact(replace(saved, config={**saved.config, **changed}), tmp_path / "older")
        name = "popularity_bias" if "settings" in changed else "gone"
        with pytest.raises(ArtifactError, match=rf"older does not fit .*{name}.*\. Train the model again"):
            Recommender.load(tmp_path / "older")

    def test_what_is_no_folder_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        for name in ("nowhere", "file"):
            with pytest.raises(ArtifactError, match=f"no saved model at .*{name}"):
                Recommender.load(tmp_path / name)

    def test_a_folder_without_a_manifest_is_no_model(self, tmp_path: Path) -> None:
        with pytest.raises(ArtifactError, match="is not a saved model"):
            Recommender.load(tmp_path)


class TestOverwriting:
    def test_an_existing_model_is_kept(self, model: Recommender, saved: Path) -> None:
        before = contents(saved)
        with pytest.raises(ArtifactError, match="exists already"):
            model.save(saved)
        assert contents(saved) == before

    def test_an_existing_model_is_replaced_on_request(self, model: Recommender, saved: Path) -> None:
        other = Recommender("popularity", device="cpu").fit(model.dataset)
        other.save(saved, overwrite=True)
        assert Recommender.load(saved, device="cpu").model_name == "popularity"
        assert [file.name for file in saved.parent.iterdir()] == ["model"]

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_foreign_folder_is_never_touched(
        self, model: Recommender, tmp_path: Path, overwrite: bool
    ) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.txt").write_text("three years of work")
        with pytest.raises(ArtifactError, match="mine"):
            model.save(tmp_path / "mine", overwrite=overwrite)
        assert contents(tmp_path / "mine") == {"thesis.txt": b"three years of work"}

    def test_a_foreign_folder_that_has_a_manifest_too_is_never_touched(
        self, model: Recommender, tmp_path: Path
    ) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / MANIFEST).write_text('{"manifest_version": 3, "name": "a browser extension"}')
        (tmp_path / "mine" / "extension.js").write_text("code")
        with suppress(ArtifactError):
            model.save(tmp_path / "mine", overwrite=True)
        assert (tmp_path / "mine" / "extension.js").exists()

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_file_is_never_overwritten(self, model: Recommender, tmp_path: Path, overwrite: bool) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(ArtifactError, match="file"):
            model.save(tmp_path / "file", overwrite=overwrite)
        assert (tmp_path / "file").read_text() == "x"


class Killed(BaseException):
    """The end of a process."""


def failing_after(calls: int, real: Callable[..., Any]) -> Callable[..., Any]:
    left = iter(range(calls))

    def write(*arguments: Any, **options: Any) -> Any:
        if next(left, None) is None:
            raise Killed
        return real(*arguments, **options)

    return write


class TestInterruptedSaving:
    @pytest.mark.parametrize("calls", range(6))
    def test_no_half_folder_appears(
        self, model: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
    ) -> None:
        monkeypatch.setattr("bundlemage.artifact.files.pq.write_table", failing_after(calls, pq.write_table))
        with pytest.raises(Killed):
            model.save(tmp_path / "model")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("calls", [0, 5])
    def test_the_old_model_stays_whole(
        self, model: Recommender, saved: Path, monkeypatch: pytest.MonkeyPatch, calls: int
    ) -> None:
        before = contents(saved)
        monkeypatch.setattr("bundlemage.artifact.files.pq.write_table", failing_after(calls, pq.write_table))
        with pytest.raises(Killed):
            model.save(saved, overwrite=True)
        assert contents(saved) == before
        assert [file.name for file in saved.parent.iterdir()] == ["model"]

    def test_a_failing_manifest_leaves_nothing(
        self, model: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(file: Path) -> dict[str, Any]:
            raise OSError("no space left on device")

        monkeypatch.setattr("bundlemage.artifact.files._seal", full)
        with pytest.raises(OSError, match="no space"):
            model.save(tmp_path / "model")
        assert list(tmp_path.iterdir()) == []

    def test_a_new_model_takes_the_name_in_one_step(
        self, model: Recommender, saved: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Path, "rename", failing_after(0, Path.rename))  # no rename leaves a gap
        if not _exchange(saved, saved):
            pytest.skip("this system cannot swap two names in one step")
        before = (saved / "manifest.json").stat().st_ino
        model.save(saved, overwrite=True)
        assert (saved / "manifest.json").stat().st_ino != before
        assert answers(Recommender.load(saved, device="cpu")) == answers(model)
        assert [entry.name for entry in saved.parent.iterdir()] == [saved.name]

    def test_where_names_cannot_be_swapped_a_failure_gives_the_old_model_its_name_back(
        self, model: Recommender, saved: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rename = Path.rename

        def fails_for_the_new_one(source: Path, target: Path) -> Path:
            if source.name.startswith(".") and source.parent == saved.parent:
                raise OSError("no space left on device")
            return rename(source, target)

        monkeypatch.setattr("bundlemage.data.folders._exchange", lambda *_: False)
        monkeypatch.setattr(Path, "rename", fails_for_the_new_one)
        with pytest.raises(OSError, match="no space"):
            model.save(saved, overwrite=True)
        assert answers(Recommender.load(saved, device="cpu")) == answers(model)
        assert [entry.name for entry in saved.parent.iterdir()] == [saved.name]
