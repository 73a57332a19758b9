"""Lengths of zero and one, low precision over long sequences, unwritten memory, 2**31."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from linattn_core import LinearAttentionState, linear_attention, linear_attention_step

from .cases import Case, evaluate
from .places import device_of


@pytest.mark.parametrize("is_causal", [True, False])
def test_empty_inputs_give_empty_outputs(is_causal: bool, backend: str) -> None:
    for batch, heads, length in ((2, 3, 0), (0, 3, 5), (2, 0, 5), (0, 3, 130), (2, 0, 130)):
        case = Case(batch=batch, heads=heads, queries=length, is_causal=is_causal)
        result = evaluate(linear_attention, case.inputs(), {**case.options(), "backend": backend})
        assert result["out"].shape == (batch, heads, length, case.value_dim)
        assert result["s"].shape == (batch, heads, case.head_dim, case.value_dim)
        assert not result["s"].any()


def test_empty_sequence_returns_its_initial_state(backend: str) -> None:
    case = Case(queries=0, initial_state=True)
    tensors = case.inputs()
    result = evaluate(linear_attention, tensors, {**case.options(), "backend": backend})
    assert torch.equal(result["s"], tensors["s"])
    assert torch.equal(result["z"], tensors["z"])
    assert result["grad_s"].any()


def test_one_position_is_its_own_value(backend: str) -> None:
    q, k, v = (Case(queries=1).inputs()[x].detach() for x in ("query", "key", "value"))
    out = linear_attention(q, k, v, is_causal=True, backend=backend)
    assert_close(out, v, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_stays_close_over_a_long_sequence(dtype: torch.dtype, backend: str) -> None:
    """Constant values come out constant to the last place however many keys were summed."""
    length = 70_000  # sums pass the largest float16, 65,504
    q, k = (torch.randn(1, 1, length, 4).to(dtype) for _ in range(2))
    v = torch.full((1, 1, length, 2), 1.5, dtype=dtype)
    out, state = linear_attention(q, k, v, is_causal=True, return_state=True, backend=backend)
    assert state.s.dtype == torch.float32
    assert torch.isfinite(state.s).all()
    assert_close(out, v, rtol=torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_elu_does_not_cancel(dtype: torch.dtype, backend: str) -> None:
    """elu(x) + 1 is 0 in half precision at x = -12; exp(x) is not."""
    q = torch.zeros(1, 1, 2, 1, dtype=dtype)
    k = torch.tensor([-12.0, -11.0], dtype=dtype).view(1, 1, 2, 1)
    v = torch.tensor([0.0, 1.0], dtype=dtype).view(1, 1, 2, 1)
    out = linear_attention(q, k, v, eps=0.0, backend=backend)
    expected = torch.tensor(1.0 / (1.0 + 2.718281828**-1.0), dtype=dtype)
    assert_close(out, expected.expand_as(out))


@pytest.mark.parametrize("is_causal", [True, False])
def test_every_output_is_written(is_causal: bool, backend: str) -> None:
    """In deterministic mode new memory is NaN, so that an output that is not written is noticed."""
    cases = [
        Case(queries=200, head_dim=17, value_dim=9, key_lengths=(200, 0), is_causal=is_causal),
        Case(queries=0, initial_state=is_causal, is_causal=is_causal),
        Case(queries=100, initial_state=is_causal, key_lengths=(100, 60), is_causal=is_causal),
    ]
    torch.use_deterministic_algorithms(True)
    try:
        for case in cases:
            options = {**case.options(), "backend": backend}
            for name, x in evaluate(linear_attention, case.inputs(), options).items():
                assert torch.isfinite(x).all(), name
    finally:
        torch.use_deterministic_algorithms(False)


def test_relu_with_no_positive_feature_gives_zero_not_nan(backend: str) -> None:
    x = -torch.rand(1, 2, 9, 4) - 0.1
    leaves = {n: x.clone().requires_grad_() for n in ("query", "key", "value")}
    options = {"is_causal": True, "feature_map": "relu", "backend": backend}
    results = evaluate(linear_attention, leaves, options)
    assert not any(results[name].any() for name in ("out", "s", "z"))
    for name, result in results.items():
        assert torch.isfinite(result).all(), name


@pytest.mark.slow
def test_past_two_to_the_31_elements(backend: str) -> None:
    """The output has more than 2**31 elements; its end has the right indices."""
    if backend.startswith("emulated"):
        pytest.skip("an emulated GPU would take hours over it")
    length, dim = 2**25 + 70, 64
    q = torch.zeros(1, 1, 1, 1).expand(1, 1, length, 1)
    v = torch.randn(1, 1, 1, dim).bfloat16().expand(1, 1, length, dim)
    out = linear_attention(q.bfloat16(), q.bfloat16(), v, is_causal=True, backend=backend)
    assert out.numel() > 2**31
    for window in (slice(0, 100), slice(length // 2, length // 2 + 100), slice(-100, None)):
        assert_close(out[:, :, window], v[:, :, window], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("feature_map", ["elu", "favor", "rff"])
def test_autocast_leaves_float32_sums_alone(feature_map: str, backend: str) -> None:
    case = Case(feature_map=feature_map, initial_state=feature_map == "elu")
    options = {**case.options(), "backend": backend}
    tensors = case.inputs()
    expected = evaluate(linear_attention, tensors, options)
    with torch.autocast(device_of(backend), dtype=torch.bfloat16):
        result = evaluate(linear_attention, tensors, options)
    # torch's own backward of a map outside the operator is not meant to run under autocast.
    names = expected if feature_map == "elu" else ("out", "s", "z")
    assert all(torch.equal(result[name], expected[name]) for name in names)


def test_autocast_casts_tensors_of_several_dtypes(backend: str) -> None:
    """As it casts them for scaled_dot_product_attention; the sums stay float32."""
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
    softmax = torch.nn.functional.scaled_dot_product_attention
    mixed = q, k.bfloat16(), v
    with torch.autocast(device_of(backend), dtype=torch.bfloat16):
        out, state = linear_attention(*mixed, return_state=True, backend=backend)
        assert out.dtype == softmax(*mixed).dtype == torch.bfloat16
        step, _ = linear_attention_step(*(x[:, :, 0] for x in mixed), state, backend=backend)
    assert state.s.dtype == torch.float32
    assert step.dtype == torch.bfloat16
    lowered = [x.bfloat16() for x in mixed]
    assert torch.equal(out, linear_attention(*lowered, backend=backend))
    with pytest.raises(TypeError, match="one dtype"):
        linear_attention(*mixed, backend=backend)


@pytest.mark.parametrize("inplace", [True, False])
def test_a_step_goes_on_from_a_state_of_inference_mode(inplace: bool, backend: str) -> None:
    inputs = [torch.randn(2, 3, 4) for _ in range(3)]
    with torch.inference_mode():
        state = LinearAttentionState.zeros(2, 3, 4, 4)
    wanted, after = linear_attention_step(*inputs, state.clone(), backend=backend)
    with torch.no_grad():
        out, new = linear_attention_step(*inputs, state, inplace=inplace, backend=backend)
    for got, same in ((out, wanted), (new.s, after.s), (new.z, after.z)):
        assert_close(got, same)


@pytest.mark.parametrize("inplace", [True, False])
def test_autocast_lowers_nothing_in_a_step(inplace: bool, backend: str) -> None:
    q, k, v = (torch.randn(2, 3, 8).requires_grad_(not inplace) for _ in range(3))
    results = []
    for enabled in (False, True):
        state = LinearAttentionState(torch.ones(2, 3, 8, 8), torch.ones(2, 3, 8))
        with torch.autocast(device_of(backend), dtype=torch.bfloat16, enabled=enabled):
            out, state = linear_attention_step(q, k, v, state, inplace=inplace, backend=backend)
            grads = () if inplace else torch.autograd.grad(out.sum() + state.s.sum(), (q, k, v))
        results.append((out, *state, *grads))
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


@pytest.mark.parametrize("inplace", [True, False])
def test_a_step_reads_negated_views(inplace: bool, backend: str) -> None:
    """The imaginary part of a conjugate is a view whose memory holds the opposite sign."""
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 5)
    negated = torch.complex(torch.zeros_like(v), -v).conj().imag
    assert negated.is_neg()
    results = [
        linear_attention_step(
            q, k, x, LinearAttentionState.zeros(2, 3, 4, 5), inplace=inplace, backend=backend
        )[0]
        for x in (v, negated)
    ]
    assert torch.equal(*results)
