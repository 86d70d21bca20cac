"""Reads published pickles as data. Python's `pickle` is not used, because loading with it may run anything.

A pickle is a program for a small stack machine. The machine here has only the instructions that build plain
values; `pickled` builds the few NumPy and SciPy objects. Everything else is refused.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bundlemage.errors import DataError
from bundlemage.readers import pickled
from bundlemage.readers.pickled import BrokenError, RefusedError, Unbuilt


def safe_load(path: Path) -> Any:
    """Returns the plain values, arrays and sparse matrices in a pickle of any protocol, including Python 2's.

    Python 2 strings are read as latin-1, NumPy scalars become plain numbers and default dicts plain
    dicts. Anything else in the file raises `DataError`, and nothing in it is ever run.
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
    # Damaged bytes can fail in many ways.
    except (
        BrokenError,
        LookupError,
        TypeError,
        ValueError,
        OverflowError,
        MemoryError,
        struct.error,
    ) as error:
        reason = str(error) if isinstance(error, BrokenError) else "its bytes make no sense"
        fix = "It was cut short, damaged, or is another kind of file: download it again."
        raise DataError.of("broken-pickle", str(path), f"not a whole pickle: {reason}", fix) from None


class PickleMachine:
    """The stack machine of the pickle format, with only the instructions that build data."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stacks under each open MARK
        self.memo: dict[int, Any] = {}
        self.copied = 0

    def run(self) -> Any:
        while True:
            opcode = self.take(1)[0]
            if opcode == _STOP:
                result = self.stack.pop()
                if isinstance(result, Unbuilt | pickled.Name):
                    raise BrokenError("it ends with something half built")
                return result
            instruction = _INSTRUCTIONS.get(opcode)
            if instruction is not None:
                instruction(self)
            elif opcode in _REFUSED:
                raise RefusedError(f"it asks for {_REFUSED[opcode]}")
            else:
                raise BrokenError(f"byte {opcode:#04x} at position {self.at - 1:,} is no pickle instruction")

    # Reading

    def take(self, count: int) -> bytes:
        chunk = self.data[self.at : self.at + count]
        if count < 0 or len(chunk) != count:
            raise BrokenError("it ends in the middle")
        self.at += count
        return chunk

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def sized(self, layout: str) -> bytes:
        """Bytes with their length in front."""
        return self.take(self.number(layout))

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise BrokenError("it ends in the middle")
        return self.take(end + 1 - self.at)[:-1]

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

    # Containers

    def append(self) -> None:
        value = self.stack.pop()
        self.top(list).append(value)

    def extend(self) -> None:
        values = self.since_mark()
        self.top(list).extend(values)

    def add(self) -> None:
        members = self.since_mark()
        self.top(set).update(map(pickled.hashable, members))

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.top(dict)[pickled.hashable(key)] = value

    def set_items(self) -> None:
        pairs = self.since_mark()
        target = self.top(dict)
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            target[pickled.hashable(key)] = value

    def new_dict(self) -> None:
        self.below[-1].append({})  # the dict goes below the pairs, as the instruction u expects it
        self.set_items()

    # Objects

    def spend(self, value: object) -> None:
        """Refuse a file that copies its content too often: a short one could fill the memory so."""
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
        self.copied += sum(_length(part) for part in parts)
        if self.copied > 8 * len(self.data):
            raise RefusedError("it copies its own content again and again")

    def reduce(self) -> None:
        arguments, name = self.stack.pop(), self.stack.pop()
        self.spend(arguments)
        self.push(pickled.call(name, arguments))

    def make(self) -> None:
        arguments, name = self.stack.pop(), self.stack.pop()
        self.push(pickled.new(name, arguments))

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack.pop()
        self.spend(state)
        built = pickled.build(target, state)
        for index in target.remembered_at:
            self.memo[index] = built
        self.push(built)

    def name_on_stack(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.push(pickled.lookup(module, name))

    def name_in_line(self) -> None:
        module, name = self.line().decode(), self.line().decode()
        self.push(pickled.lookup(module, name))

    def old_instance(self) -> None:
        self.name_in_line()
        raise RefusedError("it makes an object of a Python 2 class")


def _length(value: object) -> int:
    if isinstance(value, list | tuple | str | bytes):
        return len(value)
    return int(value.nbytes) if hasattr(value, "nbytes") else 0


def _integer(line: bytes) -> int | bool:
    # Protocol 0 spells True and False as the numbers 01 and 00.
    return {b"01": True, b"00": False}[line] if line in (b"01", b"00") else int(line)


def _quoted(line: bytes) -> str:
    """A Python 2 string, written as its source code."""
    if len(line) < 2 or line[:1] not in b"'\"" or line[:1] != line[-1:]:
        raise BrokenError("a text in it is not quoted")
    return codecs.escape_decode(line[1:-1])[0].decode("latin-1")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


def _signed(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)


def _last(count: int) -> Callable[[PickleMachine], None]:
    def instruction(machine: PickleMachine) -> None:
        if len(machine.stack) < count:
            raise BrokenError("a tuple in it lacks members")
        machine.stack[-count:] = [tuple(machine.stack[-count:])]

    return instruction


_STOP = ord(".")

_INSTRUCTIONS: dict[int, Callable[[PickleMachine], object]] = {
    # Protocol and framing: not needed to read the rest.
    0x80: lambda m: m.take(1),
    0x95: lambda m: m.take(8),
    # The stack and the memo
    ord("("): PickleMachine.mark,
    ord("0"): lambda m: m.stack.pop() if m.stack else m.since_mark(),
    ord("1"): PickleMachine.since_mark,
    ord("2"): lambda m: m.push(m.stack[-1]),
    ord("p"): lambda m: m.remember(int(m.line())),
    ord("q"): lambda m: m.remember(m.number("<B")),
    ord("r"): lambda m: m.remember(m.number("<I")),
    0x94: lambda m: m.remember(len(m.memo)),
    ord("g"): lambda m: m.push(m.memo[int(m.line())]),
    ord("h"): lambda m: m.push(m.memo[m.number("<B")]),
    ord("j"): lambda m: m.push(m.memo[m.number("<I")]),
    # Plain values
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("I"): lambda m: m.push(_integer(m.line())),
    ord("L"): lambda m: m.push(int(m.line().rstrip(b"L"))),
    ord("J"): lambda m: m.push(m.number("<i")),
    ord("K"): lambda m: m.push(m.number("<B")),
    ord("M"): lambda m: m.push(m.number("<H")),
    0x8A: lambda m: m.push(_signed(m.sized("<B"))),
    0x8B: lambda m: m.push(_signed(m.sized("<i"))),
    ord("F"): lambda m: m.push(float(m.line())),
    ord("G"): lambda m: m.push(m.number(">d")),
    ord("S"): lambda m: m.push(_quoted(m.line())),
    ord("T"): lambda m: m.push(m.sized("<i").decode("latin-1")),
    ord("U"): lambda m: m.push(m.sized("<B").decode("latin-1")),
    ord("V"): lambda m: m.push(m.line().decode("raw-unicode-escape")),
    ord("X"): lambda m: m.push(_text(m.sized("<I"))),
    0x8C: lambda m: m.push(_text(m.sized("<B"))),
    0x8D: lambda m: m.push(_text(m.sized("<Q"))),
    ord("B"): lambda m: m.push(m.sized("<I")),
    ord("C"): lambda m: m.push(m.sized("<B")),
    0x8E: lambda m: m.push(m.sized("<Q")),
    0x96: lambda m: m.push(m.sized("<Q")),  # a bytearray, which is never written to here
    # Containers
    ord(")"): lambda m: m.push(()),
    0x85: _last(1),
    0x86: _last(2),
    0x87: _last(3),
    ord("t"): lambda m: m.push(tuple(m.since_mark())),
    ord("]"): lambda m: m.push([]),
    ord("l"): lambda m: m.push(m.since_mark()),
    ord("a"): PickleMachine.append,
    ord("e"): PickleMachine.extend,
    ord("}"): lambda m: m.push({}),
    ord("d"): PickleMachine.new_dict,
    ord("s"): PickleMachine.set_item,
    ord("u"): PickleMachine.set_items,
    0x8F: lambda m: m.push(set()),
    0x90: PickleMachine.add,
    # Names, and the objects made from them
    ord("c"): PickleMachine.name_in_line,
    0x93: PickleMachine.name_on_stack,
    ord("i"): PickleMachine.old_instance,
    ord("R"): PickleMachine.reduce,
    0x81: PickleMachine.make,
    ord("b"): PickleMachine.build,
}

_REFUSED = {
    ord("o"): "an object of a Python 2 class",
    ord("P"): "an object stored elsewhere (a persistent id)",
    ord("Q"): "an object stored elsewhere (a persistent id)",
    0x82: "a registered extension",
    0x83: "a registered extension",
    0x84: "a registered extension",
    0x91: "a frozen set",
    0x92: "an object made with keyword arguments",
    0x97: "a buffer stored elsewhere",
    0x98: "a buffer stored elsewhere",
}
