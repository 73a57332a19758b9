"""The operators in plain torch operations, for graphs that other runtimes run (ONNX).

No control flow depends on the numbers in tensors, and sizes may be symbols, so one graph serves any
batch and length. Sums have the dtype that they have in the kernels.
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor
from torch.nn.functional import pad

from linattn_core import pointwise
from linattn_core.calls import AttentionCall, StepCall
from linattn_core.errors import expected
from linattn_core.reference import chunked
from linattn_core.state import LinearAttentionState, accumulation_dtype


def attention(call: AttentionCall) -> tuple[Tensor, LinearAttentionState, Tensor]:
    """Output, state and normalizer with eps, as `linattn::attention` gives them.

    Cost: that of `reference.chunked`; with a decay another O((N / C)^2 F M) time per head.
    """
    if call.cu_seqlens is not None:
        advice = "pass padded sequences with attn_mask or key_lengths"
        raise _refusal("sequences that are not packed", "cu_seqlens", advice)
    longer = _lengthen(call)._replace(return_state=True, return_normalizer=True)
    out, normalizer, state = chunked(**longer.arguments())
    out, normalizer = (x[:, :, : call.query.shape[2]] for x in (out, normalizer))
    return out.to(call.value_dtype), state, normalizer + call.eps


def _lengthen(call: AttentionCall) -> AttentionCall:
    """The call with one more query, and one more key that does not exist.

    torch takes what has a single position in the example for something that always has one.
    """
    dtype, layout = accumulation_dtype(call.value_dtype), torch.contiguous_format
    q, k, v = (x.to(dtype).clone(memory_format=layout) for x in call[:3])
    lengths, mask, decay = call.key_lengths, call.attn_mask, call.log_decay
    if lengths is None:
        lengths = torch.full((k.shape[0],), k.shape[2], device=k.device)
    return call._replace(
        query=pad(q, (0, 0, 0, 1)),
        key=pad(k, (0, 0, 0, 1)),
        value=pad(v, (0, 0, 0, 1)),
        key_lengths=lengths,
        attn_mask=None if mask is None else pad(mask, (0, 1)),
        log_decay=None if decay is None else pad(decay, (0, 1)),
    )


def step(call: StepCall) -> tuple[Tensor, LinearAttentionState]:
    """Output and new state (equations 18 to 20); the state of the call is not changed."""
    query, key, value = (x.to(call.state.s.dtype) for x in call[:3])
    q, k = pointwise.apply(call.feature_map, query), pointwise.apply(call.feature_map, key)
    s, z = call.state
    if call.log_decay is not None:
        decay = call.log_decay.exp()[..., None]  # (B, H_kv, 1)
        s, z = decay[..., None] * s, decay * z
    s, z = s + k[..., None] * value[..., None, :], z + k
    q = q.unflatten(1, (call.kv_heads, call.groups))  # (B, H_kv, G, F)
    out = (q @ s).flatten(1, 2)
    if call.normalize:
        out = out / ((q @ z[..., None]).flatten(1, 2) + call.eps)
    return out.to(call.value_dtype), LinearAttentionState(s, z)


def refuse_in_place() -> NoReturn:
    """Refuses a step in place: an exported graph cannot update a tensor of its caller."""
    raise _refusal("inplace=False", "inplace=True", "feed the returned state back")


def _refusal(wanted: str, got: str, advice: str) -> ValueError:
    return ValueError(expected("torch.onnx.export", wanted, got, advice))
