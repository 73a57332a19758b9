"""The calls that no backend may refuse: refusals are skipped and could skip the whole suite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .cases import Case

# Tests that a backend without gradients has to pass, with their causal cases of whole sequences.
FORWARD_ONLY = frozenset(
    {
        "test_within_budget",
        "test_one_position_is_its_own_value",
        "test_the_future_does_not_touch_the_past",
        "test_permuting_commutes",
        "test_broadcast_views_are_read_in_place",
        "test_lengths_may_change_without_recompiling",
    }
)

# These refuse no call on their device, so that modules with `MAY_REFUSE` skip none of theirs.
COMPLETE = frozenset({"reference", "cpu"})


def required(name: str, parameters: Mapping[str, Any]) -> bool:
    """Whether a backend without gradients may not refuse what this test calls."""
    case = parameters.get("case", Case())
    return name in FORWARD_ONLY and parameters.get("is_causal", True) and _is_plain(case)


def _is_plain(case: Case) -> bool:
    """A causal call of whole sequences that start from nothing."""
    extras = (case.keys, case.key_lengths, case.cu_seqlens)
    return (
        case.is_causal
        and all(x is None for x in extras)
        and not case.initial_state
        and case.dtype != torch.float64
    )
