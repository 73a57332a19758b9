"""Outputs, states and gradients against the float64 definition, within the budgets."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from .agreement import assert_near_oracle, assert_within_budget
from .cases import Case, on_backend
from .places import widest

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

CASES = [
    Case(),
    Case(is_causal=False),
    Case(is_causal=False, queries=11, keys=70),
    Case(is_causal=False, queries=70, keys=11),
    Case(queries=64, head_dim=16, value_dim=16),
    Case(queries=65),
    Case(queries=200, heads=1, batch=1),
    Case(queries=3, head_dim=1, value_dim=1),
    Case(head_dim=7, value_dim=33),
    Case(feature_map="relu"),
    Case(feature_map="relu", is_causal=False),
    Case(feature_map="identity"),
    Case(feature_map="identity", is_causal=False, initial_state=False),
    Case(initial_state=True),
    Case(initial_state=True, queries=150),
    Case(key_lengths=(37, 20)),
    Case(key_lengths=(0, 1)),
    Case(key_lengths=(37, 20), is_causal=False),
    Case(key_lengths=(100, 130), queries=130, initial_state=True),
    Case(key_lengths=(9, 64), is_causal=False, queries=5, keys=64),
    Case(batch=1, cu_seqlens=(0, 20, 37)),
    Case(batch=1, cu_seqlens=(0, 20, 37), is_causal=False),
    Case(batch=1, cu_seqlens=(0, 0, 1, 3, 40, 40, 170), queries=170, initial_state=True),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_within_budget(case: Case, dtype: torch.dtype, backend: str) -> None:
    if dtype == torch.float64 and widest(backend) != torch.float64:
        pytest.skip("takes no float64")
    assert_within_budget(case.with_(dtype=dtype), backend)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    is_causal = draw(st.booleans())
    batch = draw(st.integers(1, 3))
    queries = draw(st.integers(1, 140))
    keys = None if is_causal or draw(st.booleans()) else draw(st.integers(1, 140))
    length = queries if keys is None else keys
    lengths = cu_seqlens = None
    kind = draw(st.sampled_from(("whole", "padded", "packed" if keys is None else "padded")))
    if kind == "padded":
        lengths = tuple(draw(st.integers(0, length)) for _ in range(batch))
    elif kind == "packed":
        batch = 1
        inner = draw(st.lists(st.integers(0, length), max_size=5))
        cu_seqlens = (0, *sorted(inner), length)
    return Case(
        batch=batch,
        heads=draw(st.integers(1, 3)),
        queries=queries,
        keys=keys,
        head_dim=draw(st.integers(1, 20)),
        value_dim=draw(st.integers(1, 20)),
        is_causal=is_causal,
        feature_map=draw(st.sampled_from(("elu", "relu", "identity"))),
        key_lengths=lengths,
        cu_seqlens=cu_seqlens,
        initial_state=is_causal and draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )


@settings(max_examples=60)
@given(case=cases())
def test_any_shape(case: Case, backend: str) -> None:
    case = case.with_(dtype=widest(backend))
    tensors = case.inputs()
    assert_near_oracle(case, tensors, on_backend(case, backend, tensors))
