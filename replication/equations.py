"""The equalities of sections 3.2 to 3.4, checked in float64: python -m replication.equations.

Each form of linear attention is compared with the quadratic definition on random inputs; what is
written is the largest difference of any output or gradient.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
import tyro
from torch import Tensor

from linattn_core import linear_attention
from linattn_core.reference import chunked, quadratic, recurrent
from linattn_models.training import run_script
from replication.machine import write_figures

BATCH, HEADS, LENGTH, DIM, WIDTH = 2, 4, 200, 32, 24


@dataclasses.dataclass(frozen=True)
class Flags:
    """Compare the forms of linear attention."""

    out: Path
    """Folder for figures.json."""
    seed: int = 0
    """Of the inputs."""


def main(flags: Flags) -> None:
    """Computes the differences, and writes them."""
    torch.manual_seed(flags.seed)
    query, key = torch.randn(2, BATCH, HEADS, LENGTH, DIM, dtype=torch.float64)
    value = torch.randn(BATCH, HEADS, LENGTH, WIDTH, dtype=torch.float64)
    inputs = (query, key, value)
    parallel = quadratic(*inputs, is_causal=True)
    write_figures(
        flags.out,
        {
            "positive": least_similarity(query, key),
            "associativity": gap(chunked(*inputs), quadratic(*inputs)),
            "causal": gap(chunked(*inputs, is_causal=True), parallel),
            "gradients": gradient_gap(*inputs),
            "rnn": max(
                gap(recurrent(*inputs, is_causal=True), parallel),
                gap(step_by_step(*inputs), parallel),
            ),
            "constant-state": state_bytes(784) / state_bytes(1),
        },
    )


def least_similarity(query: Tensor, key: Tensor) -> float:
    """The least phi(q) . phi(k), with phi(x) = elu(x) + 1 (equation 7)."""
    phi = [torch.nn.functional.elu(x) + 1 for x in (query, key)]
    return float((phi[0] @ phi[1].mT).min())


def gap(ours: Tensor, definition: Tensor) -> float:
    """The largest difference."""
    return float((ours - definition).abs().max())


def gradient_gap(*inputs: Tensor) -> float:
    """Equations 13 to 15 beside what autograd makes of the definition."""
    upstream = torch.randn_like(inputs[2])

    def gradients(attend: object, **options: object) -> tuple[Tensor, ...]:
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = attend(*leaves, is_causal=True, **options)  # type: ignore[operator]
        return torch.autograd.grad(out, leaves, upstream)

    pairs = zip(gradients(linear_attention, backend="reference"), gradients(quadratic), strict=True)
    return max(gap(ours, definition) for ours, definition in pairs)


def step_by_step(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Calls of one position each, which hand the state on (equations 16 to 20)."""
    state, outputs = None, []
    for i in range(query.shape[2]):
        at = slice(i, i + 1)
        out, state = linear_attention(
            query[:, :, at], key[:, :, at], value[:, :, at],
            is_causal=True, initial_state=state, return_state=True, backend="reference",
        )  # fmt: skip
        outputs.append(out)
    return torch.cat(outputs, 2)


def state_bytes(length: int) -> int:
    """Bytes of the state after so many positions."""
    inputs = torch.randn(3, 1, 1, length, DIM)
    _, state = linear_attention(*inputs, is_causal=True, return_state=True)
    return int(state.s.nbytes + state.z.nbytes)


if __name__ == "__main__":
    run_script(lambda: main(tyro.cli(Flags, description=__doc__)))
