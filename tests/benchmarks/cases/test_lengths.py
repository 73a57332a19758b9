"""The cases of figure 1 and of the crossover table: their sizes, their rows, their checks."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from benchmarks.cases import attention, methods
from benchmarks.cases.attention import LSH_ROUNDS, MATERIALIZED
from benchmarks.cases.lengths import LENGTHS, METHODS, problem_on_cpu
from benchmarks.cases.methods import attention_case, method
from benchmarks.cases.problem import Problem
from benchmarks.measure.cases import Settings, registry
from benchmarks.measure.machine import Limits
from benchmarks.measure.runner import run_case

QUICK = Settings(quick=True, threads=1)
SMALL = Problem(96, batch=2, heads=3, width=8)


def test_the_batch_shrinks_as_the_length_grows() -> None:
    batches = [problem_on_cpu(length).batch for length in LENGTHS]
    assert batches == [16, 8, 4, 2, 1, 1, 1, 1]


@pytest.mark.parametrize(
    "name", ["lengths/512", "lengths/1024", "crossover/d32-h1/64", "crossover/d128-h64/4096"]
)
def test_a_quick_run_measures_every_method(name: str, limits: Limits) -> None:
    result = run_case(registry.named(name, "cpu"), QUICK, limits)
    assert [found.name for found in result.methods] == list(METHODS)
    for found in result.methods:
        assert found.status == "measured" or "no live backend" in found.status


def test_time_and_memory_are_those_of_a_sample(
    monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    monkeypatch.setattr(methods, "apart", lambda *_, **__: 6.0)
    problem = dataclasses.replace(SMALL, backward=True)
    case = attention_case(
        "a/case", "A.", {"a": (attention.SDPA, problem)}, units=lambda problem: problem.batch,
        peaks=True, seconds=0, rounds=(1, 1),
    )  # fmt: skip
    found = run_case(case, Settings(threads=1), limits).method("a")
    assert found.units == 2
    assert found.peak_per_unit == 3.0


@pytest.mark.parametrize("causal", [True, False])
def test_materialized_attention_is_torchs(causal: bool) -> None:
    query, key, value = torch.randn(3, 2, 3, 20, 8, dtype=torch.float64).unbind()
    ours = attention.materialized(query, key, value, is_causal=causal)
    theirs = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("problem", [SMALL, Problem(96, heads=1, width=8, causal=False)])
@pytest.mark.parametrize("name", [*LSH_ROUNDS, MATERIALIZED])
def test_the_rivals_pass_their_checks(name: str, problem: Problem, backward: bool) -> None:
    made = method(name, dataclasses.replace(problem, backward=backward), QUICK)
    assert made.check() is None


def test_float64_hashes_as_float32_does() -> None:
    query, rotations = (attention.on_grid(torch.randn(2, 64, 32)) for _ in range(2))
    assert torch.equal((query @ rotations.mT).double(), query.double() @ rotations.double().mT)


def test_lsh_attention_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = attention.linattn_models.lsh_attention

    def drops_what_comes_last(query: torch.Tensor, value: torch.Tensor, **rest: Any) -> Any:
        """Wrong in float32 alone, so that the float64 oracle stays right."""
        out = right(query, value, **rest)
        rows = torch.arange(out.shape[2]) < out.shape[2] - 2
        return out * rows[:, None] if query.dtype == torch.float32 else out

    monkeypatch.setattr(attention.linattn_models, "lsh_attention", drops_what_comes_last)
    fault = method("lsh-1", dataclasses.replace(SMALL, backward=True), QUICK).check()
    assert fault is not None
    assert "of the rows of the output differ" in fault
