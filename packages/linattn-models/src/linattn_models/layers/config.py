"""The shape of a transformer, as a value that can be compared, hashed and written to JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor

from linattn_core.errors import expected
from linattn_models.attention.config import Attention, Linear, Softmax, attention_config
from linattn_models.attention.projections import resolve_kv_heads
from linattn_models.attention.rotary import BASE, Llama3Scaling
from linattn_models.basics.validation import (
    at_least,
    boolean,
    fields_at_least,
    from_fields,
    in_range,
    json_object,
    one_of,
)

FFNS = ("gelu", "gelu_tanh", "relu", "swiglu")
NORMS = ("layer", "rms")


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU's approximation by tanh."""
    return F.gelu(x, approximate="tanh")


# Activations, by their names in a `DecoderDescription`.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
}


@dataclass(frozen=True)
class TransformerConfig:
    """The layers of a `Transformer`; raises ValueError for values that cannot be built.

    Attributes:
        num_layers: blocks of attention and feed-forward network.
        num_heads: H, heads of attention in each block.
        head_dim: D = M, dimension of a head; the embedding is E = num_heads * head_dim.
        ffn_dim: hidden dimension of the feed-forward network.
        attention: `Linear` (the paper's), `Softmax` or `Lsh` (baselines), or a short form:
            "linear", "softmax", "lsh-4". The attribute is always the dataclass;
            `str(config.attention)` is the short form.
        is_causal: whether position i sees only positions up to i; only such a model can step.
        ffn: the feed-forward network: "gelu", "gelu_tanh" (GELU's approximation, as GPT-2's) or
            "relu", contract(f(expand(x))), or "swiglu", contract(silu(gate(x)) * expand(x)).
        norm: "layer" (LayerNorm) or "rms" (RMSNorm).
        norm_first: whether the inputs of attention and feed-forward network are normalized, or the
            residual sums (False: the paper's layout); both end with one more norm.
        bias: whether the linear layers and norms have biases.
        qkv_bias: whether the projections to queries, keys and values have biases; None for `bias`.
        norm_eps: what norms add to the variance; None for 1e-5 (LayerNorm) or 1e-6 (RMSNorm).
        tie_embeddings: whether the output layer of a model of tokens has the matrix of its
            embedding; with a `Categorical` head. Other models have none to tie.
        rotary: whether queries and keys are turned by angles of their positions (RoFormer's, in
            halves as Llama's), before the feature map; for an even head_dim, and not for LSH.
            Cross-attention is not turned.
        rotary_base: the base of these angles.
        rotary_scaling: `Llama3Scaling` of their frequencies, or its fields; None for none.
        dropout: probability with which `forward` drops outputs of sub-layers, in training mode.
        num_kv_heads: H_kv, heads of keys and values, a divisor of `num_heads`: each is read by a
            group of query heads, and states are smaller by the same factor. None for `num_heads`.
        causal_block: a position sees its whole block of this size, and all positions before it; 1
            is plain causality. A model with larger blocks is prefilled in whole blocks and cannot
            step.
        cross_attention: whether each block also attends to a memory, by linear attention whose
            sums over the memory are computed once; see `Transformer.remember`.
    """

    num_layers: int
    num_heads: int
    head_dim: int
    ffn_dim: int
    attention: Attention | str = Linear()  # noqa: RUF009
    is_causal: bool = True
    ffn: str = "gelu"
    norm: str = "layer"
    norm_first: bool = True
    bias: bool = True
    tie_embeddings: bool = False
    rotary: bool = False
    dropout: float = 0.0
    num_kv_heads: int | None = None
    causal_block: int = 1
    cross_attention: bool = False
    qkv_bias: bool | None = None
    norm_eps: float | None = None
    rotary_base: float = BASE
    rotary_scaling: Llama3Scaling | None = None

    def __post_init__(self) -> None:
        fields_at_least(self, 1, "num_layers", "num_heads", "head_dim", "ffn_dim", "causal_block")
        object.__setattr__(self, "attention", attention_config(self.attention))
        boolean("is_causal", self.is_causal)
        one_of("ffn", self.ffn, FFNS)
        one_of("norm", self.norm, NORMS)
        for name in ("norm_first", "bias", "tie_embeddings", "rotary"):
            boolean(name, getattr(self, name))
        if self.qkv_bias is not None:
            boolean("qkv_bias", self.qkv_bias)
        if self.norm_eps is not None:
            in_range("norm_eps", self.norm_eps, 0.0, math.inf)
        in_range("rotary_base", self.rotary_base, 1.0, math.inf)
        object.__setattr__(self, "rotary_scaling", Llama3Scaling.read(self.rotary_scaling))
        in_range("dropout", self.dropout, 0.0, 1.0)
        if self.num_kv_heads is not None:
            kv_heads = resolve_kv_heads(self.num_heads, self.num_kv_heads)
            object.__setattr__(self, "num_kv_heads", kv_heads)
        boolean("cross_attention", self.cross_attention)
        self._check_combinations(cast(Attention, self.attention))

    @property
    def embed_dim(self) -> int:
        """E, the width of the residual stream."""
        return self.num_heads * self.head_dim

    @property
    def has_cache(self) -> bool:
        """Whether a state is a cache of keys and values, as for softmax attention."""
        return cast(Attention, self.attention).has_cache

    def _check_combinations(self, attention: Attention) -> None:
        blocks = self.causal_block > 1
        advice = "it needs an order of positions"
        windowed = isinstance(attention, Linear) and attention.window_size
        ordered = {
            "causal_block": blocks,
            "decay": isinstance(attention, Linear) and attention.decay,
            "past_size": isinstance(attention, Softmax) and attention.past_size,
        }
        for name in (name for name, used in ordered.items() if used and not self.is_causal):
            raise ValueError(expected(name, "is_causal=True", "is_causal=False", advice))
        if self.cross_attention and not isinstance(attention, Linear):
            advice = "only linear attention leaves sums of a memory"
            raise ValueError(expected("cross_attention", "linear attention", attention, advice))
        if windowed and (blocks or not self.is_causal):
            wanted = "is_causal=True and causal_block=1"
            got = f"is_causal={self.is_causal}, causal_block={self.causal_block}"
            raise ValueError(expected("window_size", wanted, got, advice))
        if self.rotary and self.head_dim % 2:
            raise ValueError(expected("rotary", "an even head_dim", self.head_dim))
        used = {
            "is_causal=False": not self.is_causal,
            "num_kv_heads": self.num_kv_heads not in (None, self.num_heads),
            "causal_block": blocks,
            "rotary": self.rotary,
        }
        for name in (name for name, asked in used.items() if asked and name not in attention.takes):
            wanted = f"an option that '{attention}' attention takes"
            advice = "leave it out, or use linear or softmax attention"
            raise ValueError(expected("the configuration", wanted, name, advice))

    def with_attention(self, attention: Attention | str) -> TransformerConfig:
        """The same layers with another attention."""
        return replace(self, attention=attention)

    def with_positions(self, positions: str | None) -> tuple[TransformerConfig, str]:
        """The layers of a model with these positions, and the kind of positions."""
        if positions is None:
            positions = "rotary" if self.rotary else "learned"
        return replace(self, rotary=self.rotary or positions == "rotary"), positions

    @classmethod
    def language(
        cls, num_layers: int, num_heads: int, head_dim: int, **changes: Any
    ) -> TransformerConfig:
        """The layers of today's language models with linear attention; any field may be changed.

        RMSNorm, SwiGLU (F is the multiple of 64 nearest to 8/3 E), rotary positions, tied
        embeddings, no biases, and linear attention with a gated decay beside a window of softmax
        for the last 64 keys: the lowest mean loss in the comparison of `apps/text_generation`.
        Train on sequences that are longer than the window, or give a smaller one.
        """
        num_heads = at_least("num_heads", num_heads, 1)
        head_dim = at_least("head_dim", head_dim, 1)
        recipe = {
            "ffn_dim": 64 * max(1, round(num_heads * head_dim / 24)),
            "attention": Linear(window_size=64, decay="gated"),
            "norm": "rms",
            "ffn": "swiglu",
            "bias": False,
            "tie_embeddings": True,
            "rotary": True,
        }
        return cls(num_layers, num_heads, head_dim, **{**recipe, **changes})

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values; `from_dict` reads them."""
        return {**asdict(self), "attention": cast(Attention, self.attention).to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TransformerConfig:
        """The configuration that `to_dict` wrote."""
        return from_fields(cls, "the transformer configuration", values)

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> TransformerConfig:
        """The configuration that `to_json` wrote."""
        return cls.from_dict(json_object(text, "the transformer configuration"))
