"""Kernels that give the same bits every time, where torch has them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.utils.deterministic as determinism


@contextmanager
def deterministic_kernels(device: torch.device) -> Iterator[None]:
    """On CUDA, deterministic kernels while the body runs; an operator that has none warns.

    Without this the backward of softmax attention adds in a different order each time, and a
    resumed run would drift from an unbroken one. On the CPU the kernels that training uses are
    deterministic already.
    """
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch's condition for cuBLAS
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = determinism.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=warned if before else True)
    determinism.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        determinism.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
