"""The models that the cases decode with: the one place that builds configurations."""

from __future__ import annotations

import dataclasses

import torch

from linattn_models import AutoregressiveTransformer, MixtureOfLogistics, TransformerConfig

MODEL = "8 layers, 8 heads of 32, 784 pixels, mixture of 10 logistics"
# How the compiled decoder keeps weights, and the bytes of each.
WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


@dataclasses.dataclass(frozen=True)
class Size:
    """The model and its images; the paper's for MNIST by default (table 1).

    Its layers normalize after the residual sum, as the peer's do, so that weights can be shared.
    """

    num_layers: int = 8
    num_heads: int = 8
    head_dim: int = 32
    ffn_dim: int = 1024
    length: int = 784

    def operations_per_token(self) -> float:
        """Two for each weight of a matrix, and 4 D M a head for updating and reading the state."""
        state = 4 * self.num_heads * self.head_dim**2
        return 2 * self.matrix_weights() + self.num_layers * state

    def matrix_weights(self) -> int:
        """The weights of the layers' matrices: what every step has to read."""
        embed_dim = self.num_heads * self.head_dim
        return self.num_layers * (4 * embed_dim**2 + 2 * embed_dim * self.ffn_dim)

    def traffic_of_step(self, batch: int, weights: str = "float32") -> float:
        """Bytes of the weights once, and of every state read and written in float32."""
        state = self.num_layers * self.num_heads * self.head_dim * (self.head_dim + 1)
        return WEIGHT_BYTES[weights] * self.matrix_weights() + 2 * 4 * batch * state


QUICK_SIZE = Size(num_layers=2, num_heads=2, head_dim=8, ffn_dim=32, length=12)


def build_model(
    attention: str, size: Size, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> AutoregressiveTransformer:
    """Returns the model with random weights, the same at every call."""
    config = TransformerConfig(
        size.num_layers, size.num_heads, size.head_dim, size.ffn_dim,
        attention=attention, norm="post",
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoregressiveTransformer(config, MixtureOfLogistics(10), size.length)
    return model.eval().requires_grad_(False).to(device, dtype)
