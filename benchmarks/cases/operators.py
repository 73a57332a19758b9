"""The attention operators that the cases compare, each called as its own users call it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

import linattn_core
import linattn_models
from benchmarks import oracle
from benchmarks.case import Settings
from benchmarks.cases import peers
from benchmarks.cases.peers import (
    FAST_TRANSFORMERS,
    FLASH_LINEAR_ATTENTION,
    FLASH_LINEAR_FUSED,
)
from benchmarks.cases.problem import Problem
from linattn_lab.timing import NotMeasured

LINEAR_CPU, LINEAR_CUDA, LINEAR = "linear (cpu)", "linear (cuda)", "linear (torch)"
LINEAR_TRITON = "linear (triton)"
SDPA, MATERIALIZED = "softmax SDPA", "softmax, N x N"
# Our methods, and the backends that they name.
BACKENDS = {
    LINEAR_CPU: "cpu",
    LINEAR_CUDA: "cuda",
    LINEAR_TRITON: "triton",
    LINEAR: "reference",
}
# The functions of flash-linear-attention by our names of them.
FLASH_LINEAR = {
    FLASH_LINEAR_ATTENTION: "chunk_linear_attn",
    FLASH_LINEAR_FUSED: "fused_chunk_linear_attn",
}
# lsh-X of the paper: X rounds of hashing; the keys are the normalized queries.
LSH_ROUNDS = {"lsh-1": 1, "lsh-4": 4, "lsh-8": 8}
BUCKETS, CHUNK = 64, 32
LSH_HEADS = 2  # heads that are checked: float64 takes twice the memory
# Inputs are multiples of 1 / GRID. So float32 holds their projections exactly, and the hashes in
# float32 and float64 are the same.
GRID = 2**7
STRAY_ROWS = 1e-3

Call = Callable[..., Tensor]


@dataclasses.dataclass(frozen=True)
class Operator:
    """One operator, and how it is compared with the oracle in some heads and rows.

    Args:
        call: takes its tensors in its own layout.
        exact: takes the checked heads' indices, the rows, and the tensors (1, P, N, D) of these
            heads in float64; returns these rows of the output.
        inputs: the tensors that `call` takes.
        length_first: the layout is (B, N, H, D) instead of (B, H, N, D).
        linear: the work grows with N, so that it can be compared with the machine's limits.
        stray: the share of rows that may differ, because rounding decides which keys they see.
    """

    call: Call
    exact: Call
    inputs: tuple[str, ...] = ("query", "key", "value")
    length_first: bool = False
    linear: bool = True
    stray: float = 0.0

    def tensors(self, problem: Problem) -> list[Tensor]:
        """Returns what `call` takes for the problem; the same numbers for every operator."""
        generator = torch.Generator(problem.device).manual_seed(0)
        numbers = {
            name: torch.randn(problem.shape, generator=generator, device=problem.device).to(
                problem.dtype
            )
            for name in ("query", "key", "value")
        }
        if self.stray:
            numbers["query"] = on_grid(numbers["query"])
        tensors = [self._heads_first(numbers[name]).contiguous() for name in self.inputs]
        return [tensor.requires_grad_(problem.backward) for tensor in tensors]

    def fault(self, tensors: list[Tensor]) -> str | None:
        """Compares outputs and gradients at full length with the oracle, in some heads and rows."""
        backward = tensors[0].requires_grad
        batch, heads, length, _ = self._heads_first(tensors[0]).shape
        chosen = oracle.sample_heads(batch, heads, LSH_HEADS if self.stray else oracle.HEADS)
        rows = torch.arange(length) if self.stray else oracle.sample_rows(length)

        def pick(tensor: Tensor) -> Tensor:
            return self._heads_first(tensor)[chosen][None]  # (1, P, N, D)

        ours = oracle.output_and_gradients(lambda *x: pick(self.call(*x))[:, :, rows], tensors)
        exact = [pick(tensor.detach()).double().requires_grad_(backward) for tensor in tensors]
        wanted = oracle.output_and_gradients(partial(self.exact, chosen[1], rows), exact)
        picked = (ours[0], *map(pick, ours[1:]))
        return oracle.find_first_disagreement(self.inputs, picked, wanted, self.stray)

    def _heads_first(self, tensor: Tensor) -> Tensor:
        """From the operator's layout to (B, H, N, D), or back."""
        return tensor.transpose(1, 2) if self.length_first else tensor


def build(name: str, problem: Problem, settings: Settings) -> Operator:
    """Returns the operator of that name for the problem; NotMeasured where it is not installed."""
    if name in BACKENDS:
        return _linear(BACKENDS[name], problem)
    if name in LSH_ROUNDS:
        return lsh(LSH_ROUNDS[name], problem)
    if name == FAST_TRANSFORMERS:
        return _fast_transformers(problem, settings)
    if name in FLASH_LINEAR:
        return _flash_linear(FLASH_LINEAR[name], problem, settings)
    return _softmax(F.scaled_dot_product_attention if name == SDPA else materialize, problem)


def require_backend(name: str) -> None:
    """NotMeasured unless the backend is live."""
    if name not in linattn_core.backends():
        raise NotMeasured(f"no live backend {name!r}; python -m linattn_core.info tells more")


def linear_rows(problem: Problem) -> Call:
    """The oracle of linear attention."""
    return lambda _, rows, q, k, v: oracle.linear_rows(q, k, v, rows, problem.causal, problem.bare)


def _linear(backend: str, problem: Problem) -> Operator:
    require_backend(backend)
    call = partial(
        linattn_core.linear_attention, is_causal=problem.causal, normalize=not problem.bare,
        feature_map="identity" if problem.bare else "elu", backend=backend,
    )  # fmt: skip
    return Operator(call, linear_rows(problem))


def _softmax(function: Call, problem: Problem) -> Operator:
    return Operator(
        partial(function, is_causal=problem.causal),
        lambda _, rows, q, k, v: oracle.softmax_rows(q, k, v, rows, problem.causal),
        linear=False,
    )


def materialize(query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool) -> Tensor:
    """Softmax attention as in the paper's equation 2, with its N x N matrices."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return F.softmax(scores, dim=-1) @ value


def lsh(rounds: int, problem: Problem) -> Operator:
    """LSH attention with the same hashing in every run.

    The tests of linattn-models show that the call is LSH attention. Here it must agree with the
    same call in float64 at the length that is timed.
    """
    device = problem.device
    generator = torch.Generator(device).manual_seed(0)
    sizes = (rounds, problem.heads, problem.width, BUCKETS)
    drawn = linattn_models.draw_rotations(*sizes, generator=generator, device=device)
    rotations = on_grid(drawn)  # (rounds, H, D, buckets / 2)
    attend = partial(linattn_models.lsh_attention, is_causal=problem.causal, chunk=CHUNK)
    return Operator(
        partial(attend, rotations=rotations),
        lambda heads, _, *x: attend(*x, rotations=rotations[:, heads]),
        inputs=("query", "value"),
        linear=False,
        stray=STRAY_ROWS,
    )


def on_grid(numbers: Tensor) -> Tensor:
    """The numbers rounded to multiples of 1 / GRID."""
    return (numbers * GRID).round() / GRID


def _fast_transformers(problem: Problem, settings: Settings) -> Operator:
    kinds = peers.load("fast_transformers.attention", settings)
    masking = peers.load("fast_transformers.masking", settings)
    # Its encoder makes the masks once for all layers, so they stay outside the timed call.
    if problem.causal:
        kind, make_mask = kinds.CausalLinearAttention, masking.TriangularCausalMask
    else:
        kind, make_mask = kinds.LinearAttention, masking.FullMask
    mask = make_mask(problem.length, device=problem.device)
    module = kind(None)  # elu + 1 ignores the query dimension
    lengths = masking.LengthMask(torch.tensor([problem.length], device=problem.device))

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out: Tensor = module(query, key, value, mask, lengths, lengths)
        return out

    return Operator(call, linear_rows(problem), length_first=True)


def _flash_linear(function: str, problem: Problem, settings: Settings) -> Operator:
    attend = getattr(peers.load("fla.ops.linear_attn", settings), function)
    if not problem.causal:
        raise NotMeasured("it is causal only")

    # Its feature maps are modules outside the operator, elu + 1 in the dtype of the inputs.
    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out: Tensor
        if not problem.bare:
            query, key = F.elu(query) + 1, F.elu(key) + 1
        out, _ = attend(query, key, value, scale=1.0, normalize=not problem.bare)
        return out

    return Operator(call, linear_rows(problem), length_first=True)
