"""Nothing in a pickle is ever run, and no small one takes much memory."""

from __future__ import annotations

import os
import pathlib
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pickle_files import PROTOCOLS, a_matrix_with, load, refusal


class Call:
    """Pickles as a call of any function: what an attacker writes."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.called = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.called


@pytest.fixture
def sentinel(tmp_path: Path) -> Path:
    return tmp_path / "it-ran"


class TestMalice:
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    @pytest.mark.parametrize("nested", ["alone", "dict", "list", "state", "array", "default"])
    def test_a_call_never_runs(self, tmp_path: Path, sentinel: Path, protocol: int, nested: str) -> None:
        call: Any = Call(os.system, f"touch {sentinel}")
        if nested == "state":
            data = a_matrix_with(indices=call)
        elif nested == "array":
            data = pickle.dumps(np.array([call], dtype=object), protocol)
        else:
            shapes = {"alone": call, "dict": {"a": {"b": call}}, "list": [1, [call]], "default": {1: (call,)}}
            data = pickle.dumps(shapes[nested], protocol)
        message = refusal(tmp_path, data)
        assert "nothing in it was run" in message
        assert nested == "array" or f"asks for {os.name}.system" in message
        assert not sentinel.exists()
        pickle.loads(data)  # the attack is a real one: Python's own loader does run it
        assert sentinel.exists()

    @pytest.mark.parametrize("protocol", [0, 2, 5])
    @pytest.mark.parametrize(
        ("function", "named"),
        [
            (eval, "eval"),
            (exec, "exec"),
            (getattr, "getattr"),
            (__import__, "__import__"),
            (subprocess.Popen, "Popen"),
            (np.load, "load"),
            (np.fromfile, "fromfile"),
            (pathlib.Path, "pathlib"),
            (os.unlink, "unlink"),
            (bytearray, "bytearray"),
            (range, "range"),
            (open, "open"),
        ],
    )
    def test_other_functions_are_refused_by_name(
        self, tmp_path: Path, protocol: int, function: Any, named: str
    ) -> None:
        assert named in refusal(tmp_path, pickle.dumps(Call(function, "x"), protocol))

    def test_a_method_is_refused(self, tmp_path: Path, sentinel: Path) -> None:
        sentinel.touch()
        assert "refused" in refusal(tmp_path, pickle.dumps(Call(sentinel.unlink)))
        assert "refused" in refusal(tmp_path, pickle.dumps(Call(getattr, {}, "__class__")))
        dotted = b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__init__\x93)R."
        assert "numpy.ndarray.__init__" in refusal(tmp_path, dotted)
        assert sentinel.exists()

    @pytest.mark.parametrize(
        "data",
        [
            b"Pabc\n.",
            b"\x80\x02K\x01Q.",
            b"\x80\x02\x82\x01.",
            b"\x80\x05\x97.",
            b"(c__builtin__\nset\no.",
            b"(S'touch x'\nios\nsystem\n.",
            b"(i__builtin__\nset\n.",
            b"\x80\x04c__builtin__\nset\n)}\x92.",
        ],
        ids=[
            "persistent",
            "binary persistent",
            "extension",
            "buffer",
            "obj",
            "inst",
            "inst of set",
            "newobj_ex",
        ],
    )
    def test_odd_instructions_are_refused(self, tmp_path: Path, data: bytes) -> None:
        refusal(tmp_path, data)

    @pytest.mark.parametrize(
        "data",
        [
            b"c__builtin__\nint\n(S'1'\ntR.",
            b"c__builtin__\nstr\n(S'1'\nS'zip'\ntR.",
            b"c__builtin__\nbytes\n(I99999999999\ntR.",
            b"c__builtin__\nset\n(I5\ntR.",
            b"c__builtin__\nset\n(I5\nI6\ntR.",
            b"ccollections\ndefaultdict\n(c_codecs\nencode\ntR.",
            b"ccollections\ndefaultdict\n(c__builtin__\nset\n(dtR.",
            b"c_codecs\nencode\n(VA\nVzip\ntR.",
            b"cnumpy\nndarray\n((I9\nttR.",
            b"cnumpy\ndtype\n(VO8\nI00\nI01\ntR.",
            b"cnumpy\ndtype\n((ltR.",
            b"cnumpy.core.multiarray\n_reconstruct\n(c__builtin__\nset\n(I0\ntVb\ntR.",
            b"cnumpy.core.multiarray\nscalar\n(c__builtin__\nset\nVb\ntR.",
            b"c__builtin__\nset\n)\x81.",
            b"cscipy.sparse.csr\ncsr_matrix\n(I1\nt\x81.",
            b"(dp0\n(dS'__class__'\nI1\nsb.",
            b"c__builtin__\nset\n(dS'x'\nI1\nsb.",
            b"(d(I1\ntI1\ns.",
            b"c__builtin__\nset\n(((I1\ntltR.",
            b"I1\nI2\na.",
        ],
    )
    def test_admitted_names_do_only_what_published_files_need(self, tmp_path: Path, data: bytes) -> None:
        refusal(tmp_path, data)

    def test_a_few_bytes_cannot_ask_for_much_memory(self, tmp_path: Path) -> None:
        array = pickle.dumps(np.zeros(3, np.int32), 4)
        huge = array.replace(b"K\x03\x85", b"J\xff\xff\xff\x7f\x85")
        assert huge != array
        refusal(tmp_path, huge, "broken-pickle")
        refusal(tmp_path, b"\x80\x04\x8e\xff\xff\xff\xff\xff\x00\x00\x00.", "broken-pickle")
        refusal(tmp_path, b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.", "broken-pickle")
        refusal(tmp_path, b"L" + b"9" * 100_000 + b"L\n.", "broken-pickle")
        assert (
            load(tmp_path, b"\x80\x02K\x01r\xff\xff\xff\xff.") == 1
        )  # a memo of four billion places is a dict of one

    def test_copying_over_and_over_is_refused(self, tmp_path: Path) -> None:
        data = b"\x80\x02](" + b"N" * 1000 + b"eq\x00" + b"c__builtin__\nset\nh\x00\x85R0" * 1000 + b"N."
        assert "again and again" in refusal(tmp_path, data)
