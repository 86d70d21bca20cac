"""Builds the few NumPy and SciPy objects that a published pickle may hold, from checked plain values.

A pickle names the functions and classes that Python would call. Here such a name is only looked up in the
tables below, and functions of this module build the object. No name in a file is ever imported or called.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse


class RefusedError(Exception):
    """The file asks for something that is not plain data."""


class BrokenError(Exception):
    """The pickle is incomplete, or its parts contradict each other."""


@dataclass(frozen=True)
class Name:
    """The name of a function or class in a pickle. It is text, never the function or class itself."""

    role: str
    """What this module does for it: a key of `_CALLS`, a kind of sparse matrix, or a type."""
    full: str


@dataclass(eq=False)
class Unbuilt:
    """An object without its content: pickles first create NumPy and SciPy objects, and fill them later."""

    role: str
    argument: Any = None
    remembered_at: list[int] = field(default_factory=list)
    """The keys of the memo entries that the finished object will replace."""


_NUMPY = ("numpy.core", "numpy._core")
_SCIPY = {"csr": "csr_matrix", "csc": "csc_matrix", "coo": "coo_matrix"}
_FACTORIES = ("int", "long", "float", "str", "unicode", "list", "dict", "tuple", "set", "frozenset")


def _roles() -> dict[str, str]:
    roles = {"numpy.ndarray": "ndarray", "numpy.dtype": "dtype", "_codecs.encode": "encode"}
    roles["collections.defaultdict"] = "defaultdict"
    for package in _NUMPY:
        roles[f"{package}.multiarray._reconstruct"] = "array"
        roles[f"{package}.multiarray.scalar"] = "scalar"
        roles[f"{package}.numeric._frombuffer"] = "frombuffer"
    for short, full in _SCIPY.items():
        for module in (f"scipy.sparse.{short}", f"scipy.sparse._{short}"):
            roles[f"{module}.{full}"] = short
    for module in ("builtins", "__builtin__"):
        roles |= {f"{module}.{name}": name for name in (*_FACTORIES, "bytes")}
    return roles


_ROLES = _roles()


def lookup(module: object, name: object) -> Name:
    """Returns the name if published files need it; otherwise raises `RefusedError`. Nothing is called."""
    if not isinstance(module, str) or not isinstance(name, str):
        raise BrokenError("a name in it is not text")
    full = f"{module}.{name}"
    if full not in _ROLES:
        raise RefusedError(f"it asks for {_short(full)}")
    return Name(_ROLES[full], full)


def call(name: object, arguments: object) -> Any:
    """Carries out the instruction REDUCE: returns the object that a call of this name would build."""
    if not isinstance(name, Name) or type(arguments) is not tuple:
        raise RefusedError("it calls something that is not a name")
    maker = _CALLS.get(name.role)
    if maker is None:
        raise RefusedError(f"it calls {name.full}")
    try:
        return maker(*arguments)
    except TypeError as error:  # a wrong number of arguments
        raise _odd(name.full) from error


def new(name: object, arguments: object) -> Unbuilt:
    """Carries out the instruction NEWOBJ: returns an unfilled sparse matrix; anything else is refused."""
    if not isinstance(name, Name) or name.role not in _SCIPY or arguments != ():
        kind = name.full if isinstance(name, Name) else "something that is not a class"
        raise RefusedError(f"it makes an object of {kind}")
    return Unbuilt(name.role)


def build(target: object, state: object) -> Any:
    """Carries out the instruction BUILD: returns the array, dtype or matrix, filled from `state`."""
    if not isinstance(target, Unbuilt):
        raise RefusedError(f"it sets the inner state of a {type(target).__name__}")
    if target.role == "dtype":
        return _finish_dtype(target.argument, state)
    if target.role == "array":
        return _finish_array(state)
    return _finish_sparse(target.role, state)


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:80] + "…"


def _odd(what: str) -> RefusedError:
    return RefusedError(f"it gives {what} arguments that no published file gives")


def _make_array(subtype: Any, _shape: Any, _code: Any) -> Unbuilt:
    if not isinstance(subtype, Name) or subtype.role != "ndarray":
        raise _odd("numpy's _reconstruct")
    return Unbuilt("array")


def _make_dtype(code: Any, _align: Any = False, _copy: Any = False) -> Unbuilt:
    # Only numbers: an array of type 'O' holds arbitrary objects, and type 'V' may have them in its fields.
    if not isinstance(code, str) or not re.fullmatch("b1|[iu][1248]|f[248]", code):
        named = _short(code) if isinstance(code, str) else type(code).__name__
        raise RefusedError(f"it holds an array of type {named!r}, where only numbers are read")
    return Unbuilt("dtype", np.dtype(code))


def _finish_dtype(dtype: np.dtype[Any], state: Any) -> np.dtype[Any]:
    plain = type(state) is tuple and len(state) == 8 and state[2:5] == (None, None, None)
    if not plain or state[1] not in ("<", ">", "|", "="):
        raise _odd("numpy.dtype")
    return dtype.newbyteorder(state[1])


def _raw(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):  # a Python 2 string of bytes, read as latin-1
        return value.encode("latin-1")
    raise _odd("a numpy array")


def _make_frombuffer(raw: Any, dtype: Any, shape: Any, order: Any) -> npt.NDArray[Any]:
    dimensions = type(shape) is tuple and all(type(size) is int and size >= 0 for size in shape)
    if not isinstance(dtype, np.dtype) or not dimensions or len(shape) > 2 or order not in ("C", "F"):
        raise _odd("a numpy array")
    # The array is a view of bytes in the file. A small file therefore cannot create a large array.
    values = np.frombuffer(_raw(raw), dtype=dtype)
    if values.size != np.prod(shape, dtype=object):
        raise BrokenError(f"an array of shape {shape} holds {values.size:,} values")
    return values.reshape(shape, order=order)


def _finish_array(state: Any) -> npt.NDArray[Any]:
    if type(state) is not tuple or len(state) != 5:
        raise _odd("a numpy array")
    _version, shape, dtype, fortran, raw = state
    return _make_frombuffer(raw, dtype, shape, "F" if fortran else "C")


def _make_scalar(dtype: Any, raw: Any) -> Any:
    array = _make_frombuffer(raw, dtype, (1,), "C")
    return array[0].item()


def _make_defaultdict(factory: Any = None) -> dict[Any, Any]:
    """Returns a plain dict. A missing key is then an error, not a new entry."""
    if factory is not None and not (isinstance(factory, Name) and factory.role in _FACTORIES):
        raise _odd("collections.defaultdict")
    return {}


def _make_set(members: Any = ()) -> set[Any]:
    if type(members) not in (list, tuple):
        raise _odd("set")
    return set(map(hashable, members))


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
    "scalar": _make_scalar,
    "set": _make_set,
    "frozenset": _make_set,
}


def hashable(value: Any) -> Any:
    """Returns the value if it is plain, else raises: hashing nested tuples can hang or crash Python."""
    if value is not None and type(value) not in (int, float, str, bytes, bool):
        raise RefusedError(f"it uses a {type(value).__name__} as a key")
    return value


def _finish_sparse(role: str, state: Any) -> Any:
    if type(state) is not dict:
        raise _odd(f"scipy's {_SCIPY[role]}")
    shape = state.get("_shape")
    if type(shape) is not tuple or len(shape) != 2 or not all(type(n) is int and n >= 0 for n in shape):
        raise BrokenError("a sparse matrix has no shape of two sizes")
    if role == "coo":
        row, column = state.get("coords") or (state.get("row"), state.get("col"))
        values, row, column = _vector(state, "data"), _indices(row, shape[0]), _indices(column, shape[1])
        if not len(values) == len(row) == len(column):
            raise BrokenError("a sparse matrix has rows, columns and values of different lengths")
        return sparse.coo_matrix((values, (row, column)), shape=shape)
    return _compressed(role, state, shape)


def _compressed(role: str, state: dict[Any, Any], shape: tuple[int, int]) -> Any:
    major, minor = shape if role == "csr" else shape[::-1]
    values, pointers = _vector(state, "data"), _vector(state, "indptr")
    indices = _indices(state.get("indices"), minor)
    whole = pointers.dtype.kind in "iu" and len(pointers) == major + 1 and pointers[0] == 0
    if not whole or pointers[-1] != len(indices) or (pointers[1:] < pointers[:-1]).any():
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
