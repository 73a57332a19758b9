"""What backends in native code share: calls turned into addresses, sizes and enumerators.

Native code links no torch: it gets the addresses of tensors that torch has allocated. A native
module takes a call as a dict from which it fills a struct, field by field. It exports the
enumerations `Dtype`, with torch's names, and `FeatureMap`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattn_core.calls import GRADIENTS, AttentionCall, Gradients, Output, StepCall
from linattn_core.errors import expected
from linattn_core.state import SUMS, LinearAttentionState
from linattn_core.values import is_held

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
        """The fields of both passes; `make_readable` gave the call, which lives until then."""
        query, key, value = call.query, call.key, call.value
        batch, heads, queries, dim = query.shape
        lengths, bounds, mask = call.key_lengths, call.cu_seqlens, call.attn_mask
        # Written out, as calls of functions take a large part of the host's time of a short call.
        return {
            "query": (query.data_ptr(), *query.stride()),
            "key": (key.data_ptr(), *key.stride()),
            "value": (value.data_ptr(), *value.stride()),
            "batch": batch,
            "heads": heads,
            "kv_heads": key.shape[1],
            "queries": queries,
            "keys": key.shape[2],
            "dim": dim,
            "value_dim": value.shape[3],
            "sequences": batch if bounds is None else bounds.shape[0] - 1,
            "key_lengths": 0 if lengths is None else lengths.data_ptr(),
            "cu_seqlens": 0 if bounds is None else bounds.data_ptr(),
            "query_dtype": self.dtypes[query.dtype],
            "value_dtype": self.dtypes[value.dtype],
            "map": self.feature_maps[call.feature_map],
            "eps": call.eps,
            "normalize": call.normalize,
            "causal": call.is_causal,
            "mask": 0 if mask is None else mask.data_ptr(),
        }

    def forward(self, call: AttentionCall, output: Output) -> dict[str, Any]:
        """The fields of a forward pass that writes `output`."""
        fields = self.attention(call)
        fields["initial"] = (0, 0) if call.initial_state is None else addresses(call.initial_state)
        fields["last"] = (0, 0) if output.state is None else addresses(output.state)
        fields["out"] = output.out.data_ptr()
        fields["normalizer"] = output.normalizer.data_ptr()
        return fields

    def backward(self, upstream: Upstream, gradients: Gradients) -> dict[str, Any]:
        """The fields of a backward pass that writes `gradients`."""
        call, output, grad_out, grad_state, grad_normalizer = upstream
        fields = self.attention(call)
        fields["grad_out"] = address_and_strides(grad_out)
        fields["grad_normalizer"] = address(grad_normalizer)
        fields["grad_last"] = addresses(grad_state)
        fields["state"] = addresses(call.initial_state if call.is_causal else output.state)
        fields["out"] = output.out.data_ptr()
        fields["normalizer"] = output.normalizer.data_ptr()
        fields["grad_query"] = address(gradients.query)
        fields["grad_key"] = address(gradients.key)
        fields["grad_value"] = address(gradients.value)
        fields["grad_initial"] = addresses(gradients.initial_state)
        return fields

    def step(self, call: StepCall) -> dict[str, Any]:
        """The fields of a step; `call` must live until it ends."""
        query, key, value, (s, z) = call[:4]
        check_memory(STEP_TENSORS, (query, key, value, s, z))
        batch, heads, dim = query.shape
        (q0, q1, q2), (k0, k1, k2), (v0, v1, v2) = query.stride(), key.stride(), value.stride()
        z0, z1, z2 = z.stride()
        # Written out, as in `attention`. The stride of positions of one position is not used.
        return {
            "query": (query.data_ptr(), q0, q1, 0, q2),
            "key": (key.data_ptr(), k0, k1, 0, k2),
            "value": (value.data_ptr(), v0, v1, 0, v2),
            "s": (s.data_ptr(), *s.stride()),
            "z": (z.data_ptr(), z0, z1, 0, z2),
            "batch": batch,
            "heads": heads,
            "kv_heads": key.shape[1],
            "dim": dim,
            "value_dim": value.shape[2],
            "query_dtype": self.dtypes[query.dtype],
            "value_dtype": self.dtypes[value.dtype],
            "map": self.feature_maps[call.feature_map],
            "eps": call.eps,
            "normalize": call.normalize,
        }


_TENSORS = ("query", "key", "value", "attn_mask", "log_decay", "initial_state", "initial_state")
STEP_TENSORS = ("query", "key", "value", "state", "state")


def find_refusal(call: AttentionCall | StepCall, longest: int) -> str | None:
    """Why kernels with sums in float32 cannot run a call, as a sentence; None if they can.

    Args:
        longest: the most positions that they count.
    """
    for dtype in (call.query_dtype, call.value_dtype):
        if dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return (
                f"it has no kernels for {str(dtype).removeprefix('torch.')}, as its sums are kept "
                'in float32; convert the tensors or pass backend="reference".'
            )
    positions = (
        max(call.query.shape[2], call.key.shape[2]) if isinstance(call, AttentionCall) else 0
    )
    if positions <= longest:
        return None
    return (
        f"its kernels count up to {longest:,} positions and the tensors have {positions:,}; pass "
        'backend="reference".'
    )


def check_memory(names: Sequence[str], tensors: Sequence[Tensor | None]) -> None:
    """Refuses a tensor whose storage was freed or shrunk: native code would read other memory."""
    for name, x in zip(names, tensors, strict=False):
        if x is None or (
            x.is_contiguous()
            and x.itemsize * x.storage_offset() + x.nbytes <= x.untyped_storage().nbytes()
        ):
            continue  # `is_held`, written out for most tensors
        if not is_held(x):
            wanted, got = f"memory for the shape {tuple(x.shape)}", "storage that was freed"
            advice = "keep a tensor's storage as it is while the tensor is used"
            raise ValueError(expected(name, wanted, got, advice))


def make_readable(call: AttentionCall) -> AttentionCall:
    """The call as native code reads it: state, lengths, mask and decay contiguous.

    Lengths are int64 on the device of value.

    The returned call holds the copies, so the caller keeps it until native code has read them.
    """
    mask, decay = call.attn_mask, call.log_decay
    tensors = (call.query, call.key, call.value, mask, decay)
    initial = call.initial_state
    check_memory(_TENSORS, tensors if initial is None else (*tensors, *initial))
    if mask is not None:
        call = call._replace(attn_mask=mask.contiguous())
    if decay is not None:
        call = call._replace(log_decay=decay.contiguous())
    if call.initial_state is None and call.key_lengths is None and call.cu_seqlens is None:
        return call
    return call._replace(
        key_lengths=_beside(call.key_lengths, call.value),
        cu_seqlens=_beside(call.cu_seqlens, call.value),
        initial_state=contiguous(call.initial_state),
    )


class Upstream(NamedTuple):
    """What a backward pass reads, as native code reads it; the tensors live as long as this."""

    call: AttentionCall
    output: Output
    grad_out: Tensor
    grad_state: LinearAttentionState | None
    grad_normalizer: Tensor | None

    @classmethod
    def of(
        cls,
        call: AttentionCall,
        output: Output,
        grad_out: Tensor,
        grad_state: LinearAttentionState | None,
        grad_normalizer: Tensor | None,
    ) -> Upstream:
        """The arguments of `Backend.attention_backward`, all but `grad_out` contiguous."""
        out, normalizer, state = output
        if grad_normalizer is not None:
            grad_normalizer = grad_normalizer.contiguous()
        output = Output(out.contiguous(), normalizer.contiguous(), contiguous(state))
        return cls(make_readable(call), output, grad_out, contiguous(grad_state), grad_normalizer)


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


def empty_contiguous(x: Tensor) -> Tensor:
    """An uninitialized contiguous tensor like x."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def new_gradients(
    call: AttentionCall,
    names: Sequence[str] = GRADIENTS,
    empty_like: Callable[[Tensor], Tensor] = empty_contiguous,
) -> Gradients:
    """Uninitialized contiguous gradients of these names, for native code to write; else None."""

    def new(name: str) -> Tensor | None:
        x = getattr(call, name) if name in names else None
        return None if x is None else empty_like(x)

    initial = call.initial_state if "initial_state" in names else None
    if initial is not None:
        initial = LinearAttentionState(torch.empty_like(initial.s), torch.empty_like(initial.z))
    return Gradients(new("query"), new("key"), new("value"), initial, new("log_decay"))


def new_output(call: AttentionCall) -> Output:
    """Uninitialized results for a backend to write; no state where none is wanted."""
    query, value, dtype = call.query, call.value, SUMS[call.value.dtype]
    out = value.new_empty(*query.shape[:3], value.shape[3])
    normalizer = value.new_empty(query.shape[:3], dtype=dtype)
    if call.is_causal and not call.return_state:
        return Output(out, normalizer, None)
    shape = (call.num_sequences, call.kv_heads, call.feature_dim)
    s = value.new_empty(*shape, call.value_dim, dtype=dtype)
    return Output(out, normalizer, LinearAttentionState(s, value.new_empty(shape, dtype=dtype)))


def address_and_strides(x: Tensor) -> Strided:
    """The address and the strides, in elements, of a (B, H, N, D) tensor."""
    batch, head, position, dim = x.stride()
    return x.data_ptr(), batch, head, position, dim


def address(x: Tensor | None) -> int:
    """The address of the first element; 0 (null) for None."""
    return 0 if x is None else x.data_ptr()


def contiguous(state: LinearAttentionState | None) -> LinearAttentionState | None:
    """The state, contiguous; the caller keeps it while native code reads it."""
    if state is None:
        return None
    return LinearAttentionState(state.s.contiguous(), state.z.contiguous())


def addresses(state: LinearAttentionState | None) -> State:
    """The addresses of s and z; 0 (null) for None."""
    return (0, 0) if state is None else (state.s.data_ptr(), state.z.data_ptr())


def mark_written(*tensors: Tensor) -> None:
    """Tells autograd that native code has changed the tensors, as torch's own operations do."""
    for x in tensors:
        if x.is_inference():
            tensors = tuple(x for x in tensors if not x.is_inference())
            break
    if tensors:
        torch.autograd.graph.increment_version(tensors)
