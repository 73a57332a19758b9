"""Calls as fields of native structs: addresses, strides, sizes, enumerators."""

from __future__ import annotations

import enum
from types import SimpleNamespace

import torch

from linattn_core import LinearAttentionState
from linattn_core.calls import AttentionCall, StepCall
from linattn_core.native import Fields, make_readable, new_gradients, new_output

MODULE = SimpleNamespace(
    Dtype=enum.Enum("Dtype", ["float32", "bfloat16"]),
    FeatureMap=enum.Enum("FeatureMap", ["identity", "elu"]),
)
Q = torch.zeros(2, 5, 3, 4).transpose(1, 2)  # (B, H, N, D) over (B, N, H, D)
V = torch.zeros(2, 3, 5, 6, dtype=torch.bfloat16)
CALL = AttentionCall(Q, Q, V, True)


def test_fields_of_a_call() -> None:
    fields = Fields(MODULE).attention(CALL)
    assert fields["query"] == (Q.data_ptr(), 60, 4, 12, 1)
    sizes = ("batch", "heads", "kv_heads", "queries", "keys", "dim", "value_dim", "sequences")
    assert [fields[x] for x in sizes] == [2, 3, 3, 5, 5, 4, 6, 2]
    assert fields["normalize"] is True
    assert fields["query_dtype"] is MODULE.Dtype.float32
    assert fields["value_dtype"] is MODULE.Dtype.bfloat16
    assert fields["map"] is MODULE.FeatureMap.elu
    assert fields["key_lengths"] == fields["cu_seqlens"] == 0


def test_fields_of_a_step() -> None:
    state = LinearAttentionState(torch.zeros(2, 3, 6, 4).mT, torch.zeros(2, 3, 4))
    fields = Fields(MODULE).step(StepCall(Q[:, :, 0], Q[:, :, 0], V[:, :, 0].float(), state))
    assert fields["query"] == (Q.data_ptr(), 60, 4, 0, 1)
    assert fields["s"] == (state.s.data_ptr(), 72, 24, 1, 4)
    assert (fields["dim"], fields["value_dim"]) == (4, 6)


def test_a_readable_call_has_contiguous_states_and_long_lengths() -> None:
    assert make_readable(CALL) is CALL
    state = LinearAttentionState(torch.rand(2, 3, 6, 4).mT, torch.rand(2, 3, 8)[..., ::2])
    lengths = torch.tensor([5, 9, 2, 9], dtype=torch.int32)[::2]
    call = make_readable(CALL._replace(initial_state=state, key_lengths=lengths))
    assert all(x.is_contiguous() for x in call.initial_state)
    assert torch.equal(call.initial_state.s, state.s)
    assert call.key_lengths.dtype == torch.int64
    assert call.key_lengths.tolist() == [5, 2]


def test_what_native_code_writes() -> None:
    assert new_output(CALL).state is None
    out, normalizer, state = new_output(CALL._replace(is_causal=False))
    assert out.shape == CALL.value.shape and normalizer.shape == out.shape[:3]
    assert state.s.shape == (2, 3, 4, 6) and state.z.shape == (2, 3, 4)
    gradients = new_gradients(CALL)
    assert gradients.query.is_contiguous() and gradients.value.dtype == torch.bfloat16
    assert gradients.initial_state is None
