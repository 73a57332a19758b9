"""From which length on linear attention wins: forward and backward, many widths and heads."""

from __future__ import annotations

from benchmarks.cases.attention import Problem, least_bytes, method
from benchmarks.cases.lengths import METHODS, timed_by_itself
from benchmarks.crossing import OUT, Race
from benchmarks.ledger import Ledger
from benchmarks.registry import Absent, Case, Method, Registry, Settings, registry
from benchmarks.runner import CaseResult

WIDTHS, HEADS = (32, 64, 128), (1, 8, 64)
LENGTHS = (64, 128, 256, 512, 1_024, 2_048, 4_096)
MOST_SECONDS = 15.0  # of a call
QUICK = Problem(64, heads=2, width=8)


def register(registry: Registry) -> None:
    """Adds the cases; those of one width and number of heads share who is out of the race."""
    for width in WIDTHS:
        for heads in HEADS:
            ledger, race = Ledger(most_seconds=MOST_SECONDS), Race()
            for length in LENGTHS:
                registry.add(_case(Problem(length, heads=heads, width=width), ledger, race))


def _case(problem: Problem, ledger: Ledger, race: Race) -> Case:
    width, heads, length = problem.width, problem.heads, problem.length

    def done(result: CaseResult) -> None:
        ledger.note(result)
        race.note(result)

    return Case(
        f"crossover/d{width}-h{heads}/{length}",
        shows=f"Causal attention, forward and backward, N={length:,} (B=1, H={heads}, "
        f"D=M={width}, float32).",
        setup=lambda settings: [_method(name, problem, settings, ledger, race) for name in METHODS],
        seconds=1.0,
        rounds=(1, 3),
        series=f"D=M={width}, H={heads}",
        at=length,
        summarized=True,
        done=done,
    )


def _method(
    name: str, asked: Problem, settings: Settings, ledger: Ledger, race: Race
) -> Method | Absent:
    if race.is_out(name):
        return Absent(name, OUT)
    problem = QUICK if settings.quick else asked
    made = timed_by_itself(method(name, problem, backward=True, settings=settings), settings)
    return ledger.guarded(made, asked.length, settings, least_bytes(name, problem))


register(registry)
