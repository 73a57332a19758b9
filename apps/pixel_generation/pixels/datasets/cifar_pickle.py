"""One published python batch of CIFAR-10, read without trusting it.

The batches are pickles, and a pickle is a program: `pickle.load` on a file from the internet runs
whatever its author wrote. A batch needs few instructions: bytes, strings, integers, lists, dicts,
tuples, and calls of three names of numpy. So `pickletools` lists the instructions without running
any, and those few are carried out here on plain values, where a call is only recorded. Every other
instruction is refused. A batch makes less than ten lists, dicts and tuples, so a bound on their
number keeps all nesting shallow.
"""

from __future__ import annotations

import pickletools
import warnings
from collections.abc import Sequence
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
VALUES = (
    *("BININT", "BININT1", "BININT2", "LONG1"),
    *("BINBYTES", "SHORT_BINBYTES", "BINUNICODE", "SHORT_BINUNICODE"),
)
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "TUPLE": None}
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
            self.carry_out(opcode.name, argument)
        return self.stack.pop()

    def carry_out(self, name: str, argument: Any) -> None:
        stack, memo = self.stack, self.memo
        match name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                self.marks.append(len(stack))
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            case "BINSTRING" | "SHORT_BINSTRING":  # bytes of Python 2, decoded by pickletools
                stack.append(argument.encode("latin-1"))
            case _ if name in VALUES:
                stack.append(argument)
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                memo[len(memo) if name == "MEMOIZE" else argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL" | "STACK_GLOBAL":
                called = argument if name == "GLOBAL" else " ".join(self.pop(2))
                if called not in CALLED:
                    raise ValueError(f"it asks for {called}, which no batch needs")
                stack.append(Call(called))
            case "BUILD":
                stack[-2].state = stack[-1]
                stack.pop()
            case "APPEND" | "APPENDS":
                values = self.pop(1 if name == "APPEND" else None)
                stack[-1].extend(values)
            case "SETITEM" | "SETITEMS":
                values = self.pop(2 if name == "SETITEM" else None)
                self.set_items(values)
            case _:
                self.push_container(name)

    def push_container(self, name: str) -> None:
        self.containers += 1
        if self.containers > MOST_CONTAINERS:
            raise ValueError(f"it has more than {MOST_CONTAINERS} lists, dicts and tuples")
        match name:
            case "EMPTY_DICT":
                self.stack.append({})
            case "EMPTY_LIST":
                self.stack.append([])
            case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                self.stack.append(
                    self.pop(["EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"].index(name))
                )
            case "TUPLE":
                self.stack.append(self.pop())
            case "REDUCE":
                called, arguments = self.pop(2)
                self.stack.append(Call(called.name, arguments))
            case _:
                raise ValueError(f"it has the instruction {name}, which no batch needs")

    def pop(self, count: int | None = None) -> tuple[Any, ...]:
        """The newest `count` values, or all since the newest mark; they leave the stack."""
        start = self.marks.pop() if count is None else len(self.stack) - count
        if start < 0:
            raise LookupError("it takes more values than there are")
        values = tuple(self.stack[start:])
        del self.stack[start:]
        return values

    def set_items(self, values: Sequence[Any]) -> None:
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, (bytes, str)):  # a tuple of tuples may take forever to hash
                raise ValueError(f"it has a dict key of type {type(key).__name__}")
            self.stack[-1][key] = value
