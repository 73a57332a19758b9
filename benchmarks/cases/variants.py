"""Calls of linattn-cpu with arguments, and writing the results of a call alone."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import mmap
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import oracle
from benchmarks.case import Method
from benchmarks.cases.operators import LINEAR_CPU, Call, require_backend
from benchmarks.cases.problem import Problem
from linattn_core import linear_attention

MASKED, FIXED, TRAINED = "attn_mask", "log_decay, fixed", "log_decay, trained"
GROUPED, EXPANDED = "enable_gqa", "keys and values repeated"
IDENTITY = f"{LINEAR_CPU}, identity"
NEW, USED = "results written, new memory", "results written, used memory"
GROUP = 4  # query heads per key head
MASKED_OUT = 10  # every tenth key: scattered, so that no part of the sequence can be skipped
RESULTS = 4  # with the backward pass: the output, and the gradients of queries, keys and values


@dataclasses.dataclass(frozen=True)
class Variant:
    """How a call differs from the plain one.

    Args:
        arguments: of the call, by the problem.
        group: query heads per key head.
        repeat: keys and values are repeated before the call.
        decays: the decay is trained, a tensor beside query, key and value.
        positive: no input is negative, so that the identity has no sum close to 0.
    """

    arguments: Callable[[Problem], dict[str, Any]] = lambda problem: {}
    group: int = 1
    repeat: bool = False
    decays: bool = False
    positive: bool = False

    def tensors(self, problem: Problem) -> list[Tensor]:
        """Query, key and value, and the decay if it is trained."""
        generator = torch.Generator().manual_seed(0)
        draw = torch.rand if self.positive else torch.randn
        kv_heads = max(1, problem.heads // self.group)
        tensors = [
            draw(problem.batch, heads, problem.length, problem.width, generator=generator)
            for heads in (problem.heads, kv_heads, kv_heads)
        ]
        if self.decays:  # close to 0 at most positions, as when a model begins to train
            drawn = torch.randn(problem.shape[:3], generator=generator)
            tensors.append(F.logsigmoid(drawn + 4))
        return [x.requires_grad_(problem.backward) for x in tensors]

    def call(self, problem: Problem, backend: str) -> Call:
        """The call, which takes the tensors."""
        arguments = self.arguments(problem)

        def attend(query: Tensor, key: Tensor, value: Tensor, *decay: Tensor) -> Tensor:
            if self.repeat:
                groups = query.shape[1] // key.shape[1]
                key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
            own = {**arguments, "log_decay": decay[0]} if decay else arguments
            output: Tensor = linear_attention(
                query, key, value, is_causal=problem.causal, backend=backend, **own
            )
            return output

        return attend


def _mask(problem: Problem) -> dict[str, Any]:
    seen = torch.arange(problem.length) % MASKED_OUT > 0
    return {"attn_mask": seen.expand(problem.batch, -1)}


def _decay(problem: Problem) -> dict[str, Any]:
    """RetNet's: 1 - 2^-5, 1 - 2^-6, ..."""
    return {"log_decay": torch.log1p(-(2.0 ** -torch.arange(5.0, 5 + problem.heads)))}


VARIANTS = {
    MASKED: Variant(_mask),
    FIXED: Variant(_decay),
    TRAINED: Variant(decays=True),
    GROUPED: Variant(lambda problem: {"enable_gqa": True}, group=GROUP),
    EXPANDED: Variant(group=GROUP, repeat=True),
    IDENTITY: Variant(lambda problem: {"feature_map": "identity"}, positive=True),
}


def variant_method(variant: Variant, problem: Problem) -> Method:
    """Returns the call of linattn-cpu, which is compared with the reference in float64."""
    require_backend("cpu")
    tensors, call = variant.tensors(problem), variant.call(problem, "cpu")
    upstream = torch.ones(problem.shape) if problem.backward else None
    return Method(
        check=partial(variant_fault, call, variant.call(problem, "reference"), tensors),
        run=call_on(call, tensors, upstream),
        operations=problem.operations,
        traffic=problem.traffic,
    )


def variant_fault(call: Call, exact: Call, tensors: list[Tensor]) -> str | None:
    """Compares outputs and gradients with the same call in float64, in plain PyTorch."""
    doubles = [x.detach().double().requires_grad_(x.requires_grad) for x in tensors]
    ours = oracle.output_and_gradients(call, tensors)
    wanted = oracle.output_and_gradients(exact, doubles)
    return oracle.find_first_disagreement(("query", "key", "value", "log_decay"), ours, wanted)


def call_on(
    call: Call, tensors: list[Tensor], upstream: Tensor | None = None
) -> Callable[[], object]:
    """Returns the measured call: forward, and backward where the inputs want gradients.

    Args:
        upstream: the gradient of the output, in the call's layout; without it the call makes
            its own, which then counts as memory of the call.
    """
    if not tensors[0].requires_grad:
        return lambda: call(*tensors)

    def forward_and_backward() -> object:
        out = call(*tensors)
        gradient = torch.ones_like(out) if upstream is None else upstream
        return torch.autograd.grad(out, tensors, gradient)

    return forward_and_backward


def writing_method(name: str, problem: Problem) -> Method:
    """Returns the writing of every number of the outputs and the gradients, and nothing else."""
    count = RESULTS if problem.backward else 1
    used = [torch.zeros(problem.shape) for _ in range(count)] if name == USED else []

    def write() -> list[Tensor]:
        """Tensors of ones."""
        return [x.fill_(1) for x in used or [new_memory(problem.shape) for _ in range(count)]]

    def check() -> str | None:
        right = all(bool(x.eq(1).all()) for x in write())
        return None if right else "a number is not written"

    return Method(check=check, run=write, traffic=count * problem.numbers * problem.dtype.itemsize)


def new_memory(shape: tuple[int, ...]) -> Tensor:
    """Returns memory of the system, in huge pages where it has them, as linattn-cpu asks for."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape)
    size = math.prod(shape) * torch.float32.itemsize
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.float32).view(shape)
