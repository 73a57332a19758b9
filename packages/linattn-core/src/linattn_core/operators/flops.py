"""The operators' work for `torch.utils.flop_counter`, which counts 0 for what it does not know.

What counts is the matrix products of the definition, as for `scaled_dot_product_attention`: S and
what reads it. How a backend cuts a sequence into chunks changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

Shape = Sequence[int]


def _products(query: Shape, key: Shape, value: Shape) -> tuple[int, int]:
    """FLOPs of reading S by all queries, and of adding all keys to it; no length means 1."""
    width = 2 * query[-1] * value[-1]
    reads, sums = width, width
    for size in query[:-1]:
        reads *= size
    for size in key[:-1]:
        sums *= size
    return reads, sums


def _forward(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    return sum(_products(query, key, value))


def _count_backward(first: int) -> Callable[..., int]:
    """The formula of the gradients, where the arguments of the call begin at `first`."""

    def count(*arguments: Any, **_: Any) -> int:
        query, key, value, is_causal = arguments[first : first + 4]
        reads, sums = _products(query, key, value)
        # dQ and dS from the queries, dK and dV from the keys; causal ones compute S again.
        return 2 * reads + (3 if is_causal else 2) * sums

    return count


def register_formulas(first_of_backward: int) -> None:
    """Tells torch's counter; `first_of_backward` arguments come before those of the call."""
    ops = torch.ops.linattn
    forward = [ops.attention, ops.attention_forward, ops.step, ops.step_]
    register_flop_formula(forward)(_forward)
    register_flop_formula(ops.attention_backward)(_count_backward(first_of_backward))
