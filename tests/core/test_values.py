"""The numbers inside tensors: checked where they are at hand, and left alone on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from linattn_core import LinearAttentionState
from linattn_core.calls import AttentionCall, StepCall
from linattn_core.values import check_attention_values, check_step_values

X = torch.ones(1, 1, 4, 2)
CALL = AttentionCall(X, X, X, True)
STEP = StepCall(*3 * (X[:, :, 0],), LinearAttentionState.zeros(1, 1, 2, 2))
WRONG = {
    "key_lengths": torch.tensor([5]),
    "cu_seqlens": torch.tensor([0, 9]),
    "log_decay": torch.ones(1, 1, 4),
}


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU, and fails where its numbers would be waited for."""

    device = property(lambda self: torch.device("cuda"))  # type: ignore[assignment]

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        pytest.fail(f"{function} reads the tensor")


@pytest.mark.parametrize("name", WRONG)
def test_nothing_waits_for_a_gpu(name: str) -> None:
    check_attention_values(CALL._replace(**{name: WRONG[name].as_subclass(OnGpu)}))


def test_slots_on_a_gpu_are_not_read() -> None:
    slots = torch.tensor([7])
    with pytest.raises(ValueError, match="state_indices"):
        check_step_values(STEP._replace(state_indices=slots))
    check_step_values(STEP._replace(state_indices=slots.as_subclass(OnGpu)))
