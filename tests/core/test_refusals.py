"""Calls that cannot be right are refused in one sentence, which names the argument."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from linattn_core import (
    LinearAttentionState,
    linear_attention,
    linear_attention_state,
    linear_attention_step,
)

NAN, INF = float("nan"), float("inf")
Changes = dict[str, Any]


def attend(**changes: Any) -> None:
    q, k, v = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 6)
    linear_attention(**{"query": q, "key": k, "value": v, **changes})


def take_step(**changes: Any) -> None:
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 6)
    state = LinearAttentionState.zeros(2, 3, 4, 6)
    linear_attention_step(**{"query": q, "key": k, "value": v, "state": state, **changes})


def first_name(changes: Changes) -> str:
    return next(iter(changes))


def check_refusal(call: Any, error: type[Exception], changes: Changes) -> None:
    """The error names the argument that comes first among the changes."""
    with pytest.raises(error, match=first_name(changes)) as caught:
        call(**changes)
    assert "\n" not in str(caught.value)


FLAGS = ("is_causal", "return_state", "enable_gqa", "normalize", "return_normalizer")
WRONG_TYPES: list[Changes] = [
    *({flag: "yes"} for flag in FLAGS),
    {"key": [1.0]},
    {"query": torch.ones(2, 3, 5, 4).long()},
    {"key": torch.randn(2, 3, 5, 4).double()},
    {"value": torch.randn(2, 3, 5, 6).half()},
    {"eps": "small"},
    {"eps": True},
    {"key": torch.randn(2, 3, 5, 4).to_sparse()},
    {"backend": None},
    {"key_lengths": [1, 2]},
    {"key_lengths": torch.tensor([1.0, 5.0])},
    {"attn_mask": [True]},
    {"attn_mask": torch.ones(2, 5)},
    {"log_decay": -0.5, "is_causal": True},
    {"log_decay": -torch.ones(3).long(), "is_causal": True},
    {"initial_state": LinearAttentionState("s", "z"), "is_causal": True},
    {"initial_state": (torch.zeros(2, 3, 4, 6), torch.zeros(2, 3, 4)), "is_causal": True},
    {"initial_state": LinearAttentionState.zeros(2, 3, 4, 6).to(torch.float64), "is_causal": True},
]
WRONG_VALUES: list[Changes] = [
    {"query": torch.randn(2, 3, 4)},
    {"key": torch.randn(1, 3, 5, 4)},
    {"value": torch.randn(2, 1, 5, 6)},
    {"key": torch.randn(2, 3, 5, 7)},
    {"value": torch.randn(2, 3, 4, 6)},
    {"is_causal": True, "query": torch.randn(2, 3, 2, 4)},
    {"feature_map": "el"},
    {"backend": "referense"},
    *({"eps": eps} for eps in (-1e-3, NAN, INF, 10**400)),
    *({"key_lengths": torch.tensor(x)} for x in ([5], [5, 6], [-1, 5], [[1], [2]])),
    {"cu_seqlens": torch.tensor([0, 5])},
    {"cu_seqlens": torch.tensor([0, 5]), "key_lengths": torch.tensor([1, 2])},
    {"enable_gqa": False, "key": torch.randn(2, 1, 5, 4), "value": torch.randn(2, 1, 5, 6)},
    {"key": torch.randn(2, 2, 5, 4), "value": torch.randn(2, 2, 5, 6), "enable_gqa": True},
    {"query": torch.randn(2, 0, 5, 4), "enable_gqa": True},
    *(
        {"attn_mask": torch.ones(shape).bool()}
        for shape in ((2, 6), (3, 5), (5, 5), (2, 3, 1, 5), (2, 1, 5, 5))
    ),
    {"log_decay": torch.zeros(3)},
    {"log_decay": -torch.ones(2), "is_causal": True},
    *({"log_decay": torch.tensor([0, x, 0]), "is_causal": True} for x in (0.1, NAN)),
    *(
        {"initial_state": LinearAttentionState.zeros(*sizes), "is_causal": True}
        for sizes in ((2, 3, 4, 5), (2, 3, 7, 6))
    ),
]


@pytest.mark.parametrize("bounds", [[0, 3], [1, 5], [0, 4, 2, 5], []], ids=str)
def test_bounds_of_packed_sequences(bounds: list[int]) -> None:
    q, v = torch.randn(1, 3, 5, 4), torch.randn(1, 3, 5, 6)
    changes = {"cu_seqlens": torch.tensor(bounds, dtype=torch.int64)}
    check_refusal(attend, ValueError, changes | {"query": q, "key": q, "value": v})


# Tensors without numbers, which must not stand beside tensors with numbers.
META: list[Changes] = [
    {"key_lengths": torch.ones(2, dtype=torch.int64, device="meta")},
    {"cu_seqlens": torch.ones(2, dtype=torch.int64, device="meta")},
    {"attn_mask": torch.ones(2, 5, dtype=torch.bool, device="meta")},
    {"log_decay": torch.zeros(3, device="meta"), "is_causal": True},
]


@pytest.mark.parametrize("changes", META, ids=first_name)
def test_numbers_on_the_meta_device(changes: Changes) -> None:
    check_refusal(attend, ValueError, changes)
    q = torch.randn(2, 3, 5, 4)
    options = {name: x for name, x in changes.items() if name != "is_causal"}
    check_refusal(partial(linear_attention_state, q, q), ValueError, options)


def test_slots_on_the_meta_device() -> None:
    slots = torch.zeros(2, dtype=torch.int64, device="meta")
    check_refusal(take_step, ValueError, {"state_indices": slots, "inplace": True})


STEPS_OF_WRONG_TYPES: list[Changes] = [
    {"query": None},
    {"state": LinearAttentionState("s", "z")},
    {"state": LinearAttentionState(torch.ones(()), torch.ones(()))},
    {"state": LinearAttentionState(torch.zeros(2, 3, 6), torch.zeros(2, 3))},
    {"state_indices": [0, 1], "inplace": True},
    {"state_indices": torch.ones(2), "inplace": True},
]
STEPS_OF_WRONG_VALUES: list[Changes] = [
    {"query": torch.randn(2, 3, 1, 4)},
    {"key": torch.randn(2, 3, 5)},
    {"value": torch.randn(1, 3, 6)},
    {"value": torch.randn(2, 3), "state": LinearAttentionState(*2 * (torch.zeros(2, 3, 4),))},
    {"inplace": True, "query": torch.randn(2, 3, 4, requires_grad=True)},
    {"key": torch.randn(2, 2, 4), "value": torch.randn(2, 2, 6), "enable_gqa": True},
    {"state": LinearAttentionState.zeros(1, 3, 4, 6)},
    {"state": LinearAttentionState.zeros(2, 3, 9, 6)},
    {"state_indices": torch.tensor([0, 1])},
    *(
        {"state_indices": torch.tensor(slots), "inplace": True}
        for slots in ([1], [0, 2], [-2, 0], [1, 1])
    ),
    {"log_decay": torch.zeros(2, 3, 1)},
    {"log_decay": torch.ones(3)},
]


REFUSED = [
    *((attend, TypeError, x) for x in WRONG_TYPES),
    *((attend, ValueError, x) for x in WRONG_VALUES),
    *((take_step, TypeError, x) for x in STEPS_OF_WRONG_TYPES),
    *((take_step, ValueError, x) for x in STEPS_OF_WRONG_VALUES),
]


@pytest.mark.parametrize(("call", "error", "changes"), REFUSED)
def test_the_first_argument_that_is_wrong_is_named(
    call: Any, error: type[Exception], changes: Changes
) -> None:
    check_refusal(call, error, changes)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, torch.ones(2, 3, 5, 6)),
        (torch.ones(2, 3, 5, 4).to_sparse(), torch.ones(2, 3, 5, 6)),
        (torch.ones(2, 3, 5, 4).long(), torch.ones(2, 3, 5, 6).long()),
        *(
            (torch.ones(2, 3, 5, 4), torch.ones(sizes, dtype=dtype, device=device))
            for sizes, dtype, device in (
                ((1, 3, 5, 6), torch.float32, "cpu"),
                ((2, 1, 5, 6), torch.float32, "cpu"),
                ((2, 3, 4, 6), torch.float32, "cpu"),
                ((2, 3, 5, 6), torch.float64, "cpu"),
                ((2, 3, 5, 6), torch.float32, "meta"),
            )
        ),
    ],
)
def test_a_state_alone_has_no_query_to_name(key: Any, value: torch.Tensor) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^key( and value)?:"):
        linear_attention_state(key, value)


def test_lengths_of_a_state_alone_are_those_of_keys() -> None:
    lengths = torch.ones(4, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"^key and key_lengths:"):
        linear_attention_state(*2 * (torch.ones(2, 3, 5, 6),), key_lengths=lengths)


@pytest.mark.parametrize("options", [{"normalize": False}, {"return_normalizer": True}], ids=str)
def test_a_map_that_relies_on_the_normalizer_gives_no_bare_sums(options: Changes) -> None:
    with pytest.raises(ValueError, match="Favor"):
        attend(feature_map="favor", **options)
