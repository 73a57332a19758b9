"""The operator cases check outputs and gradients before they would time anything."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from benchmarks.cases import attention, peers
from benchmarks.cases.attention import Operator
from benchmarks.cases.methods import method, method_of
from benchmarks.cases.problem import Problem
from benchmarks.measure import oracle
from benchmarks.measure.cases import Method, NotMeasured, Settings

PROBLEM = Problem(length=40, heads=2, width=8)
SETTINGS = Settings(quick=True, peers=True, threads=1)
NAMES = (
    attention.LINEAR_CPU, attention.LINEAR, attention.SDPA, peers.FAST_TRANSFORMERS,
)  # fmt: skip


PROBLEMS = (
    PROBLEM,
    dataclasses.replace(PROBLEM, causal=False),
    dataclasses.replace(PROBLEM, dtype=torch.bfloat16),
    Problem(length=70, heads=1, width=5),
)


def _measurable(name: str, problem: Problem, backward: bool) -> Method:
    """The method, or a skipped test where it is absent or does not take the problem's dtype."""
    if problem.dtype == torch.bfloat16 and "fast-transformers" in name:
        pytest.skip(f"{name} knows float32 alone")
    try:
        return method(name, dataclasses.replace(problem, backward=backward), SETTINGS)
    except NotMeasured as reason:
        pytest.skip(f"{name}: {reason}")


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("problem", PROBLEMS, ids=("usual", "not causal", "bfloat16", "odd"))
@pytest.mark.parametrize("name", NAMES)
def test_every_operator_passes_its_own_check(name: str, problem: Problem, backward: bool) -> None:
    assert _measurable(name, problem, backward).check() is None


def _fault(operator: Operator, *, backward: bool = False) -> str | None:
    return method_of(operator, dataclasses.replace(PROBLEM, backward=backward)).check()


def _softmax_rows(_: object, rows: torch.Tensor, *x: torch.Tensor) -> torch.Tensor:
    return oracle.softmax_rows(*x, rows)  # type: ignore[misc, arg-type]


def test_the_wrong_attention_fails_its_check() -> None:
    fault = _fault(Operator(F.scaled_dot_product_attention, _softmax_rows))
    assert fault is not None
    assert "of the output differ" in fault


def test_an_operator_that_sees_later_keys_fails_its_check() -> None:
    operator = attention.build(
        attention.LINEAR, dataclasses.replace(PROBLEM, causal=False), SETTINGS
    )
    assert _fault(operator) is None
    causal = dataclasses.replace(operator, exact=attention.linear_rows(PROBLEM))
    assert _fault(causal) is not None


def test_a_wrong_gradient_fails_the_check() -> None:
    def forgets_the_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, 2 * k - k.detach(), v, is_causal=True)

    wrong = Operator(forgets_the_keys, _softmax_rows)
    assert _fault(wrong) is None
    fault = _fault(wrong, backward=True)
    assert fault is not None
    assert "of the key gradient differ" in fault


@pytest.mark.parametrize(("backward", "each"), [(False, 4), (True, 10)])
def test_least_operations_are_those_of_the_algorithm(backward: bool, each: int) -> None:
    problem = Problem(100, batch=2, heads=3, width=8, backward=backward)
    assert problem.operations == each * 2 * 3 * 100 * 8 * 8


@pytest.mark.parametrize(("backward", "tensors"), [(False, 4), (True, 12)])
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_least_traffic_is_every_tensor_once_a_pass(
    backward: bool, tensors: int, dtype: torch.dtype, size: int
) -> None:
    problem = Problem(100, batch=2, heads=3, width=8, dtype=dtype, backward=backward)
    assert problem.traffic == tensors * 2 * 3 * 100 * 8 * size


def test_softmax_is_not_compared_with_the_limits() -> None:
    made = method(attention.SDPA, PROBLEM, SETTINGS)
    assert (made.operations, made.traffic) == (0, 0)


def test_a_backend_that_is_not_installed_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention.linattn_core, "backends", lambda: ("reference",))
    with pytest.raises(NotMeasured, match=r"no live backend 'cpu'; python -m linattn_core\.info"):
        method(attention.LINEAR_CPU, PROBLEM, SETTINGS)


def test_a_peers_kernel_that_is_causal_alone_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(chunk_linear_attn=None)
    monkeypatch.setattr(peers, "load", lambda name, settings: module)
    everywhere = dataclasses.replace(PROBLEM, causal=False)
    with pytest.raises(NotMeasured, match="it is causal only"):
        method(peers.FLASH_LINEAR_ATTENTION, everywhere, SETTINGS)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModuleNotFoundError("No module named 'fast_transformers'"), "not installed"),
        (ImportError("undefined symbol: x\nmore"), "does not import here: undefined symbol: x"),
    ],
)
def test_an_import_that_fails_becomes_its_reason(
    monkeypatch: pytest.MonkeyPatch, error: ImportError, reason: str
) -> None:
    def fail(name: str) -> object:
        raise error

    monkeypatch.setattr(peers.importlib, "import_module", fail)
    with pytest.raises(NotMeasured) as raised:
        peers.load("fast_transformers.attention", SETTINGS)
    assert str(raised.value) == reason
