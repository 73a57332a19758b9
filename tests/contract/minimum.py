"""The calls that no backend may refuse: refusals are skipped and could skip the whole suite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
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

# These refuse no call on their device, so that the marker `may_refuse` skips none of theirs.
COMPLETE = frozenset({"reference", "cpu"})


def required(name: str, parameters: Mapping[str, Any]) -> bool:
    """Whether a backend without gradients may not refuse what this test calls."""
    case = parameters.get("case", Case())
    return name in FORWARD_ONLY and parameters.get("is_causal", True) and _is_plain(case)


def may_refuse(cases: Iterable[Case]) -> list[Any]:
    """Parameters of a test, of which those with arguments that a backend may lack are marked."""
    return [
        pytest.param(x, id=str(x), marks=pytest.mark.may_refuse if _is_extended(x) else ())
        for x in cases
    ]


def _is_extended(case: Case) -> bool:
    """A call with what a backend may refuse: a mask, groups, decay, bare sums and the like."""
    lacks = case.mask is case.log_decay is case.kv_heads is None and case.normalize
    return not (lacks and not case.return_normalizer and (case.is_causal or not case.initial_state))


def _is_plain(case: Case) -> bool:
    """A causal call of whole sequences that start from nothing."""
    extras = (case.keys, case.key_lengths, case.cu_seqlens)
    return (
        case.is_causal
        and all(x is None for x in extras)
        and not case.initial_state
        and case.dtype != torch.float64
    )
