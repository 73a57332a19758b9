"""From torch to the kernels: refusals in sentences, tensors turned into addresses and back.

What differs between a GPU and the emulation of one, on which the tests run, is left to subclasses.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall, Gradients, Output, StepCall
from linattn_core.native import (
    Fields,
    Upstream,
    address,
    find_refusal,
    make_readable,
    mark_written,
    new_gradients,
    new_output,
)
from linattn_core.state import LinearAttentionState
from linattn_cuda import _native
from linattn_cuda.device import OLDEST_CAPABILITY, Gpu

LONGEST = 2**31 - 1


# Plans that a backend keeps: lengths may differ from call to call.
_MOST_PLANS = 4_096


class _Plan(NamedTuple):
    """How a call is launched.

    Attributes:
        segments: pieces that each sequence is cut into.
        whole: rows of the batch, or of one row key heads, that are not cut.
        workspace: bytes of memory for it.
    """

    segments: int
    whole: int
    workspace: int


class KernelBackend(ABC):
    """Runs calls by the kernels of one build; its promises are those of `protocols.Backend`.

    All memory is torch's, and nothing waits: a call can be captured in a CUDA graph.

    Attributes:
        native: the compiled module.
        segments: pieces that each sequence is cut into, a block of threads for each; None leaves
            that to the shape of each call.
    """

    name: str
    speed: int
    double_backward = True
    native: Any = _native
    segments: int | None = None

    @functools.cached_property
    def _fields(self) -> Fields:
        return Fields(self.native)

    @functools.cached_property
    def _answers(self) -> dict[tuple[Any, ...], str | None]:
        """What `refuses` answered, by all that it depends on."""
        return {}

    @functools.cached_property
    def _refused(self) -> dict[torch.device, str]:
        """Why calls on a device are refused, whatever they are."""
        return {}

    @functools.cached_property
    def _plans(self) -> dict[tuple[Any, ...], _Plan]:
        """How calls are launched, by all that it depends on."""
        return {}

    def unusable(self) -> str | None:
        """None where kernels run on this machine, or the reason as a sentence."""
        return None

    @abstractmethod
    def refuses_device(self, device: torch.device) -> str | None:
        """None if kernels run on such tensors, or the reason as a sentence."""

    @abstractmethod
    def gpu(self, device: torch.device) -> Gpu:
        """What the device offers, once it was not refused."""

    @abstractmethod
    def launching(self, device: torch.device) -> AbstractContextManager[int]:
        """Makes the device the current one, and gives the stream that kernels go to."""

    def refuses(self, call: AttentionCall | StepCall) -> str | None:
        """Memory off the GPU, `log_decay`, float64, old GPUs, heads too wide, 2^31 positions."""
        query, value = call.query, call.value
        if query.device in self._refused:
            return self._refused[query.device]
        longest = max(query.shape[2], call.key.shape[2]) if isinstance(call, AttentionCall) else 0
        key = (
            type(call), query.device, query.dtype, value.dtype, query.shape[-1], value.shape[-1],
            call.log_decay is None, longest if longest > LONGEST else 0,
            self._precision() if torch.float32 in (query.dtype, value.dtype) else None,
        )  # fmt: skip
        if key not in self._answers:
            self._answers[key] = self._find_refusal(call)
        return self._answers[key]

    def _find_refusal(self, call: AttentionCall | StepCall) -> str | None:
        reason = self.refuses_device(call.device)
        if reason is not None:
            self._refused[call.device] = reason
            return reason
        if call.log_decay is not None:
            return 'its kernels take no log_decay; pass backend="auto" or "reference".'
        gpu = self.gpu(call.device)
        if gpu.capability < OLDEST_CAPABILITY:
            return (
                "its kernels need compute capability {}.{} and {} has {}.{}; pass "
                'backend="reference".'
            ).format(*OLDEST_CAPABILITY, gpu.name, *gpu.capability)
        return find_refusal(call, LONGEST) or self._refuses_width(call, gpu)

    def _refuses_width(self, call: AttentionCall | StepCall, gpu: Gpu) -> str | None:
        if isinstance(call, StepCall):
            needed = self.native.step_shared_bytes(call.feature_dim)
        else:
            dtypes = self._fields.dtypes
            needed = self.native.shared_bytes(
                *(min(x, LONGEST) for x in (call.feature_dim, call.value_dim)),
                dtypes[call.query_dtype], dtypes[call.value_dtype], self._precision(),
            )  # fmt: skip
        if 0 <= needed <= gpu.shared_bytes:
            return None
        width = f"features of {call.feature_dim:,} and values of {call.value_dim:,}"
        if needed < 0:
            return f'it has no kernel for {width}; pass backend="reference".'
        return (
            f"its kernels for {width} in {str(call.query_dtype).removeprefix('torch.')} need "
            f"{needed:,} bytes of shared memory a block and {gpu.name} offers "
            f'{gpu.shared_bytes:,}; pass backend="reference".'
        )

    def attention(self, call: AttentionCall) -> Output:
        call = make_readable(call)
        output = new_output(call)
        with self.launching(call.device) as stream:
            fields = self._complete(self._fields.forward(call, output), call)
            workspace = self._add_plan(call, fields, derivatives=False)
            fields["workspace"] = 0 if workspace is None else workspace.data_ptr()
            fields["stream"] = stream
            self.native.attention_forward(fields)
        return output

    def attention_backward(
        self,
        call: AttentionCall,
        output: Output,
        grad_out: Tensor,
        grad_state: LinearAttentionState | None,
        grad_normalizer: Tensor | None = None,
    ) -> Gradients:
        upstream = Upstream.of(call, output, grad_out, grad_state, grad_normalizer)
        call = upstream.call
        gradients = _of_query_heads(new_gradients(call, call.wanted_gradients), call)
        with self.launching(call.device) as stream:
            fields = self._complete(self._fields.backward(upstream, gradients), call)
            workspace = self._add_plan(call, fields, derivatives=True)
            fields["workspace"] = 0 if workspace is None else workspace.data_ptr()
            fields["stream"] = stream
            self.native.attention_backward(fields)
        return _of_key_heads(gradients, call)

    def step(self, call: StepCall) -> Tensor:
        out = call.value.new_empty(call.batch, call.heads, call.value_dim)
        # Named, because the kernel is handed its address and it may be a copy.
        indices = call.state_indices
        indices = None if indices is None else indices.to(torch.int64).contiguous()
        fields = self._fields.step(call)
        fields["state_indices"] = address(indices)
        fields["slots"] = call.state.z.shape[0]
        fields["out"] = out.data_ptr()
        with self.launching(call.device) as stream:
            fields["stream"] = stream
            self.native.step(fields)
        mark_written(*call.state)
        return out

    def _complete(self, fields: dict[str, Any], call: AttentionCall) -> dict[str, Any]:
        """The fields with those that these kernels alone read."""
        full = torch.float32 in (call.query.dtype, call.value.dtype)
        fields["precision"] = self._precision() if full else self.native.Precision.highest
        return fields

    def _add_plan(
        self, call: AttentionCall, fields: dict[str, Any], *, derivatives: bool
    ) -> Tensor | None:
        """Adds the segments, and returns the workspace.

        Native code reads the fields for a plan only where none is kept for calls of these sizes.
        """
        query, value = call.query, call.value
        # Where rows begin, a mask, and what is wanted decide which kernels run.
        q, k, v = fields["query"], fields["key"], fields["value"]
        wanted = None
        if derivatives:
            g = fields["grad_out"]
            wanted = (
                g[1:], g[0] % 16, *map(bool, fields["grad_initial"]), bool(fields["grad_query"]),
                bool(fields["grad_key"]), bool(fields["grad_value"]),
            )  # fmt: skip
        key = (
            query.shape, call.key.shape[1:3], value.shape[3], query.dtype, value.dtype,
            query.device, call.is_causal, fields["sequences"], fields["precision"], self.segments,
            q[1:], k[1:], v[1:], (q[0] | k[0] | v[0]) % 16, bool(fields["mask"]),
            bool(fields["cu_seqlens"]), wanted,
        )  # fmt: skip
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._make_plan(call, fields, derivatives)
        fields["segments"], fields["whole"], nbytes = plan
        return value.new_empty(nbytes, dtype=torch.uint8) if nbytes else None

    def _make_plan(self, call: AttentionCall, fields: dict[str, Any], derivatives: bool) -> _Plan:
        make = self.native.plan_backward if derivatives else self.native.plan_forward
        return _Plan(*make(fields, self.segments or 0, self.gpu(call.device).multiprocessors))

    def _precision(self) -> Any:
        """How products of float32 numbers are computed, as torch's own on CUDA are told to.

        By default they keep float32's accuracy. Where TF32 is allowed, by
        `torch.backends.cuda.matmul.fp32_precision = "tf32"` or any of the older switches
        (`torch.set_float32_matmul_precision`, `allow_tf32`), they keep 16 bits of each number. It
        is read at every call.
        """
        # The older switches' own getters raise once somebody has used this one.
        allowed = torch.backends.cuda.matmul.fp32_precision == "tf32"
        return self.native.Precision.high if allowed else self.native.Precision.highest


def _of_query_heads(gradients: Gradients, call: AttentionCall) -> Gradients:
    """Memory for what each query head adds to the gradients of keys, values and initial state."""
    return _map_shared(gradients, call, lambda x: x.new_empty(x.shape[0], call.heads, *x.shape[2:]))


def _of_key_heads(gradients: Gradients, call: AttentionCall) -> Gradients:
    """The sums over each group of query heads; torch adds half-precision numbers in float32."""
    return _map_shared(gradients, call, lambda x: x.unflatten(1, (call.kv_heads, -1)).sum(2))


def _map_shared(
    gradients: Gradients, call: AttentionCall, change: Callable[[Tensor], Tensor]
) -> Gradients:
    """The gradients of what a group of query heads reads, each of them changed."""
    if call.groups == 1:
        return gradients
    _, key, value, initial, _ = gradients
    return gradients._replace(
        key=None if key is None else change(key),
        value=None if value is None else change(value),
        initial_state=None if initial is None else LinearAttentionState(*map(change, initial)),
    )
