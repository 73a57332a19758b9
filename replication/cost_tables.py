"""The table of docs/costs.md: what was measured on a CPU, and what a GPU can do at most."""

from __future__ import annotations

from benchmarks.cases.costs import CASES, PARAMETERS, ROWS, STATE, TRAINING
from benchmarks.document import Results, latest
from benchmarks.results import MethodResult
from linattn_lab.machine import Limits
from linattn_lab.tables import figure, markdown_table, memory
from replication.records import Evidence, describe_records
from replication.speed_tables import GPUS, read_theme

OPERATIONS = 6  # of a weight and a token in training: two in each of three products
BYTES = 2  # of a weight in bfloat16


def costs(evidence: list[Evidence]) -> str:
    """Tokens per second and memory of the models of the benchmark `costs`."""
    records, rates = read_theme("costs", "cpu"), read_rates()
    limits = rates[0].limits if rates else None
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
    gpu = f"{GPUS[0].upper()}, at most"
    table = markdown_table(
        ["model, parameters", "work", "tokens/s", "memory", "a state", gpu], rows
    )
    words = "The rates behind the last column were measured"
    when = describe_records(rates, evidence).replace("Measured", words)
    return f"{table}\n{describe_records(records, evidence)} {when}"


def estimate(value: float | None) -> str:
    """A number with the two digits that an estimate deserves."""
    return figure(value and float(f"{value:.2g}"))


def read_rates() -> list[Results]:
    """The latest record with the rates that were measured on a GPU, if there is one."""
    records = (each for theme in ("operator", "lengths") for each in read_theme(theme, GPUS[0]))
    return [each for each in records if each.limits][:1]


def most_tokens(method: MethodResult, limits: Limits | None) -> float | None:
    """Tokens per second in bfloat16, if the GPU did nothing but the least work at full rate."""
    count, state = (method.figures.get(x) for x in (PARAMETERS, STATE))
    if limits is None or not count or state is None:
        return None
    if method.name == TRAINING:
        return (limits.gemm_bfloat16 or 0) / (OPERATIONS * count)
    rows = ROWS[method.name]
    return rows * limits.copy_bandwidth / (BYTES * count + 2 * rows * state)
