"""The configurations of recognizers: values that can be compared, hashed and written to JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, ClassVar, Self

from linattn_core.errors import expected, quote
from linattn_models.attention import Linear, Softmax
from linattn_models.basics.validation import (
    as_int,
    boolean,
    fields_at_least,
    from_fields,
    in_range,
    instance,
    one_of,
)
from linattn_models.layers.config import TransformerConfig

SUBSAMPLINGS = (1, 4)
POSITIONS = ("sinusoidal", "none")


@dataclass(frozen=True)
class FrontConfig:
    """The fields that the configurations of all recognizers have.

    Attributes:
        what: the configuration in errors.
        num_phones, num_features, subsampling, channels: see `CTCTransformerConfig`.
    """

    what: ClassVar[str]

    num_phones: int
    _: KW_ONLY
    num_features: int = 40
    subsampling: int = 1
    channels: int = 32

    def __post_init__(self) -> None:
        fields_at_least(self, 1, "num_phones", "num_features", "channels")
        subsampling = as_int(self.subsampling)
        if subsampling not in SUBSAMPLINGS:
            raise ValueError(expected("subsampling", "1 or 4", quote(self.subsampling)))
        object.__setattr__(self, "subsampling", subsampling)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values; `from_dict` reads them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The configuration that `to_dict` wrote."""
        return from_fields(cls, cls.what, values)


@dataclass(frozen=True)
class CTCBiLSTMConfig(FrontConfig):
    """The layers of a `CTCBiLSTM`; those of the paper (section 4.3) by default.

    Attributes:
        num_phones, num_features, subsampling, channels: as for `CTCTransformerConfig`.
        num_layers: bidirectional layers.
        hidden_dim: width of each direction; a layer has twice as many outputs.
        bidirectional: False for one direction, of a recognizer that streams; its layers see no
            later frame.
        dropout: probability with which outputs between two layers are dropped, in training mode.
    """

    what = "the Bi-LSTM configuration"

    num_layers: int = 3
    hidden_dim: int = 320
    dropout: float = 0.0
    bidirectional: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        boolean("bidirectional", self.bidirectional)
        fields_at_least(self, 1, "num_layers", "hidden_dim")
        in_range("dropout", self.dropout, 0.0, 1.0)
        if self.dropout and self.num_layers == 1:
            wanted = "0 with one layer, since it acts between layers"
            advice = "set it to 0, or num_layers to 2 or more"
            raise ValueError(expected("dropout", wanted, quote(self.dropout), advice))


@dataclass(frozen=True)
class CTCTransformerConfig(FrontConfig):
    """The layers of a `CTCTransformer`; those of the paper (section 4.3) by default.

    Attributes:
        num_phones: classes besides the blank.
        transformer: the blocks: not causal, or for a recognizer that streams causal, with linear
            attention without a window, or softmax attention with `past_size`; its
            `causal_block` is the output frames of a chunk.
        num_features: F, features of a frame.
        subsampling: 4 puts two 3 x 3 convolutions of stride 2 in front, so that one output frame
            covers four input frames; 1 projects each frame alone.
        channels: channels of these two convolutions.
        depthwise_kernel: width in frames, an odd number, of a convolution x + conv(norm(x)) before
            each block; 0 for none, as in the paper. In a causal one it ends at the chunk's end.
        positions: "sinusoidal", added to the inputs of the first block, or "none", which a causal
            transformer needs: a stream has no end.
    """

    what = "the CTC transformer configuration"

    transformer: TransformerConfig = TransformerConfig(9, 6, 32, 768, is_causal=False)  # noqa: RUF009
    depthwise_kernel: int = 0
    positions: str = "sinusoidal"

    def __post_init__(self) -> None:
        super().__post_init__()
        instance("transformer", self.transformer, TransformerConfig)
        one_of("positions", self.positions, POSITIONS)
        if self.transformer.is_causal:
            _check_streaming(self.transformer, self.positions)
        if self.transformer.cross_attention:
            raise ValueError(expected("transformer", "no cross_attention", "cross_attention=True"))
        fields_at_least(self, 0, "depthwise_kernel")
        if self.depthwise_kernel and self.depthwise_kernel % 2 == 0:
            wanted = "an odd number of frames, or 0 for no convolution"
            raise ValueError(expected("depthwise_kernel", wanted, self.depthwise_kernel))

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values; `from_dict` reads them."""
        return {**super().to_dict(), "transformer": self.transformer.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The configuration that `to_dict` wrote."""
        if isinstance(values, Mapping) and "transformer" in values:
            values = {**values, "transformer": TransformerConfig.from_dict(values["transformer"])}
        return super().from_dict(values)


def _check_streaming(transformer: TransformerConfig, positions: str) -> None:
    """Refuses what no state of fixed size can continue."""
    if positions != "none" or transformer.rotary:
        wanted = "'none' and rotary=False for a causal transformer, whose stream has no end"
        got = f"{positions!r} and rotary={transformer.rotary}"
        raise ValueError(expected("positions", wanted, got))
    attention = transformer.attention
    streams = isinstance(attention, Linear) and not attention.window_size
    if not streams and not (isinstance(attention, Softmax) and attention.past_size):
        wanted = "linear attention without a window, or softmax with past_size; or is_causal=False"
        raise ValueError(expected("transformer", wanted, quote(attention)))
