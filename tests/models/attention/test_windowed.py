"""A window of softmax beside linear attention, against its definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import elu

from linattn_models import Linear, Transformer, TransformerConfig
from tests.models.tiny import tiny_transformer


def attention(query: Tensor, key: Tensor, value: Tensor, gamma: Tensor, size: int) -> Tensor:
    """The equation of `Linear`, a number for each query and key: (B, H, N, D)."""
    root = query.shape[-1] ** -0.25
    query, key = query * root, key * root
    distance = torch.arange(query.shape[2]).unsqueeze(1) - torch.arange(query.shape[2])
    near = (query @ key.mT).exp() * ((distance >= 0) & (distance < size))
    far = (elu(query) + 1) @ (elu(key) + 1).mT * (distance >= size)
    weights = near + gamma[:, None, None] / query.shape[-1] * far
    return weights @ value / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("size", [1, 3, 9, 20])
def test_outputs_and_gradients_are_those_of_the_definition(size: int) -> None:
    mixer = tiny_transformer(window_size=size, num_layers=1).blocks[0].mixer
    with torch.no_grad():
        mixer.log_gamma.normal_()
    x = torch.randn(2, 9, 8, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(2, 9, 8, dtype=torch.float64)
    heads = attention(*mixer.project(x), mixer.log_gamma.exp(), size)
    inputs = [x, mixer.log_gamma] if size < 9 else [x]

    torch.testing.assert_close(mixer(x), mixer.join(heads))
    actual = torch.autograd.grad((mixer(x) * upstream).sum(), inputs)
    wanted = torch.autograd.grad((mixer.join(heads) * upstream).sum(), inputs)
    torch.testing.assert_close(actual, wanted)


def test_a_map_with_a_factor_of_each_query_is_refused() -> None:
    """Softmax has no such factor, so that the two could not share a normalizer."""
    attention = Linear("favor", window_size=3)
    with pytest.raises(ValueError, match=r"feature_map: .* 'favor'"):
        Transformer(TransformerConfig(1, 2, 4, 8, attention=attention))


def test_a_batch_of_no_rows_has_outputs_of_no_rows() -> None:
    model = tiny_transformer(window_size=3)
    x = torch.randn(0, 4, 8, dtype=torch.float64)
    assert model(x).shape == x.shape
    with torch.no_grad():
        outputs, state = model.prefill(x)
        assert outputs.shape == x.shape and model.step(x[:, 0], state)[0].shape == (0, 8)
