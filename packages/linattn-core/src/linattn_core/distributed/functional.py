"""Linear attention over one sequence of which each rank holds a part."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from linattn_core import choice
from linattn_core.calls import AttentionCall
from linattn_core.checks import kernel_feature_map, pack_results, prepare_attention
from linattn_core.distributed import agreement
from linattn_core.distributed.operator import context_parallel
from linattn_core.errors import expected
from linattn_core.feature_maps.base import FeatureMap
from linattn_core.state import LinearAttentionState


def context_parallel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mesh: DeviceMesh,
    is_causal: bool = False,
    feature_map: str | FeatureMap = "elu",
    attn_mask: Tensor | None = None,
    key_lengths: Tensor | None = None,
    initial_state: LinearAttentionState | None = None,
    return_state: bool = False,
    log_decay: Tensor | None = None,
    enable_gqa: bool = False,
    normalize: bool = True,
    return_normalizer: bool = False,
    eps: float = 1e-6,
    backend: str = "auto",
) -> Tensor | tuple[Tensor | LinearAttentionState, ...]:
    """`linear_attention` over one sequence of which each rank of `mesh` holds a part of the length.

    Rank 0 holds the first positions, rank 1 the next, and so on; parts may differ in length and may
    be empty. Every rank makes the call, and later runs the backward pass, whatever its loss is.

    Args:
        query: (B, H, N_r, D), the positions of this rank.
        key: (B, H, L_r, D), or (B, H_kv, L_r, D) with `enable_gqa`.
        value: (B, H, L_r, M) or (B, H_kv, L_r, M).
        mesh: one dimension, whose ranks hold the parts in order.
        attn_mask: of this rank's keys, (B, L_r) or broadcastable to (B, 1, 1, L_r).
        log_decay: (H_kv,), or (B, H_kv, L_r) for this rank's positions.
        key_lengths: (B,), lengths in the whole sequence, the same on every rank.
        initial_state: the same on every rank; the first rank reads it and gets its gradient, which
            is 0 on the others.
        return_state: also return the state after the last key of the whole sequence, on every rank.
            The upstream gradients of all ranks are added.
        is_causal, feature_map, enable_gqa, normalize, return_normalizer, eps, backend: as for
            `linear_attention`, the same on every rank.

    Returns:
        As `linear_attention`: out (B, H, N_r, M) and the normalizer (B, H, N_r) of this rank's
        positions, and the state of the whole sequences.

    Raises:
        ValueError, TypeError: as `linear_attention`, and where ranks differ in what has to be the
            same; the same error on every rank. An error of another type is a RuntimeError on every
            rank. On a group without a CPU backend, ranks compare their first call only.

    Cost per rank: that of `linear_attention` on its part, the sums over its keys once more (in the
    backward pass: over its queries), and the traffic of two states, whatever the length and the
    number of ranks.
    """
    if backend == "auto":
        backend = choice.current
    check_mesh("mesh", mesh)
    call = AttentionCall(
        query, key, value, is_causal, kernel_feature_map(feature_map), key_lengths, None,
        initial_state, return_state, eps, False, attn_mask, log_decay, normalize,
        return_normalizer,
    )  # fmt: skip
    if torch.compiler.is_compiling():
        call = prepare_attention(call, feature_map, backend, enable_gqa)
    else:
        try:
            call = prepare_attention(call, feature_map, backend, enable_gqa)
        except Exception as error:  # noqa: BLE001 - or the other ranks would wait
            agreement.fail(mesh.get_group(), error, torch.device(mesh.device_type))
    group: dist.ProcessGroup = mesh.get_group()
    out, state, normalizer = context_parallel(call, backend, group.group_name)
    return pack_results(
        out, normalizer - call.eps if return_normalizer else None, state if return_state else None
    )


def check_mesh(name: str, mesh: DeviceMesh) -> None:
    """Refuses what is no mesh, and a mesh of several dimensions."""
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(expected(name, "a DeviceMesh", f"a {type(mesh).__name__}"))
    if mesh.ndim != 1:
        advice = 'pass one of its dimensions, such as mesh["context"]'
        raise ValueError(expected(name, "one dimension", mesh.ndim, advice))
