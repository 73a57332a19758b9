"""Gradients of each sample by torch.func, as in torch's tutorial, are those of a loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from tests.models.tiny import ATTENTIONS, MAX_LENGTH, STEPPING, tiny_model, tiny_transformer


class Loss(nn.Module):
    """A model's loss as a module, for `functional_call`."""

    def __init__(self, attention: str, **fields: Any) -> None:
        super().__init__()
        self.model = tiny_model(attention, tie_embeddings=True, **fields)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return self.model.loss(tokens, lengths)


class Vectors(nn.Module):
    """A number that depends on a transformer's outputs."""

    def __init__(self, attention: str, **fields: Any) -> None:
        super().__init__()
        self.model = tiny_transformer(attention, **fields)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.model(x, lengths).square().mean()


CASES = [
    *((Loss, x, {"rotary": x != "softmax"}) for x in STEPPING),
    *((Vectors, x, {"is_causal": False}) for x in ATTENTIONS),
    *((Vectors, x, {"causal_block": 2}) for x in ATTENTIONS),
]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # softmax of torch
@pytest.mark.parametrize(("kind", "attention", "fields"), CASES, ids=str)
def test_gradients_of_each_sample(
    kind: type[nn.Module], attention: str, fields: dict[str, Any]
) -> None:
    module = kind(attention, **fields)
    weights = {name: x.detach() for name, x in module.named_parameters()}
    tokens, lengths = torch.randint(7, (3, MAX_LENGTH)), torch.tensor([MAX_LENGTH, 1, 4])
    inputs = tokens if kind is Loss else torch.randn(3, 5, 8, dtype=torch.float64)
    lengths = lengths.clamp(max=inputs.shape[1])

    def loss(weights: dict[str, Tensor], x: Tensor, length: Tensor) -> Tensor:
        return functional_call(module, weights, (x[None], length[None]))

    each = vmap(grad(loss), in_dims=(None, 0, 0))(weights, inputs, lengths)
    for row, (x, length) in enumerate(zip(inputs, lengths, strict=True)):
        alone = grad(loss)(weights, x, length)
        for name, gradient in alone.items():
            torch.testing.assert_close(each[name][row], gradient)
