"""explain takes the arguments of the call that it explains, and no others."""

from __future__ import annotations

import pytest
import torch

from linattn_core import LinearAttentionState, explain


def test_explain_takes_the_arguments_of_the_call() -> None:
    q, k, v = torch.randn(1, 4, 5, 3), torch.randn(1, 2, 5, 3), torch.randn(1, 2, 5, 3)
    answers = explain(
        q, k, v, is_causal=True, enable_gqa=True, attn_mask=torch.ones(1, 5, dtype=torch.bool),
        log_decay=-torch.ones(2), normalize=False, return_normalizer=True,
    )  # fmt: skip
    assert answers["reference"] == "accepts"
    step = explain(
        q[:, :, 0], k[:, :, 0], v[:, :, 0], LinearAttentionState.zeros(7, 2, 3, 3),
        state_indices=torch.tensor([3]), inplace=True, enable_gqa=True, log_decay=-torch.ones(2),
    )  # fmt: skip
    assert step["reference"] == "accepts"


@pytest.mark.parametrize("stepping", [False, True])
def test_explain_names_an_argument_that_the_call_does_not_have(stepping: bool) -> None:
    q = torch.randn(1, 2, 5, 3)
    rows = (q[:, :, 0],) * 3 if stepping else (q, q, q)
    state = LinearAttentionState.zeros(1, 2, 3, 3) if stepping else None
    with pytest.raises(TypeError, match="got 'log_deca'; did you mean 'log_decay'"):
        explain(*rows, state, log_deca=None)
