"""Measures the cases and writes their results by theme: python -m benchmarks.

    python -m benchmarks --only lengths/        the cases whose name contains this
    python -m benchmarks --list                 the names of the cases
    python -m benchmarks --quick                minutes: does every case still run?

Results are written after each case. Each case has a process of its own, except in a quick run.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import tyro
from tqdm import tqdm

from benchmarks.case import Case, Settings, select_cases
from benchmarks.cases import CASES, find_case
from benchmarks.document import Results, to_markdown, try_results, write_results
from benchmarks.results import FAULTS, LOST, CaseResult
from benchmarks.runner import lost_case, measure_case
from linattn_core.errors import expected
from linattn_lab.machine import Limits, describe_machine, measure_limits
from linattn_lab.processes import HOUR, run_apart
from linattn_lab.script import require_at_least
from linattn_lab.store import current_commit, new_record
from linattn_lab.timing import NotMeasured

RESULTS = Path("docs") / "results"
DAY = 24 * HOUR  # that a case of whole images may take


@dataclasses.dataclass(frozen=True)
class Flags:
    """Measure cases."""

    settings: Annotated[Settings, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=Settings
    )
    only: str = ""
    """Measure the cases whose name contains this."""
    list: bool = False
    """Name the cases and stop."""
    out: Path | None = None
    """Folder of the results; docs/results if not given, and for a quick run none."""


def main(flags: Flags, cases: Sequence[Case] = CASES) -> None:
    """Measures the cases that are asked for.

    Ends the process with exit code 1 if a method was wrong, raised, or its process gave no answer.
    """
    settings = flags.settings
    chosen = select_cases(cases, flags.only, settings.device)
    if flags.list:
        print("\n".join(f"{case.name}: {case.shows}" for case in chosen))
        return
    require_at_least(settings, {"threads": 1})
    if settings.device == "cuda" and not torch.cuda.is_available():
        got = f"none that torch {torch.__version__} sees"
        advice = "run this where nvidia-smi shows one, with a CUDA build of torch"
        raise ValueError(expected("--device cuda", "a GPU", got, advice))
    folder = flags.out or (None if settings.quick else RESULTS)
    place = describe_machine(settings.device, settings.threads).place
    for theme in {case.theme for case in chosen}:
        try_results(folder, theme, place)
    torch.set_num_threads(settings.threads)
    order = [case.name for case in cases if case.device == settings.device]
    if _measure_all(chosen, order, settings, _command(flags), folder):
        sys.exit(1)


def _measure_all(
    cases: Sequence[Case], order: Sequence[str], settings: Settings, command: str,
    folder: Path | None,
) -> int:  # fmt: skip
    """Returns the number of faults; each case runs in its own process, but not in a quick run."""
    measure = measure_case if settings.quick else measure_apart
    machine = describe_machine(settings.device, settings.threads)
    limits = isolated_limits(settings)
    records: dict[str, Results] = {}
    commit = current_commit()
    faults = 0
    with tqdm(cases, unit="case", disable=None) as bar:
        for case in bar:
            bar.set_description(case.name, refresh=sys.stderr.isatty())
            result = measure(case, settings, limits)
            for fault in _faults(case, result):
                faults += 1
                tqdm.write(fault, file=sys.stderr)
            earlier = records[case.theme].results if case.theme in records else {}
            results = {**earlier, case.name: result}
            records[case.theme] = record = new_record(command, commit, machine, results, limits)
            if folder is not None:
                write_results(folder, case.theme, record, order)
    for theme, record in records.items():
        shown = to_markdown(theme, [record], order)
        print(shown if folder is None else f"written: {folder / theme}")
    return faults


def measure_apart(case: Case, settings: Settings, limits: Limits) -> CaseResult:
    """Measures a case in a process of its own, so that others go on if it crashes or hangs."""
    try:
        seconds = DAY if settings.whole else HOUR
        return run_apart(
            _measure_named, case.name, settings, limits, threads=settings.threads, seconds=seconds
        )
    except NotMeasured as reason:
        return lost_case(case, f"{LOST}: {reason}")


def _measure_named(name: str, settings: Settings, limits: Limits) -> CaseResult:
    return measure_case(find_case(name, settings.device), settings, limits)


def isolated_limits(settings: Settings) -> Limits:
    """Measures the machine's limits in a process of its own, which leaves a GPU to the cases.

    Those of a quick run are measured in this process.
    """
    if settings.quick:
        return measure_limits(settings.device, settings.threads, quick=True)
    return run_apart(measure_limits, settings.device, settings.threads, threads=settings.threads)


def _faults(case: Case, result: CaseResult) -> list[str]:
    """The methods that were wrong or broke, in a sentence each."""
    return [
        f"{case.name}, {method.name}: {method.status}"
        + (f": {method.detail}" if method.detail else "")
        for method in result.methods
        if method.status.startswith(FAULTS)
    ]


def _command(flags: Flags) -> str:
    """The call without the folder, whose name is the caller's own."""
    settings = flags.settings
    words = [
        *(["--peers"] if settings.peers else []),
        *(["--quick"] if settings.quick else []),
        *(["--whole"] if settings.whole else []),
        *([f"--device {settings.device}"] if settings.device != "cpu" else []),
        *([f"--threads {settings.threads}"] if settings.threads != Settings.threads else []),
        *([f"--only {flags.only}"] if flags.only else []),
    ]
    return " ".join(["python -m benchmarks", *words])
