"""Steps on slots of a pool read no number, so that a CUDA graph can hold them."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from linattn_core import LinearAttentionState, linear_attention_step
from linattn_core.calls import StepCall
from linattn_core.reference_backend.step import step


def call(indices: list[int], slots: int = 4) -> StepCall:
    b = len(indices)
    pool = LinearAttentionState(torch.rand(slots, 2, 3, 5), torch.rand(slots, 2, 3))
    tensors = torch.randn(b, 2, 3), torch.randn(b, 2, 3), torch.randn(b, 2, 5)
    numbers = torch.tensor(indices)
    return StepCall(*tensors, pool, state_indices=numbers, log_decay=-torch.ones(b, 2))


def test_the_recorded_step_serves_other_slots() -> None:
    """Recorded without a number: empty rows may come and go in what was recorded."""
    first = call([2, -1, 0])
    rows = *first[:3], first.log_decay

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        q, k, v, decay, indices, s, z = tensors
        return step(
            StepCall(q, k, v, LinearAttentionState(s, z), state_indices=indices, log_decay=decay)
        )

    example = first.state.clone()
    recorded = make_fx(run, tracing_mode="fake")(*rows, first.state_indices, *example)
    for indices in ([2, -1, 0], [-1, -1, -1], [3, 1, 0], [-1, 2, -1]):
        numbers, eager, again = torch.tensor(indices), first.state.clone(), first.state.clone()
        assert torch.equal(recorded(*rows, numbers, *again), run(*rows, numbers, *eager))
        assert all(torch.equal(x, y) for x, y in zip(again, eager, strict=True))


def test_slots_made_in_inference_mode_are_updated_outside() -> None:
    rows = call([1, -1])
    with torch.inference_mode():
        state = rows.state.clone()
    expected = state.clone()
    for own in (state, expected):
        linear_attention_step(
            *rows[:3], own, state_indices=rows.state_indices, inplace=True, backend="reference"
        )
    assert all(torch.equal(x, y) for x, y in zip(state, expected, strict=True))


@pytest.mark.parametrize(("indices", "slots"), [([], 4), ([-1, -1], 0)])
def test_no_rows_and_no_slots(indices: list[int], slots: int) -> None:
    assert not step(call(indices, slots)._replace(state_indices=torch.tensor(indices).int())).any()
