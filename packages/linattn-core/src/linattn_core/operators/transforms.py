"""The operators under the transforms of torch.func: grad, vjp, vmap and their combinations.

These transforms do not support gradients that are registered by `torch.library`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_core.operators.library import full_precision


def make_transformable(
    kernel: Callable[..., Any],
    context: Callable[..., None],
    backward: Callable[..., Any],
    *,
    packed: int | None = None,
) -> Callable[..., Any]:
    """The operator as a function that transforms can take; the batch of its tensors comes first.

    Args:
        kernel: computes the results from tensors that no transform wraps.
        context, backward: as for `torch.library.register_autograd`; `backward` may call what this
            function returns.
        packed: the index of the argument `cu_seqlens`, which vmap cannot map because packed
            sequences have batch size 1.
    """

    def rule(info: Any, in_dims: Sequence[int | None], *arguments: Any) -> tuple[Any, Any]:
        _check_whole(arguments, packed)
        size = info.batch_size
        whole = [_merge_dims(*pair, size) for pair in zip(arguments, in_dims, strict=True)]
        results = apply(*whole)
        batch = _batch(arguments[0], in_dims[0])
        return tuple(_split_dims(x, size, batch) for x in results), (0,) * len(results)

    methods = {
        "forward": full_precision(kernel), "setup_context": context, "backward": backward,
        "vmap": rule, "jvp": refuse_forward_mode,
    }  # fmt: skip
    members = {name: staticmethod(method) for name, method in methods.items()}
    made = cast(Any, type("Transformable", (torch.autograd.Function,), members))
    apply: Callable[..., Any] = made.apply
    return apply


def refuse_second_derivatives(ctx: Any, *_: Tensor) -> tuple[Tensor, ...]:
    """Refuses second derivatives: torch.func gets first ones only."""
    raise NotImplementedError(
        expected(
            "linear attention under torch.func",
            "first derivatives",
            "a second one",
            "differentiate linattn_core.reference.chunked, or use torch.autograd.grad",
        )
    )


def refuse_forward_mode(*_: Any) -> NoReturn:
    """Refuses the forward-mode derivative of an operator."""
    raise NotImplementedError(
        expected(
            "linear attention",
            "derivatives in reverse mode only",
            "a forward-mode one (a jvp)",
            "differentiate linattn_core.reference.chunked, or use torch.autograd.grad",
        )
    )


def refuse_in_place() -> NoReturn:
    """Refuses a step in place under vmap, which has no tensor of all mapped states to update."""
    wanted, advice = "a step that returns its state", "pass inplace=False"
    raise ValueError(expected("vmap", wanted, "inplace=True", advice))


def _check_whole(arguments: Sequence[Any], packed: int | None) -> None:
    if packed is not None and arguments[packed] is not None:
        advice = "pack the mapped sequences too, or call it in a loop"
        raise ValueError(expected("vmap", "sequences that are not packed", "cu_seqlens", advice))


def _merge_dims(x: Any, dim: int | None, size: int) -> Any:
    """(V, B, ...) -> (V * B, ...); a tensor that is not mapped is first expanded to V."""
    if not isinstance(x, Tensor):
        return x
    mapped = x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
    return mapped.flatten(0, 1)


def _batch(x: Tensor, dim: int | None) -> int:
    """B of a tensor (B, ...), or of one that is mapped over `dim`."""
    return x.shape[0 if dim is None or dim % x.dim() > 0 else 1]


def _split_dims(x: Tensor, size: int, batch: int) -> Tensor:
    """The inverse of `_merge_dims`; an empty 1-D tensor, which stands for None, stays empty."""
    if x.dim() == 1:
        return x.new_empty(size, 0)
    split: Tensor = x.unflatten(0, (size, batch))
    return split
