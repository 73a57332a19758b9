"""One rule says whether weights are still the same, for fingerprints and packed decoders."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from linattn_models.weights.fingerprint import compute_fingerprint, record_weights, sum_bits

HUGE = (-math.inf, 1e9, math.nan)
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool)


class Layer(nn.Module):
    """A matrix with a number in each row that hides the others from a sum."""

    def __init__(self, hiding: float = 1.0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        weight = (torch.arange(7 * 129).view(7, 129) % 31 / 8).to(dtype)
        weight[:, 5] = hiding
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.inner = nn.Linear(3, 2)


def write_beside(layer: Layer) -> None:
    layer.weight.data[:, 9] += 2**-10


def exchange_rows(layer: Layer) -> None:
    layer.weight.data.copy_(layer.weight.data.flip(0))


def exchange_columns(layer: Layer) -> None:
    layer.weight.data.copy_(layer.weight.data.roll(1, 1))


def exchange_signs(layer: Layer) -> None:
    layer.weight.data[2, 10:12] = torch.tensor([0.5, -0.5])
    record_weights(layer)
    layer.weight.data[2, 10:12] = torch.tensor([-0.5, 0.5])


def negate_zero(layer: Layer) -> None:
    assert layer.weight[0, 0] == 0
    layer.weight.data[0, 0] = -0.0


def copy_data(layer: Layer) -> None:
    layer.weight.data.copy_(layer.weight.data * 2)


def write_by_numpy(layer: Layer) -> None:
    layer.weight.numpy()[3, 4] += 1


def shape_data(layer: Layer) -> None:
    layer.weight.data = layer.weight.data.view(129, 7)


UNCOUNTED = [
    write_beside, exchange_rows, exchange_columns, exchange_signs, negate_zero, copy_data,
    write_by_numpy, shape_data,
]  # fmt: skip


@pytest.mark.parametrize("change", UNCOUNTED)
def test_a_call_sees_writes_that_torch_does_not_count(change: Callable[[Layer], None]) -> None:
    for hiding in HUGE:
        layer = Layer(hiding)
        before, fingerprint = record_weights(layer), compute_fingerprint(layer)
        assert before.holds() and record_weights(layer) is before

        change(layer)

        assert record_weights(layer) is not before
        assert compute_fingerprint(layer) != fingerprint


def optimize(layer: Layer) -> None:
    with torch.no_grad():
        layer.weight.mul_(2)


def load(layer: Layer) -> None:
    layer.load_state_dict({name: x + 1 for name, x in layer.state_dict().items()})


def replace(layer: Layer) -> None:
    layer.weight = nn.Parameter(layer.weight.detach() + 1)


def replace_module(layer: Layer) -> None:
    layer.inner = nn.Linear(3, 2)


def add_member(layer: Layer) -> None:
    layer.inner.register_buffer("scale", torch.ones(2))


def move_data(layer: Layer) -> None:
    layer.weight.data = layer.weight.data + 1


def add_hook(layer: Layer) -> None:
    layer.inner.register_forward_hook(lambda *_: None)


def exchange_hooks(layer: Layer) -> None:
    handle = layer.inner.register_forward_pre_hook(lambda *_: None)
    record_weights(layer)
    handle.remove()
    layer.inner.register_forward_pre_hook(lambda *_: None)


def replace_forward(layer: Layer) -> None:
    layer.inner.forward = lambda input: input  # type: ignore[method-assign]


COUNTED = [
    optimize, load, replace, replace_module, add_member, move_data, add_hook, exchange_hooks,
    replace_forward,
]  # fmt: skip


@pytest.mark.parametrize("change", COUNTED)
def test_a_step_sees_what_torch_counts(change: Callable[[Layer], None]) -> None:
    layer = Layer()
    before = record_weights(layer)
    change(layer)
    assert not before.holds()
    after = record_weights(layer)
    assert after is not before and after.holds()


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_bit_of_each_dtype_counts(dtype: torch.dtype) -> None:
    layer = Layer(1.0, dtype)
    content = layer.weight.data.view(torch.uint8).view(-1)
    for place in (0, 1, len(content) // 2, len(content) - 1):
        for bit in (1, 128) if dtype != torch.bool else (1,):
            before = record_weights(layer)
            content[place] ^= bit
            assert before.holds() and record_weights(layer) is not before


@pytest.mark.parametrize("size", [0, 1, 511, 512, 70_000, 300_001])
def test_tensors_of_any_size_and_place(size: int) -> None:
    memory = torch.randn(size + 1, generator=torch.Generator().manual_seed(0)).bfloat16()
    for x in (memory[:size], memory[1:], memory[1:].expand(2, size).t()):
        sums = sum_bits([x])
        assert all(map(torch.equal, sums, sum_bits([x.clone()])))
        if size:
            other = x.clone()
            other[size // 2] = -other[size // 2]
            assert not torch.equal(sums[0], sum_bits([other])[0])


def test_two_numbers_that_are_exchanged_always_count() -> None:
    values = torch.tensor([1.0, -1.0, 0.5, 2.0, math.inf, math.nan, 0.0, -0.0])
    x = values.repeat(200)
    before = sum_bits([x])[0]
    places = torch.randint(len(x), (200, 2), generator=torch.Generator().manual_seed(0))
    bits: Tensor = x.view(torch.int32)
    for first, second in places.tolist():
        y = x.clone()
        y[first], y[second] = x[second], x[first]
        assert torch.equal(sum_bits([y])[0], before) == bool(bits[first] == bits[second])
