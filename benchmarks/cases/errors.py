"""How exact a backend is: its errors over those of the reference, against float64, by length."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from benchmarks import oracle
from benchmarks.case import Case, Make, Method, Settings
from benchmarks.cases.operators import LINEAR_CPU, require_backend
from benchmarks.cases.problem import Problem
from benchmarks.cases.variants import Variant, call_on

LENGTHS, WIDTHS = (512, 16_384, 2**20), (32, 64)
INPUTS = ("query", "key", "value")
NAMES = ("output", *(f"{name} gradient" for name in INPUTS))


def make_case(problem: Problem) -> Case:
    """One head; the figures are the errors, the time is that of the call."""

    def setup(settings: Settings) -> dict[str, Make]:
        return {LINEAR_CPU: partial(error_method, "cpu", problem.for_settings(settings))}

    return Case(
        f"errors/d{problem.width}/{problem.length}",
        f"Causal, {problem.passes}, {problem}. By tensor: the root mean square of the error over "
        "that of plain PyTorch in float32, and the largest error over the largest; both against "
        "float64.",
        setup,
        seconds=1,
    )


def error_method(backend: str, problem: Problem) -> Method:
    """Returns the call, whose figures are known when it has been checked."""
    require_backend(backend)
    tensors = Variant().tensors(problem)
    figures: dict[str, float] = {}

    def check() -> str | None:
        doubles = [x.detach().double().requires_grad_() for x in tensors]
        exact, plain = (results("reference", problem, each) for each in (doubles, tensors))
        ours = results(backend, problem, tensors)
        figures.update(compare_errors(ours, plain, exact))
        return oracle.find_first_disagreement(INPUTS, ours, exact)

    return Method(check, call_on(Variant().call(problem, backend), tensors), figures=figures)


def results(backend: str, problem: Problem, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """The output and the gradients of a call by a backend."""
    return oracle.output_and_gradients(Variant().call(problem, backend), tensors)


def compare_errors(
    ours: Sequence[Tensor], plain: Sequence[Tensor], exact: Sequence[Tensor]
) -> dict[str, float]:
    """For the output and each gradient: the ratio of the mean errors, and of the largest."""
    figures: dict[str, float] = {}
    for name, *tensors in zip(NAMES, ours, plain, exact, strict=True):
        error, its_error = (x.double() - tensors[-1] for x in tensors[:-1])
        figures[f"{name}, mean"] = (error.square().mean() / its_error.square().mean()).sqrt().item()
        figures[f"{name}, largest"] = (error.abs().max() / its_error.abs().max()).item()
    return figures


CASES = tuple(
    make_case(Problem(length, heads=1, width=width, backward=True))
    for width in WIDTHS
    for length in LENGTHS
)
