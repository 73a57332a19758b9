"""Softmax attention: O(N^2) for a whole sequence, stateful through a key/value cache."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from linattn_core.errors import expected
from linattn_models.attention.base import Mixer
from linattn_models.state import Cursor, KeyValueCache, LayerState


class SoftmaxMixer(Mixer):
    """Heads attend by softmax(q^T K / sqrt(D)) V (equation 2 of the paper).

    Stepping is the paper's "stateful-softmax": keys and values of all positions are written into
    memory that is allocated once, and a step reads those up to its own position.
    """

    def initial_state(
        self, batch: int, max_length: int | None, device: torch.device, dtype: torch.dtype
    ) -> LayerState:
        """An empty cache for `max_length` positions."""
        if max_length is None:
            advice = "a softmax cache is allocated for the longest sequence"
            raise ValueError(expected("max_length", "a number of positions", None, advice))
        return KeyValueCache.zeros(
            batch, self.num_heads, max_length, self.head_dim, dtype=dtype, device=device
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None) -> Tensor:
        """(B, H, N, D) three times -> (B, H, N, D) in O(N^2).

        Causal: a row's padding comes after all its real queries, so the causal mask hides it and
        the lengths are not needed; outputs at padded positions mean nothing.
        """
        if self.is_causal or lengths is None:
            return F.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        # A row without any key would be 0 / 0: it attends to key 0, and its output becomes 0.
        slots = torch.arange(key.shape[2], device=key.device)
        visible = slots < lengths.clamp(min=1).unsqueeze(1)  # (B, N)
        heads = F.scaled_dot_product_attention(
            query, key, value, attn_mask=visible.unsqueeze(1).unsqueeze(1)
        )
        return heads * (lengths > 0).view(-1, 1, 1, 1)

    def attend_and_keep(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None,
        max_length: int | None,
    ) -> tuple[Tensor, LayerState]:
        """As `attend`, and a cache whose first N positions hold these keys and values.

        Positions past a row's length hold its padding until steps overwrite them; the cursor masks
        them.
        """
        length = key.shape[2]
        cache = self.initial_state(key.shape[0], max_length, key.device, key.dtype)
        keys, values = cast(KeyValueCache, cache)
        keys[:, :, :length] = key
        values[:, :, :length] = value
        return self.attend(query, key, value, None), KeyValueCache(keys, values)

    def attend_next(
        self, query: Tensor, key: Tensor, value: Tensor, state: LayerState, cursor: Cursor
    ) -> tuple[Tensor, LayerState]:
        """Writes one key and value and attends to all written: O(position) time.

        With gradients on, the cache is copied first, because autograd needs each step's own.
        """
        cache = cast(KeyValueCache, state)
        if torch.is_grad_enabled():
            cache = cache.clone()
        _write(cache, key, value, cursor.position)
        written = cursor.furthest + 1
        heads = F.scaled_dot_product_attention(
            query.unsqueeze(2),  # (B, H, 1, D)
            cache.keys[:, :, :written],
            cache.values[:, :, :written],
            attn_mask=cursor.visible,
        )
        return heads.squeeze(2), cache


def _write(cache: KeyValueCache, key: Tensor, value: Tensor, position: int | Tensor) -> None:
    if isinstance(position, int):
        cache.keys[:, :, position] = key
        cache.values[:, :, position] = value
        return
    rows = torch.arange(key.shape[0], device=key.device)
    cache.keys.transpose(1, 2).index_put_((rows, position), key)
    cache.values.transpose(1, 2).index_put_((rows, position), value)
