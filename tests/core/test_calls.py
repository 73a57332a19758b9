"""Calls as values: sizes, and the way through torch's flat schemas."""

from __future__ import annotations

import pytest
import torch

from linattn_core import LinearAttentionState
from linattn_core.calls import AttentionCall, Gradients, StepCall
from linattn_core.operators.library import Flat, merge_arguments, split_arguments

Q, V = torch.zeros(2, 3, 5, 4), torch.zeros(2, 3, 7, 6)
STATE = LinearAttentionState.zeros(2, 3, 4, 6)
CALL = AttentionCall(Q, V[..., :4], V)


@pytest.mark.parametrize("state", [None, STATE], ids=["stateless", "state"])
def test_packed_and_unpacked_is_the_call(state: LinearAttentionState | None) -> None:
    flat = Flat(AttentionCall)
    call = CALL._replace(initial_state=state, key_lengths=torch.tensor([1, 2]), eps=0.5)
    arguments = flat.pack(call)
    assert len(arguments) == len(flat.names) == len(call) + 1
    back = flat.unpack(merge_arguments(*split_arguments(arguments)))
    assert (back.initial_state is None) == (state is None)
    assert all(x is y for x, y in zip(back.initial_state or (), state or (), strict=True))
    assert back.wanted_gradients == call.wanted_gradients  # one string on the way
    others = (x._replace(initial_state=None, wanted_gradients=()) for x in (back, call))
    assert all(x is y for x, y in zip(*others, strict=True))


@pytest.mark.parametrize("record", [AttentionCall, StepCall, Gradients])
def test_every_field_is_declared_to_torch(record: type) -> None:
    """A field of a type that torch's schemas lack would be declared without one."""
    flat = Flat(record)
    assert set(record._fields) - set(flat.names) <= {"state", "initial_state"}
    assert all(len(x.split()) == 2 for x in flat.schema.split(", "))


def test_gradients_go_by_the_names_of_the_call() -> None:
    assert set(Flat(Gradients).names) <= set(Flat(AttentionCall).names)
