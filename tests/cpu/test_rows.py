"""Rows that sweeps read and write where they are give what copied rows give."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from linattn_core import linear_attention

from .calls import draw, run_without_state

LENGTHS = [1, 3, 63, 64, 65, 200]


def strided(x: Tensor) -> Tensor:
    """The same numbers, every second one in memory."""
    return torch.stack([x, torch.full_like(x, torch.nan)], dim=-1).flatten(-2)[..., ::2]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dim", [32, 64])
@pytest.mark.parametrize("normalize", [True, False])
def test_values_and_upstream_gradients_of_any_stride(
    length: int, dim: int, normalize: bool, instruction_set: str
) -> None:
    tensors = draw(1, 2, length, dim)
    q, k, v, grad = tensors
    options = {"is_causal": True, "normalize": normalize}

    in_place = run_without_state(tensors, **options)
    copied = run_without_state([q, k, strided(v), strided(grad)], **options)

    for name, x in in_place.items():
        assert torch.equal(x, copied[name]), name


@pytest.mark.parametrize("length", LENGTHS)
def test_outputs_that_need_padding(length: int, instruction_set: str) -> None:
    """Columns of the output do not depend on one another."""
    q, k, v, _ = draw(1, 2, length, 64)

    whole = linear_attention(q, k, v, is_causal=True, backend="cpu")
    part = linear_attention(q, k, v[..., :41], is_causal=True, backend="cpu")

    assert torch.equal(part, whole[..., :41])


def test_a_normalizer_without_an_inverse(instruction_set: str) -> None:
    """1 / n overflows: its row is divided, and the rows of its section are copied."""
    q, k, v, grad = (x.abs() for x in draw(1, 1, 200, 32))
    q[:, :, 70] = 1e-42
    assert (1 / (q[0, 0, 70] * k[0, 0, :71].sum(0)).sum()).isinf()
    options = {"is_causal": True, "feature_map": "relu", "eps": 0.0}

    exact = run_without_state([x.double() for x in (q, k, v, grad)], "reference", **options)
    ours = run_without_state([q, k, v, grad], **options)

    torch.testing.assert_close(ours["out"].double(), exact["out"], rtol=1e-4, atol=1e-6)


def test_memory_that_is_new_in_every_call() -> None:
    """Outputs and gradients of 34 MiB, whose pages are provided before the kernels run."""
    length, start = 70_000, 500
    tensors = draw(1, 2, length, 64)
    until = [x[:, :, :start] for x in tensors]

    whole = run_without_state(tensors, is_causal=True)
    torch.testing.assert_close(
        whole["out"][:, :, :start], run_without_state(until, is_causal=True)["out"]
    )
    for name, x in whole.items():
        assert x.isfinite().all() and x[:, :, -1].any(), name
