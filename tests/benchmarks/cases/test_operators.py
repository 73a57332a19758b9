"""The operator cases check outputs and gradients before they would time anything."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import oracle
from benchmarks.case import Settings
from benchmarks.cases import find_case, methods, operators, peers, variants
from benchmarks.cases.lengths import METHODS
from benchmarks.cases.methods import attention_case, method, operator_method
from benchmarks.cases.operators import LSH_ROUNDS, Operator
from benchmarks.cases.problem import Problem, many_heads, passes
from benchmarks.cases.variants import VARIANTS, variant_fault
from benchmarks.results import MEASURED
from benchmarks.runner import run_case
from linattn_core import linear_attention
from linattn_lab.timing import NotMeasured
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


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("name", operators.FLASH_LINEAR)
def test_both_forms_of_flash_linear_attention_take_part(
    name: str, normalize: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for the library, in its layout; also where nothing is divided."""

    def attend(*tensors: Tensor, scale: float, normalize: bool) -> tuple[Tensor, None]:
        out = linear_attention(
            *(scale * x.transpose(1, 2) for x in tensors),
            is_causal=True, feature_map="identity", normalize=normalize, backend="reference",
        )  # fmt: skip
        return out.transpose(1, 2), None

    library = SimpleNamespace(**{operators.FLASH_LINEAR[name]: attend})
    monkeypatch.setattr(peers, "load", lambda *_: library)
    problem = dataclasses.replace(PROBLEM, backward=True, normalize=normalize)
    for each in (name, operators.LINEAR):
        assert operator_method(operators.build(each, problem, QUICK), problem).check() is None


def test_a_wrong_output_or_gradient_fails_the_check() -> None:
    def forget_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, 2 * k - k.detach(), v, is_causal=True)

    wrong = Operator(forget_keys, softmax_rows)
    assert fault(wrong) is None
    assert "the key gradient" in str(fault(wrong, backward=True))
    not_causal = Operator(F.scaled_dot_product_attention, softmax_rows)
    assert "the output" in str(fault(not_causal))


def test_lsh_attention_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = operators.linattn_models.lsh_attention

    def drop_last(query: Tensor, value: Tensor, **rest: Any) -> Any:
        """Wrong in float32 alone, so that the float64 oracle stays right."""
        out = right(query, value, **rest)
        rows = torch.arange(out.shape[2]) < out.shape[2] - 2
        return out * rows[:, None] if query.dtype == torch.float32 else out

    monkeypatch.setattr(operators.linattn_models, "lsh_attention", drop_last)
    assert "the output" in str(method("lsh-1", PROBLEM, QUICK).check())


def test_float64_hashes_as_float32_does() -> None:
    query, rotations = (operators.on_grid(torch.randn(2, 64, 32)) for _ in range(2))
    assert torch.equal((query @ rotations.mT).double(), query.double() @ rotations.double().mT)


@pytest.mark.parametrize("name", [variants.MASKED, variants.FIXED, variants.TRAINED])
def test_a_call_without_its_argument_fails_the_check(name: str) -> None:
    """The argument reaches the call, and changes what it returns."""
    variant = VARIANTS[name]
    tensors = variant.tensors(PROBLEM)
    exact = variant.call(PROBLEM, "reference")
    plain = variants.Variant().call(PROBLEM, "reference")
    assert variant_fault(exact, exact, tensors) is None
    assert "the output" in str(variant_fault(lambda *x: plain(*x[:3]), exact, tensors))


def test_a_wrong_gradient_of_a_trained_decay_fails_the_check() -> None:
    problem = dataclasses.replace(PROBLEM, backward=True)
    attend = VARIANTS[variants.TRAINED].call(problem, "reference")

    def double_gradient(query: Tensor, key: Tensor, value: Tensor, decay: Tensor) -> Tensor:
        return attend(query, key, value, 2 * decay - decay.detach())

    tensors = VARIANTS[variants.TRAINED].tensors(problem)
    assert "the log_decay gradient" in str(variant_fault(double_gradient, attend, tensors))


@pytest.mark.parametrize("problem", passes(PROBLEM), ids=["forward", "both passes"])
@pytest.mark.parametrize("name", [variants.NEW, variants.USED])
def test_writing_covers_the_output_and_every_gradient(
    name: str, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = method(name, problem, QUICK)
    assert made.check() is None
    tensors: Any = made.run()
    assert sum(x.numel() for x in tensors) == (4 if problem.backward else 1) * problem.numbers
    assert made.traffic == sum(x.nbytes for x in tensors)
    again: Any = made.run()
    assert (again[0] is tensors[0]) == (name == variants.USED)
    monkeypatch.setattr(torch.Tensor, "fill_", lambda self, value: self.zero_())
    assert made.check() is not None


@pytest.mark.parametrize(("backward", "each", "tensors"), [(False, 4, 4), (True, 10, 12)])
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_the_least_work_is_that_of_the_algorithm(
    backward: bool, each: int, tensors: int, dtype: torch.dtype, size: int
) -> None:
    problem = Problem(100, batch=2, heads=3, width=8, dtype=dtype, backward=backward)
    assert problem.operations == each * 2 * 3 * 100 * 8 * 8
    assert problem.traffic == tensors * 2 * 3 * 100 * 8 * size
    made = method(operators.SDPA, PROBLEM, QUICK)  # not compared with the limits
    assert (made.operations, made.traffic) == (0, 0)


@pytest.mark.parametrize("name", ["operator/few-heads/forward", "lengths/forward/512"])
def test_a_backend_that_is_not_installed_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(operators.linattn_core, "backends", lambda: ("reference",))
    makes = find_case(name, "cuda").setup(QUICK)
    for title, make in makes.items():
        if operators.LINEAR_CUDA in title:
            with pytest.raises(NotMeasured, match="'cuda'"):
                make()


def test_a_peers_kernel_that_is_causal_alone_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(chunk_linear_attn=None)
    monkeypatch.setattr(peers, "load", lambda name, settings: module)
    with pytest.raises(NotMeasured, match="causal"):
        method(peers.FLASH_LINEAR_ATTENTION, NOT_CAUSAL, QUICK)


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
        peers.load("fast_transformers.attention", QUICK)
    assert str(raised.value) == reason


@pytest.mark.parametrize("name", ["lengths/512", "crossover/d128-h64/4096"])
def test_a_quick_run_measures_every_method(name: str) -> None:
    result = run_case(find_case(name), QUICK, LIMITS)
    assert [found.name for found in result.methods] == list(METHODS)
    for found in result.methods:
        assert found.status == MEASURED or "no live backend" in found.status


def test_time_and_memory_are_those_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "run_apart", lambda *_, **__: 6.0)
    case = attention_case(
        "a/case", "A.", {"a": (operators.SDPA, dataclasses.replace(PROBLEM, batch=2))},
        units=lambda problem: problem.batch, peaks=True, seconds=0, rounds=(1, 1),
    )  # fmt: skip
    found = run_case(case, Settings(threads=1), LIMITS).method("a")
    assert (found.units, found.peak_per_unit) == (2, 3.0)
