"""The table of docs/costs.md: what was measured on a CPU, and what a GPU can do at most."""

from __future__ import annotations

from benchmarks.cases.costs import CASES, PARAMETERS, ROWS, STATE, TRAINING
from benchmarks.document import latest
from benchmarks.results import MethodResult
from linattn_lab.machine import Limits
from linattn_lab.tables import figure, markdown_table, memory
from replication.records import Evidence, describe_records
from replication.speed_tables import GPUS, read_theme

OPERATIONS = 6  # of a weight and a token in training: two in each of three products
BYTES = 2  # of a weight in bfloat16


def costs(evidence: list[Evidence]) -> str:
    """Tokens per second and memory of the models of the benchmark `costs`."""
    records, limits = read_theme("costs", "cpu"), read_limits()
    rows = []
    for name, case in latest(records, [case.name for case in CASES]).items():
        for method in case.methods:
            count, state = (method.figures.get(x) for x in (PARAMETERS, STATE))
            rows.append([
                f"{name.partition('/')[2]}, {figure((count or 0) / 1e6)} million",
                method.name,
                figure(method.seconds and 1 / method.seconds),
                memory(method.peak),
                memory(state),
                estimate(most_tokens(method, limits)),
            ])  # fmt: skip
    header = [
        "model, parameters",
        "work",
        "tokens/s",
        "memory",
        "a state",
        f"{GPUS[0].upper()}, at most",
    ]
    return f"{markdown_table(header, rows)}\n{describe_records(records, evidence)}"


def estimate(value: float | None) -> str:
    """A number with the two digits that an estimate deserves."""
    return figure(value and float(f"{value:.2g}"))


def read_limits() -> Limits | None:
    """The rates that were measured on a GPU, the latest first."""
    records = (each for theme in ("operator", "lengths") for each in read_theme(theme, GPUS[0]))
    return next((each.limits for each in records if each.limits), None)


def most_tokens(method: MethodResult, limits: Limits | None) -> float | None:
    """Tokens per second in bfloat16, if the GPU did nothing but the least work at full rate."""
    count, state = (method.figures.get(x) for x in (PARAMETERS, STATE))
    if limits is None or not count or state is None:
        return None
    if method.name == TRAINING:
        return (limits.gemm_bfloat16 or 0) / (OPERATIONS * count)
    rows = ROWS[method.name]
    return rows * limits.copy_bandwidth / (BYTES * count + 2 * rows * state)
