"""Registers linear attention for models of transformers that look attention up by name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    find_packed_sequence_indices,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from linattn_core import FeatureMap, linear_attention
from linattn_core.checks import check_options
from linattn_core.errors import expected, quote
from linattn_core.feature_maps.registry import shared_feature_map
from linattn_core.registry import find_backend
from linattn_models.basics.validation import instance
from linattn_models.huggingface.decays import Decay, log_decay, read_decay
from linattn_models.huggingface.support import check_dispatches

# Arguments with which models change the attention weights, and what each of them is.
_OF_SOFTMAX = {
    "cache": "a paged cache",
    "cu_seq_lens_q": "packed sequences",
    "position_bias": "a bias for each pair of positions",
    "s_aux": "attention sinks",
    "sliding_window": "a sliding window",
    "softcap": "capped scores",
}
# Maps that are given by name are built once with this head dim, to refuse what no model can use.
_USUAL_HEAD_DIM = 64
_EPS = 1e-6

registered: dict[str, dict[str, Any]] = {}
"""The feature map, decay and eps of each name that `register` got."""


class Call(NamedTuple):
    """The arguments with which a layer calls its attention function.

    Attributes:
        module: the layer.
        query, key, value: (B, H, N, D), (B, H_kv, L, D) and (B, H_kv, L, M).
        mask: from `key_mask`.
        is_causal: whether a query sees only the keys up to its own position.
        dropout, scaling: dropout of attention weights and scale of scores; None for 1 / sqrt(D).
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    is_causal: bool
    dropout: float
    scaling: float | None

    @property
    def grouped(self) -> bool:
        """Whether keys have fewer heads than queries."""
        return bool(self.query.shape[1] != self.key.shape[1])


def register(
    name: str = "linattn",
    *,
    feature_map: str | FeatureMap = "elu",
    decay: Decay | None = None,
    eps: float = _EPS,
    backend: str = "auto",
) -> None:
    """Makes `attn_implementation=name` compute `linear_attention` in models of transformers.

    For models that dispatch attention by name, such as GPT-2, Llama and BERT: training, prefill,
    and `generate(use_cache=False)` of prompts that are padded on the left. Padding on either side
    is exact: it changes neither outputs nor gradients of a row. Grouped heads are not expanded. The
    model's scale of the scores is ignored if it is 1 or 1 / sqrt(D), since linear attention has no
    scores.

    When the model runs, a ValueError refuses: a model that does not dispatch attention by name,
    such as Bloom, a cache, which would grow (`convert` and
    `LinattnForCausalLM` generate from a state instead), dropout of attention weights, sliding
    windows and other masks that differ between queries, packed sequences, other scales, biases,
    caps and sinks; a decay where attention is not causal. Under `torch.compile` pass an
    `attention_mask`: without one, transformers treats every batch as packed.

    `save_pretrained` does not write the name: pass `attn_implementation=name` to `from_pretrained`
    too, or save the model as one of ours (`LinattnForCausalLM.from_transformers`).

    Args:
        name: the value of `attn_implementation`; a name that `register` got before is replaced.
        feature_map, eps, backend: as for `linear_attention`; learned maps need `convert`.
        decay: what a head's state is multiplied by before each position, above 0 and at most 1: one
            number, one for each of the H_kv heads, or "fixed" for those of `Linear`.

    Raises:
        ValueError, TypeError: a name that transformers has; a decay out of range; a feature map,
            eps or backend that `linear_attention` refuses.
    """
    _check_name(name)
    shared_feature_map(feature_map, _USUAL_HEAD_DIM)
    check_options(eps, backend)
    if backend != "auto":
        find_backend(backend)
    decay = read_decay(decay)
    settings: dict[str, Any] = {"feature_map": feature_map, "decay": decay, "eps": eps}
    register_function(name, partial(_linear, backend=backend, **settings))
    registered[name] = settings


def _check_name(name: str) -> None:
    """Refuses a name that transformers has, or reads in its own way."""
    instance("name", name, str)
    theirs = {"eager", *ALL_ATTENTION_FUNCTIONS.valid_keys()} - registered.keys()
    # Other characters mean kernels from a hub.
    if name in theirs or not re.fullmatch(r"[\w.-]+", name):
        wanted = "letters, digits, '.', '-' and '_', and none that transformers has"
        raise ValueError(expected("name", wanted, quote(name)))


def register_function(name: str, compute: Callable[..., Tensor]) -> None:
    """Registers an attention function together with the mask that it reads.

    Args:
        name: the value of `attn_implementation`.
        compute: (call, **options) -> (B, H, N, M), from a `Call` and the model's other arguments.
    """
    AttentionInterface.register(name, partial(_attend, compute))
    AttentionMaskInterface.register(name, key_mask)


def key_mask(
    *,
    config: PreTrainedConfig,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    **others: Any,
) -> Tensor | None:
    """The mask that every layer of a forward gets: which keys take part, for all queries.

    Args:
        config: of the model.
        batch_size: B.
        q_length: N, positions of this forward.
        kv_length: L, the keys of a layer that is not causal.
        q_offset: the positions of a state, before those of this forward.
        mask_function: which key a query may see: transformers' causal or bidirectional function.
        attention_mask: (B, L) bool; when causal, (B, q_offset + N).
        **others: what transformers tells masks of other kinds.

    Returns:
        (B, 1, 1, N) bool when causal, (B, 1, 1, L) when not, or None for all keys.
    """
    check_dispatches(config)
    if mask_function not in (causal_mask_function, bidirectional_mask_function):
        advice = "pass an attention_mask if sequences are not packed, or use softmax attention"
        wanted = "keys hidden from all queries, and causality"
        got = "one that differs between queries (a sliding window, packed sequences, an overlay)"
        raise ValueError(expected("the mask of linear attention", wanted, got, advice))
    if attention_mask is None:
        return None
    causal = mask_function is causal_mask_function
    shape = (batch_size, int(q_offset) + q_length if causal else kv_length)
    if attention_mask.shape != shape:
        wanted = f"shape {shape}, a column for each position, those of a state included"
        raise ValueError(expected("attention_mask", wanted, tuple(attention_mask.shape)))
    if causal:
        attention_mask = attention_mask[:, -q_length:]
    return attention_mask[:, None, None, :].bool()


def _attend(
    compute: Callable[..., Tensor],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The function for `AttentionInterface`: returns (B, N, H, M), and None for the weights."""
    _refuse_options(module, options)
    if attention_mask is None:
        _refuse_packed(module, options.get("position_ids"))
    causal = sees_only_the_past(module, is_causal)
    call = Call(module, query, key, value, attention_mask, causal, dropout, scaling)
    return compute(call, **options).transpose(1, 2).contiguous(), None


def _linear(
    call: Call,
    *,
    feature_map: str | FeatureMap,
    decay: Decay | None,
    eps: float,
    backend: str,
    **options: Any,
) -> Tensor:
    """The attention function that `register` registers."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    _refuse_dropout(call.dropout)
    _refuse_scaling(call.scaling, call.query.shape[-1])
    if decay is not None and not call.is_causal:
        refuse_decay("is_causal=False")
    if call.is_causal and queries != keys:
        wanted = f"no cache, so {queries} keys for {queries} queries"
        advice = "pass use_cache=False"
        if isinstance(feature_map, str) and eps == _EPS:  # what `convert` computes, too
            name = f"feature_map={feature_map!r}"
            name += "" if decay is None else f", decay={decay!r}"
            advice += f", or convert(model, {name}) for a state of fixed size"
        raise ValueError(expected("causal linear attention", wanted, f"{keys} keys", advice))
    return linear_attention(
        call.query, call.key, call.value, is_causal=call.is_causal, feature_map=feature_map,
        attn_mask=call.mask, log_decay=log_decay(decay, call.key.shape[1], call.key),
        enable_gqa=call.grouped, eps=eps, backend=backend,
    )  # fmt: skip


def refuse_decay(got: str) -> NoReturn:
    """Refuses a decay where the order of the keys does not count."""
    advice = "leave the decay out"
    raise ValueError(expected("attention with a decay", "causal attention", got, advice))


def sees_only_the_past(module: nn.Module, is_causal: bool | None) -> bool:
    """Whether a layer is causal: decided by the call, else the model, else the layer."""
    if is_causal is not None:
        return is_causal
    if not getattr(module.config, "is_causal", True):
        return False
    return bool(getattr(module, "is_causal", True))


def _refuse_options(module: nn.Module, options: dict[str, Any]) -> None:
    """Refuses arguments that read or change attention weights, which linear attention lacks."""
    for name, what in _OF_SOFTMAX.items():
        if options.get(name) is not None:
            advice = "use softmax attention in this model"
            raise ValueError(expected(name, "none in linear attention", what, advice))
    if options.get("output_attentions") or getattr(module.config, "output_attentions", False):
        advice = "linear attention forms no weights to return"
        raise ValueError(expected("output_attentions", False, True, advice))


def _refuse_packed(module: nn.Module, positions: Tensor | None) -> None:
    """Refuses positions (B, N) that start again; transformers does only where there is no cache."""
    first = not getattr(module, "layer_idx", 0)
    if positions is None or positions.ndim != 2 or not first or torch.compiler.is_compiling():
        return
    if find_packed_sequence_indices(positions) is not None:
        wanted, got = "one sequence in each row", "positions that start again (packed sequences)"
        advice = "pass a row for each sequence, with an attention_mask"
        raise ValueError(expected("position_ids", wanted, got, advice))


def _refuse_dropout(dropout: float) -> None:
    if dropout:
        advice = (
            "set it to 0 in the model's config (attn_pdrop, attention_dropout or "
            "attention_probs_dropout_prob), since linear attention forms no weights to drop"
        )
        raise ValueError(expected("dropout of attention weights", 0, f"{dropout:g}", advice))


def _refuse_scaling(scaling: float | None, head_dim: int) -> None:
    usual = head_dim**-0.5
    if scaling not in (None, 1.0) and not math.isclose(scaling, usual, rel_tol=1e-6):
        wanted = f"1 or 1 / sqrt(head_dim) = {usual:g}"
        advice = "linear attention has no scores to scale: scale queries and keys in the model"
        raise ValueError(expected("scaling", wanted, f"{scaling:g}", advice))
