"""A layer of linear attention that replaces torch.nn.MultiheadAttention."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch.nn.functional as F
from torch import Tensor, nn

from linattn_core import FeatureMap, LinearAttentionState
from linattn_core.errors import expected, near
from linattn_models.attention.decay import Decay
from linattn_models.attention.linear import (
    attend_in_parts,
    build_feature_map,
    read_decay,
    spread_for,
    step_in_place,
    zero_sums,
)
from linattn_models.attention.projections import join_heads, resolve_kv_heads, split_heads
from linattn_models.basics.initialization import spread_queries_and_keys
from linattn_models.basics.precision import device_of, dtype_of
from linattn_models.basics.validation import (
    at_least,
    check_vector_sequences,
    check_vectors,
    in_range,
)
from linattn_models.weights.description import is_plain

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# What takes the place of arguments of torch.nn.MultiheadAttention.
_WEIGHTS = "leave it out: weights are never formed, and the result is the output alone"
_INSTEAD = {
    "key_padding_mask": "pass attn_mask=~key_padding_mask, in which True takes part",
    "need_weights": _WEIGHTS,
    "average_attn_weights": _WEIGHTS,
}


class LinearAttention(nn.Module):
    """Multi-head linear attention: (B, N, E) -> one tensor (B, N, E), in O(N); batch first.

    It returns the output alone, not `torch.nn.MultiheadAttention`'s pair of output and weights,
    since linear attention has no weights: write `out = layer(x)`, because `out, weights = layer(x)`
    would take a batch of two apart. Masks are True where a key takes part, as for
    `scaled_dot_product_attention`.

        out_i = phi(q_i)^T S_i / (phi(q_i)^T z_i + eps)        (equations 4 to 12 of the paper)

    Args:
        embed_dim: E.
        num_heads: H, heads of queries.
        num_kv_heads: H_kv, heads of keys and values, a divisor of H; each serves H / H_kv query
            heads. H by default.
        head_dim: D; by default E / H.
        feature_map: phi, a name that `linattn_core.feature_map_names` lists, or a `FeatureMap`. The
            layer owns it: its random or learned features are saved and trained with the layer.
        bias: whether the two projections have biases.
        eps: added to the denominator.
        decay: None, "fixed", "learned" or "gated", as for `Linear`; "gated" reads the inputs of
            keys. A layer with a decay is causal only.
        feature_map_options: options of a feature map given by name, such as {"num_features": 64}.
        batch_first: True alone, for code that builds `torch.nn.MultiheadAttention` with it.

    Attributes:
        qkv: torch.nn.Linear to queries, keys and values, concatenated: (H + 2 H_kv) D outputs.
        out: torch.nn.Linear with H D inputs.
        backend: the backend of the operator, "auto" by default.

    Raises:
        ValueError: sizes that do not fit, an unknown feature map or decay, a negative eps.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        feature_map: str | FeatureMap = "elu",
        bias: bool = True,
        eps: float = 1e-6,
        decay: str | None = None,
        feature_map_options: Mapping[str, Any] | None = None,
        batch_first: bool = True,
    ) -> None:
        if batch_first is not True:
            advice = "pass x.transpose(0, 1), and transpose the output back"
            raise ValueError(expected("batch_first", "True", batch_first, advice))
        embed_dim = at_least("embed_dim", embed_dim, 1)
        num_heads = at_least("num_heads", num_heads, 1)
        in_range("eps", eps, 0.0, float("inf"))
        kv_heads = resolve_kv_heads(num_heads, num_kv_heads)
        dim = _head_dim(embed_dim, num_heads, head_dim)
        super().__init__()
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, kv_heads
        self.head_dim, self.heads = dim, (num_heads, kv_heads, kv_heads)
        self.qkv = nn.Linear(embed_dim, sum(self.heads) * dim, bias=bias)
        self.out = nn.Linear(num_heads * dim, embed_dim, bias=bias)
        options = feature_map_options or {}
        self.feature_map = build_feature_map(feature_map, options, num_heads, kv_heads, dim)
        self.decay = None if decay is None else Decay(decay, kv_heads, embed_dim)
        self.eps = eps
        self.backend = "auto"
        self.mesh: DeviceMesh | None = None  # set by ContextParallel
        compared = self.qkv.weight[: (num_heads + kv_heads) * dim]
        spread_queries_and_keys(compared, spread_for(self.feature_map))

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        is_causal: bool = False,
        attn_mask: Tensor | None = None,
        key_lengths: Tensor | None = None,
        state: LinearAttentionState | None = None,
        return_state: bool = False,
        **unknown: NoReturn,
    ) -> Tensor | tuple[Tensor, LinearAttentionState]:
        """All positions at once.

        Args:
            query: (B, N, E).
            key: (B, L, E), the query by default (self-attention). L = 0 with a state reads it.
            value: (B, L, E), the key by default.
            is_causal: query i sees keys 0 to i; N must equal L.
            attn_mask: bool, (B, L) or broadcastable to (B, 1, 1, L); True takes part. A key that
                takes no part does not exist.
            key_lengths: (B,) int; keys at or past the length do not exist either.
            state: causal: the state before the first key; not causal: sums to which the keys are
                added, such as those of `sums`.
            return_state: also return the state after the last key (not causal: the sums).

        Returns:
            (B, N, E), or that and a `LinearAttentionState` of H_kv heads.

        Raises:
            ValueError, TypeError: shapes, dtypes, masks or a state that cannot be right, or another
                argument; of those of `torch.nn.MultiheadAttention` the error says what to pass.
        """
        if unknown:
            raise _unknown_argument(next(iter(unknown)))
        log_decay = read_decay(self, query if key is None else key)
        heads = attend_in_parts(
            self,
            *self.project(query, key, value),
            log_decay=log_decay[0].transpose(1, 2) if log_decay else None,
            is_causal=is_causal,
            attn_mask=attn_mask,
            key_lengths=key_lengths,
            initial_state=state,
            return_state=return_state,
        )
        if not return_state:
            return self.join(heads)
        return self.join(heads[0]), heads[1]

    def sums(
        self, memory: Tensor, key_lengths: Tensor | None = None, attn_mask: Tensor | None = None
    ) -> LinearAttentionState:
        """The sums over a memory (B, L, E), from which `read` attends to it any number of times."""
        masks = {"key_lengths": key_lengths, "attn_mask": attn_mask}
        _, sums = self(memory[:, :0], memory, return_state=True, **masks)
        return cast(LinearAttentionState, sums)

    def read(self, query: Tensor, sums: LinearAttentionState) -> Tensor:
        """Cross-attention to a memory through its sums: (B, N, E) -> (B, N, E).

        Cost: O(N), which does not depend on the length of the memory.
        """
        return cast(Tensor, self(query, query[:, :0], state=sums))

    def initial_state(self, batch: int) -> LinearAttentionState:
        """The state before the first position, for the device and dtype of the weights."""
        batch = at_least("batch", batch, 1)
        return zero_sums(self, batch, device_of(self.out), dtype_of(self.out))

    def step(self, x: Tensor, state: LinearAttentionState) -> tuple[Tensor, LinearAttentionState]:
        """One position of causal self-attention (equations 16 to 20 of the paper).

        Args:
            x: (B, E).
            state: from `initial_state`, a causal `forward` or `step`; updated in place under
                `torch.no_grad`, not changed with gradients on.

        Returns:
            (B, E) and the next state.

        Raises:
            ValueError, TypeError: another shape, or a state that does not fit.

        Cost: the same at every position.
        """
        check_vectors(x, self.embed_dim)
        query, key, value = split_heads(self.qkv(x), self.heads, self.head_dim)
        heads, state = step_in_place(self, query, key, value, state, *read_decay(self, x))
        return self.out(heads.flatten(1)), state

    def extra_repr(self) -> str:
        """The sizes that `repr` shows."""
        groups = f", num_kv_heads={self.num_kv_heads}"
        return f"{self.embed_dim}, {self.num_heads}{groups}, head_dim={self.head_dim}"

    def project(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The heads before attention: query (B, H, N, D), key and value (B, H_kv, L, D)."""
        if key is None and value is not None:
            advice = "pass both, or the query alone for self-attention"
            raise ValueError(expected("value", "a key beside it", "none", advice))
        for name, x in (("query", query), ("key", key), ("value", value)):
            if x is not None:
                check_vector_sequences(x, self.embed_dim, name)
        if (key is None or key is query) and (value is None or value is query):
            return self._project_all(query)
        key = query if key is None else key
        value = key if value is None else value
        return tuple(self._project_one(x, index) for index, x in enumerate((query, key, value)))

    def _project_all(self, x: Tensor) -> tuple[Tensor, ...]:
        """x (B, N, E) -> query (B, H, N, D), key and value (B, H_kv, N, D)."""
        parts = split_heads(self.qkv(x), self.heads, self.head_dim)
        return tuple(part.transpose(1, 2) for part in parts)

    def _project_one(self, x: Tensor, index: int) -> Tensor:
        """Only the projection `index` of x (B, N, E), 0 for queries: (B, heads, N, D)."""
        if not is_plain(self.qkv, nn.Linear):  # adapters such as LoRA add to the weight's product
            return self._project_all(x)[index]
        start, heads = sum(self.heads[:index]) * self.head_dim, self.heads[index]
        rows = slice(start, start + heads * self.head_dim)
        bias = None if self.qkv.bias is None else self.qkv.bias[rows]
        projected = F.linear(x, self.qkv.weight[rows], bias)
        return split_heads(projected, (heads,), self.head_dim)[0].transpose(1, 2)

    def join(self, heads: Tensor) -> Tensor:
        """The output of the layer from its heads after attention: (B, H, N, D) -> (B, N, E)."""
        joined: Tensor = self.out(join_heads(heads))
        return joined


def _head_dim(embed_dim: int, num_heads: int, head_dim: int | None) -> int:
    if head_dim is not None:
        head_dim = at_least("head_dim", head_dim, 1)
        return head_dim
    if embed_dim % num_heads:
        advice = "pass head_dim"
        wanted = f"a multiple of num_heads {num_heads}"
        raise ValueError(expected("embed_dim", wanted, embed_dim, advice))
    return embed_dim // num_heads


def _unknown_argument(name: str) -> TypeError:
    arguments = inspect.signature(LinearAttention.forward).parameters.values()
    names = [argument.name for argument in arguments if argument.kind is argument.KEYWORD_ONLY]
    advice = _INSTEAD.get(name) or near(name, names)
    what, wanted = "LinearAttention", "the arguments of its forward"
    return TypeError(expected(what, wanted, repr(name), advice))
