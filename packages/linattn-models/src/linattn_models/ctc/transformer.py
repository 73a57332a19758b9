"""The paper's recognizer: a transformer that sees all frames."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from linattn_models.ctc.config import CTCTransformerConfig
from linattn_models.ctc.recognizer import Convolution, Recognizer
from linattn_models.positions import sinusoids
from linattn_models.precision import precision_of
from linattn_models.transformer import Transformer


class CTCTransformer(Recognizer):
    """log p(class | all frames) for every output frame, by a non-causal transformer.

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

    def hidden(self, frames: Tensor, lengths: Tensor | None, padding: Tensor | None) -> Tensor:
        """(B, N, num_inputs) -> (B, N, E)."""
        device, dtype = precision_of(self.output)
        with torch.device(device):
            positions = sinusoids(frames.shape[1], self.config.transformer.embed_dim)
        # In the dtype of the weights, so that the residual stream is float32 also inside autocast.
        x = self.input(frames) + positions.to(dtype)
        rotation = self.transformer.rotation(x)
        for index, block in enumerate(self.transformer.blocks):
            if self.convolutions:
                x = self.convolutions[index](x, padding)
            x = block(x, lengths, rotation=rotation)
        return cast(Tensor, self.transformer.norm(x))
