"""An attention layer of a pretrained model whose softmax is replaced by a learned feature map."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linattn_core import FeatureMap, LinearAttentionState, linear_attention, linear_attention_step
from linattn_core.errors import expected
from linattn_core.feature_maps import Hedgehog
from linattn_core.feature_maps.registry import shared_feature_map
from linattn_models.attention.window_states import continue_windows
from linattn_models.attention.windows import Window, attend_windows
from linattn_models.huggingface.cache import CACHE, OLD_NAME, StateLayer, state_layer
from linattn_models.huggingface.decays import Decay, log_decay
from linattn_models.huggingface.interface import Call, refuse_decay, register_function
from linattn_models.huggingface.padding import Padding, check_ready
from linattn_models.state import WindowCache

NAME = "linattn-converted"
LEARNED = "hedgehog"
State: TypeAlias = LinearAttentionState | WindowCache


class ConvertedAttention(nn.Module):
    """Wraps an attention layer and computes linear attention between its projections.

        phi(x) = [softmax(W x'), softmax(-W x')],   x' = x sqrt(scale)

    with the scale of the softmax, and one W for each head of queries and of keys (Zhang et al.
    2024). Projections, positions and the names of weights within `attention` do not change. Dropout
    of attention weights has no effect.

    With a `window_size` w, a causal layer uses softmax for the last w keys of each query, its own
    included, and linear attention for the keys before them, as LoLCATs do (Zhang et al. 2025, arXiv
    2410.10254). `Linear` has the equation, in which g_i is here, with trained gamma of each head,

        g_i = (gamma / 4) sum_f (exp(W Q_i)_f + exp(-W Q_i)_f)

    so that the weight of linear attention grows with the query, as that of softmax does. With
    gamma = 1 both kinds of weights agree for small queries and keys.

    Another `feature_map` is that of `register`: nothing is learned, and the scale has no effect.

    Args:
        attention: a layer of transformers that dispatches attention by name.
        num_features: F, even; twice the head dim by default.
        window_size: w; 0 for no window.
        feature_map: "hedgehog", or another name that `linear_attention` knows, without a window.
        decay: as for `register`, without a window.

    Attributes:
        map_name: that of the feature map.
        learned: whether it has weights.
        log_gamma: (H,), the trained weight of linear attention beside a window; None without one.
        teaching: whether to return softmax attention and to set `error`; see `transfer_attention`.
        error: that of the last forward against softmax, a scalar; None if not teaching.
    """

    def __init__(
        self,
        attention: nn.Module,
        num_features: int | None = None,
        window_size: int = 0,
        feature_map: str = LEARNED,
        decay: Decay | None = None,
    ) -> None:
        super().__init__()
        self.attention = attention
        heads, kv_heads, head_dim = shape_of(attention)
        self.map_name = feature_map
        self.learned = feature_map == LEARNED
        self.feature_map: FeatureMap
        if self.learned:
            self.feature_map = Hedgehog(head_dim, num_features, heads, kv_heads)
        else:
            # That of `register`, also where it is random; moving it must not move the shared one.
            self.feature_map = copy.deepcopy(shared_feature_map(feature_map, head_dim))
        weight = next(attention.parameters())
        self.feature_map.to(weight)
        self.window_size = window_size
        self.decay = decay
        log_decay(decay, kv_heads, torch.empty(()))  # refuses another number of heads
        log_gamma = nn.Parameter(weight.new_zeros(heads)) if window_size else None
        self.log_gamma: nn.Parameter | None
        self.register_parameter("log_gamma", log_gamma)
        self.teaching = False
        self.error: Tensor | None = None
        self._cache_name = cache_name(attention)

    def new_parameters(self) -> list[nn.Parameter]:
        """The weights that `attention` does not have."""
        window = [] if self.log_gamma is None else [self.log_gamma]
        return [*self.feature_map.parameters(), *window]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As `attention`, but a cache holds the state instead of keys and values."""
        attention: Any = self.attention
        named = attention.config._attn_implementation
        if named != NAME:
            advice = "keep it: a converted layer computes no other attention"
            raise ValueError(expected("attn_implementation", repr(NAME), repr(named), advice))
        layer = None
        if self._cache_name:
            cache, kwargs[self._cache_name] = kwargs.get(self._cache_name), None
            if cache is not None and not self.teaching:
                layer = state_layer(cache, attention.layer_idx)
        # Passes a method and not self, because accelerate moves modules in a layer's arguments.
        return attention(*args, converted=self.compute, layer=layer, **kwargs)

    def compute(self, call: Call, layer: StateLayer | None) -> Tensor:
        """The attention (B, H, N, M) before the output projection; softmax while teaching."""
        for parameter in self.new_parameters():
            if parameter.device != call.query.device:
                advice = "load the model without offloading its weights (device_map)"
                wanted, got = f"on {call.query.device}", parameter.device
                raise ValueError(expected("feature maps", wanted, got, advice))
        if self.learned:
            head_dim = call.query.shape[-1]
            scaling = head_dim**-0.5 if call.scaling is None else call.scaling
            root = (scaling * head_dim**0.5 if self.window_size else scaling) ** 0.5
            out = self.attend(call._replace(query=call.query * root, key=call.key * root), layer)
        else:
            out = self.attend(call, layer)
        if not self.teaching:
            return out
        taught = softmax_attention(call)
        self.error = _relative_error(out, taught, call.mask)
        return taught

    def attend(self, call: Call, layer: StateLayer | None) -> Tensor:
        """Attention of scaled queries and keys; updates the state of a causal layer.

        Beside a window, the usual scale, 1 / sqrt(D), is left to the window.
        """
        if self.window_size and not call.is_causal:
            advice = "convert the model with window_size=0"
            raise ValueError(expected("a layer with a window", "is_causal", False, advice))
        if self.decay is not None and not call.is_causal:
            refuse_decay("is_causal=False")
        if layer is None or not call.is_causal:
            return self._attend_window(call, None) if self.window_size else self._linear(call)
        check_ready(layer.ready)
        before, mask = self._own(layer.state, call), call.mask
        if self._can_step(call, before):
            out, state = self._step(call, cast(LinearAttentionState, before))
            mask = None  # no padding
        elif self.window_size:
            out = self._attend_window(call, layer)
            state = cast(WindowCache, layer.state)
        else:
            out, state = self._linear(call, initial_state=before, return_state=True)
        layer.state, layer.seen = state, layer.seen + call.query.shape[2]
        layer.ready = None if mask is None else mask[:, 0, 0, -1:] | ~_began(layer)
        return out

    def _own(self, state: object, call: Call) -> State | None:
        """The state of a cache's layer; refuses that of another model, or of other rows."""
        if state is None:
            return None
        wanted = "the state of one converted layer, a LinearAttentionState"
        got: object = type(state).__name__
        if self.window_size:
            batch, heads, _, head_dim = call.key.shape
            shape = (batch, heads, self.window_size, head_dim)
            wanted = f"the state of one converted layer, a WindowCache with keys of shape {shape}"
            if isinstance(state, WindowCache):
                got = tuple(state.keys.shape)
                if got == shape:
                    return state
        elif isinstance(state, LinearAttentionState):
            return state
        advice = "continue with the model and the rows that it comes from"
        raise ValueError(expected("cache", wanted, got, advice))

    def _can_step(self, call: Call, state: State | None) -> bool:
        """Whether this is one token for each row of a state without a window."""
        one = isinstance(state, LinearAttentionState) and call.query.shape[2] == 1
        return one and (call.mask is None or bool(call.mask.all()))

    def _step(self, call: Call, state: LinearAttentionState) -> tuple[Tensor, State]:
        query, key, value = (x[:, :, 0] for x in (call.query, call.key, call.value))
        out, state = linear_attention_step(
            query, key, value, state, feature_map=self.feature_map, enable_gqa=call.grouped,
            log_decay=self._log_decay(call), inplace=not torch.is_grad_enabled(),
        )  # fmt: skip
        return out[:, :, None], state

    def _linear(self, call: Call, **states: Any) -> Any:
        return linear_attention(
            call.query, call.key, call.value, is_causal=call.is_causal, attn_mask=call.mask,
            feature_map=self.feature_map, enable_gqa=call.grouped,
            log_decay=self._log_decay(call), **states,
        )  # fmt: skip

    def _log_decay(self, call: Call) -> Tensor | None:
        return log_decay(self.decay, call.key.shape[1], call.key)

    def _attend_window(self, call: Call, layer: StateLayer | None) -> Tensor:
        """With padding at the end of each row, where windows leave it out; updates a state."""
        padding = Padding() if call.mask is None else Padding.of_mask(call.mask[:, 0, 0])
        query, key, value = (padding.to_the_end(x, 2) for x in (call.query, call.key, call.value))
        window = Window(self.window_size, self.feature_map, cast(Tensor, self.log_gamma))
        if layer is None:
            out, _ = attend_windows(window, query, key, value, None, None)
        else:
            batch, length = query.shape[0], query.shape[2]
            start, lengths = layer.tokens, padding.lengths
            if start is None:
                start = torch.zeros(batch, dtype=torch.int64, device=query.device)
            cache = cast(WindowCache | None, layer.state)
            out, layer.state = continue_windows(window, query, key, value, lengths, start, cache)
            layer.tokens = start + (length if lengths is None else lengths)
        return padding.back(out)


def cache_name(attention: nn.Module) -> str | None:
    """The name of the layer's argument for its cache; None if it has none."""
    parameters = inspect.signature(attention.forward).parameters
    return next((name for name in (CACHE, OLD_NAME, "layer_past") if name in parameters), None)


# What the layers of transformers call D.
HEAD_DIMS = ("head_dim", "attention_head_size", "head_size")


def shape_of(attention: nn.Module) -> tuple[int, int, int]:
    """H, H_kv and D of a layer."""
    config: Any = attention.config
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return heads, kv_heads, next(getattr(attention, x) for x in HEAD_DIMS if hasattr(attention, x))


def softmax_attention(call: Call) -> Tensor:
    """The teacher: softmax attention over the keys where the mask (B, 1, 1, N) is True.

    Every query also sees its own position, so that a padded query has at least one key.
    """
    mask = call.mask
    if mask is not None:
        length = call.query.shape[2]
        visible = mask.expand(-1, 1, length, -1)
        visible = visible.tril() if call.is_causal else visible
        mask = visible | torch.eye(length, dtype=torch.bool, device=mask.device)
    return F.scaled_dot_product_attention(
        call.query, call.key, call.value, attn_mask=mask, scale=call.scaling,
        is_causal=call.is_causal and mask is None,
        enable_gqa=call.grouped,
    )  # fmt: skip


def _compute_converted(
    call: Call,
    converted: Callable[[Call, StateLayer | None], Tensor] | None = None,
    layer: StateLayer | None = None,
    **options: Any,
) -> Tensor:
    """The attention function named `NAME`; `ConvertedAttention` passes `converted` and `layer`."""
    if converted is None:
        wanted, got = "a layer that convert(model) replaced", type(call.module).__name__
        folder = cast(Any, call.module).config._name_or_path or "folder"
        advice = f"load a converted model by load_converted({folder!r})"
        raise ValueError(expected(f"attn_implementation={NAME!r}", wanted, got, advice))
    return converted(call, layer)


def _relative_error(out: Tensor, wanted: Tensor, mask: Tensor | None) -> Tensor:
    """sum (out - wanted)^2 / sum wanted^2, over all positions except padding."""
    out, wanted = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (out, wanted))
    real = 1 if mask is None else mask.transpose(2, 3)  # (B, 1, N, 1)
    return ((out - wanted).square() * real).sum() / (wanted.square() * real).sum()


def _began(layer: StateLayer) -> Tensor:
    """(B, 1) bool: False where a row has had nothing but padding."""
    if layer.tokens is not None:
        return (layer.tokens > 0).unsqueeze(1)
    sums = cast(LinearAttentionState, layer.state)
    return sums.z.flatten(1).any(1, keepdim=True)  # features are positive


register_function(NAME, _compute_converted)
