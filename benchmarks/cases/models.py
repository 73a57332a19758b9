"""The models that the cases decode with: the one place that builds configurations."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from benchmarks.case import Settings
from linattn_lab.machine import Device
from linattn_models import (
    AutoregressiveTransformer,
    Categorical,
    Head,
    MixtureOfLogistics,
    TransformerConfig,
)
from linattn_models.attention import Attention

MODEL = "8 layers, 8 heads of 32, 784 pixels, mixture of 10 logistics"
# How the compiled decoder stores weights, and the bytes of each.
WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
QUICK_BATCH = 3


@dataclasses.dataclass(frozen=True)
class Task:
    """A batch of images and the model that decodes them; the paper's for MNIST (table 1).

    Its layers normalize after the residual sum, as the peer's do, so that weights can be shared.
    With `language`, a model of bytes with the layers of `TransformerConfig.language`.
    """

    batch: int = 1
    num_layers: int = 8
    num_heads: int = 8
    head_dim: int = 32
    ffn_dim: int = 1024
    length: int = 784
    device: Device = "cpu"
    language: bool = False

    def for_settings(self, settings: Settings) -> Task:
        """The task on the device of the run, and tiny in a quick one."""
        if settings.quick:
            return Task(min(self.batch, QUICK_BATCH), 2, 2, 8, 32, 12, settings.device)
        return dataclasses.replace(self, device=settings.device)

    @property
    def matrix_weights(self) -> int:
        """The number of weights in the layers' matrices, which every step has to read."""
        embed_dim = self.num_heads * self.head_dim
        return self.num_layers * (4 * embed_dim**2 + 2 * embed_dim * self.ffn_dim)

    @property
    def operations(self) -> float:
        """Of a step: two for each weight, and 4 D M per head to update and read the state."""
        state = 4 * self.num_layers * self.num_heads * self.head_dim**2
        return self.batch * (2 * self.matrix_weights + state)

    def traffic(self, weights: str = "float32") -> float:
        """Bytes of a step: the weights once, and every state read and written in float32."""
        state = self.num_layers * self.num_heads * self.head_dim * (self.head_dim + 1)
        return WEIGHT_BYTES[weights] * self.matrix_weights + 2 * 4 * self.batch * state

    def model(
        self,
        attention: str | Attention | None = None,
        dtype: torch.dtype = torch.float32,
        head: Head | None = None,
        positions: str | None = None,
    ) -> AutoregressiveTransformer:
        """Returns the model with random weights, the same at every call.

        Args:
            attention: None for the default of its layers: linear attention, with a window in those
                of `TransformerConfig.language`.
        """
        sizes = self.num_layers, self.num_heads, self.head_dim
        fields: dict[str, Any] = {} if attention is None else {"attention": attention}
        if self.language:
            config = TransformerConfig.language(*sizes, **fields)
        else:
            config = TransformerConfig(*sizes, self.ffn_dim, norm_first=False, **fields)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            usual = Categorical(256) if self.language else MixtureOfLogistics(10)
            head = usual if head is None else head
            model = AutoregressiveTransformer(config, head, self.length, positions)
        return model.eval().requires_grad_(False).to(self.device, dtype)
