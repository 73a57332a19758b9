"""The operator cases check outputs and gradients before they would time anything."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import oracle
from benchmarks.cases import find_case, operators, peers, variants
from benchmarks.cases.lengths import METHODS
from benchmarks.cases.methods import method, operator_method
from benchmarks.cases.operators import LSH_ROUNDS, Operator
from benchmarks.cases.problem import Problem, many_heads, passes
from benchmarks.cases.variants import VARIANTS, variant_fault
from benchmarks.results import MEASURED
from benchmarks.runner import run_case
from tests.benchmarks.helpers import LIMITS, QUICK, make_or_skip

PROBLEM = Problem(length=40, heads=2, width=8)
NAMES = (
    operators.LINEAR_CPU, operators.LINEAR, operators.SDPA, operators.MATERIALIZED,
    peers.FAST_TRANSFORMERS, *LSH_ROUNDS, *VARIANTS,
)  # fmt: skip
NOT_CAUSAL = dataclasses.replace(PROBLEM, causal=False)
HALF = dataclasses.replace(PROBLEM, dtype=torch.bfloat16)
ODD = Problem(length=70, heads=1, width=5)
OF_A_GPU = dataclasses.replace(many_heads(512), length=64, heads=2, batch=2, width=8)


@pytest.mark.parametrize("name", [operators.LINEAR_CPU, operators.LINEAR])
def test_the_numerator_alone_passes_its_own_check(name: str) -> None:
    for asked in passes(dataclasses.replace(PROBLEM, bare=True)):
        made = make_or_skip(lambda asked=asked: method(name, asked, QUICK))
        assert made.check() is None


@pytest.mark.parametrize("name", NAMES)
def test_every_operator_passes_its_own_check(name: str) -> None:
    for problem in (PROBLEM, NOT_CAUSAL, HALF, ODD, OF_A_GPU):
        if name in VARIANTS and not problem.causal:  # decay is causal only
            continue
        for asked in passes(problem):
            made = make_or_skip(lambda asked=asked: method(name, asked, QUICK))
            assert made.check() is None, asked
            made.run()
            if name == peers.FAST_TRANSFORMERS and problem.dtype != torch.float32:
                assert made.note == "float32"


def fault(operator: Operator, *, backward: bool = False) -> str | None:
    return operator_method(operator, dataclasses.replace(PROBLEM, backward=backward)).check()


def softmax_rows(_: object, rows: Tensor, *x: Tensor) -> Tensor:
    return oracle.softmax_rows(*x, rows)  # type: ignore[misc, arg-type]


def test_an_operator_that_sees_later_keys_fails_its_check() -> None:
    whole = dataclasses.replace(PROBLEM, causal=False)
    operator = operators.build(operators.LINEAR, whole, QUICK)
    assert fault(operator) is None
    assert fault(dataclasses.replace(operator, exact=operators.linear_rows(PROBLEM))) is not None


def test_a_wrong_output_or_gradient_fails_the_check() -> None:
    def forget_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, 2 * k - k.detach(), v, is_causal=True)

    wrong = Operator(forget_keys, softmax_rows)
    assert fault(wrong) is None
    assert "the key gradient" in str(fault(wrong, backward=True))
    not_causal = Operator(F.scaled_dot_product_attention, softmax_rows)
    assert "the output" in str(fault(not_causal))


@pytest.mark.parametrize("name", [variants.MASKED, variants.FIXED, variants.TRAINED])
def test_a_call_without_its_argument_fails_the_check(name: str) -> None:
    """The argument reaches the call, and changes what it returns."""
    variant = VARIANTS[name]
    tensors = variant.tensors(PROBLEM)
    exact = variant.call(PROBLEM, "reference")
    plain = variants.Variant().call(PROBLEM, "reference")
    assert variant_fault(exact, exact, tensors) is None
    assert "the output" in str(variant_fault(lambda *x: plain(*x[:3]), exact, tensors))


@pytest.mark.parametrize("name", ["lengths/512", "crossover/d128-h64/4096"])
def test_a_quick_run_measures_every_method(name: str) -> None:
    result = run_case(find_case(name), QUICK, LIMITS)
    assert [found.name for found in result.methods] == list(METHODS)
    for found in result.methods:
        assert found.status == MEASURED or "no live backend" in found.status
