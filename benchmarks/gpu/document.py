"""The two documents of a run on a GPU: what was built, what the tests say, what was measured."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.measure_records import Record, read
from benchmarks.gpu.placed import RAISED
from benchmarks.gpu.probe import STAND_IN, Gpu
from benchmarks.gpu.stages import DONE, StageOutcome
from benchmarks.gpu.suite import SuiteOutcome
from benchmarks.machine import Limits, Machine, describe_machine
from benchmarks.records import result_of
from benchmarks.report import Report
from benchmarks.runner import NOT_CORRECT, CaseResult, MethodResult
from benchmarks.tables import missing, quantity, table

MOST_FAILURES = 40  # in the document for readers; the JSON holds all
CLOSING = (
    "Times are taken by CUDA events; before each call that is timed, 1 GiB is written (less on a "
    "small GPU), so that the L2 cache holds nothing of the inputs and the launch is not part of "
    "the time. Short calls are the median of up to 20. Decoding is timed by CUDA events between "
    "one token and the next; where it says (estimated), positions spread over the image were timed "
    "and the others interpolated. Methods take turns in rounds; medians with quartiles, ratios "
    "round by round. A method is measured only after its result agreed with a float64 oracle, for "
    "the very tensors that are timed, in heads and rows spread over them. Shares count the least "
    "that the algorithm needs: each input read once and each output written once (forward 4 "
    "numbers a position, head and width; with the backward pass 12, the forward pass among them), "
    "and 4 N D M operations a head forward, 10 with the backward pass, against the bfloat16 GEMM "
    "rate in every dtype. Peak memory is what torch's allocator holds above the inputs during one "
    "call, outputs and gradients included."
)
STAND_IN_CLOSING = (
    "Nothing here was measured on a GPU, nor by its clock: the cases ran on the CPU, which shows "
    "that they run."
)
WARNINGS = (
    "A library's warning does not fail these tests (`-W default`), unlike in the ordinary session: "
    "versions are those of the machine."
)


@dataclasses.dataclass
class Run:
    """What a run has found so far.

    Args:
        commit: of the source tree, where git cannot tell it there.
    """

    gpu: Gpu
    date: datetime.date
    quick: bool
    commit: str = ""
    stages: list[StageOutcome] = dataclasses.field(default_factory=list)
    suites: list[SuiteOutcome] = dataclasses.field(default_factory=list)
    complete: bool = False

    def good(self, results: Sequence[CaseResult]) -> bool:
        """Everything ran, no test failed, and no method was wrong or broke."""
        broken = any(_broken(method) for result in results for method in result.methods)
        ran = all(stage.status == DONE for stage in self.stages)
        return self.complete and ran and not broken and all(suite.green for suite in self.suites)


def _broken(method: MethodResult) -> bool:
    """Wrong, or one of ours that raised where it should have run."""
    ours = method.name.startswith("linear") and method.status.startswith(RAISED)
    return ours or method.status == NOT_CORRECT


def results_of(files: Sequence[Path]) -> tuple[CaseResult, ...]:
    """Returns the results that the measuring processes have written."""
    records = [record for file in files for record in read(file)]
    return tuple(result_of(record["case"]) for record in records if "case" in record)


def report(run: Run, files: Sequence[Path]) -> Report:
    """Returns the report of what is known so far."""
    results = results_of(files)
    machine, limits = _measured_with([record for file in files for record in read(file)])
    machine = dataclasses.replace(
        machine,
        host_class=run.gpu.slug,
        accelerator=run.gpu.description,
        commit=run.commit or machine.commit,
    )
    return Report(
        run.date,
        machine,
        limits,
        results,
        quick=run.quick,
        complete=run.complete,
        notes=("## Build and tests", _stages(run.stages), *_tests(run.suites)),
        sections=(
            *_decoding(results),
            *_comparisons(results),
            "## Not measured, and why",
            missing(results),
        ),
        closing=STAND_IN_CLOSING if run.gpu == STAND_IN else CLOSING,
        more={
            "gpu": dataclasses.asdict(run.gpu),
            "stages": [dataclasses.asdict(stage) for stage in run.stages],
            "tests": [dataclasses.asdict(suite) for suite in run.suites],
        },
    )


def _measured_with(records: Sequence[Record]) -> tuple[Machine, Limits | None]:
    for record in records:
        if "limits" in record:
            return Machine(**record["machine"]), Limits(**record["limits"])
    return describe_machine(), None


def _stages(stages: Sequence[StageOutcome]) -> str:
    rows = [[s.name, _cell(s.status), f"{s.seconds:.0f} s", _cell(s.remark)] for s in stages]
    return table(["stage", "outcome", "time", "remark"], rows)


def _cell(words: str) -> str:
    """The words on one line that no bar cuts, such as an error of many lines."""
    return " ".join(words.replace("|", "/").split())[-600:] or "-"


def _tests(suites: Sequence[SuiteOutcome]) -> list[str]:
    if not suites:
        return ["No test was run."]
    rows = [
        [s.name, str(s.passed), str(s.failed), str(s.skipped), str(len(s.unfinished)), s.status]
        for s in suites
    ]
    header = ["tests", "passed", "failed", "skipped", "unfinished", "run"]
    return [table(header, rows), WARNINGS, *(part for suite in suites for part in _failures(suite))]


def _failures(suite: SuiteOutcome) -> list[str]:
    lines = [f"- failed: `{name}`: {_cell(message)}" for name, message in suite.failures]
    lines += [f"- unfinished: `{name}`" for name in suite.unfinished]
    if suite.output:
        lines.append(f"- pytest said: {_cell(suite.output)}")
    if not lines:
        return []
    more = len(lines) - MOST_FAILURES
    shown = lines[:MOST_FAILURES] + ([f"- and {more} more, in the JSON"] if more > 0 else [])
    return [f"{suite.name}:", "\n".join(shown)]


def _decoding(results: Sequence[CaseResult]) -> list[str]:
    rows = [
        [result.case.name, _named(method), *_images(method)]
        for result in results
        if result.case.unit == "image"
        for method in result.methods
    ]
    header = ["case", "method", "images a second", "one call"]
    return ["## Decoding", table(header, rows)] if rows else []


def _images(method: MethodResult) -> list[str]:
    if method.value is None:
        return [method.status, "-"]
    mark = " (estimated)" if method.estimated else ""
    rate, call = 1 / method.value.median, method.value.median * method.units
    return [f"{rate:,.3g}{mark}" if rate < 100 else f"{rate:,.0f}{mark}", quantity(call, "seconds")]


def _comparisons(results: Sequence[CaseResult]) -> list[str]:
    """Tables of the cases that compare ways of ours: heads, schedules, prototypes."""
    parts: list[str] = []
    for result in results:
        if any(word in result.case.name for word in ("few-heads", "schedules", "prototypes")):
            header = ["method", f"time per {result.case.unit}", "copy share", "GEMM share"]
            rows = [_shares(method) for method in result.methods]
            parts += [f"## {result.case.name}", result.case.shows, table(header, rows)]
    return parts


def _shares(method: MethodResult) -> list[str]:
    if method.value is None:
        return [_named(method), method.status, "-", "-"]
    shares = (method.share_of_copy, method.share_of_gemm)
    shown = ("-" if share is None else f"{share.median:.0%}" for share in shares)
    return [_named(method), quantity(method.value.median, "seconds"), *shown]


def _named(method: MethodResult) -> str:
    return f"{method.name} [{method.note}]" if method.note else method.name
