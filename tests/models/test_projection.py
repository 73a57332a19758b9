"""The layer laid out for single vectors is an ordinary linear layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from linattn_models import single
from linattn_models.projection import WideningLinear


@pytest.mark.parametrize("shape", [(5,), (2, 3, 5)])
def test_is_a_linear_layer(shape: tuple[int, ...]) -> None:
    layer, usual = WideningLinear(5, 12), nn.Linear(5, 12)
    with torch.no_grad():
        usual.weight.copy_(layer.weight.t())
        usual.bias.copy_(layer.bias)
    x = torch.randn(shape)
    torch.testing.assert_close(layer(x), usual(x))


def test_starts_as_a_linear_layer_does() -> None:
    layer, usual = WideningLinear(64, 640), nn.Linear(64, 640)
    for own, other in ((layer.weight, usual.weight), (layer.bias, usual.bias)):
        assert own.std().item() == pytest.approx(other.std().item(), rel=0.1)
        assert own.abs().max() <= 64**-0.5


def test_single_vectors_go_past_the_module_to_the_same_result() -> None:
    x = torch.randn(3, 5)
    layers = (WideningLinear(5, 12), nn.Linear(5, 12), nn.LayerNorm(5, eps=0.1))
    for layer, alone in zip(layers, (single.widening, single.linear, single.norm), strict=True):
        torch.testing.assert_close(alone(layer, x), layer(x))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("outputs", [12, 64, 128, 320, 384])
def test_threads_that_share_a_vector_leave_its_result(threads: int, outputs: int) -> None:
    before = torch.get_num_threads()
    x = torch.randn(1, 40)
    torch.set_num_threads(threads)
    try:
        for layer, alone in (
            (WideningLinear(40, outputs), single.widening),
            (nn.Linear(40, outputs), single.linear),
        ):
            y = alone(layer, x)
            assert y.shape == (1, outputs) and y.is_contiguous()
            torch.testing.assert_close(y, layer(x))
    finally:
        torch.set_num_threads(before)


def test_a_layer_with_a_hook_or_in_anothers_place_is_called() -> None:
    x, calls = torch.randn(1, 40), []
    for layer, alone in (
        (WideningLinear(40, 128), single.widening),
        (nn.Linear(40, 128), single.linear),
        (nn.LayerNorm(40), single.norm),
    ):
        layer.register_forward_hook(lambda *_: calls.append(1))
        torch.testing.assert_close(alone(layer, x), layer(x))
        other = nn.Sequential(nn.Linear(40, 7), nn.ReLU())
        assert torch.equal(alone(other, x), other(x))
    assert len(calls) == 6
    without_bias = nn.Linear(40, 128, bias=False)
    assert torch.equal(single.linear(without_bias, x), without_bias(x))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [1, 5, 200])
def test_a_feed_forward_network_is_its_layers_one_after_the_other(rows: int, threads: int) -> None:
    expand, contract, x = WideningLinear(40, 320), nn.Linear(320, 40), torch.randn(rows, 40)
    expected = contract(torch.relu(expand(x)))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        y = single.feed_forward(expand, torch.relu, contract, x)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(y, expected)
    expand.register_forward_hook(lambda _, __, output: output + 1)
    assert not torch.allclose(single.feed_forward(expand, torch.relu, contract, x), expected)
