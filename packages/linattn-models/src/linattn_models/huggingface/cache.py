"""A layer of transformers' caches that holds a state of fixed size instead of keys and values."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from linattn_core import LinearAttentionState
from linattn_core.errors import expected
from linattn_models.huggingface.steps import Steps
from linattn_models.state import DecodingState, WindowCache

# What models and their outputs call a cache. From transformers 5.24 on it is "cache".
OLD_NAME = "past_key_values"
CACHE = "cache" if "cache" in {x.name for x in fields(CausalLMOutputWithPast)} else OLD_NAME


class StateLayer(CacheLayerMixin):  # type: ignore[misc]
    """The state after the tokens so far; `DynamicCache.layers` holds one per layer.

    It supports beam search and several samples per prompt. Its size does not depend on the number
    of tokens.

    Attributes:
        state: of one layer, or of a whole `LinattnForCausalLM`; None before the first token.
        seen: the number of tokens so far, padding included.
        tokens: (B,) int64, the tokens of each row so far, of a layer with a window; else None.
        ready: (B, 1) bool, False where a row's tokens were followed by padding, so that no token
            can continue it; None if the last forward had no mask.
        steps: decides which steps of a `LinattnForCausalLM` are compiled.
    """

    is_sliding = False
    supports_early_init = False

    def __init__(self) -> None:
        super().__init__()
        self.state: LinearAttentionState | WindowCache | DecodingState | None = None
        self.seen = 0
        self.tokens: Tensor | None = None
        self.ready: Tensor | None = None
        self.steps = Steps()

    def get_seq_length(self) -> int:
        """The number of tokens so far, padding included."""
        return self.seen

    def get_max_length(self) -> int:
        """-1: there is no longest sequence."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The number of columns of a mask, and the index of the first."""
        return self.seen + query_length, 0

    def reset(self) -> None:
        """Resets the state to that before the first token."""
        self.__init__()  # type: ignore[misc]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Selects the rows `beam_idx`, (B,) int64, for beam search."""
        if self.state is not None:
            self.state = self.state.index_select(beam_idx)
        for name in ("ready", "tokens"):
            if (rows := getattr(self, name)) is not None:
                setattr(self, name, rows.index_select(0, beam_idx.to(rows.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Selects the rows `indices`, (new batch,) int64."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats each row `repeats` times, in consecutive rows."""
        if self.state is not None:
            state = self.state
            rows = state.batch if isinstance(state, DecodingState) else len(state[0])
            self.reorder_cache(torch.arange(rows).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Refuses to remove tokens: they cannot be taken out of a sum."""
        if tokens_to_remove:
            wanted = "no tokens to take back, as those of an assistant model are"
            got, advice = f"{abs(tokens_to_remove)} tokens", "generate without an assistant"
            raise ValueError(expected("a cache of states", wanted, got, advice))

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> NoReturn:
        """Refuses: see `update`."""
        self.update()

    def update(self, *tensors: Any, **options: Any) -> NoReturn:
        """Refuses keys and values: a layer that caches them uses the cache of another model."""
        wanted = "the states of a converted model, or of a LinattnForCausalLM"
        advice = "give each model a cache of its own"
        raise ValueError(expected("a cache of states", wanted, "keys and values", advice))


def either_cache(cache: Cache | None, old: Cache | None) -> Cache | None:
    """The cache of a call, given by its name or by its old name."""
    if cache is not None and old is not None:
        raise ValueError(expected("cache", "one cache", f"another as {OLD_NAME}", "pass one"))
    return old if cache is None else cache


def state_layer(cache: Cache, index: int) -> StateLayer:
    """The `StateLayer` at this index of a cache; replaces an empty layer of keys and values."""
    while len(cache.layers) <= index:
        cache.layers.append(StateLayer())
    layer = cache.layers[index]
    if not isinstance(layer, StateLayer):
        if int(layer.get_seq_length()):
            wanted = "states of fixed size"
            got = f"{layer.get_seq_length()} keys and values of another model"
            advice = "start with a new DynamicCache()"
            raise ValueError(expected("cache", wanted, got, advice))
        layer = cache.layers[index] = StateLayer()
    return layer
