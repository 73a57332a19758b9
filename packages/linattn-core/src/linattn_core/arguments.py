"""Brings arguments that may have several shapes into the one that an `AttentionCall` holds."""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_core.autocast import autocast_dtype
from linattn_core.calls import AttentionCall, StepCall
from linattn_core.errors import expected, quote
from linattn_core.state import LinearAttentionState, accumulation_dtype


def complete_attention(call: AttentionCall) -> AttentionCall:
    """The call with its mask as (B, L), its decay as (B, H_kv, L), and eps 0 if not normalized.

    Integers on a CPU are copies, so that no other thread changes them after they were checked.
    """
    if call.key_lengths is not None or call.cu_seqlens is not None:
        call = call._replace(
            key_lengths=copy_integers(call.key_lengths), cu_seqlens=copy_integers(call.cu_seqlens)
        )
    if call.attn_mask is not None:
        call = call._replace(attn_mask=_key_mask(call.attn_mask, call))
    if call.log_decay is not None:
        _check_causal_decay(call)
        call = call._replace(log_decay=position_decay(call.log_decay, call))
    return call if call.normalize else call._replace(eps=0.0)


def complete_step(call: StepCall) -> StepCall:
    """The same for a step: its decay as (B, H_kv), its slots on the device of the state."""
    if call.log_decay is not None:
        call = call._replace(log_decay=_step_decay(call.log_decay, call))
    if call.state_indices is not None:
        call = call._replace(state_indices=copy_integers(call.state_indices.to(call.device)))
    return call if call.normalize else call._replace(eps=0.0)


def copy_integers(x: Tensor | None) -> Tensor | None:
    """A copy in int64 of numbers on a CPU, by which native code reads memory; others as they are.

    They may share memory with a NumPy array. Kernels on a GPU ignore numbers out of range.
    """
    if x is None or x.device.type != "cpu":
        return x
    return x.to(torch.int64, copy=True)


def _key_mask(mask: Tensor, call: AttentionCall) -> Tensor:
    """The mask as (B, L), a view where it can be."""
    _check_tensor("attn_mask", mask, call.device)
    if mask.dtype != torch.bool:
        advice = "True takes part; a float mask of 0 and -inf is mask == 0"
        raise TypeError(expected("attn_mask", "torch.bool", mask.dtype, advice))
    batch, length = call.batch, call.key_length
    per_key = mask if mask.dim() == 2 else _without_queries(mask, batch, length)
    # Not `in`, by which Dynamo finds a number unequal to a symbol without asking for its value.
    if any(x != 1 and x != n for x, n in zip(per_key.shape, (batch, length), strict=True)):
        wanted, got = f"(batch, length) = {(batch, length)}", f"shape {tuple(per_key.shape)}"
        raise ValueError(expected("attn_mask", wanted, got, "keys alone may be masked"))
    return per_key.to(call.device).expand(batch, length)


def _without_queries(mask: Tensor, batch: int, length: int) -> Tensor:
    """A mask that broadcasts to (B, 1, 1, L), as (B or 1, L or 1)."""
    shape = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    if len(shape) != 4 or shape[1:3] != (1, 1):
        raise ValueError(
            expected(
                "attn_mask",
                f"(batch, length) or what broadcasts to {(batch, 1, 1, length)}",
                f"shape {tuple(mask.shape)}",
                "a mask that differs between heads or queries needs softmax attention; keys later "
                "than the query are left out by is_causal=True",
            )
        )
    return mask.reshape(shape[0], shape[3])


def _check_causal_decay(call: AttentionCall) -> None:
    if not call.is_causal:
        advice = "without an order of positions nothing decays"
        raise ValueError(expected("log_decay", "is_causal=True", "a non-causal call", advice))


def position_decay(decay: Tensor, call: AttentionCall) -> Tensor:
    """The decay as (B, H_kv, L), in the dtype of the sums."""
    heads, shape = call.kv_heads, (call.batch, call.kv_heads, call.key_length)
    decay = _wide_decay(decay, call.value, (heads,), shape)
    return decay[:, None].expand(shape) if decay.dim() == 1 else decay


def _step_decay(decay: Tensor, call: StepCall) -> Tensor:
    shape = (call.batch, call.kv_heads)
    return _wide_decay(decay, call.value, shape[1:], shape).expand(shape)


def _wide_decay(decay: Tensor, value: Tensor, *shapes: tuple[int, ...]) -> Tensor:
    """The decay in the dtype of the sums; refuses a shape that is not one of `shapes`."""
    _check_tensor("log_decay", decay, value.device)
    if not decay.is_floating_point():
        raise TypeError(expected("log_decay", "floating point", decay.dtype, "convert it"))
    # Shapes of other lengths are not compared: that would compare a batch with a number of heads.
    # Not by `in`, as in `_key_mask`.
    if all(tuple(decay.shape) != x for x in shapes if len(x) == decay.dim()):
        wanted = " or ".join(f"{x}" for x in shapes)
        raise ValueError(expected("log_decay", f"shape {wanted}", f"shape {tuple(decay.shape)}"))
    if decay.device != value.device:
        got = f"a tensor on {decay.device}"
        raise ValueError(expected("log_decay", f"one on {value.device}", got, "move it"))
    return decay.to(accumulation_dtype(value.dtype))


def in_one_dtype(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Under autocast, casts tensors of different dtypes to autocast's dtype.

    Otherwise returns them unchanged, also where one is float64, which autocast does not cast.
    """
    tensors = query, key, value
    if not all(isinstance(x, Tensor) and x.is_floating_point() for x in tensors):
        return tensors
    dtypes, dtype = {x.dtype for x in tensors}, autocast_dtype(query.device.type)
    if dtype is None or len(dtypes) == 1 or torch.float64 in dtypes:
        return tensors
    return query.to(dtype), key.to(dtype), value.to(dtype)


def check_heads(query: Tensor, key: Tensor, value: Tensor, *, enable_gqa: bool) -> None:
    """Checks that keys and values have equal numbers of heads, and queries that or a multiple."""
    heads, kv_heads = query.shape[1], key.shape[1]
    if kv_heads != value.shape[1]:
        got = f"{kv_heads} and {value.shape[1]}"
        raise ValueError(expected("key and value", "the same number of heads", got))
    if heads == kv_heads:
        return
    if not enable_gqa:
        got = f"{heads} and {kv_heads}"
        advice = "pass enable_gqa=True where groups of query heads share a key/value head"
        raise ValueError(expected("query and key", "the same number of heads", got, advice))
    if not heads or not kv_heads or heads % kv_heads:
        wanted = f"query heads in a multiple of the {kv_heads} key/value heads"
        raise ValueError(expected("enable_gqa=True", wanted, heads))


def check_slots(call: StepCall, indices: Tensor, *, inplace: bool) -> None:
    """Checks kind, dtype and shape of `state_indices`; the numbers are checked by the operator."""
    check_integers("state_indices", indices, call.device)
    if tuple(indices.shape) != (call.batch,):
        got = f"shape {tuple(indices.shape)}"
        raise ValueError(expected("state_indices", f"shape {(call.batch,)}, a slot a row", got))
    if not inplace:
        advice = "the states stay in their slots"
        raise ValueError(expected("state_indices", "inplace=True", "inplace=False", advice))


def pack_results(
    out: Tensor, normalizer: Tensor | None, state: LinearAttentionState | None
) -> Tensor | tuple[Tensor | LinearAttentionState, ...]:
    """What the caller gets: the output, then normalizer and state if they were asked for."""
    extras = [x for x in (normalizer, state) if x is not None]
    return (out, *extras) if extras else out


def check_integers(name: str, x: Tensor, device: torch.device) -> None:
    """Refuses what is no tensor of int32 or int64, and one on meta where `device` is another."""
    _check_tensor(name, x, device)
    if x.dtype not in (torch.int32, torch.int64):
        raise TypeError(expected(name, "int32 or int64", x.dtype, "convert it"))


def _check_tensor(what: str, x: object, device: torch.device) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(expected(what, "a torch.Tensor", quote(x)))
    # Not x.is_meta: a fake tensor has a device of its own.
    if x.device.type == "meta" and device.type != "meta":
        got, advice = "one on the meta device", f"make it on {device}"
        raise ValueError(expected(what, "a tensor with numbers", got, advice))
