"""Outputs, states and gradients against the float64 definition, within the budgets.

`test_fuzz` does the same with random calls.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from linattn_core import linear_attention, reference

from .agreement import assert_agree, assert_within_budget
from .cases import Case, evaluate, in_two_dtypes
from .minimum import may_refuse
from .places import widest

PLAIN = [
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
    Case(feature_map="identity", is_causal=False),
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
# Masks, states of non-causal calls, groups of heads, decay and bare sums.
EXTENDED = [
    Case(mask="left"),
    Case(mask="right"),
    Case(mask="gaps", queries=150, initial_state=True),
    Case(mask="none left"),
    Case(mask="left", is_causal=False),
    Case(mask="gaps", is_causal=False, queries=11, keys=70, feature_map="relu"),
    Case(mask="gaps", feature_map="identity", queries=70),
    Case(mask="gaps", key_lengths=(30, 9)),
    Case(mask="gaps", batch=1, cu_seqlens=(0, 20, 37)),
    Case(is_causal=False, initial_state=True),
    Case(is_causal=False, initial_state=True, queries=70, keys=0),
    Case(is_causal=False, initial_state=True, batch=1, cu_seqlens=(0, 0, 20, 37)),
    Case(heads=4, kv_heads=2),
    Case(heads=6, kv_heads=1, queries=130, initial_state=True),
    Case(heads=4, kv_heads=2, is_causal=False, queries=9, keys=70, initial_state=True),
    Case(heads=4, kv_heads=2, batch=1, cu_seqlens=(0, 0, 1, 3, 40, 40, 170), queries=170),
    Case(log_decay="heads"),
    Case(log_decay="positions", queries=200, initial_state=True),
    Case(log_decay="strong", queries=150, initial_state=True),
    Case(log_decay="resets", queries=150, initial_state=True),
    Case(log_decay="positions", mask="gaps", queries=90, initial_state=True),
    Case(log_decay="positions", batch=1, cu_seqlens=(0, 0, 20, 97), queries=97),
    Case(log_decay="heads", heads=4, kv_heads=2, key_lengths=(100, 40), queries=130),
    Case(normalize=False, queries=70, initial_state=True),
    Case(normalize=False, is_causal=False),
    Case(return_normalizer=True, queries=70),
    Case(return_normalizer=True, is_causal=False, mask="left"),
    Case(return_normalizer=True, batch=1, cu_seqlens=(0, 20, 37), feature_map="relu"),
    Case(return_normalizer=True, normalize=False, log_decay="positions", heads=4, kv_heads=2),
    Case(value_dim=0, initial_state=True, return_normalizer=True),
    Case(value_dim=0, initial_state=True, is_causal=False),
]
OTHER_DTYPES = (torch.bfloat16, torch.float16, torch.float64)


@pytest.mark.parametrize("case", may_refuse(in_two_dtypes([*PLAIN, *EXTENDED], OTHER_DTYPES)))
def test_within_budget(case: Case, backend: str) -> None:
    if case.dtype == torch.float64 and widest(backend) != torch.float64:
        pytest.skip("takes no float64")
    assert_within_budget(case, backend)


@pytest.mark.parametrize("form", [reference.chunked, reference.recurrent])
@pytest.mark.parametrize("case", [*PLAIN, *EXTENDED], ids=str)
def test_every_form_is_the_definition(form: Any, case: Case) -> None:
    case = case.with_(dtype=torch.float64)
    tensors, options = case.inputs(), case.options()
    definition = evaluate(reference.quadratic, tensors, options)
    for name, x in evaluate(form, tensors, options).items():
        assert_agree(x, definition[name], name)


@pytest.mark.parametrize("rate", [0.0, 1e-3, 0.5, 30.0, 1e6, torch.inf])
def test_decay_is_the_naive_formula(rate: float) -> None:
    """S = exp(g) S + phi(k) v^T as a loop, at rates at which quotients of powers overflow."""
    case = Case(queries=100, heads=2, head_dim=4, value_dim=3, dtype=torch.float64)
    q, k, v = (case.inputs()[x].detach() for x in ("query", "key", "value"))
    g = (torch.rand(2, 2, 100, dtype=q.dtype) * -rate).nan_to_num(0.0, neginf=-torch.inf)
    g[:, :, ::3] = 0.0
    options = {"is_causal": True, "log_decay": g, "return_state": True}
    f_q, f_k = (torch.where(x > 0, x + 1, x.exp()) for x in (q, k))
    s, z, rows = q.new_zeros(2, 2, 4, 3), q.new_zeros(2, 2, 4), []
    for i in range(100):
        left = g[:, :, i].exp()[..., None]
        s = left[..., None] * s + f_k[:, :, i, :, None] * v[:, :, i, None]
        z = left * z + f_k[:, :, i]
        read = (f_q[:, :, i, :, None] * s).sum(2), (f_q[:, :, i] * z).sum(2, keepdim=True)
        rows.append(read[0] / (read[1] + 1e-6))
    out, state = reference.quadratic(q, k, v, **options)
    assert_close((out, *state), (torch.stack(rows, 2), s, z))


@pytest.mark.parametrize("is_causal", [True, False])
def test_groups_are_heads_that_are_repeated(is_causal: bool) -> None:
    case = Case(heads=6, kv_heads=2, queries=70, is_causal=is_causal, initial_state=True)
    tensors, options = case.with_(dtype=torch.float64).inputs(), {"is_causal": is_causal}

    def expanded(q, k, v, *, initial_state, **options):
        k, v, s, z = (x.repeat_interleave(3, 1) for x in (k, v, *initial_state))
        state = type(initial_state)(s, z)
        out, state = reference.quadratic(q, k, v, initial_state=state, **options)
        return out, type(initial_state)(state.s[:, ::3], state.z[:, ::3])

    got = evaluate(reference.quadratic, tensors, options)
    assert got["s"].shape == tensors["s"].shape
    for name, x in evaluate(expanded, tensors, options).items():
        assert_agree(got[name], x, name)


@pytest.mark.may_refuse
@pytest.mark.parametrize("is_causal", [True, False])
def test_without_eps_a_small_normalizer_keeps_its_digits(is_causal: bool, backend: str) -> None:
    q, k, v = (1e-5 * x.detach().abs() for x in Case(queries=20).inputs().values())
    options = {"is_causal": is_causal, "feature_map": "identity", "return_normalizer": True}
    _, normalizer = linear_attention(q, k, v, eps=0.0, backend=backend, **options)
    exact = q.double() @ k.double().mT
    exact = (exact.tril() if is_causal else exact).sum(-1)
    assert exact.max() < 1e-7
    assert_close(normalizer.double(), exact, rtol=1e-5, atol=0)
