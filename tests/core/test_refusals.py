"""Calls that cannot be right: one sentence, what was expected and what came."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from linattn_core import LinearAttentionState, linear_attention, linear_attention_step


def tensors(n: int = 5, length: int | None = None) -> dict[str, Tensor]:
    length = n if length is None else length
    return {
        "query": torch.randn(2, 3, n, 4),
        "key": torch.randn(2, 3, length, 4),
        "value": torch.randn(2, 3, length, 6),
    }


REFUSED = [
    ({"query": torch.randn(2, 3, 4)}, ValueError, r"query.*4 dimensions.*\(2, 3, 4\)"),
    ({"key": [1.0]}, TypeError, "key.*torch.Tensor, got a value of type list"),
    ({"query": torch.ones(2, 3, 5, 4).long()}, TypeError, "query.*float.*int64"),
    ({"key": torch.randn(2, 3, 5, 4).double()}, TypeError, "one dtype.*float32 and torch.float64"),
    ({"value": torch.randn(2, 3, 5, 6).half()}, TypeError, "query and value.*float16"),
    ({"key": torch.randn(1, 3, 5, 4)}, ValueError, "batch size.*2 and 1"),
    ({"value": torch.randn(2, 1, 5, 6)}, ValueError, "key and value.*heads.*3 and 1"),
    ({"key": torch.randn(2, 3, 5, 7)}, ValueError, "query and key.*dim.*4 and 7"),
    ({"value": torch.randn(2, 3, 4, 6)}, ValueError, "key and value.*length.*5 and 4"),
    ({"query": torch.randn(2, 3, 2, 4), "is_causal": True}, ValueError, "2 queries and 5 keys"),
    ({"feature_map": "el"}, ValueError, "did you mean 'elu'"),
    ({"backend": "referense"}, ValueError, "did you mean 'reference'"),
    ({"eps": -1e-3}, ValueError, "eps.*-0.001"),
    ({"eps": float("nan")}, ValueError, "eps.*nan"),
    ({"eps": float("inf")}, ValueError, "eps.*finite.*inf"),
    ({"eps": "small"}, TypeError, "eps.*a number, got a value of type str"),
    ({"backend": None}, TypeError, "backend.*a name, got a value of type NoneType"),
    ({"is_causal": "yes"}, TypeError, "is_causal.*True or False, got 'yes'"),
    ({"return_state": 1}, TypeError, "return_state.*True or False, got 1"),
    (
        {"initial_state": LinearAttentionState("s", "z"), "is_causal": True},
        TypeError,
        "initial_state.*tensors s .B, H, F, M. and z",
    ),
    ({"key_lengths": torch.tensor([5])}, ValueError, "batch size.*2 and 1"),
    ({"key_lengths": torch.tensor([5, 6])}, ValueError, "key length 5.*5 to 6"),
    ({"key_lengths": torch.tensor([-1, 5])}, ValueError, "from -1 to 5"),
    ({"key_lengths": torch.tensor([1.0, 5.0])}, TypeError, "int32 or int64.*float32"),
    ({"key_lengths": [1, 2]}, TypeError, "key_lengths: expected a torch.Tensor"),
    ({"key_lengths": torch.tensor([[1], [2]])}, ValueError, r"one dimension.*\(2, 1\)"),
    ({"cu_seqlens": torch.tensor([0, 5])}, ValueError, "batch size 1, got 2"),
    (
        {"cu_seqlens": torch.tensor([0, 5]), "key_lengths": torch.tensor([1, 2])},
        ValueError,
        "either cu_seqlens or key_lengths, got both",
    ),
    (
        {"key": torch.randn(2, 1, 5, 4), "value": torch.randn(2, 1, 5, 6)},
        ValueError,
        "heads, got 3 and 1; pass enable_gqa=True",
    ),
    (
        {"key": torch.randn(2, 2, 5, 4), "value": torch.randn(2, 2, 5, 6), "enable_gqa": True},
        ValueError,
        "multiple of the 2 key/value heads, got 3",
    ),
    (
        {"query": torch.randn(2, 0, 5, 4), "enable_gqa": True},
        ValueError,
        "query heads in a multiple of the 3 key/value heads, got 0",
    ),
    ({"enable_gqa": 1}, TypeError, "enable_gqa.*True or False, got 1"),
    ({"normalize": None}, TypeError, "normalize.*True or False, got None"),
    ({"return_normalizer": "no"}, TypeError, "return_normalizer.*True or False, got 'no'"),
    ({"attn_mask": [True]}, TypeError, "attn_mask.*torch.Tensor"),
    ({"attn_mask": torch.ones(2, 5)}, TypeError, "torch.bool, got torch.float32; True takes part"),
    ({"attn_mask": torch.ones(2, 6).bool()}, ValueError, r"\(2, 5\), got shape \(2, 6\)"),
    ({"attn_mask": torch.ones(3, 5).bool()}, ValueError, r"\(2, 5\), got shape \(3, 5\)"),
    ({"attn_mask": torch.ones(5, 5).bool()}, ValueError, "keys alone may be masked"),
    ({"attn_mask": torch.ones(2, 3, 1, 5).bool()}, ValueError, "differs between heads or queries"),
    ({"attn_mask": torch.ones(2, 1, 5, 5).bool()}, ValueError, r"got shape \(2, 1, 5, 5\)"),
    ({"log_decay": torch.zeros(3)}, ValueError, "log_decay.*is_causal=True"),
    ({"log_decay": -0.5, "is_causal": True}, TypeError, "log_decay.*torch.Tensor, got -0.5"),
    ({"log_decay": -torch.ones(3).long(), "is_causal": True}, TypeError, "floating point.*int64"),
    ({"log_decay": -torch.ones(2), "is_causal": True}, ValueError, r"\(3,\) or \(2, 3, 5\)"),
    ({"log_decay": torch.tensor([0, 0.1, 0]), "is_causal": True}, ValueError, "at most 0, got 0.1"),
    (
        {"log_decay": torch.tensor([0, float("nan"), 0]), "is_causal": True},
        ValueError,
        "at most 0, got nan",
    ),
    (
        {"initial_state": LinearAttentionState.zeros(2, 3, 4, 5), "is_causal": True},
        ValueError,
        r"initial_state.*\(2, 3, 4, 6\).*\(2, 3, 4, 5\)",
    ),
    (
        {"initial_state": LinearAttentionState.zeros(2, 3, 7, 6), "is_causal": True},
        ValueError,
        "feature dim 4.*7",
    ),
    (
        {
            "initial_state": LinearAttentionState.zeros(2, 3, 4, 6, dtype=torch.float64),
            "is_causal": True,
        },
        TypeError,
        "float32.*float64",
    ),
    (
        {"initial_state": (torch.zeros(2, 3, 4, 6), torch.zeros(2, 3, 4)), "is_causal": True},
        TypeError,
        "LinearAttentionState, got .* type tuple",
    ),
]


@pytest.mark.parametrize(("changes", "error", "says"), REFUSED, ids=[x[2] for x in REFUSED])
def test_a_call_that_cannot_be_right_is_refused(
    changes: dict, error: type[Exception], says: str
) -> None:
    arguments = {**tensors(), **changes}
    with pytest.raises(error, match=says) as caught:
        linear_attention(**arguments)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        ([0, 3], "packed length 5.*0 to 3"),
        ([1, 5], "1 to 5"),
        ([0, 4, 2, 5], "never fall"),
        ([], "an empty tensor"),
    ],
)
def test_bounds_that_cannot_be_right_are_refused(bounds: list[int], says: str) -> None:
    one = {name: x[:1] for name, x in tensors().items()}
    with pytest.raises(ValueError, match=says):
        linear_attention(**one, cu_seqlens=torch.tensor(bounds, dtype=torch.int64))


STEPS = [
    ({"query": torch.randn(2, 3, 1, 4)}, ValueError, "3 dimensions"),
    ({"key": torch.randn(2, 3, 5)}, ValueError, "one shape"),
    ({"value": torch.randn(1, 3, 6)}, ValueError, "batch and heads"),
    ({"state_indices": [0, 1], "inplace": True}, TypeError, "state_indices.*torch.Tensor"),
    ({"state_indices": torch.ones(2), "inplace": True}, TypeError, "int32 or int64"),
    ({"state_indices": torch.tensor([1]), "inplace": True}, ValueError, "a slot a row"),
    ({"state_indices": torch.tensor([0, 1])}, ValueError, "inplace=True, got inplace=False"),
    ({"state_indices": torch.tensor([0, 2]), "inplace": True}, ValueError, "from 0 to 1, or -1"),
    ({"state_indices": torch.tensor([-2, 0]), "inplace": True}, ValueError, "from 0 to 1, or -1"),
    ({"state_indices": torch.tensor([1, 1]), "inplace": True}, ValueError, "each slot once"),
    ({"log_decay": torch.zeros(2, 3, 1)}, ValueError, r"\(3,\) or \(2, 3\)"),
    ({"log_decay": torch.ones(3)}, ValueError, "at most 0, got 1.0"),
    (
        {"key": torch.randn(2, 2, 4), "value": torch.randn(2, 2, 6), "enable_gqa": True},
        ValueError,
        "multiple of the 2",
    ),
    ({"state": LinearAttentionState.zeros(1, 3, 4, 6)}, ValueError, "state.*s .2, 3, 4, 6"),
    ({"state": LinearAttentionState.zeros(2, 3, 9, 6)}, ValueError, "feature dim 4.*9"),
    ({"state": LinearAttentionState("s", "z")}, TypeError, "state.*tensors s"),
    ({"state": LinearAttentionState(torch.ones(()), torch.ones(()))}, TypeError, "tensors s"),
    ({"query": None}, TypeError, "query.*torch.Tensor, got .* NoneType"),
    ({"inplace": True, "query": torch.randn(2, 3, 4, requires_grad=True)}, ValueError, "no_grad"),
]


@pytest.mark.parametrize(("changes", "error", "says"), STEPS, ids=[x[2] for x in STEPS])
def test_a_step_that_cannot_be_right_is_refused(
    changes: dict, error: type[Exception], says: str
) -> None:
    arguments = {
        "query": torch.randn(2, 3, 4),
        "key": torch.randn(2, 3, 4),
        "value": torch.randn(2, 3, 6),
        "state": LinearAttentionState.zeros(2, 3, 4, 6),
        **changes,
    }
    with pytest.raises(error, match=says):
        linear_attention_step(**arguments)


@pytest.mark.parametrize("options", [{"normalize": False}, {"return_normalizer": True}], ids=str)
def test_a_map_that_relies_on_the_normalizer_gives_no_bare_sums(options: dict[str, bool]) -> None:
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
    with pytest.raises(ValueError, match="whose queries share one scale, got Favor"):
        linear_attention(q, k, v, feature_map="favor", **options)
