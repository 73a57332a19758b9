"""A window of softmax beside linear attention, against its definition."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import elu

from linattn_models import DecodingState, Linear, Transformer, TransformerConfig
from tests.models.tiny import tiny_transformer


def attention(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, gamma: Tensor, size: int
) -> Tensor:
    """The equation of `Linear`, a number for each query and key: (B, H, N, D).

    A key before the window counts less by log_decay (B, H, N) of the keys after it, up to the last
    that has left the window.
    """
    root = query.shape[-1] ** -0.25
    query, key = query * root, key * root
    distance = torch.arange(query.shape[2]).unsqueeze(1) - torch.arange(query.shape[2])
    near = (query @ key.mT).exp() * ((distance >= 0) & (distance < size))
    far = (elu(query) + 1) @ (elu(key) + 1).mT * (distance >= size)
    total = log_decay.cumsum(-1)
    left = total.roll(size, -1)
    far = far * (left.unsqueeze(3) - total.unsqueeze(2)).clamp(max=0).exp()
    weights = near + gamma[:, None, None] / query.shape[-1] * far
    return weights @ value / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("size", [1, 3, 9, 20])
@pytest.mark.parametrize("decay", [None, "learned", "gated"])
def test_outputs_and_gradients_are_those_of_the_definition(size: int, decay: str | None) -> None:
    mixer = tiny_transformer(window_size=size, num_layers=1, decay=decay).blocks[0].mixer
    with torch.no_grad():
        mixer.log_gamma.normal_()
    x = torch.randn(2, 9, 8, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(2, 9, 8, dtype=torch.float64)
    log_decay = x.new_zeros(2, 2, 9)
    if decay is not None:
        log_decay = log_decay + mixer.decay(x).view(-1, 9 if decay == "gated" else 1, 2).mT
    heads = attention(*mixer.project(x)[:3], log_decay, mixer.log_gamma.exp(), size)
    far = [x for name, x in mixer.named_parameters() if name.startswith(("log_gamma", "decay"))]
    inputs = [x, *far] if size < 9 else [x]

    torch.testing.assert_close(mixer(x), mixer.join(heads))
    actual = torch.autograd.grad((mixer(x) * upstream).sum(), inputs)
    wanted = torch.autograd.grad((mixer.join(heads) * upstream).sum(), inputs)
    torch.testing.assert_close(actual, wanted)


def test_a_map_with_a_factor_of_each_query_is_refused() -> None:
    """Softmax has no such factor, so that the two could not share a normalizer."""
    attention = Linear("favor", window_size=3)
    with pytest.raises(ValueError, match=r"feature_map: .* 'favor'"):
        Transformer(TransformerConfig(1, 2, 4, 8, attention=attention))


def test_a_state_has_the_decays_of_its_window_also_on_disk(tmp_path: Path) -> None:
    model, other = (tiny_transformer("windowed", decay=x) for x in ("gated", "learned"))
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    with torch.no_grad():
        _, state = model.prefill(x[:, :5])
        state.save(tmp_path / "state")
        loaded = DecodingState.load(tmp_path / "state")
        assert loaded.layers[0].keys.shape == (2, 2, 3, 5)
        with pytest.raises(ValueError, match="layer 0 of the state"):
            other.step(x[:, 5], state)
        torch.testing.assert_close(model.step(x[:, 5], loaded)[0], model(x)[:, 5])
