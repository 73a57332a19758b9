"""The transformer: one class for every attention, run whole, prefilled, or step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linattn_core.decoding import CannotCompile, DecoderDescription, DecoderLayer
from linattn_models import description
from linattn_models.attention import LinearMixer, Mixer, build_mixer
from linattn_models.config import TransformerConfig
from linattn_models.initialization import initialize
from linattn_models.state import Cursor, DecodingState, LayerState, check_prompts
from linattn_models.validation import at_least, exact_keys, integer_vector, lengths_within

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}


class Block(nn.Module):
    """One layer: attention, then a feed-forward network, each added to what came in.

    With norm "pre",     x = x + attention(norm1(x));     x = x + ffn(norm2(x));
    with norm "post",    x = norm1(x + attention(x));     x = norm2(x + ffn(x)).
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.mixer: Mixer = build_mixer(config)
        self.norm1 = nn.LayerNorm(config.embed_dim)
        self.norm2 = nn.LayerNorm(config.embed_dim)
        self.expand = nn.Linear(config.embed_dim, config.ffn_dim)
        self.contract = nn.Linear(config.ffn_dim, config.embed_dim)
        self.activation = _ACTIVATIONS[config.activation]
        self.norm_first = config.norm == "pre"
        self.dropout = config.dropout

    def forward(self, x: Tensor, key_lengths: Tensor | None = None) -> Tensor:
        """(B, N, E) -> (B, N, E); the only way of running that drops out, in training mode."""
        attended = self.mixer(self._entering(x), key_lengths)
        return self._leaving(x, attended, self.dropout if self.training else 0.0)

    def prefill(
        self, x: Tensor, lengths: Tensor | None, max_length: int | None
    ) -> tuple[Tensor, LayerState]:
        """As `forward` without dropout, and the state after each row's own length."""
        attended, state = self.mixer.prefill(self._entering(x), lengths, max_length)
        return self._leaving(x, attended), state

    def step(self, x: Tensor, state: LayerState, cursor: Cursor) -> tuple[Tensor, LayerState]:
        """(B, E) -> (B, E), and the next state."""
        attended, state = self.mixer.step(self._entering(x), state, cursor)
        return self._leaving(x, attended), state

    def describe(self) -> DecoderLayer:
        """The layer for a backend that compiles it; see `Transformer.describe`."""
        description.require(self, Block)
        qkv, out = self.mixer.describe()
        return DecoderLayer(
            qkv,
            out,
            expand=description.affine(self.expand),
            contract=description.affine(self.contract),
            norm1=description.norm(self.norm1),
            norm2=description.norm(self.norm2),
        )

    def check_configured(self, config: TransformerConfig) -> None:
        """Refuses a block whose numbers are no longer those of the configuration.

        Raises:
            CannotCompile: with what was changed.
        """
        mixer = cast(LinearMixer, self.mixer)
        found = (mixer.num_heads, mixer.head_dim, mixer.eps, self.norm_first)
        expected = (config.num_heads, config.head_dim, config.eps, config.norm == "pre")
        if found != expected:
            raise CannotCompile(
                "a block was expected to have the configuration's heads, head dim, eps and norm "
                f"first {expected} and has {found}."
            )

    def _entering(self, x: Tensor) -> Tensor:
        return self.norm1(x) if self.norm_first else x

    def _leaving(self, x: Tensor, attended: Tensor, dropout: float = 0.0) -> Tensor:
        x = x + _dropped(attended, dropout)
        if self.norm_first:
            return x + _dropped(self._ffn(self.norm2(x)), dropout)
        x = self.norm1(x)
        return cast(Tensor, self.norm2(x + _dropped(self._ffn(x), dropout)))

    def _ffn(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.contract(self.activation(self.expand(x))))


class Transformer(nn.Module):
    """A stack of blocks and a last LayerNorm, from vectors to vectors.

    `prefill` and `step` agree with `forward` to rounding. They never drop out, for they are for
    decoding; neither does `forward` in evaluation mode.

    Args:
        config: the layers.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.embed_dim)
        initialize(self.blocks, norm_first=config.norm == "pre")

    def forward(self, x: Tensor, key_lengths: Tensor | None = None) -> Tensor:
        """All positions at once.

        Args:
            x: (B, N, E).
            key_lengths: (B,) int; positions at or past a row's length are padding, which no real
                position sees. What comes out at padded positions means nothing.

        Returns:
            (B, N, E), the dtype of `x`.

        Raises:
            ValueError: another shape, or lengths out of 0..N.

        Cost: O(N) time for linear attention, O(N^2) for softmax.
        """
        check_vector_sequences(x, self.config.embed_dim)
        if key_lengths is not None:
            _check_key_lengths(key_lengths, x)
        for block in self.blocks:
            x = block(x, key_lengths)
        return cast(Tensor, self.norm(x))

    def initial_state(
        self,
        batch: int,
        *,
        max_length: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> DecodingState:
        """The state before the first position.

        Args:
            batch: B, sequences decoded side by side.
            max_length: the positions to make room for; softmax needs it, linear does not.
            device, dtype: of the inputs to come; by default those of the weights.

        Raises:
            ValueError: a model that is not causal, or softmax without `max_length`.
        """
        self._check_causal("have a state")
        at_least("batch", batch, 1)
        if max_length is not None:
            at_least("max_length", max_length, 1)
        weight = self.norm.weight
        where = weight.device if device is None else torch.device(device)
        layers = tuple(
            cast(Block, block).mixer.initial_state(
                batch, max_length, where, _compute_dtype(weight) if dtype is None else dtype
            )
            for block in self.blocks
        )
        return DecodingState(layers, Cursor(0, 0), max_length)

    def prefill(
        self, x: Tensor, lengths: Tensor | None = None, *, max_length: int | None = None
    ) -> tuple[Tensor, DecodingState]:
        """Whole prompts at once, and the state that each of them alone would leave.

        Args:
            x: (B, N, E), prompts padded on the right.
            lengths: (B,) int, each prompt's own length in 0..N; all N by default.
            max_length: the positions to make room for; softmax needs it, linear does not.

        Returns:
            (B, N, E) outputs, of which those past a row's length mean nothing, and the state,
            whose position is `lengths`.

        Raises:
            ValueError: a model that is not causal, lengths out of 0..N, N past `max_length`.
        """
        self._check_causal("prefill")
        check_vector_sequences(x, self.config.embed_dim)
        batch, length = x.shape[0], x.shape[1]
        check_prompts(length, max_length)
        cursor = Cursor.after(length, lengths)
        if lengths is not None:
            shortest, _ = lengths_within("lengths", lengths, batch, length)
            lengths = None if shortest == length else lengths
        layers = []
        for block in self.blocks:
            x, layer = cast(Block, block).prefill(x, lengths, max_length)
            layers.append(layer)
        return cast(Tensor, self.norm(x)), DecodingState(tuple(layers), cursor, max_length)

    def step(self, x: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """One position more for each sequence.

        Args:
            x: (B, E), the vectors at `state.position`.
            state: from `initial_state`, `prefill` or `step`; its tensors are updated in place
                under `torch.no_grad`, and left as they were with gradients on.

        Returns:
            (B, E) outputs at that position, and the next state.

        Raises:
            ValueError: no room for one more, or a model that is not causal.

        Cost: for linear attention the same at every position, for softmax O(position).
        """
        self._check_causal("step")
        check_vectors(x, self.config.embed_dim)
        state.check_step(x.shape[0])
        cursor = state.cursor
        layers = []
        for block, layer in zip(self.blocks, state.layers, strict=True):
            x, layer = cast(Block, block).step(x, layer, cursor)
            layers.append(layer)
        state = DecodingState(tuple(layers), cursor.advanced(), state.max_length)
        return cast(Tensor, self.norm(x)), state

    def describe(self) -> DecoderDescription:
        """The model for a backend that compiles whole steps of vectors.

        Raises:
            CannotCompile: attention that is not linear, a feature map that is not of each number
                alone, a layer that somebody replaced or hooked, other than float32 on the CPU.
        """
        config = self.config
        if config.attention != "linear" or not config.is_causal:
            raise CannotCompile(
                "only causal linear attention has a step of fixed size to compile, and this is "
                f"{config.attention!r} with is_causal={config.is_causal}."
            )
        description.require(self, Transformer)
        blocks = [cast(Block, block) for block in self.blocks]
        layers = tuple(block.describe() for block in blocks)
        for block in blocks:
            block.check_configured(config)
        maps = {cast(LinearMixer, block.mixer).feature_map.pointwise for block in blocks}
        activations = {block.activation for block in blocks}
        if len(maps) > 1 or activations != {_ACTIVATIONS[config.activation]}:
            raise CannotCompile(
                "all layers were expected to have the feature map and the activation of the "
                f"configuration, and have {len(maps)} and {len(activations)} different ones."
            )
        return DecoderDescription(
            layers=layers,
            norm=description.norm(self.norm),
            num_heads=config.num_heads,
            head_dim=config.head_dim,
            feature_map=str(maps.pop()),
            eps=config.eps,
            activation=config.activation,
            norm_first=config.norm == "pre",
            tokens=None,
        )

    def to_dict(self) -> dict[str, Any]:
        """What rebuilds the model without its weights, as JSON values."""
        return {"transformer": self.config.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Transformer:
        """A model with fresh weights of the shape that `to_dict` described.

        Raises:
            ValueError: a key that is unknown or missing, or a value out of range.
        """
        values = exact_keys("A Transformer's description", values, ["transformer"])
        return cls(TransformerConfig.from_dict(values["transformer"]))

    def _check_causal(self, what: str) -> None:
        if not self.config.is_causal:
            raise ValueError(
                f"A transformer that is not causal cannot {what}: each of its outputs depends on "
                "inputs still to come; build it with is_causal=True."
            )


def check_vectors(x: Tensor, embed_dim: int) -> None:
    """Refuses what is not one vector a row, (B, E)."""
    if x.ndim != 2 or x.shape[1] != embed_dim:
        raise ValueError(f"A step takes x of shape (batch, {embed_dim}) and got {tuple(x.shape)}.")


def check_vector_sequences(x: Tensor, embed_dim: int) -> None:
    """Refuses what is not (B, N, E)."""
    if x.ndim != 3 or x.shape[2] != embed_dim:
        raise ValueError(
            f"x must have shape (batch, length, {embed_dim}) and has {tuple(x.shape)}."
        )


def _dropped(x: Tensor, probability: float) -> Tensor:
    return F.dropout(x, probability) if probability else x


def _check_key_lengths(key_lengths: Tensor, x: Tensor) -> None:
    """Shape and dtype always; the values too, where reading them breaks no compiled graph."""
    if torch.compiler.is_compiling():
        integer_vector("key_lengths", key_lengths, x.shape[0])
    else:
        lengths_within("key_lengths", key_lengths, x.shape[0], x.shape[1])


def _compute_dtype(weight: Tensor) -> torch.dtype:
    """The dtype in which keys and values will come: autocast's inside autocast."""
    if torch.is_autocast_enabled(weight.device.type):
        return torch.get_autocast_dtype(weight.device.type)
    return weight.dtype
