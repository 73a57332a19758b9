"""The cases of figure 1 and of the crossover table: their sizes, their rows, their checks."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from benchmarks.cases import attention, crossover, lengths, lsh
from benchmarks.cases.attention import MATERIALIZED, least_bytes, method
from benchmarks.cases.lengths import LENGTHS, METHODS, problem_of
from benchmarks.cases.problem import Problem
from benchmarks.measure.cases import NotMeasured, Settings, registry
from benchmarks.measure.machine import Limits
from benchmarks.measure.results import CaseResult, Description, MethodResult, Spread
from benchmarks.measure.runner import run_case

QUICK = Settings(quick=True, threads=1)
SMALL = Problem(96, batch=2, heads=3, width=8)


def test_the_batch_shrinks_as_the_length_grows() -> None:
    batches = [problem_of(length, Settings()).batch for length in LENGTHS]
    assert batches == [16, 8, 4, 2, 1, 1, 1, 1]


@pytest.mark.parametrize(
    "name", ["lengths/512", "lengths/1024", "crossover/d32-h1/64", "crossover/d128-h64/4096"]
)
def test_a_quick_run_measures_every_method(
    name: str, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    monkeypatch.setattr(lengths, "peak", lambda *_: 2.0**20)
    result = run_case(registry.named(name, "cpu"), QUICK, limits)
    assert [found.name for found in result.methods] == list(METHODS)
    for found in result.methods:
        assert found.status == "measured" or "no live backend" in found.status


def test_time_and_memory_are_those_of_a_sample(
    monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    monkeypatch.setattr(lengths, "peak", lambda *_: 6.0)
    case = registry.named("lengths/512", "cpu")
    found = run_case(case, QUICK, limits).method(attention.SDPA)
    assert found.units == 2
    assert found.peak_per_unit == 3.0


@pytest.mark.parametrize("causal", [True, False])
def test_materialized_attention_is_torchs(causal: bool) -> None:
    query, key, value = torch.randn(3, 2, 3, 20, 8, dtype=torch.float64).unbind()
    ours = attention.materialized(query, key, value, is_causal=causal)
    theirs = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    torch.testing.assert_close(ours, theirs)


def test_the_n_by_n_matrices_are_counted_before_they_are_made() -> None:
    problem = Problem(16_384, width=32)
    matrix = 8 * 16_384**2 * 4
    assert least_bytes(MATERIALIZED, problem) > 3 * matrix
    assert least_bytes(attention.SDPA, problem) < matrix


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("problem", [SMALL, Problem(96, heads=1, width=8, causal=False)])
@pytest.mark.parametrize("name", [*lsh.LSH_ROUNDS, MATERIALIZED])
def test_the_rivals_pass_their_checks(name: str, problem: Problem, backward: bool) -> None:
    assert method(name, problem, QUICK, backward=backward).check() is None


def test_float64_hashes_as_float32_does() -> None:
    operator = lsh.Lsh("lsh-4", Problem(2_048, heads=2, width=32))
    query, _ = operator.tensors(operator.problem, backward=False)
    rotation = operator._rotations[0]
    assert torch.equal((query @ rotation).double(), query.double() @ rotation.double())


def test_lsh_attention_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lsh.linattn_models.lsh_attention

    def drops_what_comes_last(query: torch.Tensor, value: torch.Tensor, **rest: Any) -> Any:
        """Wrong in float32 alone, so that the float64 oracle stays right."""
        out = right(query, value, **rest)
        rows = torch.arange(out.shape[2]) < out.shape[2] - 2
        return out * rows[:, None] if query.dtype == torch.float32 else out

    made = method("lsh-1", SMALL, QUICK, backward=True)
    monkeypatch.setattr(lsh.linattn_models, "lsh_attention", drops_what_comes_last)
    fault = made.check()
    assert fault is not None
    assert "of the rows of the output differ from the float64 oracle" in fault


def _result(**seconds: float) -> CaseResult:
    named = {"linear (cpu)": 1.0, "linear (torch)": 2.0, **seconds}
    methods = (
        MethodResult(name, "measured", Spread(value, value, value)) for name, value in named.items()
    )
    return CaseResult(Description("a/case", "A."), tuple(methods))


def test_who_loses_clearly_twice_in_succession_is_out() -> None:
    earlier: list[CaseResult] = []
    for slow, near in ((5.0, 5.0), (3.0, 3.0), (4.0, 5.0), (9.0, 3.9)):
        assert "slow" not in crossover.clear_losers(earlier)
        earlier.append(_result(slow=slow, near=near))
    assert crossover.clear_losers(earlier) == {"slow"}
    without_linear = [dataclasses.replace(each, methods=each.methods[2:]) for each in earlier]
    assert crossover.clear_losers(without_linear) == set()


def test_who_is_out_is_not_made() -> None:
    case = registry.named("crossover/d32-h1/512", "cpu")
    lost = _result(**{attention.SDPA: 9.0})
    with pytest.raises(NotMeasured, match="4 times as slow as linear at 2 lengths before"):
        case.setup(QUICK, [lost, lost])[attention.SDPA]()
