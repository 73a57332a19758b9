"""Prefill and step agree with forward, whatever the attention and however prompts are mixed."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor

from linattn_models import DecodingState, Transformer
from linattn_models.layers.block import Block
from linattn_models.state import Cursor
from tests.models.tiny import ATTENTIONS, tiny_config, tiny_transformer, vectors

ROOM = 8


def steps_from(model: Transformer, state: DecodingState, x: Tensor) -> tuple[Tensor, DecodingState]:
    """Outputs for x (B, n, E) fed one position at a time."""
    outputs = []
    for column in x.unbind(1):
        y, state = model.step(column, state)
        outputs.append(y)
    return torch.stack(outputs, 1), state


@pytest.mark.parametrize("grad", [True, False])
def test_steps_from_the_start_equal_forward(attention: str, grad: bool) -> None:
    model = tiny_transformer(attention, norm_first=grad)
    x = vectors(3, ROOM)
    with torch.set_grad_enabled(grad):
        state = model.initial_state(3, max_length=ROOM)
        y, state = steps_from(model, state, x)
    torch.testing.assert_close(y, model(x), check_dtype=True)
    assert state.position == ROOM


def test_the_size_of_a_state(attention: str) -> None:
    model = tiny_transformer(attention)
    sizes = [model.initial_state(3, max_length=n).nbytes for n in (4, 8)]
    heads, dim, layers, bytes_each, batch = 2, 4, 2, 8, 3
    linear = batch * layers * heads * (dim * dim + dim) * bytes_each
    cache = batch * layers * 2 * heads * dim * bytes_each
    window = 3 * cache + linear
    of_each = {"linear": [linear] * 2, "windowed": [window] * 2, "softmax": [4 * cache, 8 * cache]}
    assert sizes == of_each[attention]


@pytest.mark.parametrize("ragged", [True, False])
def test_rows_can_be_forked_reordered_and_dropped(attention: str, ragged: bool) -> None:
    model = tiny_transformer(attention)
    x = vectors(3, ROOM)
    lengths = torch.tensor([4, 2, 3] if ragged else [4, 4, 4])
    order = torch.tensor([2, 0, 2, 2])
    with torch.no_grad():
        _, state = model.prefill(x[:, :4], lengths, max_length=ROOM)
        chosen = state.index_select(order)
        new = vectors(4, 3)
        y, _ = steps_from(model, chosen, new)
        for beam, row in enumerate(order.tolist()):
            prompt = x[row, : lengths[row]]
            whole = model(torch.cat([prompt, new[beam]]).unsqueeze(0))[0]
            torch.testing.assert_close(y[beam], whole[len(prompt) :])
        # The rows that were chosen from are untouched by steps of the copies.
        z, _ = steps_from(model, state, x[:, 4:6])
        whole = model(torch.cat([x[0, : lengths[0]], x[0, 4:6]]).unsqueeze(0))[0]
        torch.testing.assert_close(z[0], whole[-2:])


@pytest.mark.parametrize("grad", [False, True])
def test_a_state_of_inference_mode_goes_on_outside(attention: str, grad: bool) -> None:
    model, x = tiny_transformer(attention), vectors(2, 6)
    with torch.inference_mode():
        _, state = model.prefill(x[:, :3], max_length=ROOM)
    with torch.set_grad_enabled(grad):
        out, _ = steps_from(model, state, x[:, 3:])
    torch.testing.assert_close(out, model(x)[:, 3:])


def test_gradients_through_states_equal_those_of_forward(attention: str) -> None:
    model = tiny_transformer(attention)
    x = vectors(2, ROOM).requires_grad_()
    weights = torch.randn(2, ROOM, 8, dtype=torch.float64)
    (expected,) = torch.autograd.grad((model(x) * weights).sum(), x)
    y, first = model.prefill(x[:, :3], max_length=ROOM)
    before = [t.clone() for layer in first.layers for t in layer]
    z, second = model.prefill(x[:, 3:5], state=first)
    before += [t.clone() for layer in second.layers for t in layer]
    u, _ = steps_from(model, second, x[:, 5:])
    (gradient,) = torch.autograd.grad((torch.cat([y, z, u], 1) * weights).sum(), x)
    torch.testing.assert_close(gradient, expected)
    after = [t for state in (first, second) for layer in state.layers for t in layer]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_detach_cuts_gradients_off(attention: str) -> None:
    model = tiny_transformer(attention)
    x = vectors(2, 3).requires_grad_()
    _, state = model.prefill(x, max_length=ROOM)
    y, _ = model.step(vectors(2, 1)[:, 0], state.detach())
    assert torch.autograd.grad(y.sum(), x, allow_unused=True) == (None,)


def test_a_state_that_is_cast_fits_a_model_that_is_cast_alike(attention: str) -> None:
    model = tiny_transformer(attention)
    _, state = model.prefill(vectors(2, 3), max_length=ROOM)
    state, before = state.to(torch.float32), state.to(torch.float32)
    cast = state.to(torch.bfloat16)
    with torch.no_grad():
        y, _ = model.bfloat16().step(vectors(2, 1)[:, 0].bfloat16(), cast)
    assert y.dtype == torch.bfloat16
    for layer, same in zip(state.layers, before.layers, strict=True):
        assert all(map(torch.equal, layer, same))  # a cast is a copy


@pytest.mark.parametrize("rotary", [False, True])
def test_autocast_steps_as_it_prefills(attention: str, rotary: bool) -> None:
    model = Transformer(tiny_config(attention, rotary=rotary)).eval()
    x = torch.randn(2, ROOM, 8)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        _, state = model.prefill(x[:, :4], max_length=ROOM)
        y, _ = steps_from(model, state, x[:, 4:])
        z, _ = steps_from(model, model.initial_state(2, max_length=ROOM), x)
        whole = model(x)
    assert (y.float() - whole[:, 4:].float()).abs().max() < 0.1
    assert (z.float() - whole.float()).abs().max() < 0.1


def test_decoding_never_drops_out(attention: str) -> None:
    model = tiny_transformer(attention, dropout=0.5)
    x = vectors(2, ROOM)
    whole = model(x)
    model.train()
    y, state = model.prefill(x[:, :5], max_length=ROOM)
    z, _ = steps_from(model, state, x[:, 5:])
    torch.testing.assert_close(torch.cat([y, z], 1), whole)


def test_rotary_scores_depend_on_differences_of_positions() -> None:
    model = tiny_transformer("softmax", rotary=True)
    x = vectors(1, 4)
    first, far = (model.rotation(x, Cursor(start, start)) for start in (0, 2**30))
    near_by, far_away = (cast(Block, model.blocks[0])(x, rotation=r) for r in (first, far))
    torch.testing.assert_close(far_away, near_by, rtol=0, atol=1e-5)
    assert not torch.allclose(near_by, cast(Block, model.blocks[0])(x))


def test_softmax_needs_to_know_the_room() -> None:
    with pytest.raises(ValueError, match="max_length"):
        tiny_transformer("softmax").initial_state(1)


def test_a_full_state_refuses_to_step(attention: str) -> None:
    model = tiny_transformer(attention)
    _, state = model.prefill(vectors(2, 4), torch.tensor([4, 1]), max_length=4)
    with pytest.raises(ValueError, match="room for 4 positions and all are taken"):
        model.step(vectors(2, 1)[:, 0], state)
    with pytest.raises(ValueError, match="at most 4 positions, got 5"):
        model.prefill(vectors(2, 5), max_length=4)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_an_encoder_refuses_to_decode_with_the_reason(attention: str) -> None:
    model = tiny_transformer(attention, is_causal=False)
    state = tiny_transformer(attention).initial_state(1, max_length=2)
    reason = "depends on all inputs"
    with pytest.raises(ValueError, match=reason):
        model.initial_state(1, max_length=2)
    with pytest.raises(ValueError, match=reason):
        model.prefill(vectors(1, ROOM), max_length=ROOM)
    with pytest.raises(ValueError, match=reason):
        model.step(vectors(1, ROOM)[:, 0], state)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("lengths", [[3, 3, 3], [3, 1, 2]])
def test_a_step_takes_as_many_rows_as_the_state_holds(
    attention: str, rows: int, lengths: list[int]
) -> None:
    model = tiny_transformer(attention)
    _, state = model.prefill(vectors(3, 3), torch.tensor(lengths), max_length=ROOM)
    before = state.clone()
    with torch.no_grad(), pytest.raises(ValueError, match=f"3 sequences, got inputs for {rows}"):
        model.step(vectors(rows, 1)[:, 0], state)
    for layer, copy in zip(state.layers, before.layers, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(layer, copy, strict=True))


def test_refuses_what_cannot_be_right() -> None:
    model = tiny_transformer()
    state = model.initial_state(2, max_length=4)
    with pytest.raises(ValueError, match="shape"):
        model.step(vectors(2, 1), state)
    with pytest.raises(ValueError, match="lengths"):
        model.prefill(vectors(2, 3), torch.tensor([1, 4]), max_length=8)
    with pytest.raises(ValueError, match="batch"):
        model.initial_state(0, max_length=4)
