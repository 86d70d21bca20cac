"""Reads published pickles safely. Python's `pickle` is not used, because it runs code that a file names.

A pickle is a program for a small stack machine. The machine in this module knows only the instructions that
build plain values; the module `pickled` builds the few NumPy and SciPy objects. Everything else is refused.
`pickletools` decodes the arguments of the instructions, and runs nothing.
"""

from __future__ import annotations

import codecs
import io
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bundlemage.errors import DataError
from bundlemage.readers import pickled
from bundlemage.readers.pickled import BrokenError, RefusedError, Unbuilt


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
        reason = str(error) if isinstance(error, BrokenError) else "its bytes make no sense"
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
        self.copied = 0

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
                if isinstance(result, Unbuilt | pickled.Name):
                    raise BrokenError("it ends with something half built")
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
            raise RefusedError(f"it puts members into a {type(value).__name__} as into a {kind.__name__}")
        return value

    def remember(self, index: int) -> None:
        value = self.stack[-1]
        self.memo[index] = value
        if isinstance(value, Unbuilt):
            value.remembered_at.append(index)

    def take(self, count: int) -> list[Any]:
        """Removes the last `count` values from the stack, and returns them in the order of the stack."""
        if len(self.stack) < count:
            raise BrokenError("an instruction in it lacks its values")
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    # Containers. Callers first remove the values from the stack: the container is then on top.

    def extend(self, values: list[Any]) -> None:
        self.top(list).extend(values)

    def add(self, members: list[Any]) -> None:
        self.top(set).update(map(pickled.hashable, members))

    def set_items(self, pairs: list[Any]) -> None:
        target = self.top(dict)
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            target[pickled.hashable(key)] = value

    def new_dict(self) -> None:
        pairs = self.since_mark()
        self.push({})
        self.set_items(pairs)

    # Objects

    def spend(self, value: object) -> None:
        """Raises `RefusedError` if a file copies its content too often: a short one could fill memory."""
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
        self.copied += sum(_length(part) for part in parts)
        if self.copied > 8 * self.size:
            raise RefusedError("it copies its own content again and again")

    def reduce(self) -> None:
        name, arguments = self.take(2)
        self.spend(arguments)
        self.push(pickled.call(name, arguments))

    def build(self) -> None:
        target, state = self.take(2)
        self.spend(state)
        built = pickled.build(target, state)
        for index in target.remembered_at:
            self.memo[index] = built
        self.push(built)

    def old_instance(self, name: tuple[str, str]) -> None:
        pickled.lookup(*name)
        raise RefusedError("it makes an object of a Python 2 class")


def _length(value: object) -> int:
    if isinstance(value, list | tuple | str | bytes):
        return len(value)
    return int(value.nbytes) if hasattr(value, "nbytes") else 0


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
    "GLOBAL": lambda m, name: m.push(pickled.lookup(*name)),
    "STACK_GLOBAL": lambda m, _: m.push(pickled.lookup(*m.take(2))),
    "INST": lambda m, name: m.old_instance(name),
    "REDUCE": lambda m, _: m.reduce(),
    "NEWOBJ": lambda m, _: m.push(pickled.new(*m.take(2))),
    "BUILD": lambda m, _: m.build(),
}
"""For each other instruction, the function that carries it out."""

_REFUSED = {
    "OBJ": "an object of a Python 2 class",
    **dict.fromkeys(("PERSID", "BINPERSID"), "an object stored elsewhere (a persistent id)"),
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), "a registered extension"),
    "FROZENSET": "a frozen set",
    "NEWOBJ_EX": "an object made with keyword arguments",
    **dict.fromkeys(("NEXT_BUFFER", "READONLY_BUFFER"), "a buffer stored elsewhere"),
}
