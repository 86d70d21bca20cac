"""A saved model that somebody altered, with right checksums, is refused with one message, or it answers."""

from __future__ import annotations

import errno
import resource
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from bundlemage import Recommender, SplitPlan
from bundlemage.artifact.files import (
    describe_artifact,
    load_artifact,
    save_artifact,
    verify_artifact,
)
from bundlemage.data.dataset import BundleDataset
from bundlemage.errors import ArtifactError
from bundlemage.live import record_of
from bundlemage.models.registry import MODELS
from tests.cli.run import run
from tests.forged import HARMLESS, REFUSED, changed, forge, written
from tests.small_shop import QUICK, small_shop

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model that no test changes."""
    fitted = Recommender(**QUICK).fit(small_shop(), SplitPlan("paper"), progress=False)
    fitted.metrics = {"test": [{"model": "BundleMage", "matching": {"ndcg@5": 0.25}, "generation": None}]}
    return fitted.save(tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture
def saved(whole: Path, tmp_path: Path) -> Path:
    """A saved model to alter."""
    return Path(shutil.copytree(whole, tmp_path / "model"))


def refusal(folder: Path, load: Callable[[Path], object] = Recommender.load) -> str:
    """The message with which a model is refused: one line that is not too long, and says what to do."""
    with pytest.raises(ArtifactError) as told:
        load(folder)
    message = str(told.value)
    assert len(message.splitlines()) == 1
    assert len(message) < 2000
    assert str(folder) in message
    return message


class TestForgeries:
    @pytest.mark.parametrize("name", REFUSED)
    def test_it_is_refused(self, saved: Path, name: str) -> None:
        message = refusal(forge(saved, REFUSED[name]))
        assert any(word in message for word in ("again", "another program"))

    @pytest.mark.parametrize(
        ("name", "file"), [("many-rows", "user_item"), ("many-tags", "items"), ("many-tags-denied", "items")]
    )
    def test_a_table_that_would_grow_is_refused_before_it_is_read(
        self, saved: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str
    ) -> None:
        forge(saved, REFUSED[name])
        read: list[int] = []
        real = pq.ParquetFile.read

        def spy(self: pq.ParquetFile) -> pa.Table:
            read.append(self.metadata.num_rows)
            return real(self)

        monkeypatch.setattr(pq.ParquetFile, "read", spy)
        assert f"{file}.parquet" in refusal(saved)
        assert 20_000_000 not in read
        assert len(read) == (0 if file == "items" else 3), "only the tables before it are read"

    @pytest.mark.parametrize("name", HARMLESS)
    def test_it_does_no_harm(self, saved: Path, name: str) -> None:
        model = Recommender.load(forge(saved, HARMLESS[name]), device="cpu")
        assert len(model.recommend("u0002", 5)) == 5
        model.save(saved, overwrite=True)
        assert len(Recommender.load(saved, device="cpu").recommend("u0002", 5)) == 5

    @pytest.mark.parametrize("value", [None, True, -1, "text", [], {"a": {}}], ids=repr)
    @pytest.mark.parametrize("key", ["model", "ensemble", "settings", "protocol", "split", "audience",
        "new_bundle_audience", "new_bundle_credit", "dataset", ("dataset", "name"), ("dataset", "notes"),
        ("dataset", "catalogue"),
        ("split", "protocol"), ("split", "seed"), ("split", "negatives"), ("split", "positives"),
        ("audience", "threshold"), ("settings", "seed"), ("settings", "device"), ("settings", "scores")],
        ids=str)  # fmt: skip
    def test_any_type_anywhere_in_the_config_is_refused_or_harmless(
        self, saved: Path, key: str | tuple[str, ...], value: Any
    ) -> None:
        keys = (key,) if isinstance(key, str) else key
        forge(saved, changed("config.json", *keys, to=value))
        with suppress(ArtifactError):
            assert len(Recommender.load(saved, device="cpu").recommend("u0002", 5)) == 5

    @pytest.mark.parametrize("key", ["model", "settings", "protocol", "split", "dataset"])
    def test_a_config_that_lacks_something_names_it(self, saved: Path, key: str) -> None:
        message = refusal(forge(saved, changed("config.json", key, to=...)))
        assert f"config.json is damaged (key '{key}': field required)" in message

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("split-type", ["key 'seed' is '1'", "valid integer"]),
            ("id-twice", ["users.parquet has the same user id twice"]),
            ("ensemble-huge", ["an ensemble of 1,000,000,000 members, and has the weights of 0"]),
            ("tensor-half", ["'item_shared' are torch.float16; expected torch.float32"]),
            ("buffer-shape", ["not those of BundleMage", "sales"]),
            ("setting-large-size", ["not those of BundleMage", "item_shared"]),
            ("table-zstd", ["items.parquet", "compressed with ZSTD; expected SNAPPY"]),
            ("table-other-name", ["users.parquet", "its columns are id string; expected user_id string"]),
            ("many-rows", ["user_item.parquet", "its 20,000,000 rows would take 160,000,000 bytes"]),
            ("long-titles", ["items.parquet", "its texts would take more than"]),
            ("metrics-deep", ["metrics.json", "nested deeper than 20 levels"]),
            ("metrics-many-rows", ["metrics.json", "2,000 values of a wrong type"]),
            ("pipe", ["items.parquet is not an ordinary file"]),
            ("device", ["items.parquet is not an ordinary file"]),
            ("history-too-large", ["history.jsonl has 134,217,728 bytes; at most 67,108,864 are read"]),
            ("manifest-huge-size", ["model.safetensors has", "where 1,000,000,000,000,000,000 were saved"]),
        ],
    )
    def test_the_message_says_what_was_found(self, saved: Path, name: str, words: list[str]) -> None:
        message = refusal(forge(saved, REFUSED[name]))
        assert all(word in message for word in words), message

    @pytest.mark.parametrize("name", ["config-deep", "metrics-deep", "metrics-row", "pipe-config",
        "pipe-manifest", "config-huge-number", "device-manifest", "link-to-nothing"])  # fmt: skip
    def test_no_record_is_made_of_it(self, saved: Path, name: str) -> None:
        forge(saved, REFUSED[name])
        refusal(saved, record_of)
        refusal(saved, describe_artifact)

    @pytest.mark.parametrize("name", ["pipe", "many-rows", "many-tags", "table-zstd", "position-wide"])
    def test_verifying_refuses_it_too(self, saved: Path, name: str) -> None:
        refusal(forge(saved, REFUSED[name]), verify_artifact)

    @pytest.mark.parametrize("name", ["pipe-manifest", "device-manifest", "manifest-deep"])
    def test_it_is_not_overwritten_if_it_is_none(self, saved: Path, whole: Path, name: str) -> None:
        forge(saved, REFUSED[name])
        with pytest.raises(ArtifactError, match="is not a saved model, so it is not overwritten"):
            save_artifact(load_artifact(whole), saved, overwrite=True)

    @pytest.mark.parametrize("name", ["split-type", "pipe", "history-deep", "tensor-shape", "many-rows"])
    def test_the_command_line_prints_one_line(self, saved: Path, name: str) -> None:
        result = run("recommend", forge(saved, REFUSED[name]), "--user", "u0001", code=2)
        assert result.stderr.startswith("error: ")
        assert len(" ".join(result.stderr.split())) < 2000
        assert "Traceback" not in result.output

    def test_a_large_size_is_compared_before_memory_is_taken(self, saved: Path) -> None:
        forge(saved, REFUSED["setting-large-size"])  # its layers would take 15 gigabytes
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        refusal(saved)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


def test_a_table_that_repeats_itself_is_saved_so_that_it_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bundlemage.artifact.files.MOST_UNPACKED", 4)
    users, items = 12_000, 256  # each has all, which Parquet makes 68 times smaller
    everything = np.ones((users, items), np.float32)
    dataset = BundleDataset.numbered(everything, np.ones((users, 1)), np.ones((1, items)))
    popular = Recommender("popularity", device="cpu").fit(dataset, SplitPlan("none"), progress=False)
    file = popular.save(tmp_path / "model") / "user_item.parquet"
    assert pq.read_metadata(file).row_group(0).column(0).compression == "UNCOMPRESSED"
    assert Recommender.load(tmp_path / "model", device="cpu").dataset.user_item.nnz == users * items


@pytest.mark.parametrize("hidden", ["folder", "manifest"])
def test_what_cannot_be_looked_at_is_refused(
    saved: Path, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    real = Path.stat

    def forbidden(self: Path, **options: Any) -> Any:
        if self == saved if hidden == "folder" else self.parent == saved:
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, **options)

    monkeypatch.setattr(Path, "stat", forbidden)  # tests may run as root, who may look at everything
    assert "cannot be read (Permission denied)" in refusal(saved)
    assert "cannot be read (Permission denied)" in refusal(saved, describe_artifact)


class TestMapping:
    def mapped(self, folder: Path) -> list[str]:
        inodes = [f" {file.stat().st_ino} " for file in folder.glob("*.safetensors")]
        return [
            line
            for line in Path("/proc/self/maps").read_text().splitlines()
            if any(inode in line for inode in inodes)
        ]

    def test_large_weights_are_not_copied(self, tmp_path: Path) -> None:
        even = QUICK | {"embedding_dim": 32, "shared_fraction": 0.5}  # rows of 64 bytes
        model = Recommender(**even).fit(small_shop(items=900), SplitPlan("none"), progress=False)
        saved = model.save(tmp_path / "model")
        shared = tmp_path / "shared"
        shared.mkdir()
        one, other = (Recommender.load(saved, device="cpu", shared_weights=shared) for _ in range(2))
        assert not self.mapped(saved), "whoever writes into the folder must not change a loaded model"
        assert len(self.mapped(shared)) == 2, "each of the two models reads the same file"
        ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in self.mapped(shared)]
        for each in (one, other):
            sizes = {True: 0, False: 0}
            for tensor in each.model.state_dict().values():
                inside = any(start <= tensor.data_ptr() < end for start, end in ranges)
                sizes[inside] += tensor.nbytes
            assert sizes[True] > 2 * sizes[False], "most bytes are those of the file"

    def test_an_earlier_copy_and_what_a_killed_process_left_of_one_is_removed(
        self, saved: Path, tmp_path: Path
    ) -> None:
        shared = tmp_path / "shared"
        shared.mkdir()
        for name in ("earlier.safetensors", ".half.safetensors.123.tmp"):
            (shared / name).write_bytes(b"x")
        load_artifact(saved, shared)
        assert len([*shared.iterdir()]) == 1

    def test_without_space_for_a_copy_the_model_loads(
        self, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(path: Path, content: bytes) -> None:
            raise OSError(errno.ENOSPC, "no space left on device")

        monkeypatch.setattr("bundlemage.artifact.files.write_whole", full)
        loaded = Recommender.load(saved, device="cpu", shared_weights=tmp_path)
        assert loaded.recommend("u0002", 5) == Recommender.load(saved, device="cpu").recommend("u0002", 5)

    def test_a_change_of_the_weights_stays_in_this_process(self, saved: Path, tmp_path: Path) -> None:
        shared = tmp_path / "shared"
        shared.mkdir()
        one, other = (Recommender.load(saved, device="cpu", shared_weights=shared) for _ in range(2))
        (copy,) = shared.iterdir()
        before = copy.read_bytes()
        with torch.no_grad():
            for tensor in one.model.state_dict().values():
                tensor.zero_()
        assert copy.read_bytes() == before
        names = {name for name, tensor in other.model.state_dict().items() if "item_" in name and len(tensor)}
        assert all(other.model.state_dict()[name].any() for name in names)

    @pytest.mark.parametrize("how", ["moved", "deleted", "overwritten", "emptied"])
    def test_a_loaded_model_does_not_need_its_folder(self, saved: Path, how: str) -> None:
        loaded = Recommender.load(saved, device="cpu")
        before = loaded.recommend("u0002", 9), loaded.complete("u0002", ["g0003"], 9)
        if how == "moved":
            saved.rename(saved.with_name("moved"))
        elif how == "deleted":
            shutil.rmtree(saved)
        elif how == "emptied":
            (saved / "model.safetensors").write_bytes(b"")
        else:
            other = Recommender(**(QUICK | {"seed": 9})).fit(
                loaded.dataset, SplitPlan("none"), progress=False
            )
            other.save(saved, overwrite=True)
            assert Recommender.load(saved, device="cpu").recommend("u0002", 9) != before[0]
        loaded.model.train().eval()  # forgets what it has computed from the weights
        assert (loaded.recommend("u0002", 9), loaded.complete("u0002", ["g0003"], 9)) == before

    @pytest.mark.parametrize("name", sorted(MODELS))
    def test_no_tensor_of_a_loaded_model_lacks_memory(self, name: str, tmp_path: Path) -> None:
        quick = {key: value for key, value in QUICK.items() if key in MODELS[name].config_class.model_fields}
        fitted = Recommender(name, **quick).fit(
            small_shop(), SplitPlan("none"), progress=False, calibrate=False
        )
        loaded = Recommender.load(fitted.save(tmp_path / "model"), device="cpu").model
        for module in loaded.modules():
            tensors = {**module._parameters, **module._buffers, **vars(module)}
            for key, tensor in tensors.items():
                assert not (isinstance(tensor, torch.Tensor) and tensor.is_meta), key

    def test_a_model_that_was_saved_without_alignment_loads(self, saved: Path) -> None:
        before = Recommender.load(saved, device="cpu").recommend("u0002", 9)
        file = saved / "model.safetensors"
        content = file.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = content[8 : 8 + length].rstrip()
        header += b" " * (-len(header) % 8 + 8)
        moved = len(header).to_bytes(8, "little") + header + content[8 + length :]
        forge(saved, written(file.name, moved))
        assert Recommender.load(saved, device="cpu").recommend("u0002", 9) == before
