"""Calls of the operator with their gradients, on any backend and number of threads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from linattn_core import LinearAttentionState, linear_attention


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Query, key, value (B, H, N, D) and an upstream gradient, standard normal."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(4)
    ]


def run(tensors: list[Tensor], backend: str = "cpu", **options: Any) -> dict[str, Tensor]:
    """Output, last state, and the gradients of query, key and value."""
    leaves = [x.detach().requires_grad_() for x in tensors[:3]]
    out, last = linear_attention(*leaves, return_state=True, backend=backend, **options)
    return {**_gradients(out, leaves, tensors[3]), "s": last.s.detach(), "z": last.z.detach()}


def run_without_state(
    tensors: list[Tensor], backend: str = "cpu", **options: Any
) -> dict[str, Tensor]:
    """As `run`, of a call that returns no state."""
    leaves = [x.detach().requires_grad_() for x in tensors[:3]]
    out = linear_attention(*leaves, backend=backend, **options)
    return _gradients(out, leaves, tensors[3])


def _gradients(out: Tensor, leaves: list[Tensor], grad_out: Tensor) -> dict[str, Tensor]:
    names = ("out", "grad_query", "grad_key", "grad_value")
    gradients = torch.autograd.grad(out, leaves, grad_out)
    return dict(zip(names, (out.detach(), *gradients), strict=True))


def zeros(tensors: list[Tensor]) -> LinearAttentionState:
    """The state before the first position of such tensors."""
    query, _, value, _ = tensors
    return LinearAttentionState.zeros(
        *query.shape[:2], query.shape[3], value.shape[3], dtype=value.dtype
    )


def run_program(*arguments: str) -> None:
    """Runs Python in a process of its own, which must end well."""
    ended = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr or f"ended by signal {-ended.returncode}"


@contextmanager
def built_for(instruction_set: str) -> Iterator[None]:
    """The kernels of this build, until the block ends."""
    import linattn_cpu  # late: where it is not installed, its tests skip

    live = linattn_cpu.instruction_set()
    linattn_cpu.use_instruction_set(instruction_set)
    try:
        yield
    finally:
        linattn_cpu.use_instruction_set(live)


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """torch with so many threads, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
