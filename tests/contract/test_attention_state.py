"""A state without outputs is the one that the whole call returns, and so are its gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from linattn_core import LinearAttentionState, linear_attention, linear_attention_state, reference

from .cases import Case, upstream
from .places import differentiates, widest

pytestmark = pytest.mark.may_refuse


@st.composite
def cases(draw: st.DrawFn) -> Case:
    length, packed = draw(st.integers(0, 90)), draw(st.booleans())
    batch = 1 if packed else draw(st.integers(1, 3))
    inner = sorted(draw(st.lists(st.integers(0, length), max_size=4)))
    lengths = tuple(draw(st.integers(0, length)) for _ in range(batch))
    return Case(
        batch=batch,
        heads=2,
        queries=length,
        head_dim=draw(st.integers(1, 9)),
        value_dim=draw(st.integers(1, 9)),
        feature_map=draw(st.sampled_from(("elu", "relu", "identity", "polynomial"))),
        key_lengths=None if packed or draw(st.booleans()) else lengths,
        cu_seqlens=(0, *inner, length) if packed else None,
        mask=draw(st.sampled_from((None, "left", "gaps", "none left"))),
        log_decay=draw(st.sampled_from((None, "heads", "positions", "strong", "resets"))),
        seed=draw(st.integers(0, 99)),
    )


def state_and_gradients(
    state: LinearAttentionState, leaves: dict[str, Tensor]
) -> dict[str, Tensor]:
    results = state._asdict()
    weights = upstream(results)
    total = sum((x * weights[name]).sum() for name, x in results.items())
    total = total + sum(0 * x[..., :0].sum() for x in leaves.values())  # without keys, too
    gradients = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
    return results | dict(zip(leaves, gradients, strict=True))


def without_queries(case: Case, tensors: dict[str, Tensor], backend: str) -> dict[str, Tensor]:
    options = {k: v for k, v in case.options().items() if k != "is_causal"}
    options["initial_state"] = initial(tensors)
    leaves = {name: x for name, x in tensors.items() if name != "query"}
    state = linear_attention_state(
        tensors["key"], tensors["value"], log_decay=tensors.get("log_decay"), backend=backend,
        **options,
    )  # fmt: skip
    return state_and_gradients(state, leaves)


def with_queries(case: Case, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    leaves = {name: x for name, x in tensors.items() if name != "query"}
    options: dict[str, Any] = {**case.options(), "log_decay": tensors.get("log_decay")}
    _, state = reference.chunked(
        *(tensors[x] for x in ("query", "key", "value")), initial_state=initial(tensors),
        return_state=True, **options,
    )  # fmt: skip
    return state_and_gradients(state, leaves)


def initial(tensors: dict[str, Tensor]) -> LinearAttentionState | None:
    return LinearAttentionState(tensors["s"], tensors["z"]) if "s" in tensors else None


@settings(max_examples=15)
@given(case=cases(), has_initial=st.booleans())
def test_state_and_gradients_are_those_of_the_whole_call(
    case: Case, has_initial: bool, backend: str
) -> None:
    if not differentiates(backend):
        pytest.skip("computes no gradients")
    case = case.with_(dtype=widest(backend))
    tensors = case.inputs()
    if has_initial:
        state = with_queries(case, tensors)
        tensors |= {x: state[x].detach().clone().requires_grad_() for x in ("s", "z")}
    ours = without_queries(case, tensors, backend)
    tolerance = 1e-12 if case.dtype == torch.float64 else 2e-5
    for name, wanted in with_queries(case, tensors).items():
        assert_close(ours[name], wanted, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("log_decay", [None, "positions"])
def test_padding_may_hold_nan(log_decay: str | None, backend: str) -> None:
    case = Case(queries=20, key_lengths=(20, 7), log_decay=log_decay, dtype=widest(backend))
    tensors = case.inputs()
    with torch.no_grad():
        for name in ("key", "value"):
            tensors[name][1, :, 7:] = torch.nan
    for x in without_queries(case, tensors, backend).values():
        assert x.isfinite().all()


def test_a_state_alone_compiles_to_one_graph(backend: str) -> None:
    case = Case(batch=1, cu_seqlens=(0, 20, 37), log_decay="resets", dtype=widest(backend))
    tensors = {name: x.detach() for name, x in case.inputs().items()}

    def call(key: Tensor, value: Tensor, decay: Tensor) -> LinearAttentionState:
        return linear_attention_state(
            key, value, log_decay=decay, cu_seqlens=case.options()["cu_seqlens"], backend=backend
        )

    arguments = [tensors[x] for x in ("key", "value", "log_decay")]
    assert_close(
        torch.compile(call, fullgraph=True, backend="aot_eager")(*arguments), call(*arguments)
    )


def test_half_precision_sums_are_float32() -> None:
    key, value = torch.randn(2, 1, 2, 30, 4).to(torch.bfloat16)
    state = linear_attention_state(key, value, log_decay=torch.full((2,), -0.1))
    _, whole = linear_attention(
        key, key, value, is_causal=True, log_decay=torch.full((2,), -0.1), return_state=True
    )
    assert state.s.dtype == torch.float32
    assert_close(state, whole)
