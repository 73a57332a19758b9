"""What backends in native code share: calls turned into addresses, sizes and enumerators.

Native code links no torch: it gets the addresses of tensors that torch has allocated. A native
module takes a call as a struct with named fields and binds the enumerations `Dtype`, whose names
are torch's, and `FeatureMap`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linattn_core.calls import GRADIENTS, AttentionCall, Gradients, StepCall
from linattn_core.errors import expected
from linattn_core.masked import without_mask
from linattn_core.state import LinearAttentionState

Strided = tuple[int, int, int, int, int]
State = tuple[int, int]


class Fields:
    """The fields of a native module's structs, from the calls of linattn_core.

    Attributes:
        dtypes: enumerators by torch's dtype.
        feature_maps: enumerators by name.
    """

    def __init__(self, module: Any) -> None:
        members = module.Dtype.__members__.items()
        self.dtypes: dict[torch.dtype, Any] = {getattr(torch, name): x for name, x in members}
        self.feature_maps: dict[str, Any] = dict(module.FeatureMap.__members__)

    def attention(self, call: AttentionCall) -> dict[str, Any]:
        """What both passes are told; the call has to be `readable`, and to live meanwhile."""
        query, key, value = call.query, call.key, call.value
        batch, heads, queries, dim = query.shape
        return {
            "query": strided(query),
            "key": strided(key),
            "value": strided(value),
            "batch": batch,
            "heads": heads,
            "queries": queries,
            "keys": key.shape[2],
            "dim": dim,
            "value_dim": value.shape[3],
            "sequences": batch if call.cu_seqlens is None else call.num_sequences,
            "key_lengths": address(call.key_lengths),
            "cu_seqlens": address(call.cu_seqlens),
            "query_dtype": self.dtypes[query.dtype],
            "value_dtype": self.dtypes[value.dtype],
            "map": self.feature_maps[call.feature_map],
            "eps": call.eps,
            "causal": call.is_causal,
        }

    def step(self, call: StepCall) -> dict[str, Any]:
        """What a step is told; the call has to live meanwhile."""
        query, value, (s, z) = call.query, call.value, call.state
        batch, heads, dim = query.shape
        return {
            "query": strided_row(query),
            "key": strided_row(call.key),
            "value": strided_row(value),
            "s": strided(s),
            "z": strided_row(z),
            "batch": batch,
            "heads": heads,
            "dim": dim,
            "value_dim": value.shape[2],
            "query_dtype": self.dtypes[query.dtype],
            "value_dtype": self.dtypes[value.dtype],
            "map": self.feature_maps[call.feature_map],
            "eps": call.eps,
        }


def unsupported(call: AttentionCall | StepCall) -> str | None:
    """Why kernels for the paper's operator refuse a call, as a sentence; None to accept it."""
    extras = _attention_extras if isinstance(call, AttentionCall) else _step_extras
    if call.log_decay is None and call.normalize and call.heads == call.kv_heads:
        reason = extras(call)
    elif call.log_decay is not None:
        reason = "take no log_decay"
    else:
        reason = "cannot run normalize=False" if not call.normalize else "have no grouped heads"
    return reason and f'its kernels {reason}; pass backend="auto" or "reference".'


def _attention_extras(call: Any) -> str | None:
    if call.return_normalizer:
        return "return no normalizer"
    if call.initial_state is not None and not call.is_causal:
        return "take no initial_state in non-causal calls"
    return None


def _step_extras(call: Any) -> str | None:
    return None if call.state_indices is None else "take no state_indices"


def readable(call: AttentionCall, *, masks: bool = False) -> AttentionCall:
    """The call as native code reads it: states contiguous, lengths so too and int64 beside them.

    A mask and a decay are contiguous. Without `masks`, for kernels that read none, a mask is gone:
    masked keys have features and values of zero; `masked.erased` zeroes their gradients.

    What was copied for that lives as long as the returned call, which the caller keeps while native
    code reads.

    Raises:
        ValueError: lengths on the CPU while a CUDA graph is captured.
    """
    mask, decay = call.attn_mask, call.log_decay
    if mask is not None:
        call = call._replace(attn_mask=mask.contiguous()) if masks else without_mask(call)
    if decay is not None:
        call = call._replace(log_decay=decay.contiguous())
    if call.initial_state is None and call.key_lengths is None and call.cu_seqlens is None:
        return call
    return call._replace(
        key_lengths=_beside(call.key_lengths, call.value),
        cu_seqlens=_beside(call.cu_seqlens, call.value),
        initial_state=contiguous(call.initial_state),
    )


def _beside(lengths: Tensor | None, like: Tensor) -> Tensor | None:
    if lengths is None:
        return None
    if like.is_cuda and lengths.is_cpu and torch.cuda.is_current_stream_capturing():
        raise ValueError(
            expected(
                "key_lengths or cu_seqlens",
                "a tensor on the GPU while a CUDA graph is captured",
                "one on the CPU, from where a copy would wait",
                f"move it to {like.device} before",
            )
        )
    return lengths.to(device=like.device, dtype=torch.int64).contiguous()


def new_gradients(call: AttentionCall, names: Sequence[str] = GRADIENTS) -> Gradients:
    """Contiguous gradients of these names for native code to write, None in place of the others."""

    def new(name: str) -> Tensor | None:
        x = getattr(call, name) if name in names else None
        return None if x is None else torch.empty_like(x, memory_format=torch.contiguous_format)

    initial = call.initial_state if "initial_state" in names else None
    if initial is not None:
        initial = LinearAttentionState(torch.empty_like(initial.s), torch.empty_like(initial.z))
    return Gradients(new("query"), new("key"), new("value"), initial, new("log_decay"))


def new_state(call: AttentionCall, dtype: torch.dtype) -> LinearAttentionState | None:
    """The state after the last key, or the sums of a non-causal call, for native code to write.

    None where it is not wanted; memory is not initialized.
    """
    if call.is_causal and not call.return_state:
        return None
    shape = (call.num_sequences, call.kv_heads, call.feature_dim)
    return LinearAttentionState(
        call.value.new_empty(*shape, call.value_dim, dtype=dtype),
        call.value.new_empty(shape, dtype=dtype),
    )


def strided(x: Tensor) -> Strided:
    """Where a (B, H, N, D) tensor lies and how: address, strides in elements."""
    batch, head, position, dim = x.stride()
    return x.data_ptr(), batch, head, position, dim


def strided_row(x: Tensor) -> Strided:
    """The same of a (B, H, D) tensor, whose stride of positions means nothing."""
    batch, head, dim = x.stride()
    return x.data_ptr(), batch, head, 0, dim


def address(x: Tensor | None) -> int:
    """That of the first element, 0 where there is no tensor."""
    return 0 if x is None else x.data_ptr()


def contiguous(state: LinearAttentionState | None) -> LinearAttentionState | None:
    """The same numbers, contiguous; the caller keeps them while native code reads them."""
    if state is None:
        return None
    return LinearAttentionState(state.s.contiguous(), state.z.contiguous())


def addresses(state: LinearAttentionState | None) -> State:
    """Those of s and z, 0 where there is no state."""
    return (0, 0) if state is None else (state.s.data_ptr(), state.z.data_ptr())


def written_in_place(*tensors: Tensor) -> None:
    """Tells autograd, as an operation of its own would, that saved tensors have changed."""
    tracked = [x for x in tensors if not x.is_inference()]
    if tracked:
        torch.autograd.graph.increment_version(tracked)


def check_own_memory(state: LinearAttentionState) -> None:
    """Refuses a state whose elements share memory, which rows would update for one another.

    Raises:
        ValueError: for an expanded tensor.
    """
    for name, x in (("s", state.s), ("z", state.z)):
        if 0 in x.stride() and any(
            stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape, strict=True)
        ):
            raise ValueError(
                expected(
                    f"the state's {name}",
                    "memory of its own for each sequence",
                    f"an expanded tensor with strides {x.stride()}",
                    "make it by .clone()",
                )
            )
