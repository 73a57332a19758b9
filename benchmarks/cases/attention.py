"""The attention operators that the cases compare, each called as its own users call it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.nn.functional as F

import linattn_core
from benchmarks.cases import peers
from benchmarks.cases.lsh import LSH_ROUNDS, Lsh
from benchmarks.cases.problem import Problem, inputs
from benchmarks.measure import oracle
from benchmarks.measure.cases import Method, NotMeasured, Settings
from linattn_models.throughput import peak_memory

LINEAR_CPU = "linear (cpu)"
LINEAR_CUDA = "linear (cuda)"
LINEAR = "linear (torch)"
SDPA = "softmax SDPA"
MATERIALIZED = "softmax, N x N"
# Tensors that are alive at once: of the inputs' size, and of the N x N matrices.
OUTPUT_AND_GRADIENTS, WEIGHTS_AND_GRADIENTS = 4, 3
FAST_TRANSFORMERS = peers.FAST_TRANSFORMERS
FLASH_LINEAR_ATTENTION = peers.FLASH_LINEAR_ATTENTION
# Our methods, and the backends that they name.
BACKENDS = {LINEAR_CPU: "cpu", LINEAR_CUDA: "cuda", LINEAR: "reference"}

Call = Callable[..., torch.Tensor]
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Attention:
    """One operator.

    Args:
        call: takes query, key, value in the operator's own layout.
        rows: the float64 oracle.
        length_first: the layout is (B, N, H, D) instead of (B, H, N, D).
        linear: the work grows with N, so that it can be held against the machine's limits.
    """

    name: str
    call: Call
    rows: oracle.Rows
    length_first: bool = False
    linear: bool = True

    def tensors(self, problem: Problem, *, backward: bool) -> list[torch.Tensor]:
        """Returns what `call` takes for the problem; the same numbers for every operator."""
        return inputs(problem, length_first=self.length_first, backward=backward)

    def fault(self, tensors: list[torch.Tensor]) -> str | None:
        """Compares outputs and gradients at full length with the oracle, in some heads and rows."""
        backward = tensors[0].requires_grad
        batch, heads, length, _ = self._heads_first(tensors[0]).shape
        rows, chosen = oracle.sampled_rows(length), oracle.sampled_heads(batch, heads)

        def pick(tensor: torch.Tensor) -> torch.Tensor:
            return self._heads_first(tensor)[chosen][:, None]  # (P, 1, N, D)

        actual = oracle.output_and_gradients(
            lambda *x: pick(self.call(*x))[:, :, rows], tensors, backward
        )
        exact = [pick(tensor.detach()).double().requires_grad_(backward) for tensor in tensors]
        expected = oracle.output_and_gradients(
            lambda q, k, v: self.rows(q, k, v, rows), exact, backward
        )
        ours = (actual[0], *(pick(gradient) for gradient in actual[1:]))
        names = ("the output", "the query gradient", "the key gradient", "the value gradient")
        return oracle.disagreement(ours, expected, names[: len(ours)])

    def _heads_first(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.transpose(1, 2) if self.length_first else tensor


def attention(name: str, problem: Problem, settings: Settings) -> Attention | Lsh:
    """Returns the operator of that name, made ready for the problem.

    Raises:
        NotMeasured: when it belongs to a backend or a peer that is not here.
    """
    if name in BACKENDS:
        return _linear(name, problem)
    if name == SDPA:
        return _softmax(name, F.scaled_dot_product_attention, problem)
    if name == MATERIALIZED:
        return _softmax(name, materialized, problem)
    if name in LSH_ROUNDS:
        return Lsh(name, problem)
    if name == FLASH_LINEAR_ATTENTION:
        return _flash_linear(problem, settings)
    return _peer(problem, settings)


def _linear(name: str, problem: Problem) -> Attention:
    backend = BACKENDS[name]
    if backend not in linattn_core.backends():
        raise NotMeasured(f"no live backend {backend!r}; python -m linattn_core.info tells more")

    def call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = linattn_core.linear_attention(
            query, key, value, is_causal=problem.causal, feature_map="elu", backend=backend
        )
        return out

    return Attention(name, call, _linear_rows(problem))


def _softmax(name: str, function: Call, problem: Problem) -> Attention:
    call = functools.partial(function, is_causal=problem.causal)
    rows = functools.partial(oracle.softmax_rows, is_causal=problem.causal)
    return Attention(name, call, rows, linear=False)


def materialized(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, is_causal: bool
) -> torch.Tensor:
    """Softmax attention as it is written down (the paper's equation 2), N x N matrices and all."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return F.softmax(scores, dim=-1) @ value


def least_bytes(name: str, problem: Problem) -> float:
    """Returns what forward and backward surely hold above the inputs; in practice not much more."""
    tensors = OUTPUT_AND_GRADIENTS * problem.batch * problem.heads * problem.length * problem.width
    matrices = problem.batch * problem.heads * problem.length**2 if name == MATERIALIZED else 0
    return float((tensors + WEIGHTS_AND_GRADIENTS * matrices) * problem.dtype.itemsize)


def _peer(problem: Problem, settings: Settings) -> Attention:
    kinds, masking = (
        peers.load(f"fast_transformers.{name}", settings) for name in ("attention", "masking")
    )
    # Its encoder makes the masks once for all layers, so they stay outside the timed call.
    if problem.causal:
        kind, make_mask = kinds.CausalLinearAttention, masking.TriangularCausalMask
    else:
        kind, make_mask = kinds.LinearAttention, masking.FullMask
    mask = make_mask(problem.length, device=problem.device)
    module = kind(None)  # elu + 1 ignores the query dimension
    lengths = masking.LengthMask(torch.tensor([problem.length], device=problem.device))

    def call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = module(query, key, value, mask, lengths, lengths)
        return out

    return Attention(FAST_TRANSFORMERS, call, _linear_rows(problem), length_first=True)


def _flash_linear(problem: Problem, settings: Settings) -> Attention:
    chunk = peers.load("fla.ops.linear_attn", settings).chunk_linear_attn

    # Its feature maps are modules outside the operator, elu + 1 in the dtype of the inputs.
    def call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor
        out, _ = chunk(F.elu(query) + 1, F.elu(key) + 1, value, scale=1.0, normalize=True)
        return out

    if not problem.causal:
        raise NotMeasured("it is causal only")
    return Attention(FLASH_LINEAR_ATTENTION, call, _linear_rows(problem), length_first=True)


def _linear_rows(problem: Problem) -> oracle.Rows:
    return functools.partial(oracle.linear_rows, is_causal=problem.causal)


def method(
    name: str,
    problem: Problem,
    settings: Settings,
    *,
    backward: bool,
    units: float = 1,
    threads: int | None = None,
) -> Method:
    """Returns the operator as a method.

    Args:
        units: how many of the case's units a call does: 1 call, its positions, its samples.
        threads: of torch, set for each call and set back after it; None leaves them alone.

    Raises:
        NotMeasured: when it belongs to a backend or a peer that is not here.
    """
    note = ""
    if name == FAST_TRANSFORMERS and problem.dtype != torch.float32:
        # It knows no other; its bytes are counted as they are.
        problem, note = dataclasses.replace(problem, dtype=torch.float32), "float32"
    made = method_of(attention(name, problem, settings), problem, backward=backward, units=units)
    check, run, device, peak = made.check, made.run, torch.device(problem.device), None
    assert run is not None  # the operators are timed, they do not measure themselves
    if threads is not None:
        check, run = _on_threads(check, threads), _on_threads(run, threads)
    if device.type == "cuda":
        peak = functools.partial(_peak, device, run)
    return dataclasses.replace(made, check=check, run=run, peak=peak, note=note)


def _peak(device: torch.device, run: Callable[[], object]) -> float:
    return peak_memory(device, run)[1]


def method_of(
    operator: Attention | Lsh, problem: Problem, *, backward: bool, units: float = 1
) -> Method:
    """Returns an operator that is at hand as a method, with inputs of its own."""
    tensors = operator.tensors(problem, backward=backward)
    return Method(
        check=lambda: operator.fault(tensors),
        run=call_on(operator, tensors, torch.ones_like(tensors[-1]) if backward else None),
        units=units,
        operations=problem.operations(backward) if operator.linear else 0,
        traffic=problem.traffic(backward) if operator.linear else 0,
    )


def _on_threads(call: Callable[[], Result], threads: int) -> Callable[[], Result]:
    def called() -> Result:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return call()
        finally:
            torch.set_num_threads(before)

    return called


def call_on(
    operator: Attention | Lsh, tensors: list[torch.Tensor], upstream: torch.Tensor | None = None
) -> Callable[[], object]:
    """Returns the measured call: forward, and backward where the inputs want gradients.

    Args:
        upstream: the gradient of the output, in the operator's layout; without it the call makes
            its own, which then counts as memory of the call.
    """
    if not tensors[0].requires_grad:
        return lambda: operator.call(*tensors)

    def forward_and_backward() -> object:
        out = operator.call(*tensors)
        given = torch.ones_like(out) if upstream is None else upstream
        return torch.autograd.grad(out, tensors, given)

    return forward_and_backward
