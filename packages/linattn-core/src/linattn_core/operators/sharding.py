"""DTensor's rules of the operators: a call may be divided by its batch or by its heads.

Each sequence and each head is a call of its own, so that ranks exchange nothing, neither forward
nor backward. Tensors that are divided in another way are redistributed by DTensor before the call.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from itertools import combinations
from math import prod
from typing import Any

import torch

from linattn_core import torch_private
from linattn_core.calls import AttentionCall, StepCall
from linattn_core.operators.attention_backward import BEFORE_CALL
from linattn_core.operators.gradients import GRADIENTS, select_wanted
from linattn_core.operators.library import Flat

_BATCH, _HEADS = 0, 1
_WITHOUT_HEADS = ("key_lengths", "cu_seqlens", "attn_mask")

Call = AttentionCall | StepCall
Placements = list[Any]


# A compiler that traces the call makes this one, too, and goes on with its answer.
@torch_private.constant_in_graphs
def prepare() -> bool:
    """Registers the rules if DTensor is imported, and says whether it is.

    Otherwise no tensor is divided, and the import would take long. `step_` has no rule: of an
    operator whose name ends so, DTensor returns the first argument.
    """
    imported = "torch.distributed.tensor" in sys.modules
    if imported:
        _register()
    return imported


@functools.cache
def _register() -> None:
    ops, attention = torch.ops.linattn, Flat(AttentionCall)
    rules: list[tuple[Any, Flat[Any], Callable[[Any], list[bool]], int]] = [
        (ops.attention_forward, attention, lambda call: _forward_results(call, 3), 0),
        (ops.attention, attention, lambda call: _forward_results(call, 4), 0),
        (ops.attention_backward, attention, _gradients, BEFORE_CALL),
        (ops.step, Flat(StepCall), lambda call: [True] * 3, 0),
    ]
    for operator, flat, results, first in rules:
        rule = functools.partial(_shardings, flat, results, first)
        torch_private.register_sharding(operator.default, rule)


def _forward_results(call: AttentionCall, count: int) -> list[bool]:
    """Which of out, s, z and the normalizer a call computes; others are empty tensors."""
    state = call.return_state or not call.is_causal
    return [True, state, state, True][:count]


def _gradients(call: AttentionCall) -> list[bool]:
    return [x is not None for x in GRADIENTS.pack(select_wanted(call, call))]


def _shardings(
    flat: Flat[Any], results: Callable[[Any], list[bool]], first: int, *arguments: Any
) -> Sequence[tuple[Placements, Placements]]:
    """Placements of results and arguments on one dimension of a mesh, each possible choice.

    Args:
        arguments: those of the operator, with DTensor's specifications in the place of tensors;
            those of the call begin at `first`, and the backend follows them.
    """
    from torch.distributed.tensor import Replicate, Shard

    call: Call = flat.unpack(arguments[first:-1])
    names = (*[""] * first, *flat.names, "backend")

    def place(dim: int | None) -> tuple[Placements, Placements]:
        part = Replicate() if dim is None else Shard(dim)
        inputs: Placements = []
        for name, argument in zip(names, arguments, strict=True):
            whole = dim == _HEADS and name in _WITHOUT_HEADS
            is_tensor = hasattr(argument, "mesh")
            inputs.append((Replicate() if whole else part) if is_tensor else None)
        return [part if computed else Replicate() for computed in results(call)], inputs

    choices = [place(None)]
    if getattr(call, "cu_seqlens", None) is None:
        choices.append(place(_BATCH))
    if _keeps_groups(call):
        choices.append(place(_HEADS))
    return choices


def _keeps_groups(call: Call) -> bool:
    """Whether a rank has the key/value heads of its query heads, however many ranks share them.

    DTensor itself leaves out what would give a rank no head.
    """
    sizes: Sequence[int] = call.query.mesh.shape  # type: ignore[attr-defined]
    ranks = {prod(some) for n in range(len(sizes)) for some in combinations(sizes, n + 1)}
    return call.groups == 1 or all(call.kv_heads % n == 0 or call.kv_heads < n for n in ranks)
