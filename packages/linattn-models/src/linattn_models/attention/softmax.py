"""Softmax attention: O(N^2) for a whole sequence; steps with a key/value cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from linattn_core.errors import expected
from linattn_models.attention.base import Mixer, is_writable
from linattn_models.attention.blocks import block_lengths, join_blocks, split_blocks
from linattn_models.attention.config import Softmax
from linattn_models.state import Cursor, KeyValueCache, LayerState, of_another_model


class SoftmaxMixer(Mixer):
    """Heads attend by softmax(q^T K / sqrt(D)) V (equation 2 of the paper).

    A step is the paper's "stateful-softmax": keys and values of all positions are written into a
    cache that is allocated once, and a step reads those up to its own position.
    """

    def __init__(
        self, attention: Softmax, num_heads: int, head_dim: int, is_causal: bool, **settings: Any
    ) -> None:
        super().__init__(num_heads, head_dim, is_causal, **settings)
        self.past_size = attention.past_size

    def initial_state(
        self, batch: int, max_length: int | None, device: torch.device, dtype: torch.dtype
    ) -> LayerState:
        """An empty cache for `max_length` positions."""
        if max_length is None:
            advice = "a softmax cache is allocated for the longest sequence"
            raise ValueError(expected("max_length", "a number of positions", None, advice))
        return KeyValueCache.zeros(
            batch, self.num_kv_heads, max_length, self.head_dim, dtype=dtype, device=device
        )

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None,
        mask: Tensor | None = None,
        causal_block: int | None = None,
    ) -> Tensor:
        """Query (B, H, N, D), key and value (B, H_kv, N, D) -> (B, H, N, D) in O(N^2) time.

        With `past_size` in O(N) time, also for blocks of another size than the configuration's.

        In causal attention a row's padding comes after all its real queries: the causal mask hides
        it, and the lengths are not needed. Outputs at padded positions mean nothing.
        """
        if self.past_size:
            if mask is not None:
                raise ValueError(expected("attn_mask", "none beside past_size", "one"))
            block = self.causal_block if causal_block is None else causal_block
            return self._attend_recent(query, key, value, lengths, block)
        if mask is not None:
            return self._attend_masked(query, key, value, lengths, mask)
        blocks = self.causal_block > 1
        if not blocks and (self.is_causal or lengths is None):
            return self._softmax(query, key, value, is_causal=self.is_causal)
        length = key.shape[2]
        slots = torch.arange(length, device=key.device)
        if lengths is None:
            lengths = slots.new_full((1,), length)
        # A row of length 0 would be 0 / 0, so it attends to key 0, and its output is set to 0.
        visible = (slots < lengths.clamp(min=1).unsqueeze(1)).unsqueeze(1)  # (B, 1, N)
        if blocks:
            visible = visible & (slots < self._sight(slots).unsqueeze(1))  # (B, N, N)
        heads = self._softmax(query, key, value, attn_mask=visible.unsqueeze(1))
        return heads * (lengths > 0).view(-1, 1, 1, 1)

    def block_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of what `attend_block` knows of a sequence: keys and values."""
        shape = (self.num_kv_heads, self.past_size, self.head_dim)
        return shape, shape

    def attend_block(
        self,
        projected: Sequence[Tensor],
        state: tuple[Tensor, Tensor],
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The positions as one block that sees itself whole and the keys of the state.

        Args:
            projected: query (B, H, N, D), key and value (B, H_kv, N, D).
            state: keys and values (B, H_kv, past_size, D); zeros at first.

        Returns:
            (B, H, N, D), and the last keys and values.
        """
        query, *new = projected
        keys, values = (torch.cat(pair, 2) for pair in zip(state, new, strict=True))
        visible = None
        if lengths is not None:
            slots = torch.arange(keys.shape[2], device=keys.device)
            visible = (slots < self.past_size + lengths[:, None])[:, None, None]
        start = keys.shape[2] - self.past_size
        heads = self._softmax(query, keys, values, attn_mask=visible)
        return heads, (keys[:, :, start:], values[:, :, start:])

    def attend_and_keep(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None,
        max_length: int | None,
        state: LayerState | None,
        cursor: Cursor,
    ) -> tuple[Tensor, LayerState]:
        """As `attend`, starting from a cache or None; also the cache with the new keys and values.

        The cache past a row's length holds padding, which the cursor masks and steps overwrite.
        """
        if state is not None:
            return self._attend_cache(query, key, value, lengths, state, cursor)
        length = key.shape[2]
        cache = self.initial_state(key.shape[0], max_length, key.device, key.dtype)
        keys, values = cast(KeyValueCache, cache)
        keys[:, :, :length] = key
        values[:, :, :length] = value
        known = lengths if self.causal_block > 1 else None
        return self.attend(query, key, value, known), KeyValueCache(keys, values)

    def attend_next(
        self, query: Tensor, key: Tensor, value: Tensor, state: LayerState, cursor: Cursor
    ) -> tuple[Tensor, LayerState]:
        """Writes one key and value and attends to all that are written: O(position) time.

        With gradients on, the cache is copied first, because autograd needs the old one.
        """
        cache = _writable(state)
        # One head would be written to all heads of a cache that has more, without an error.
        if self.num_kv_heads == 1 and cache.keys.shape[1] > 1:
            own = self.initial_state(1, 1, key.device, key.dtype)
            raise of_another_model("a layer of the state", own, cache)
        _write(cache, key, value, cursor.position)
        written = cursor.furthest + 1
        heads = self._softmax(
            query.unsqueeze(2),  # (B, H, 1, D)
            cache.keys[:, :, :written],
            cache.values[:, :, :written],
            attn_mask=cursor.visible,
        )
        return heads.squeeze(2), cache

    def _attend_recent(
        self, query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None, block: int
    ) -> Tensor:
        """As `attend`, each block beside the others in the batch, with the keys before it."""
        batch, _, length, _ = query.shape
        state = [self._before_blocks(x, block) for x in (key, value)]
        own = block_lengths(batch, length, block, lengths, query.device).flatten()
        blocks = [split_blocks(x, block) for x in (query, key, value)]
        heads, _ = self.attend_block(blocks, (state[0], state[1]), own)
        return join_blocks(heads, batch, length)

    def _before_blocks(self, x: Tensor, block: int) -> Tensor:
        """(B, H_kv, N, D) -> (B n, H_kv, past_size, D), what comes before each block."""
        padded = F.pad(x, (0, 0, self.past_size, -x.shape[2] % block))
        count = max(1, -(-x.shape[2] // block))
        before = padded.unfold(2, self.past_size, 1)[:, :, : count * block : block]
        return before.permute(0, 2, 1, 4, 3).flatten(0, 1)

    def _attend_masked(
        self, query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None, mask: Tensor
    ) -> Tensor:
        """As `attend`, with a mask (B, N) of the keys; every position sees at least itself."""
        slots = torch.arange(key.shape[2], device=key.device)
        if lengths is not None:
            mask = mask & (slots < lengths.unsqueeze(1))
        visible = mask.unsqueeze(1)  # (B, 1, N)
        if self.is_causal:
            visible = visible & (slots < self._sight(slots).unsqueeze(1))  # (B, N, N)
        # A softmax over no key would be NaN. Real positions see themselves in any case.
        visible = visible | (slots == slots.unsqueeze(1))
        return self._softmax(query, key, value, attn_mask=visible.unsqueeze(1))

    def _attend_cache(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None,
        state: LayerState,
        cursor: Cursor,
    ) -> tuple[Tensor, LayerState]:
        """Appends several keys and values to a cache and attends to old and new ones."""
        cache = _writable(state)
        batch, _, length, _ = key.shape
        new = torch.arange(length, device=key.device)
        start = torch.as_tensor(cursor.position, device=key.device).expand(batch)
        positions = start.unsqueeze(1) + new  # (B, N)
        sizes = new.new_full((batch,), length) if lengths is None else lengths
        _write_all(cache, key, value, positions, new < sizes.unsqueeze(1))
        written = min(cursor.furthest + length, cache.keys.shape[2])
        slots = torch.arange(written, device=key.device)
        sight = torch.minimum(self._sight(positions), (start + sizes).unsqueeze(1))  # (B, N)
        visible = slots < sight.clamp(min=1).unsqueeze(2)  # (B, N, written)
        heads = self._softmax(
            query,
            cache.keys[:, :, :written],
            cache.values[:, :, :written],
            attn_mask=visible.unsqueeze(1),
        )
        return heads, cache

    def _softmax(self, query: Tensor, key: Tensor, value: Tensor, **how: object) -> Tensor:
        grouped = self.num_kv_heads != self.num_heads
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=grouped, **how)  # type: ignore[arg-type]

    def _sight(self, positions: Tensor) -> Tensor:
        """The number of positions that each position sees: those up to the end of its block."""
        return (positions // self.causal_block + 1) * self.causal_block


def _writable(state: LayerState) -> KeyValueCache:
    """The cache to write to: a copy where it must not be written."""
    cache = cast(KeyValueCache, state)
    return cache if is_writable(cache.keys) else cache.clone()


def _write(cache: KeyValueCache, key: Tensor, value: Tensor, position: int | Tensor) -> None:
    if not isinstance(position, Tensor):
        cache.keys.select(2, position).copy_(key)  # indexing would read a symbol's number
        cache.values.select(2, position).copy_(value)
        return
    rows = torch.arange(key.shape[0], device=key.device)
    cache.keys.transpose(1, 2).index_put_((rows, position), key)
    cache.values.transpose(1, 2).index_put_((rows, position), value)


def _write_all(
    cache: KeyValueCache, key: Tensor, value: Tensor, positions: Tensor, real: Tensor
) -> None:
    """Writes (B, H_kv, N, D) at positions (B, N), where `real` (B, N) is True."""
    rows, columns = real.nonzero(as_tuple=True)
    places = rows, positions[rows, columns]
    for memory, new in ((cache.keys, key), (cache.values, value)):
        memory.transpose(1, 2).index_put_(places, new.transpose(1, 2)[rows, columns])
