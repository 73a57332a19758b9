"""A CUDA graph as it would be on the CPU: the operations of one run, repeated on its tensors.

As a graph does, it repeats addresses, sizes and numbers as they were when it was recorded, and
whatever Python would decide anew is gone. Asking a tensor for its numbers fails, as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from linattn_models.recording import Result

aten = torch.ops.aten
ASKS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default}


class Tape(TorchDispatchMode):
    """Keeps what is called inside it; refuses what would wait for a GPU."""

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
    @torch.autocast("cpu", enabled=False)  # what it did to the calls, it did as they were recorded
    def repeat(self) -> None:
        for func, args, kwargs, results in self.calls:
            again = _tensors(func(*args, **kwargs))
            for kept, fresh in zip(results, again, strict=True):
                if kept.data_ptr() != fresh.data_ptr():  # neither a view nor in place
                    kept.copy_(fresh)


class TapeRecorder:
    """Records tapes, after a rehearsal as for a graph."""

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

    def follow(self) -> None:
        """There are no streams."""

    def release(self, tensors: Sequence[Tensor]) -> None:
        """Nothing is still running."""


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
