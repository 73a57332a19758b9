"""One call as one value: what goes to a backend, and what comes back.

The same record goes from the operator to `Backend.refuses`, to the backend and to native code. Each
argument of the operators is a field; code that only passes a call on does not list the fields.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattn_core.state import LinearAttentionState

GRADIENTS = ("query", "key", "value", "initial_state", "log_decay")
"""Names of the arguments that have a gradient."""


class AttentionCall(NamedTuple):
    """A call of `linear_attention`. Any other feature map than a pointwise one is applied already.

    Attributes:
        query: (B, H, N, D) if the kernels apply the feature map, else phi(Q), (B, H, N, F).
        key: (B, H_kv, L, D or F), the dtype of query. Both are float32 beside a half-precision
            value where a feature map that computes in float32 was applied before. H is a multiple
            of H_kv: query head h reads key head h // (H / H_kv).
        value: (B, H_kv, L, M).
        is_causal: query i sees keys 0 to i.
        feature_map: "elu", "relu" or "identity", the map that the kernels apply.
        key_lengths: (B,) integers on any device; keys at or past the length do not exist. None: all
            keys exist.
        cu_seqlens: (sequences + 1,) integers on any device; B is 1, and sequences are packed end to
            end. None: the sequences are the rows of the batch.
        initial_state: causal: the state before the first key. Not causal: what the sums are added
            to. One state per sequence, of H_kv heads.
        return_state: whether the state after the last key is wanted.
        eps: added to the denominator.
        requires_grad: whether the result will be differentiated.
        attn_mask: (B, L) bool on the device of key; keys where it is False do not exist. None: no
            mask.
        log_decay: (B, H_kv, L), accumulation dtype, at most 0; causal only. The state is multiplied
            by exp(log_decay) before a key is added, unless the key does not exist. None: no decay.
        normalize: False returns the numerator alone; eps is 0 then.
        return_normalizer: whether the normalizer is wanted; it may have a gradient then.
        wanted_gradients: the names of `GRADIENTS` that the backward pass has to compute. In the
            forward pass, which does not know them yet, all names. A backend may compute more.
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
        """The arguments of `linear_attention` by name, without fields that only backends read."""
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
        """The number of sequences, each with a state: B, or the number of packed sequences."""
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
    """A call of `linear_attention_step`. Any other map than a pointwise one is applied already.

    Attributes:
        query: (B, H, D) if the kernels apply the feature map, else phi(q), (B, H, F).
        key: (B, H_kv, D or F).
        value: (B, H_kv, M).
        state: the state before this position; a backend updates it in place.
        feature_map, eps, requires_grad, normalize: as in `AttentionCall`.
        state_indices: (B,) integers on the device of the state: row b works on slot
            state_indices[b] of the state; -1 is an empty row, whose output is 0. None: row b works
            on slot b.
        log_decay: (B, H_kv), accumulation dtype, at most 0; None: no decay.
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
        normalizer: (B, H, N), contiguous: phi(q) . z + eps (with eps, unlike the normalizer that
            `linear_attention` returns), accumulation dtype; may be empty where the call requires
            no gradient and returns no normalizer.
        state: causal: the state after the last key, None unless it was wanted; for the backward
            pass always None. Not causal: the sums over the keys, including the initial state.
    """

    out: Tensor
    normalizer: Tensor
    state: LinearAttentionState | None


class Gradients(NamedTuple):
    """What a backend's `attention_backward` returns: gradients by the names of `AttentionCall`.

    Gradients that are not wanted may be None.

    Attributes:
        query, key, value: contiguous, with shape and dtype of the arguments of these names.
        initial_state, log_decay: None where the call has no such argument.
    """

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    initial_state: LinearAttentionState | None
    log_decay: Tensor | None = None


def _absent(key_lengths: Tensor, length: int) -> Tensor:
    """(B, 1, L, 1) bool, True at keys at or past each sequence's length."""
    positions = torch.arange(length, device=key_lengths.device)
    return (positions >= key_lengths[:, None])[:, None, :, None]


def absent_keys(key: Tensor, key_lengths: Tensor | None, attn_mask: Tensor | None) -> Tensor | None:
    """(B, 1, L, 1) bool, True where length or mask say that no key exists; None if all exist."""
    gone = None if key_lengths is None else _absent(key_lengths.to(key.device), key.shape[2])
    if attn_mask is None:
        return gone
    masked = ~attn_mask[:, None, :, None]
    return masked if gone is None else masked | gone
