"""The paper's recognizer: a transformer that sees all frames, or all up to its chunk's end."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from linattn_models.basics.precision import device_of, dtype_of
from linattn_models.ctc.config import CTCTransformerConfig
from linattn_models.ctc.front import Convolution
from linattn_models.ctc.recognizer import Recognizer
from linattn_models.layers.transformer import Transformer
from linattn_models.tokens.positions import sinusoids


class CTCTransformer(Recognizer):
    """log p(class | frames) for every output frame, by a transformer.

    One that is not causal sees all frames. A causal one sees all frames up to the end of the
    output frame's chunk: the whole utterance gives what `stream_step` gives chunk by chunk.

    Cost: O(T) time for linear attention, O(T^2) for softmax, O(T log T) for LSH.

    Args:
        config: the layers.
    """

    kind = "ctc_transformer"
    config_class = CTCTransformerConfig
    config: CTCTransformerConfig

    def __init__(self, config: CTCTransformerConfig) -> None:
        super().__init__(config)
        embed_dim = config.transformer.embed_dim
        self.input = nn.Linear(self.num_inputs, embed_dim)
        convolutions = config.transformer.num_layers if config.depthwise_kernel else 0
        self.convolutions = nn.ModuleList(
            Convolution(embed_dim, config.depthwise_kernel) for _ in range(convolutions)
        )
        self.transformer = Transformer(config.transformer)
        self.output = nn.Linear(embed_dim, config.num_phones + 1)

    @property
    def streams(self) -> bool:
        """Whether frames may be read as they arrive."""
        return self.config.transformer.is_causal

    @property
    def how_to_stream(self) -> str:
        """The advice in an error where the recognizer cannot stream."""
        return "build it with is_causal=True and positions='none'"

    @property
    def dropout(self) -> float:
        """Probability with which outputs are dropped in training mode."""
        return self.config.transformer.dropout

    def hidden(
        self,
        frames: Tensor,
        lengths: Tensor | None,
        padding: Tensor | None,
        chunk: int | None = None,
    ) -> Tensor:
        """(B, N, num_inputs) -> (B, N, E)."""
        config = self.config.transformer
        if chunk is None and config.is_causal:
            chunk = config.causal_block
        x = self.input(frames)
        if self.config.positions == "sinusoidal":
            device, dtype = device_of(self.output), dtype_of(self.output)
            with torch.device(device):
                positions = sinusoids(frames.shape[1], config.embed_dim)
            # In the dtype of the weights: the residual stream is float32 also inside autocast.
            x = x + positions.to(dtype)
        rotation = self.transformer.rotation(x)
        for index, block in enumerate(self.transformer.blocks):
            if self.convolutions:
                x = self.convolutions[index](x, padding, chunk)
            x = block(x, lengths, rotation=rotation, causal_block=chunk)
        return cast(Tensor, self.transformer.norm(x))
