"""One call as one value: what goes to a backend, and what comes back.

A call travels whole, from the operator to `Backend.refuses`, to the backend and to native code. An
argument of the operators is a field here; whatever passes calls on need not know it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattn_core.state import LinearAttentionState

GRADIENTS = ("query", "key", "value", "initial_state", "log_decay")
"""Names of the arguments that have a gradient."""


class AttentionCall(NamedTuple):
    """A call of `linear_attention`, its feature map being one that kernels apply.

    Attributes:
        query: (B, H, N, D) if the map is applied inside, else (B, H, N, F).
        key: (B, H_kv, L, D or F), the dtype of query: float32 beside a half-precision value when a
            map that computes in float32 was applied before. H is a multiple of H_kv: query head h
            reads key head h // (H / H_kv).
        value: (B, H_kv, L, M).
        is_causal: query i sees keys up to i.
        feature_map: "elu", "relu" or "identity", applied inside.
        key_lengths: (B,) integers of any device, or None: keys at or past the length do not exist.
        cu_seqlens: (sequences + 1,) integers of any device, or None: B is 1, and sequences lie end
            to end.
        initial_state: what came before, or what the sums are added to; one state a sequence, of
            H_kv heads.
        return_state: the state after the last key is wanted.
        eps: added to the denominator.
        requires_grad: the result will be differentiated.
        attn_mask: (B, L) bool on the device of key, or None: keys where it is False do not exist.
        log_decay: (B, H_kv, L), accumulation dtype, at most 0, or None; causal only. The state
            shrinks by exp(log_decay) before a key is added, unless the key does not exist.
        normalize: False leaves the numerator as it is; eps is 0 then.
        return_normalizer: the normalizer is wanted, and may have a gradient.
        wanted_gradients: of `GRADIENTS`, those that the backward pass is asked for; the forward
            pass does not know yet, and has all. A backend may compute more.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    is_causal: bool = False
    feature_map: str = "elu"
    key_lengths: Tensor | None = None
    cu_seqlens: Tensor | None = None
    initial_state: LinearAttentionState | None = None
    return_state: bool = False
    eps: float = 1e-6
    requires_grad: bool = False
    attn_mask: Tensor | None = None
    log_decay: Tensor | None = None
    normalize: bool = True
    return_normalizer: bool = False
    wanted_gradients: tuple[str, ...] = GRADIENTS

    def arguments(self) -> dict[str, Any]:
        """Those of `linear_attention`, by name, without what is meant for backends alone."""
        fields = self._asdict()
        del fields["requires_grad"], fields["wanted_gradients"]
        return fields

    @property
    def batch(self) -> int:
        """B."""
        return self.query.shape[0]

    @property
    def heads(self) -> int:
        """H."""
        return self.query.shape[1]

    @property
    def kv_heads(self) -> int:
        """H_kv, heads of keys, values and states."""
        return self.key.shape[1]

    @property
    def groups(self) -> int:
        """H / H_kv, query heads that read one key/value head."""
        return self.query.shape[1] // (self.key.shape[1] or 1) or 1

    @property
    def query_length(self) -> int:
        """N."""
        return self.query.shape[2]

    @property
    def key_length(self) -> int:
        """L."""
        return self.key.shape[2]

    @property
    def feature_dim(self) -> int:
        """F; D where the map is applied inside, which does not change it."""
        return self.query.shape[3]

    @property
    def value_dim(self) -> int:
        """M."""
        return self.value.shape[3]

    @property
    def num_sequences(self) -> int:
        """Sequences, of which each has a state: B, or as many as are packed."""
        return self.query.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    @property
    def query_dtype(self) -> torch.dtype:
        """Of queries and keys."""
        return self.query.dtype

    @property
    def value_dtype(self) -> torch.dtype:
        """Of values and output."""
        return self.value.dtype

    @property
    def device(self) -> torch.device:
        """Of query, key, value and states."""
        return self.query.device


class StepCall(NamedTuple):
    """A call of `linear_attention_step`, its feature map being one that kernels apply.

    Attributes:
        query: (B, H, D) if the map is applied inside, else (B, H, F).
        key: (B, H_kv, D or F).
        value: (B, H_kv, M).
        state: what came before; a backend updates it in place.
        feature_map, eps, requires_grad, normalize: as in `AttentionCall`.
        state_indices: (B,) integers on the device of the state, or None: row b works on the state's
            slot state_indices[b]; -1 is an empty row, whose output is 0.
        log_decay: (B, H_kv), accumulation dtype, at most 0, or None.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    state: LinearAttentionState
    feature_map: str = "elu"
    eps: float = 1e-6
    requires_grad: bool = False
    state_indices: Tensor | None = None
    log_decay: Tensor | None = None
    normalize: bool = True

    @property
    def batch(self) -> int:
        """B."""
        return self.query.shape[0]

    @property
    def heads(self) -> int:
        """H."""
        return self.query.shape[1]

    @property
    def kv_heads(self) -> int:
        """H_kv, heads of key, value and state."""
        return self.key.shape[1]

    @property
    def groups(self) -> int:
        """H / H_kv, query heads that read one key/value head."""
        return self.query.shape[1] // (self.key.shape[1] or 1) or 1

    @property
    def feature_dim(self) -> int:
        """F; D where the map is applied inside, which does not change it."""
        return self.query.shape[2]

    @property
    def value_dim(self) -> int:
        """M."""
        return self.value.shape[2]

    @property
    def query_dtype(self) -> torch.dtype:
        """Of queries and keys."""
        return self.query.dtype

    @property
    def value_dtype(self) -> torch.dtype:
        """Of values and output."""
        return self.value.dtype

    @property
    def device(self) -> torch.device:
        """Of all tensors."""
        return self.query.device


class Output(NamedTuple):
    """What a backend's `attention` returns, and its `attention_backward` reads.

    Attributes:
        out: (B, H, N, M), contiguous, dtype of value.
        normalizer: (B, H, N), contiguous: phi(q) . z + eps, accumulation dtype; may be empty
            where the call requires no gradient.
        state: causal: the state after the last key, None unless it was wanted; for the backward
            pass always None. Not causal: the sums over the keys, the initial state among them.
    """

    out: Tensor
    normalizer: Tensor
    state: LinearAttentionState | None


class Gradients(NamedTuple):
    """What a backend's `attention_backward` returns: gradients by the names of `AttentionCall`.

    Those that are not wanted may be None.

    Attributes:
        query, key, value: contiguous, the dtypes of what they are gradients of.
        initial_state, log_decay: None where the call has none.
    """

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    initial_state: LinearAttentionState | None
    log_decay: Tensor | None = None
