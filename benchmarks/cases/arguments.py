"""What the operator's arguments cost: a mask, decay and grouped heads, beside a call without."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cases.attention import Call, Operator, require_backend
from benchmarks.cases.methods import call_on
from benchmarks.cases.problem import Problem, passes
from benchmarks.measure import oracle
from benchmarks.measure.cases import Case, Make, Method, Settings, registry
from benchmarks.measure.results import Target
from linattn_core import linear_attention

PLAIN, MASKED = "linear (cpu)", "attn_mask"
FIXED, TRAINED = "log_decay, fixed", "log_decay, trained"
GROUPED, EXPANDED = "enable_gqa", "keys and values repeated"
GROUP = 4  # query heads per key head
MASKED_OUT = 10  # every tenth key: scattered, so that no part of the sequence can be skipped


def method(name: str, asked: Problem, settings: Settings) -> Method:
    """Returns the call of that name as a method of linattn-cpu."""
    require_backend("cpu")
    problem = asked.sized(settings)
    tensors = _tensors(name, problem)
    operator = Operator(_call(name, problem, "cpu"), exact=_call(name, problem, "reference"))
    upstream = torch.ones_like(tensors[0]) if problem.backward else None
    return Method(
        check=partial(fault, operator, tensors),
        run=call_on(operator, tensors, upstream),
        operations=problem.operations,
        traffic=problem.traffic,
    )


def fault(operator: Operator, tensors: list[Tensor]) -> str | None:
    """Compares outputs and gradients with the same call in float64, in plain PyTorch."""
    exact = [x.detach().double().requires_grad_(x.requires_grad) for x in tensors]
    ours = oracle.output_and_gradients(operator.call, tensors)
    wanted = oracle.output_and_gradients(operator.exact, exact)
    return oracle.first_disagreement(("query", "key", "value", "log_decay"), ours, wanted)


def _tensors(name: str, problem: Problem) -> list[Tensor]:
    """Query, key and value, and the decay if it is trained."""
    generator = torch.Generator().manual_seed(0)
    kv_heads = max(1, problem.heads // GROUP) if name in (GROUPED, EXPANDED) else problem.heads
    tensors = [
        torch.randn(problem.batch, heads, problem.length, problem.width, generator=generator)
        for heads in (problem.heads, kv_heads, kv_heads)
    ]
    if name == TRAINED:  # close to 0 at most positions, as when a model begins to train
        tensors.append(F.logsigmoid(torch.randn(tensors[0].shape[:3], generator=generator) + 4))
    return [x.requires_grad_(problem.backward) for x in tensors]


def _call(name: str, problem: Problem, backend: str) -> Call:
    """The call, which takes what `_tensors` returns."""
    arguments: dict[str, Any] = {"enable_gqa": True} if name == GROUPED else {}
    if name == MASKED:
        seen = torch.arange(problem.length) % MASKED_OUT > 0
        arguments["attn_mask"] = seen.expand(problem.batch, -1)
    if name == FIXED:  # RetNet's: 1 - 2^-5, 1 - 2^-6, ...
        arguments["log_decay"] = torch.log1p(-(2.0 ** -torch.arange(5.0, 5 + problem.heads)))

    def attend(query: Tensor, key: Tensor, value: Tensor, *decay: Tensor) -> Tensor:
        if name == EXPANDED:
            groups = query.shape[1] // key.shape[1]
            key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
        named = {**arguments, **dict(zip(("log_decay",), decay, strict=False))}
        return linear_attention(query, key, value, is_causal=True, backend=backend, **named)

    return attend


def _methods(names: tuple[str, ...], problem: Problem, settings: Settings) -> dict[str, Make]:
    return {name: partial(method, name, problem, settings) for name in names}


def _case(problem: Problem, names: tuple[str, ...], decay: float) -> Case:
    bounds = {MASKED: 1.05, FIXED: decay, TRAINED: decay}
    costs = (
        Target(f"{name}: time over a call without", name, PLAIN, at_most=bound)
        for name, bound in bounds.items()
        if name in names
    )
    return Case(
        f"operator/arguments/{problem.slug}",
        f"What arguments cost: causal, {problem.passes}, {problem}, linattn-cpu; {GROUP} query "
        "heads per key head in the last two.",
        setup=partial(_methods, names, problem),
        targets=(*costs, Target.faster(GROUPED, EXPANDED, 1.5)),
        seconds=40,
    )


FORWARD, BOTH = passes(Problem(16_384))
registry.add(
    _case(FORWARD, (PLAIN, MASKED, FIXED, GROUPED, EXPANDED), 1.15),
    _case(BOTH, (PLAIN, MASKED, FIXED, TRAINED, GROUPED, EXPANDED), 1.25),
)
