"""The transformer: one class for all kinds of attention, with `forward`, `prefill` and `step`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from linattn_core import LinearAttentionState
from linattn_core.autocast import autocast_dtype
from linattn_core.decoder_spec import CannotCompile, DecoderDescription
from linattn_core.errors import expected
from linattn_models.attention import Attention, Linear
from linattn_models.attention.rotary import Rotation, rotation_at
from linattn_models.basics.packing import Packing
from linattn_models.basics.validation import (
    at_least,
    check_vector_sequences,
    check_vectors,
    exact_keys,
    instance,
    key_mask_of,
    lengths_within,
)
from linattn_models.layers.block import Block, build_norm
from linattn_models.layers.config import TransformerConfig
from linattn_models.state import (
    START,
    Cursor,
    DecodingState,
    LayerState,
    check_end,
    check_fits,
    check_layers,
)
from linattn_models.weights import description
from linattn_models.weights.hooks import refuse_hooks
from linattn_models.weights.sharded import needs_whole

# The sums of each block's cross-attention.
Memory = tuple[LinearAttentionState, ...]


class Transformer(nn.Module):
    """A stack of blocks and a last norm, from vectors to vectors.

    `prefill` and `step` agree with `forward` to rounding. They are for decoding: without dropout.

    Args:
        config: the layers.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        instance("config", config, TransformerConfig)
        self.config = config
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = build_norm(config)

    def forward(
        self,
        x: Tensor,
        key_lengths: Tensor | None = None,
        memory: Memory | None = None,
        *,
        attn_mask: Tensor | None = None,
        start: int = 0,
    ) -> Tensor:
        """All positions at once.

        Args:
            x: (B, N, E).
            key_lengths: (B,) int; positions at or past a row's length are padding, which may hold
                any finite numbers, and which no real position sees. Outputs there mean nothing.
            memory: from `remember`, for a model with cross-attention.
            attn_mask: (B, N) bool, False at padding, which may be anywhere; for linear and softmax
                attention. No real position sees padding, and outputs at padding mean nothing.
            start: the position of the first vector, where other ranks hold those before.

        Returns:
            (B, N, E), the dtype of `x`.

        Raises:
            ValueError: another shape, lengths out of 0..N, or a mask for LSH attention.
            TypeError: a mask or lengths of another dtype.

        Cost: O(N) time for linear attention, O(N^2) for softmax, O(N log N) for LSH.
        """
        key_lengths, attn_mask = self._check_keys(x, key_lengths, attn_mask)
        rotation = self.rotation(x, Cursor(start, start), attn_mask=attn_mask)
        for block, sums in zip(self.blocks, self._read(memory, x.shape[0]), strict=True):
            x = block(x, key_lengths, sums, attn_mask, rotation)
        return cast(Tensor, self.norm(x))

    @needs_whole
    def remember(
        self,
        memory: Tensor,
        key_lengths: Tensor | None = None,
        *,
        attn_mask: Tensor | None = None,
    ) -> Memory:
        """Computes the sums over a memory that the cross-attention of each block reads.

        Args:
            memory: (B, L, E), such as an encoder's outputs.
            key_lengths: (B,) int in 0..L, each memory's own length; all L by default.
            attn_mask: (B, L) bool, False at padding on any side, or in between.

        Returns:
            For each block a `LinearAttentionState`, whose size does not depend on L; select rows by
            its `index_select`.

        Raises:
            ValueError: a model without cross-attention, another shape, lengths out of 0..L.
            TypeError: a mask of another dtype.
        """
        if not self.config.cross_attention:
            wanted, got = "cross_attention=True in the configuration", "False"
            raise ValueError(expected("a memory", wanted, got))
        key_lengths, attn_mask = self._check_keys(memory, key_lengths, attn_mask)
        layers = [block.cross for block in self._layers]
        return tuple(x.sums(memory, key_lengths, attn_mask) for x in layers if x is not None)

    def initial_state(self, batch: int, *, max_length: int | None = None) -> DecodingState:
        """The state before the first position, for inputs of the weights' device and dtype.

        Inside autocast, it is that of inputs of autocast's dtype.

        Args:
            batch: B, sequences decoded side by side.
            max_length: positions to allocate; softmax needs it, linear does not.

        Raises:
            ValueError: a model that is not causal, softmax without `max_length`, or attention that
                cannot step (LSH, softmax with a `past_size`).
        """
        self._check_steps("have a state")
        batch = at_least("batch", batch, 1)
        if max_length is not None:
            max_length = at_least("max_length", max_length, 1)
        weight = self.norm.weight
        dtype = autocast_dtype(weight.device.type) or weight.dtype
        sizes = batch, max_length, weight.device, dtype
        layers = tuple(block.mixer.initial_state(*sizes) for block in self._layers)
        return DecodingState(layers, START, max_length)

    @needs_whole
    def prefill(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        state: DecodingState | None = None,
        *,
        max_length: int | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, DecodingState]:
        """Whole prompts at once, and the state that each prompt alone would leave.

        Args:
            x: (B, N, E), prompts padded on the right.
            lengths: (B,) int, each prompt's own length in 0..N; all N by default.
            state: from `prefill` or `step`, to continue from; by default the prompts start at
                position 0. Under `torch.no_grad` a softmax cache is written in place. With
                `causal_block`, its position must be a multiple of the block.
            max_length: positions to allocate; softmax needs it, linear does not. By default those
                of `state`.
            memory: from `remember`, for a model with cross-attention.

        Returns:
            (B, N, E) outputs, which mean nothing past a row's length, and the new state, whose
            position is that of `state` plus `lengths`.

        Raises:
            ValueError: a model that is not causal, or attention that cannot step (LSH, softmax with
                a `past_size`); lengths out of 0..N, positions past `max_length`, a state that does
                not fit, or a forward hook on this module, a block or its attention.

        Cost: for linear attention without `causal_block`, and for all layers around an attention,
        in proportion to the sum of the lengths: padding is left out.
        """
        check_vector_sequences(x, self.config.embed_dim)
        if state is not None:
            self.check_state(state)
        if lengths is not None:
            shortest, _ = lengths_within("lengths", lengths, *x.shape[:2])
            lengths = None if shortest == x.shape[1] else lengths
        y, packing, state = self._prefill(x, lengths, state, max_length, memory, last_only=False)
        return y if packing is None else packing.unpack(y), state

    def prefill_last(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        state: DecodingState | None = None,
        *,
        max_length: int | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, DecodingState]:
        """As `prefill`, but returns only the outputs at the last position of each row, (B, E).

        Those of a row of length 0 mean nothing. The last layer computes no other outputs. Models of
        tokens call this, and have checked lengths and state.
        """
        y, _, state = self._prefill(x, lengths, state, max_length, memory, last_only=True)
        return y, state

    def _prefill(
        self,
        x: Tensor,
        lengths: Tensor | None,
        state: DecodingState | None,
        max_length: int | None,
        memory: Memory | None,
        last_only: bool,
    ) -> tuple[Tensor, Packing | None, DecodingState]:
        """The outputs, how they are packed (None: whole rows), and the state."""
        self._check_steps("prefill")
        self.check_hooks()
        batch, length = x.shape[:2]
        lengths = None if lengths is None else lengths.to(x.device)
        if state is None:
            before = DecodingState((), START, max_length)
        else:
            before = self._continue_from(state, batch, max_length)
        known = before.layers or [None] * len(self.blocks)
        after = replace(before, cursor=before.cursor.after(length, lengths))
        after = replace(after, parameters=None, recent=None)
        check_end(length if state is None else after.cursor.furthest, after.max_length)
        packing = None if lengths is None else Packing.of(lengths, length)
        rotation = self.rotation(x, before.cursor, packing)
        x = x if packing is None else packing.pack(x)
        layers: list[LayerState] = []
        read = self._read(memory, batch)
        for block, past, sums in zip(self._layers, known, read, strict=True):
            last = last_only and len(layers) == len(self.blocks) - 1
            x, layer = block.prefill(
                x, packing, before.max_length, past, before.cursor, sums, last, rotation
            )
            layers.append(layer)
        return cast(Tensor, self.norm(x)), packing, replace(after, layers=tuple(layers))

    @needs_whole
    def step(
        self, x: Tensor, state: DecodingState, memory: Memory | None = None
    ) -> tuple[Tensor, DecodingState]:
        """One more position for each sequence.

        Args:
            x: (B, E), the vectors at `state.position`.
            state: from `initial_state`, `prefill` or `step`; its tensors are updated in place
                under `torch.no_grad`, and not changed with gradients on.
            memory: from `remember`, for a model with cross-attention; it is not changed.

        Returns:
            (B, E) outputs at that position, and the next state.

        Raises:
            ValueError, TypeError: no free position in the state, a state that does not fit, a model
                that is not causal or whose `causal_block` is above 1, or a hook as for `prefill`.

        Cost: for linear attention the same at every position, for softmax O(position).
        """
        self._check_steps("step")
        self._check_single()
        self.check_hooks()
        check_vectors(x, self.config.embed_dim)
        check_layers(state, len(self.blocks))
        state.check_step(x.shape[0])
        cursor = state.cursor
        rotation = None
        if self.config.rotary:
            rotation = self._rotation_at(cursor.places(x.device), x)
        layers = []
        read = self._read(memory, x.shape[0])
        try:
            for block, layer, sums in zip(self._layers, state.layers, read, strict=True):
                x, layer = block.step(x, layer, cursor, sums, rotation)
                layers.append(layer)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            self.check_state(state)  # only now, because it takes about as long as a step
            raise
        state = DecodingState(tuple(layers), cursor.after(1, None), state.max_length)
        return cast(Tensor, self.norm(x)), state

    def rotation(
        self,
        x: Tensor,
        cursor: Cursor = START,
        packing: Packing | None = None,
        attn_mask: Tensor | None = None,
    ) -> Rotation | None:
        """The rotation of x (B, N, E), whose rows start at `cursor`; None without rotary."""
        if not self.config.rotary:
            return None
        if attn_mask is not None:  # masked positions do not count
            return self._rotation_at((attn_mask.cumsum(1) - 1).clamp(min=0), x)
        places = torch.arange(x.shape[1], device=x.device)
        places = cursor.places(x.device).unsqueeze(-1) + places  # (N,) or (B, N)
        if packing is not None:
            places = packing.pack(places.expand(x.shape[:2]))
        return self._rotation_at(places, x)

    def check_hooks(self) -> None:
        """Refuses forward hooks on this module, its blocks and their attention.

        Steps and prefill only run the hooks of the layers inside.
        """
        advice = "remove it or hook a layer inside; forward and method='rerun' of generate run it"
        mixers = (block.mixer for block in self._layers)
        refuse_hooks((self, *self._layers, *mixers), advice)

    def check_state(self, state: DecodingState) -> None:
        """Refuses a state of other sizes, dtype or device than this model's."""
        check_fits(state, self.initial_state(1, max_length=1))

    def describe(self) -> DecoderDescription:
        """The model for a backend that compiles whole steps of vectors."""
        config = self.config
        causal = config.is_causal and config.causal_block == 1
        if not isinstance(config.attention, Linear) or not causal:
            wanted = "causal linear attention, which has a state of fixed size"
            got = f"'{config.attention}' with is_causal={config.is_causal}"
            got += f", causal_block={config.causal_block}" if config.is_causal else ""
            raise CannotCompile(expected("a compiled model", wanted, got, "decode eagerly"))
        description.require(self, Transformer)
        blocks = self._layers
        layers = tuple(block.describe() for block in blocks)
        settings = blocks[0].settings()
        for block in blocks:
            if block.settings() != settings:
                what, advice = "the settings of a block", "make the blocks alike or decode eagerly"
                raise CannotCompile(expected(what, settings, block.settings(), advice))
        norm = description.norm(self.norm)
        return DecoderDescription(layers=layers, norm=norm, tokens=None, **settings)

    def to_dict(self) -> dict[str, Any]:
        """The settings from which `from_dict` builds the model, without weights, as JSON values."""
        return {"transformer": self.config.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Transformer:
        """A model with the settings that `to_dict` returned, with newly drawn weights."""
        values = exact_keys("the description of a Transformer", values, ["transformer"])
        return cls(TransformerConfig.from_dict(values["transformer"]))

    @property
    def _layers(self) -> Sequence[Block]:
        """The blocks, with their type."""
        return cast(Sequence[Block], self.blocks)

    def _rotation_at(self, places: Tensor, x: Tensor) -> Rotation:
        wide = torch.promote_types(x.dtype, torch.float32)
        config = self.config
        return rotation_at(places, config.head_dim, config.rotary_base, wide, config.rotary_scaling)

    def _check_keys(
        self, x: Tensor, key_lengths: Tensor | None, attn_mask: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """The lengths and the mask of keys x (B, L, E), checked and on the device of x."""
        check_vector_sequences(x, self.config.embed_dim)
        if key_lengths is not None:
            lengths_within("key_lengths", key_lengths, *x.shape[:2])
            key_lengths = key_lengths.to(x.device)
        return key_lengths, None if attn_mask is None else key_mask_of(attn_mask, x)

    def _read(self, memory: Memory | None, batch: int) -> Sequence[LinearAttentionState | None]:
        """The sums that the cross-attention of each block reads; None without cross-attention."""
        layers = len(self.blocks)
        if not self.config.cross_attention and memory is None:
            return [None] * layers
        if not self.config.cross_attention:
            wanted, got = "none for a model without cross-attention", "one"
            raise ValueError(expected("memory", wanted, got))
        advice = "call remember(encoder outputs) once and pass what it returns"
        several = cast(Memory, memory if isinstance(memory, (tuple, list)) else [memory])
        if not all(isinstance(sums, LinearAttentionState) for sums in several):
            names = ", ".join(sorted({type(sums).__name__ for sums in several}))
            wanted = f"a LinearAttentionState for each of {layers} blocks"
            raise TypeError(expected("memory", wanted, f"values of type {names}", advice))
        if len(several) != layers or any(sums.s.shape[0] != batch for sums in several):
            wanted = f"the sums of {layers} blocks for {batch} sequences"
            batches = [sums.s.shape[0] for sums in several]
            raise ValueError(expected("memory", wanted, f"sums for {batches} sequences", advice))
        return several

    def _continue_from(
        self, state: DecodingState, batch: int, max_length: int | None
    ) -> DecodingState:
        """The state to continue from, with room for `max_length` positions."""
        if state.batch != batch:
            wanted, got = f"sequences for the prompts' {batch} rows", state.batch
            raise ValueError(expected("state", wanted, got))
        block = self.config.causal_block
        if block > 1 and bool((state.cursor.rows(batch) % block != 0).any()):
            advice = "the block after it would not see its own beginning; prefill whole blocks"
            wanted = f"a position that is a multiple of causal_block {block}"
            raise ValueError(expected("state", wanted, state.position, advice))
        return state if max_length is None else state.with_room(max_length)

    def _check_single(self) -> None:
        if self.config.causal_block > 1:
            raise ValueError(
                f"A transformer with causal_block={self.config.causal_block} cannot step: "
                "a position sees its block whole, so call prefill(x, state=state) on whole blocks."
            )

    def _check_steps(self, what: str) -> None:
        if not self.config.is_causal:
            raise ValueError(
                f"A transformer that is not causal cannot {what}, because each of its outputs "
                "depends on all inputs; build it with is_causal=True."
            )
        reason = cast(Attention, self.config.attention).cannot_step
        if reason:
            raise ValueError(reason)
