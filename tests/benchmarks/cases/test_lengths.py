"""The cases of figure 1 and of the crossover table: their sizes, their rows, their checks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.cases import attention, crossover, lengths, lsh
from benchmarks.cases.attention import MATERIALISED, Problem, least_bytes, method
from benchmarks.cases.lengths import LENGTHS, METHODS, problem_of
from benchmarks.machine import Limits
from benchmarks.registry import Absent, Method, Registry, Settings, Target, registry
from benchmarks.runner import run_case

QUICK = Settings(quick=True, threads=1)
LIMITS = Limits(gemm_float32=1e9, gemm_bfloat16=4e9, copy_bandwidth=1e8)
SMALL = Problem(96, batch=2, heads=3, width=8)


def _method(name: str, problem: Problem, *, backward: bool = True) -> Method:
    made = method(name, problem, backward=backward, settings=QUICK)
    if isinstance(made, Absent):
        pytest.skip(f"{name}: {made.reason}")
    return made


def test_the_lengths_are_those_of_the_paper_and_the_batch_shrinks() -> None:
    assert LENGTHS == (512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536)
    batches = [problem_of(length, Settings()).batch for length in LENGTHS]
    assert batches == [16, 8, 4, 2, 1, 1, 1, 1]
    assert {problem_of(length, Settings()).width for length in LENGTHS} == {32}


def test_lsh_attention_is_promised_to_be_no_straw_man() -> None:
    promised = [
        (case.at, target) for case in registry.matching("lengths/") for target in case.targets
    ]
    assert promised == [(16_384, Target.faster("lsh-1", attention.SDPA, 3))]


def test_every_width_and_number_of_heads_has_its_lengths() -> None:
    names = {case.name for case in registry.matching("crossover/")}
    assert names == {
        f"crossover/d{width}-h{heads}/{length}"
        for width in (32, 64, 128) for heads in (1, 8, 64)
        for length in (64, 128, 256, 512, 1_024, 2_048, 4_096)
    }  # fmt: skip


@pytest.mark.parametrize("register", [lengths.register, crossover.register])
def test_a_quick_run_measures_every_method(register: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "peak", lambda *_: 2.0**20)
    fresh = Registry()
    register(fresh)
    cases = list(fresh)
    for case in (cases[0], cases[1], cases[-1]):
        result = run_case(case, QUICK, limits=LIMITS)
        assert [found.name for found in result.methods] == list(METHODS)
        for found in result.methods:
            assert found.status == "measured" or "no live backend" in found.status


def test_time_and_memory_are_those_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "peak", lambda *_: 6.0)
    fresh = Registry()
    lengths.register(fresh)
    found = run_case(next(iter(fresh)), QUICK, limits=LIMITS).method(attention.SDPA)
    assert found.units == 2
    assert found.peak_per_unit == 3.0
    assert found.value is not None
    assert found.value.median == pytest.approx(found.samples[0] / 2)


@pytest.mark.parametrize("causal", [True, False])
def test_materialized_attention_is_torchs(causal: bool) -> None:
    query, key, value = torch.randn(3, 2, 3, 20, 8, dtype=torch.float64).unbind()
    ours = attention.materialized(query, key, value, is_causal=causal)
    theirs = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    torch.testing.assert_close(ours, theirs)


def test_the_n_by_n_matrices_are_counted_before_they_are_made() -> None:
    problem = Problem(16_384, width=32)
    matrix = 8 * 16_384**2 * 4
    assert least_bytes(MATERIALISED, problem) > 3 * matrix
    assert least_bytes(attention.SDPA, problem) < matrix


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("problem", [SMALL, Problem(96, heads=1, width=8, causal=False)])
@pytest.mark.parametrize("name", [*lsh.LSH_ROUNDS, MATERIALISED])
def test_the_rivals_pass_their_checks(name: str, problem: Problem, backward: bool) -> None:
    assert _method(name, problem, backward=backward).check() is None


def test_float64_hashes_as_float32_does() -> None:
    operator = lsh.Lsh("lsh-4", Problem(2_048, heads=2, width=32))
    query, _ = operator.tensors(operator.problem, backward=False)
    rotation = operator._rotations[0]
    assert torch.equal((query @ rotation).double(), query.double() @ rotation.double())


def test_lsh_attention_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lsh.linattn_models.lsh_attention

    def drops_what_comes_last(query: torch.Tensor, value: torch.Tensor, **rest: Any) -> Any:
        """In float32, so that float64 tells the truth."""
        out = right(query, value, **rest)
        rows = torch.arange(out.shape[2]) < out.shape[2] - 2
        return out * rows[:, None] if query.dtype == torch.float32 else out

    made = _method("lsh-1", SMALL)
    monkeypatch.setattr(lsh.linattn_models, "lsh_attention", drops_what_comes_last)
    fault = made.check()
    assert fault is not None
    assert "of the rows of the output differ from the float64 oracle" in fault
