"""Rows that join and leave a batch between steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linattn_models import DecodingBatch, DecodingState
from tests.models.decoding.decoders import Kind, long_model
from tests.models.tiny import ATTENTIONS, random_tokens, tiny_model


@given(attention=st.sampled_from(ATTENTIONS), data=st.data())
def test_rows_go_on_as_if_they_had_never_moved(attention: str, data: st.DataObject) -> None:
    """Each row's tokens are kept beside it: the model reads them again, to compare."""
    model = tiny_model(attention, positions="none")
    tokens = random_tokens(model, 2, 3)
    rows = tokens.tolist()
    with torch.no_grad():
        batch = DecodingBatch(model.prefill(tokens)[1], data.draw(st.integers(1, 4)))
        for _ in range(data.draw(st.integers(1, 4))):
            new = random_tokens(model, data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)))
            batch.join(model.prefill(new)[1])
            rows += new.tolist()
            leaving = data.draw(st.lists(st.sampled_from(range(len(rows))), unique=True))
            order = batch.leave(leaving)
            assert sorted(order.tolist()) == sorted(set(range(len(rows))) - set(leaving))
            rows = [rows[row] for row in order.tolist()]
            if not rows:
                continue
            token = random_tokens(model, len(rows), 1)
            parameters, batch.state = model.step(token[:, 0], batch.state)
            rows = [row + own for row, own in zip(rows, token.tolist(), strict=True)]
            for row, own in enumerate(rows):
                expected, state = model.prefill(torch.tensor([own]))
                torch.testing.assert_close(parameters[row], expected[0])
                assert int(batch.state.cursor.rows(len(rows))[row]) == state.position


def test_only_rows_that_move_are_copied(kind: Kind) -> None:
    """The memory stays where it is, and rows that do not move are not written."""
    model = long_model().to(kind.device)
    decoder = kind.decoder(model)
    with torch.no_grad():
        _, state = decoder.prefill(kind.tokens(model, 4, 3))
        batch = DecodingBatch(state, 8)
        layers = batch.state.layers
        batch.join(decoder.prefill(kind.tokens(model, 2, 7))[1])
        _, batch.state = decoder.step(kind.tokens(model, 6, 1)[:, 0], batch.state)
        assert batch.state.batch == 6 and batch.capacity == 8
        before = batch.state.clone()
        assert batch.leave([1]).tolist() == [0, 5, 2, 3, 4]
    for layer, first in zip(batch.state.layers, layers, strict=True):
        assert all(x.data_ptr() == y.data_ptr() for x, y in zip(layer, first, strict=True))
    expected = before.index_select([0, 5, 2, 3, 4])
    for x, y in zip(batch.state.layers[0], expected.layers[0], strict=True):
        assert torch.equal(x, y)
    assert torch.equal(torch.as_tensor(batch.state.position), torch.as_tensor(expected.position))


@pytest.mark.parametrize(
    ("call", "error", "name"),
    [
        (lambda batch, _: batch.leave([0, 0]), ValueError, "rows"),
        (lambda batch, _: batch.leave([2]), ValueError, "rows"),
        (lambda batch, _: batch.leave([0.5]), TypeError, "rows"),
        (lambda batch, state: batch.join(state.to(torch.float32)), ValueError, "states"),
        (lambda batch, _: batch.join(3), TypeError, "states"),
        (lambda batch, state: setattr(batch, "state", state), ValueError, "state"),
        (lambda _, state: DecodingBatch(state, 0), ValueError, "capacity"),
    ],
)
def test_a_batch_refuses_what_cannot_be_right(
    call: Callable[[DecodingBatch, DecodingState], Any], error: type[Exception], name: str
) -> None:
    model = tiny_model()
    _, state = model.prefill(random_tokens(model, 2, 3))
    batch = DecodingBatch(state, 2)
    with pytest.raises(error, match=f"^{name}: expected"):
        call(batch, state)
    assert batch.state.batch == 2


def test_rows_that_are_overwritten_are_of_the_weights_that_made_them() -> None:
    model = tiny_model()
    _, state = model.prefill(random_tokens(model, 2, 3))
    batch = DecodingBatch(replace(state, fingerprint=model.fingerprint()), 2)
    batch.overwrite(torch.tensor([1]), state.index_select([0]))
    assert batch.state.fingerprint is None
