"""What the tests that need a GPU share: their marks, inputs, and a call with its gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from linattn_core import backends, linear_attention
from linattn_core.registry import find_backend

NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.xdist_group("gpu"),  # one worker, as all would share the GPU's memory
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def skip_unusable(backend: str) -> None:
    """Skips the test where the backend is not installed or cannot run."""
    reason = "not installed" if backend not in backends() else find_backend(backend).unusable()
    if reason is not None:
        pytest.skip(reason)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Query, key, value on the GPU."""
    return [torch.randn(shape, device="cuda").to(dtype) for _ in range(3)]


def attend(tensors: list[Tensor], backend: str, **options: Any) -> list[Tensor]:
    """Output and gradients of a causal call."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = linear_attention(*leaves, is_causal=True, backend=backend, **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out))]
