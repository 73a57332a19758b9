"""A CUDA graph as it would be on the CPU: the operations of one run, repeated on its tensors.

As a graph does, it repeats addresses, sizes and numbers as they were when it was recorded; Python
decides nothing again. Reading a tensor's numbers fails, as while a GPU records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from linattn_models.decoding.graph import Result

aten = torch.ops.aten
ASKS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default}


class Tape(TorchDispatchMode):
    """Keeps the operations called inside it; refuses those that would wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in ASKS:
            raise RuntimeError(f"{func} waits for the device, which no recording may do")
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, _tensors(result)))
        return result

    @torch.inference_mode()
    @torch.autocast("cpu", enabled=False)  # its casts are on the tape already
    def repeat(self) -> None:
        for func, args, kwargs, results in self.calls:
            again = _tensors(func(*args, **kwargs))
            for first, new in zip(results, again, strict=True):
                if first.data_ptr() != new.data_ptr():  # neither a view nor in place
                    first.copy_(new)


class TapeRecorder:
    """Records tapes, after a warm-up as for a graph."""

    name = "tapes"

    def __init__(self) -> None:
        self.tapes: list[Tape] = []

    def record(self, work: Callable[[], Result]) -> Callable[[], Result]:
        work()
        with Tape() as tape:
            result = work()
        self.tapes.append(tape)

        def run() -> Result:
            tape.repeat()
            return result

        return run

    def wait(self) -> None:
        """Does nothing: there are no streams."""

    def release(self, tensors: Sequence[Tensor]) -> None:
        """Does nothing: no run is pending."""


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
