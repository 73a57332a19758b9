"""One published python batch of CIFAR-10, read without trusting it.

The batches are pickles, and a pickle is a program: `pickle.load` on a file from the internet runs
whatever its author wrote. These files need very little of that language: bytes, strings, integers,
lists, dicts, tuples, and three names of numpy. So `pickletools` lists the instructions, without
running any, and the few that a batch needs are carried out here on plain values; what a file calls
stays a record of the call. Every other instruction is refused. A batch makes less than ten lists,
dicts and tuples, so a bound on their number keeps any nesting shallow.
"""

from __future__ import annotations

import pickletools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pixels.datasets.images import Pixels
from pixels.datasets.sources import Source, damaged

ROW_BYTES = 3 * 32 * 32
MOST_BYTES = 64_000_000  # twice a published batch
MOST_CONTAINERS = 100
ARRAYS = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
CALLED = (*ARRAYS, "numpy dtype", "numpy ndarray")


@dataclass
class Call:
    """A call that a file asks for and that is not made: its name, arguments, and the state set."""

    name: str
    arguments: Any = ()
    state: Any = None


def read_rows(path: Path, source: Source) -> Pixels:
    """The pixel bytes (n, 3072) of one batch, after every claim of the file is checked."""
    if path.stat().st_size > MOST_BYTES:
        got = f"{path.stat().st_size:,}"
        raise damaged(path, f"a CIFAR-10 python batch of {MOST_BYTES:,} bytes at most", got, source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of escapes in a damaged name
            batch = _Machine().run(path.read_bytes())
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        got = f"a fault in it ({error})"
        raise damaged(path, "a CIFAR-10 python batch", got, source) from error
    if not isinstance(batch, dict):
        raise damaged(path, "a dict with data and labels", type(batch).__name__, source)
    rows = _pixels(batch.get(b"data"), path, source)
    labels = batch.get(b"labels")
    if not isinstance(labels, list) or len(labels) != len(rows):
        got = f"{len(labels):,}" if isinstance(labels, list) else type(labels).__name__
        raise damaged(path, f"a list of {len(rows):,} labels, one an image", got, source)
    return rows


def _pixels(array: Any, path: Path, source: Source) -> Pixels:
    wanted = "data of uint8 and shape (n, 3072)"
    if not isinstance(array, Call) or array.name not in ARRAYS:
        raise damaged(path, wanted, type(array).__name__, source)
    match array.state:
        case (_, (int(count), int(columns)), Call() as dtype, by_columns, bytes(content)):
            pass
        case _:
            raise damaged(path, wanted, "an array without its state", source)
    kind = dtype.arguments[0] if isinstance(dtype.arguments, tuple) and dtype.arguments else None
    if kind not in (b"u1", "u1") or columns != ROW_BYTES or count < 1 or by_columns:
        got = kind if isinstance(kind, (bytes, str)) else None
        raise damaged(path, wanted, f"dtype {got!r}, shape {(count, columns)}", source)
    if len(content) != count * ROW_BYTES:
        raise damaged(path, f"{count * ROW_BYTES:,} bytes of pixels", f"{len(content):,}", source)
    return np.frombuffer(content, np.uint8).reshape(count, ROW_BYTES)


class _Machine:
    """Carries out a pickle's instructions on a stack of plain values."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.containers = 0

    def run(self, content: bytes) -> Any:
        """What the pickle stands for.

        Raises:
            ValueError, LookupError, TypeError, AttributeError: it is no batch.
        """
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name == "STOP":
                break
            if opcode.name not in _INSTRUCTIONS:
                raise ValueError(f"it has the instruction {opcode.name}, which no batch needs")
            _INSTRUCTIONS[opcode.name](self, argument)
        return self.stack.pop()

    def push_container(self, value: Any) -> None:
        self.containers += 1
        if self.containers > MOST_CONTAINERS:
            raise ValueError(f"it has more than {MOST_CONTAINERS} lists, dicts and tuples")
        self.stack.append(value)

    def push_name(self, name: str) -> None:
        if name not in CALLED:
            raise ValueError(f"it asks for {name.replace(' ', '.')}, which no batch needs")
        self.stack.append(Call(name))

    def push_call(self) -> None:
        arguments = self.stack.pop()
        self.push_container(Call(self.stack.pop().name, arguments))

    def set_state(self) -> None:
        state = self.stack.pop()
        self.stack[-1].state = state

    def pop(self, count: int) -> tuple[Any, ...]:
        return tuple(self.stack.pop() for _ in range(count))[::-1]

    def pop_to_mark(self) -> list[Any]:
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def append(self, values: Sequence[Any]) -> None:
        self.stack[-1].extend(values)

    def set_items(self, values: Sequence[Any]) -> None:
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, (bytes, str)):  # a tuple of tuples may take forever to hash
                raise ValueError(f"it has a dict key of type {type(key).__name__}")
            self.stack[-1][key] = value


_Instruction = Callable[[_Machine, Any], object]


def _alike(names: str, instruction: _Instruction) -> dict[str, _Instruction]:
    return dict.fromkeys(names.split(), instruction)


_INSTRUCTIONS: dict[str, _Instruction] = {
    **_alike("PROTO FRAME", lambda machine, argument: None),
    "NONE": lambda machine, _: machine.stack.append(None),
    "NEWTRUE": lambda machine, _: machine.stack.append(True),
    "NEWFALSE": lambda machine, _: machine.stack.append(False),
    **_alike(
        "BININT BININT1 BININT2 LONG1 BINBYTES SHORT_BINBYTES BINUNICODE SHORT_BINUNICODE",
        lambda machine, argument: machine.stack.append(argument),
    ),
    # Python 2 made no difference between bytes and strings; pickletools gives either as a string.
    **_alike(
        "BINSTRING SHORT_BINSTRING",
        lambda machine, argument: machine.stack.append(argument.encode("latin-1")),
    ),
    "GLOBAL": lambda machine, argument: machine.push_name(argument),
    "STACK_GLOBAL": lambda machine, _: machine.push_name(" ".join(machine.pop(2))),
    "REDUCE": lambda machine, _: machine.push_call(),
    "BUILD": lambda machine, _: machine.set_state(),
    "MEMOIZE": lambda machine, _: machine.memo.update({len(machine.memo): machine.stack[-1]}),
    **_alike(
        "BINPUT LONG_BINPUT",
        lambda machine, place: machine.memo.update({place: machine.stack[-1]}),
    ),
    **_alike(
        "BINGET LONG_BINGET", lambda machine, place: machine.stack.append(machine.memo[place])
    ),
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "EMPTY_DICT": lambda machine, _: machine.push_container({}),
    "EMPTY_LIST": lambda machine, _: machine.push_container([]),
    "EMPTY_TUPLE": lambda machine, _: machine.push_container(()),
    "TUPLE": lambda machine, _: machine.push_container(tuple(machine.pop_to_mark())),
    "TUPLE1": lambda machine, _: machine.push_container(machine.pop(1)),
    "TUPLE2": lambda machine, _: machine.push_container(machine.pop(2)),
    "TUPLE3": lambda machine, _: machine.push_container(machine.pop(3)),
    "APPEND": lambda machine, _: machine.append(machine.pop(1)),
    "APPENDS": lambda machine, _: machine.append(machine.pop_to_mark()),
    "SETITEM": lambda machine, _: machine.set_items(machine.pop(2)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.pop_to_mark()),
}
