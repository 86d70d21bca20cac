"""Reads published pickles safely. Python's `pickle` is not used, because it runs code that a file names.

A pickle is a program for a small stack machine. The machine in this module knows only the instructions that
build plain values, and a few NumPy and SciPy objects. Everything else is refused. `pickletools` decodes the
arguments of the instructions, and runs nothing. A pickle names the functions and classes that Python would
call. Here such a name is only looked up in a table, and functions of this module build the object from
checked plain values. No name in a file is ever imported or called.
"""

from __future__ import annotations

import codecs
import io
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from bundlemage.errors import DataError


class RefusedError(Exception):
    """The file asks for something that is not plain data."""


class BrokenError(Exception):
    """The pickle is incomplete, or its parts contradict each other."""


@dataclass(frozen=True)
class Name:
    """The name of a function or class in a pickle. It is text, never the function or class itself."""

    role: str
    """How this module handles the name: a key of `_CALLS`, a kind of sparse matrix, or a type."""
    full: str


@dataclass(eq=False)
class Unbuilt:
    """An object without its content: pickles first create NumPy and SciPy objects, and fill them later."""

    role: str
    argument: Any = None
    remembered_at: list[int] = field(default_factory=list)
    """The keys of the memo entries that the finished object will replace."""


def safe_load(path: Path) -> Any:
    """Returns the value in a pickle of any protocol: plain values, arrays and sparse matrices.

    Python 2 strings are decoded as latin-1. NumPy scalars become plain numbers, and default dicts become
    plain dicts. Any other content raises `DataError`. No code named in the file is ever run.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        fix = "Put it there, or name another path."
        raise DataError.of("missing-file", str(path), "the file is missing", fix) from None
    except OSError as error:
        message = f"cannot be read: {error.strerror or type(error).__name__}"
        raise DataError.of("unreadable-file", str(path), message, "Name a readable file.") from None
    if not data:
        raise DataError.of("empty-file", str(path), "the file is empty", "Download it again.")
    try:
        return PickleMachine(data).run()
    except RefusedError as refused:
        message = f"refused, and nothing in it was run: {refused}"
        fix = "No published data set needs that: do not open the file with other tools, download it again."
        raise DataError.of("unsafe-pickle", str(path), message, fix) from None
    # Damaged bytes can raise many exceptions.
    except (BrokenError, LookupError, TypeError, ValueError, OverflowError, MemoryError) as error:
        reason = str(error) if isinstance(error, BrokenError) else "its bytes are not valid"
        fix = "It was cut short, damaged, or is another kind of file: download it again."
        raise DataError.of("broken-pickle", str(path), f"not a whole pickle: {reason}", fix) from None


class PickleMachine:
    """The stack machine of the pickle format, with only the instructions that build data."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self.stream = io.BytesIO(data)
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # for each open MARK, the stack before it
        self.memo: dict[int, Any] = {}
        self.copied = 0  # the size of what was copied so far

    def run(self) -> Any:
        """Carries out all instructions, and returns the value that they build."""
        while True:
            code = self.stream.read(1).decode("latin-1")
            if not code:
                raise BrokenError("it ends in the middle")
            opcode = _OPCODES.get(code)
            if opcode is None:
                at = self.stream.tell() - 1
                raise BrokenError(f"byte {ord(code):#04x} at position {at:,} is no pickle instruction")
            if opcode.name == "STOP":
                result = self.stack.pop()
                if isinstance(result, Unbuilt | Name):
                    raise BrokenError("its result is an unfinished object")
                return result
            if opcode.name in _VALUES:
                value = self.argument(opcode)
                self.push(bytes(value) if isinstance(value, bytearray) else value)
            elif opcode.name in _INSTRUCTIONS:
                _INSTRUCTIONS[opcode.name](self, self.argument(opcode))
            else:
                raise RefusedError(f"it asks for {_REFUSED.get(opcode.name, opcode.name)}")

    def argument(self, opcode: pickletools.OpcodeInfo) -> Any:
        """Returns the argument that follows an instruction, or None if it has none."""
        try:
            if opcode.name == "STRING":  # pickletools reads only ASCII strings
                return _quoted(self.line())
            if opcode.name in ("GLOBAL", "INST"):
                return self.line().decode(), self.line().decode()
            return opcode.arg.reader(self.stream) if opcode.arg else None
        except ValueError as error:
            if self.stream.tell() == self.size:
                raise BrokenError("it ends in the middle") from error
            raise

    def line(self) -> bytes:
        line = self.stream.readline()
        if not line.endswith(b"\n"):
            raise BrokenError("it ends in the middle")
        return line[:-1]

    # The stack

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        values, self.stack = self.stack, self.below.pop()
        return values

    def top(self, kind: type) -> Any:
        value = self.stack[-1]
        if type(value) is not kind:
            raise RefusedError(f"it treats a {type(value).__name__} as a {kind.__name__}")
        return value

    def remember(self, index: int) -> None:
        value = self.stack[-1]
        self.memo[index] = value
        if isinstance(value, Unbuilt):
            value.remembered_at.append(index)

    def take(self, count: int) -> list[Any]:
        """Removes the last `count` values from the stack, and returns them in the order of the stack."""
        if len(self.stack) < count:
            raise BrokenError("an instruction needs more values than there are")
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    # Containers. Callers first remove the values from the stack: the container is then on top.

    def extend(self, values: list[Any]) -> None:
        self.top(list).extend(values)

    def add(self, members: list[Any]) -> None:
        self.top(set).update(map(_hashable, members))

    def set_items(self, pairs: list[Any]) -> None:
        target = self.top(dict)
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            target[_hashable(key)] = value

    def new_dict(self) -> None:
        pairs = self.since_mark()
        self.push({})
        self.set_items(pairs)

    # Objects

    def spend(self, value: object) -> None:
        """Raises `RefusedError` if a file copies its content too often: a short file could fill memory."""
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
        for part in parts:
            self.copied += len(part) if isinstance(part, list | tuple | str | bytes) else 0
            self.copied += int(getattr(part, "nbytes", 0))
        if self.copied > 8 * self.size:
            raise RefusedError("it copies its own content again and again")

    def reduce(self) -> None:
        name, arguments = self.take(2)
        self.spend(arguments)
        self.push(_call(name, arguments))

    def build(self) -> None:
        target, state = self.take(2)
        self.spend(state)
        if not isinstance(target, Unbuilt):
            raise RefusedError(f"it sets the inner state of a {type(target).__name__}")
        if target.role == "dtype":
            built: Any = _finish_dtype(target.argument, state)
        else:
            built = _finish_array(state) if target.role == "array" else _finish_sparse(target.role, state)
        for index in target.remembered_at:
            self.memo[index] = built
        self.push(built)

    def old_instance(self, name: tuple[str, str]) -> None:
        _lookup(*name)
        raise RefusedError("it creates an object of a Python 2 class")


def _quoted(line: bytes) -> str:
    """Returns the text of a Python 2 string literal."""
    if len(line) < 2 or line[:1] not in b"'\"" or line[:1] != line[-1:]:
        raise BrokenError("a text in it is not quoted")
    return codecs.escape_decode(line[1:-1])[0].decode("latin-1")


_OPCODES = {opcode.code: opcode for opcode in pickletools.opcodes}

_PLAIN = (
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING UNICODE "
    "SHORT_BINUNICODE BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8"
)
_VALUES = frozenset(_PLAIN.split())
"""Instructions that put their argument on the stack."""

_INSTRUCTIONS: dict[str, Callable[[PickleMachine, Any], object]] = {
    # Protocol and framing: not needed to read the rest.
    **dict.fromkeys(("PROTO", "FRAME"), lambda *_: None),
    # The stack and the memo
    "MARK": lambda m, _: m.mark(),
    "POP": lambda m, _: m.stack.pop() if m.stack else m.since_mark(),
    "POP_MARK": lambda m, _: m.since_mark(),
    "DUP": lambda m, _: m.push(m.stack[-1]),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), lambda m, index: m.remember(index)),
    "MEMOIZE": lambda m, _: m.remember(len(m.memo)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda m, index: m.push(m.memo[index])),
    # Plain values without an argument
    "NONE": lambda m, _: m.push(None),
    "NEWTRUE": lambda m, _: m.push(True),
    "NEWFALSE": lambda m, _: m.push(False),
    # Containers
    "EMPTY_TUPLE": lambda m, _: m.push(()),
    "TUPLE1": lambda m, _: m.push(tuple(m.take(1))),
    "TUPLE2": lambda m, _: m.push(tuple(m.take(2))),
    "TUPLE3": lambda m, _: m.push(tuple(m.take(3))),
    "TUPLE": lambda m, _: m.push(tuple(m.since_mark())),
    "EMPTY_LIST": lambda m, _: m.push([]),
    "LIST": lambda m, _: m.push(m.since_mark()),
    "APPEND": lambda m, _: m.extend(m.take(1)),
    "APPENDS": lambda m, _: m.extend(m.since_mark()),
    "EMPTY_DICT": lambda m, _: m.push({}),
    "DICT": lambda m, _: m.new_dict(),
    "SETITEM": lambda m, _: m.set_items(m.take(2)),
    "SETITEMS": lambda m, _: m.set_items(m.since_mark()),
    "EMPTY_SET": lambda m, _: m.push(set()),
    "ADDITEMS": lambda m, _: m.add(m.since_mark()),
    # Names, and the objects built from them
    "GLOBAL": lambda m, name: m.push(_lookup(*name)),
    "STACK_GLOBAL": lambda m, _: m.push(_lookup(*m.take(2))),
    "INST": lambda m, name: m.old_instance(name),
    "REDUCE": lambda m, _: m.reduce(),
    "NEWOBJ": lambda m, _: m.push(_new(*m.take(2))),
    "BUILD": lambda m, _: m.build(),
}
"""For each other instruction, the function that carries it out."""

_REFUSED = {
    "OBJ": "an object of a Python 2 class",
    **dict.fromkeys(("PERSID", "BINPERSID"), "an object stored elsewhere (a persistent id)"),
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), "a registered extension"),
    "FROZENSET": "a frozen set",
    "NEWOBJ_EX": "an object that is created with keyword arguments",
    **dict.fromkeys(("NEXT_BUFFER", "READONLY_BUFFER"), "a buffer stored elsewhere"),
}


# The NumPy and SciPy objects


_SCIPY = {"csr": "csr_matrix", "csc": "csc_matrix", "coo": "coo_matrix"}
_FACTORIES = ("int", "long", "float", "str", "unicode", "list", "dict", "tuple", "set", "frozenset")


_ROLES = {
    "numpy.ndarray": "ndarray",
    "numpy.dtype": "dtype",
    "_codecs.encode": "encode",
    "collections.defaultdict": "defaultdict",
}
for _package in ("numpy.core", "numpy._core"):
    _ROLES[f"{_package}.multiarray._reconstruct"] = "array"
    _ROLES[f"{_package}.multiarray.scalar"] = "scalar"
    _ROLES[f"{_package}.numeric._frombuffer"] = "frombuffer"
for _role, _class in _SCIPY.items():
    _ROLES |= {f"scipy.sparse.{module}.{_class}": _role for module in (_role, f"_{_role}")}
for _module in ("builtins", "__builtin__"):
    _ROLES |= {f"{_module}.{name}": name for name in (*_FACTORIES, "bytes")}
"""The role of every name that a published file may use."""


def _lookup(module: object, name: object) -> Name:
    """Returns the name if published files need it; otherwise raises `RefusedError`. Nothing is called."""
    if not isinstance(module, str) or not isinstance(name, str):
        raise BrokenError("a name in it is not text")
    full = f"{module}.{name}"
    if full not in _ROLES:
        raise RefusedError(f"it asks for {_short(full)}")
    return Name(_ROLES[full], full)


def _call(name: object, arguments: object) -> Any:
    """Carries out the instruction REDUCE: returns the object that a call of this name would build."""
    if not isinstance(name, Name) or type(arguments) is not tuple:
        raise RefusedError("it calls something that is not a name")
    function = _CALLS.get(name.role)
    if function is None:
        raise RefusedError(f"it calls {name.full}")
    try:
        return function(*arguments)
    except TypeError as error:  # a wrong number of arguments
        raise _odd(name.full) from error


def _new(name: object, arguments: object) -> Unbuilt:
    """Carries out the instruction NEWOBJ: returns an unfilled sparse matrix; anything else is refused."""
    if not isinstance(name, Name) or name.role not in _SCIPY or arguments != ():
        kind = name.full if isinstance(name, Name) else "something that is not a class"
        raise RefusedError(f"it creates an object of {kind}")
    return Unbuilt(name.role)


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:80] + "…"


def _odd(what: str) -> RefusedError:
    return RefusedError(f"it uses unexpected arguments for {what}")


def _make_array(subtype: Any, _shape: Any, _code: Any) -> Unbuilt:
    if not isinstance(subtype, Name) or subtype.role != "ndarray":
        raise _odd("numpy's _reconstruct")
    return Unbuilt("array")


def _make_dtype(code: Any, _align: Any = False, _copy: Any = False) -> Unbuilt:
    # Only numbers: an array of type 'O' holds arbitrary objects, and type 'V' may have them in its fields.
    if not isinstance(code, str) or not re.fullmatch("b1|[iu][1248]|f[248]", code):
        named = _short(code) if isinstance(code, str) else type(code).__name__
        raise RefusedError(f"it holds an array of type {named!r}, where only numbers are allowed")
    return Unbuilt("dtype", np.dtype(code))


def _finish_dtype(dtype: np.dtype[Any], state: Any) -> np.dtype[Any]:
    plain = type(state) is tuple and len(state) == 8 and state[2:5] == (None, None, None)
    if not plain or state[1] not in ("<", ">", "|", "="):
        raise _odd("numpy.dtype")
    return dtype.newbyteorder(state[1])


def _make_frombuffer(raw: Any, dtype: Any, shape: Any, order: Any) -> npt.NDArray[Any]:
    if isinstance(raw, str):  # a Python 2 string of bytes, read as latin-1
        raw = raw.encode("latin-1")
    dimensions = type(shape) is tuple and all(type(size) is int and size >= 0 for size in shape)
    typed = isinstance(raw, bytes) and isinstance(dtype, np.dtype) and order in ("C", "F")
    if not typed or not dimensions or len(shape) > 2:
        raise _odd("a numpy array")
    # The array is a view of bytes in the file. A small file therefore cannot create a large array.
    values = np.frombuffer(raw, dtype=dtype)
    if values.size != np.prod(shape, dtype=object):
        raise BrokenError(f"an array of shape {shape} holds {values.size:,} values")
    return values.reshape(shape, order=order)


def _finish_array(state: Any) -> npt.NDArray[Any]:
    if type(state) is not tuple or len(state) != 5:
        raise _odd("a numpy array")
    _version, shape, dtype, fortran, raw = state
    return _make_frombuffer(raw, dtype, shape, "F" if fortran else "C")


def _make_defaultdict(factory: Any = None) -> dict[Any, Any]:
    """Returns a plain dict. A missing key is then an error, not a new entry."""
    if factory is not None and not (isinstance(factory, Name) and factory.role in _FACTORIES):
        raise _odd("collections.defaultdict")
    return {}


def _make_set(members: Any = ()) -> set[Any]:
    if type(members) not in (list, tuple):
        raise _odd("set")
    return set(map(_hashable, members))


def _make_encoded(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise _odd("_codecs.encode")
    return text.encode("latin-1")


_CALLS: dict[str, Callable[..., Any]] = {
    "array": _make_array,
    "bytes": lambda: b"",
    "defaultdict": _make_defaultdict,
    "dtype": _make_dtype,
    "encode": _make_encoded,
    "frombuffer": _make_frombuffer,
    "scalar": lambda dtype, raw: _make_frombuffer(raw, dtype, (1,), "C")[0].item(),
    "set": _make_set,
    "frozenset": _make_set,
}


def _hashable(value: Any) -> Any:
    """Returns the value if it is plain, else raises: hashing nested tuples can hang or crash Python."""
    if value is not None and type(value) not in (int, float, str, bytes, bool):
        raise RefusedError(f"it uses a {type(value).__name__} as a key")
    return value


def _finish_sparse(role: str, state: Any) -> Any:
    if type(state) is not dict:
        raise _odd(f"scipy's {_SCIPY[role]}")
    shape = state.get("_shape")
    if type(shape) is not tuple or len(shape) != 2 or not all(type(n) is int and n >= 0 for n in shape):
        raise BrokenError("a sparse matrix has no valid shape")
    if role == "coo":
        row, column = state.get("coords") or (state.get("row"), state.get("col"))
        values, row, column = _vector(state, "data"), _indices(row, shape[0]), _indices(column, shape[1])
        if not len(values) == len(row) == len(column):
            raise BrokenError("a sparse matrix has rows, columns and values of different lengths")
        return sparse.coo_matrix((values, (row, column)), shape=shape)
    major, minor = shape if role == "csr" else shape[::-1]
    values, pointers = _vector(state, "data"), _vector(state, "indptr")
    indices = _indices(state.get("indices"), minor)
    valid = pointers.dtype.kind in "iu" and len(pointers) == major + 1 and pointers[0] == 0
    if not valid or pointers[-1] != len(indices) or (pointers[1:] < pointers[:-1]).any():
        raise BrokenError("a sparse matrix has row pointers that do not fit its values")
    if len(values) != len(indices):
        raise BrokenError("a sparse matrix has indices and values of different lengths")
    kind = sparse.csr_matrix if role == "csr" else sparse.csc_matrix
    return kind((values, indices, pointers), shape=shape)


def _vector(state: dict[Any, Any], key: str) -> npt.NDArray[Any]:
    value = state.get(key)
    if not isinstance(value, np.ndarray) or value.ndim != 1:
        raise BrokenError(f"a sparse matrix has no array {key!r}")
    return value


def _indices(value: Any, size: int) -> npt.NDArray[Any]:
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in "iu":
        raise BrokenError("a sparse matrix has no array of whole-number indices")
    if value.size and (value.min() < 0 or value.max() >= size):
        raise BrokenError("a sparse matrix has an index outside its shape")
    return value
