"""An attention layer of a pretrained model whose softmax is replaced by a learned feature map."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache

from linattn_core import LinearAttentionState, linear_attention, linear_attention_step
from linattn_core.errors import expected
from linattn_core.feature_maps import Hedgehog
from linattn_models.huggingface.cache import StateLayer, state_layer
from linattn_models.huggingface.interface import (
    refuse_arguments_of_softmax,
    register_function,
    sees_only_the_past,
)

NAME = "linattn-converted"


class ConvertedAttention(nn.Module):
    """The attention layer that it is built around, with linear attention between its projections.

        phi(x) = [softmax(W x), softmax(-W x)] of x times the square root of softmax's scale

    with a W of its own for each head of queries and of keys (Zhang et al. 2024). Projections,
    positions and names of weights within `attention` stay as they are. Weights of attention are
    never formed, so dropout of them has no effect.

    Args:
        attention: a layer of transformers that dispatches by name.
        num_features: F, even; twice the head dim by default.

    Attributes:
        teaching: also compute softmax, return it, and set `error`; see `transfer_attention`.
        error: that of `transfer_attention` in the last forward, a scalar; None where not teaching.
    """

    def __init__(self, attention: nn.Module, num_features: int | None = None) -> None:
        super().__init__()
        self.attention = attention
        heads, kv_heads, head_dim = shape_of(attention)
        self.feature_map = Hedgehog(head_dim, num_features, heads)
        self.feature_map.key_weight = nn.Parameter(self.feature_map.key_weight[:kv_heads].clone())
        self.feature_map.to(next(attention.parameters()))
        self.teaching = False
        self.error: Tensor | None = None

    def forward(self, *args: Any, past_key_values: Cache | None = None, **kwargs: Any) -> Any:
        """As the layer inside; a cache gets the state in the place of keys and values."""
        named = cast(Any, self.attention.config)._attn_implementation
        if named != NAME:
            advice = "keep it: a converted layer computes no other attention"
            raise ValueError(expected("attn_implementation", repr(NAME), repr(named), advice))
        layer = None
        if past_key_values is not None and not self.teaching:
            layer = state_layer(past_key_values, self.attention.layer_idx)  # type: ignore[arg-type]
        return self.attention(*args, past_key_values=None, converted=self, layer=layer, **kwargs)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        layer: StateLayer | None,
    ) -> Tensor:
        """(B, H, N, D), (B, H_kv, L, D) and (B, H_kv, L, M) -> (B, H, N, M); updates the state."""
        options: Any = {"feature_map": self.feature_map}
        options["enable_gqa"] = query.shape[1] != key.shape[1]
        if layer is None or not is_causal:
            out: Tensor = linear_attention(
                query, key, value, is_causal=is_causal, attn_mask=mask, **options
            )
            return out
        state = _own(layer.state)
        layer.seen += query.shape[2]
        if state is None or query.shape[2] > 1 or (mask is not None and not mask.all()):
            out, layer.state = linear_attention(
                query, key, value, is_causal=True, attn_mask=mask, initial_state=state,
                return_state=True, **options,
            )  # fmt: skip
            return out
        first, inplace = (..., 0, slice(None)), not torch.is_grad_enabled()
        out, layer.state = linear_attention_step(
            query[first], key[first], value[first], state, inplace=inplace, **options
        )
        return out[:, :, None]


def shape_of(attention: nn.Module) -> tuple[int, int, int]:
    """H, H_kv and D of a layer."""
    config: Any = attention.config
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(attention, "head_dim", None) or attention.attention_head_size
    return heads, kv_heads, cast(int, head_dim)


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scaling: float | None,
) -> Tensor:
    """The teacher: softmax over the keys that a mask (B, 1, 1, N) leaves.

    Padded queries see themselves, where causality would leave them nothing.
    """
    if mask is not None:
        length = query.shape[2]
        visible = mask.expand(-1, 1, length, -1)
        visible = visible.tril() if is_causal else visible
        mask = visible | torch.eye(length, dtype=torch.bool, device=mask.device)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=is_causal and mask is None, scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    *,
    converted: ConvertedAttention | None = None,
    layer: StateLayer | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The function that `AttentionInterface` asks for, with what `ConvertedAttention` adds."""
    refuse_arguments_of_softmax(others)
    if converted is None:
        wanted = "a layer that convert(model) replaced"
        raise ValueError(expected(f"attn_implementation={NAME!r}", wanted, type(module).__name__))
    causal = sees_only_the_past(module, is_causal)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    root = scale**0.5
    out = converted.attend(query * root, key * root, value, attention_mask, causal, layer)
    if converted.teaching:
        taught = softmax_attention(query, key, value, attention_mask, causal, scale)
        converted.error = _relative_error(out, taught, attention_mask)
        out = taught
    return out.transpose(1, 2).contiguous(), None


def _relative_error(out: Tensor, wanted: Tensor, mask: Tensor | None) -> Tensor:
    """sum (out - wanted)^2 / sum wanted^2 over the positions that are no padding."""
    real = 1 if mask is None else mask.transpose(2, 3)  # (B, 1, N, 1)
    return ((out - wanted).square() * real).sum() / (wanted.square() * real).sum()


def _own(state: object) -> LinearAttentionState | None:
    if state is None or isinstance(state, LinearAttentionState):
        return state
    wanted = "the state of one converted layer"
    advice = "continue with the model that it comes from"
    raise ValueError(expected("past_key_values", wanted, f"a {type(state).__name__}", advice))


register_function(NAME, _attend)
