"""Masks, states, groups of heads, decay and bare sums, held to what the plain call is held to."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from linattn_core import linear_attention, reference
from linattn_core.registry import find_backend

from .agreement import assert_agree, assert_near_oracle, assert_within_budget
from .cases import Case, evaluate, on_backend
from .minimum import COMPLETE
from .places import widest
from .test_compile import _operator_arguments, opcheck_reads_gradients
from .test_gradients import assert_second_derivatives_agree, function
from .test_oracle import DTYPES

MAY_REFUSE = True

CASES = [
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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_within_budget(case: Case, dtype: torch.dtype, backend: str) -> None:
    if dtype == torch.float64 and widest(backend) != torch.float64:
        pytest.skip("takes no float64")
    assert_within_budget(case.with_(dtype=dtype), backend)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    is_causal, groups = draw(st.booleans()), draw(st.integers(1, 3))
    queries = draw(st.integers(1, 140))
    keys = None if is_causal or draw(st.booleans()) else draw(st.integers(0, 140))
    kind = draw(st.sampled_from(("whole", "padded", "packed" if keys is None else "padded")))
    batch = 1 if kind == "packed" else draw(st.integers(1, 3))
    length = queries if keys is None else keys
    lengths = tuple(draw(st.integers(0, length)) for _ in range(batch))
    inner = sorted(draw(st.lists(st.integers(0, length), max_size=5)))
    decays = (None, "heads", "positions", "strong", "resets") if is_causal else (None,)
    kv_heads = draw(st.integers(1, 2))
    return Case(
        batch=batch,
        heads=groups * kv_heads,
        kv_heads=kv_heads if groups > 1 or draw(st.booleans()) else None,
        queries=queries,
        keys=keys,
        head_dim=draw(st.integers(1, 12)),
        value_dim=draw(st.integers(1, 12)),
        is_causal=is_causal,
        feature_map=draw(st.sampled_from(("elu", "relu", "identity"))),
        key_lengths=lengths if kind == "padded" else None,
        cu_seqlens=(0, *inner, length) if kind == "packed" else None,
        initial_state=draw(st.booleans()),
        mask=draw(st.sampled_from((None, "left", "right", "gaps", "none left"))),
        log_decay=draw(st.sampled_from(decays)),
        normalize=draw(st.booleans()),
        return_normalizer=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )


def _unless_refused(case: Case, backend: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The results of the call; none where the backend refuses this combination and may."""
    try:
        return on_backend(case, backend, tensors)
    except ValueError as error:
        if backend in COMPLETE or f"{backend!r} refuses" not in str(error):
            raise
        return {}


@settings(max_examples=80)
@given(case=cases())
def test_any_combination(case: Case, backend: str) -> None:
    case = case.with_(dtype=widest(backend))
    tensors = case.inputs()
    assert_near_oracle(case, tensors, _unless_refused(case, backend, tensors))


SMALL = Case(batch=2, heads=2, queries=4, head_dim=2, value_dim=2)
DIFFERENTIATED = [
    SMALL.with_(mask="gaps"),
    SMALL.with_(is_causal=False, keys=3, initial_state=True),
    SMALL.with_(kv_heads=1, initial_state=True),
    SMALL.with_(kv_heads=1, is_causal=False, mask="left"),
    SMALL.with_(log_decay="heads", initial_state=True),
    SMALL.with_(log_decay="positions", mask="gaps", initial_state=True),
    SMALL.with_(log_decay="positions", batch=1, cu_seqlens=(0, 1, 4)),
    SMALL.with_(log_decay="positions", mask="gaps", batch=1, cu_seqlens=(0, 1, 4)),
    # Its denominators are sums of the state alone; here they are large enough for float32.
    SMALL.with_(is_causal=False, keys=0, head_dim=4, initial_state=True, seed=1),
    SMALL.with_(kv_heads=1, log_decay="positions", initial_state=True, mask="left"),
    SMALL.with_(kv_heads=1, batch=1, cu_seqlens=(0, 1, 4), initial_state=True, is_causal=False),
    SMALL.with_(normalize=False, log_decay="positions"),
    SMALL.with_(return_normalizer=True),
    SMALL.with_(return_normalizer=True, normalize=False, is_causal=False),
]


@pytest.mark.parametrize("case", DIFFERENTIATED, ids=str)
def test_gradients(case: Case, backend: str) -> None:
    if widest(backend) != torch.float64:
        assert_within_budget(case, backend)
        return
    assert torch.autograd.gradcheck(*function(case, backend))


@pytest.mark.parametrize("case", DIFFERENTIATED, ids=str)
def test_second_gradients(case: Case, backend: str) -> None:
    attend, inputs = function(case, backend)
    assert find_backend(backend).double_backward
    if widest(backend) == torch.float64:
        assert torch.autograd.gradgradcheck(attend, inputs)
        return
    assert_second_derivatives_agree(attend, function(case, "reference")[0], inputs)


COMPILED = [
    Case(mask="left"),
    Case(is_causal=False, initial_state=True, keys=9),
    Case(heads=4, kv_heads=2),
    Case(log_decay="heads", initial_state=True, mask="gaps"),
    Case(log_decay="positions", normalize=False),
    Case(log_decay="positions", mask="gaps", batch=1, cu_seqlens=(0, 20, 37)),
    Case(is_causal=False, initial_state=True, keys=0),
    Case(return_normalizer=True, is_causal=False),
]


@pytest.mark.parametrize("case", COMPILED, ids=str)
def test_compiles_to_one_graph(case: Case, backend: str) -> None:
    torch._dynamo.reset()
    tensors, options = case.inputs(), {**case.options(), "backend": backend}
    compiled = torch.compile(linear_attention, fullgraph=True, backend="aot_eager")
    eager = evaluate(linear_attention, tensors, options)
    for name, x in evaluate(compiled, tensors, options).items():
        assert_close(x, eager[name], msg=lambda m, name=name: f"{name}: {m}")


@opcheck_reads_gradients
@pytest.mark.parametrize("case", COMPILED, ids=str)
def test_opcheck(case: Case, backend: str) -> None:
    # opcheck would wrap a refusal in an error of its own.
    evaluate(linear_attention, case.inputs(), {**case.options(), "backend": backend})
    arguments = _operator_arguments(case, backend)
    torch.library.opcheck(torch.ops.linattn.attention, arguments)
    detached = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
    torch.library.opcheck(torch.ops.linattn.attention_forward, tuple(detached))


@pytest.mark.parametrize("form", ["chunked", "recurrent"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_form_agrees(form: str, case: Case, backend: str) -> None:
    case = case.with_(dtype=widest(backend))
    tensors, options = case.inputs(), case.options()
    plain = evaluate(getattr(reference, form), tensors, options)
    ours = evaluate(linear_attention, tensors, {**options, "backend": backend})
    for name, x in plain.items():
        assert_agree(ours[name], x, name)
