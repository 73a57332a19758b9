"""Measures the cases and writes their results by theme: python -m benchmarks --help."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.case import Case, Settings, select_cases
from benchmarks.cases import CASES, find_case
from benchmarks.document import QUICK, Results, to_markdown, try_results, write_results
from benchmarks.processes import run_apart
from benchmarks.results import FAULTS, LOST, CaseResult
from benchmarks.runner import lost_case, measure_case
from linattn_core.errors import expected
from linattn_lab.machine import Limits, describe_machine, measure_limits
from linattn_lab.store import new_record
from linattn_lab.timing import NotMeasured

RESULTS = Path("docs") / "results"
THREADS = 2


def main(arguments: Sequence[str] | None = None, cases: Sequence[Case] = CASES) -> int:
    """Returns the exit code: 0, or 1 when a method was wrong or broke, or 2 for a wrong call.

    A method broke when it raised, or when its process ended without an answer.
    """
    options = _parser().parse_args(arguments)
    try:
        chosen = select_cases(cases, options.only, options.device)
        _check(options)
        if options.list:
            print("\n".join(f"{case.name}: {case.shows}" for case in chosen))
            return 0
        folder = options.out or (None if options.quick else RESULTS)
        for theme in {case.theme for case in chosen}:
            try_results(folder, theme, options.device)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    settings = Settings(options.quick, options.peers, options.threads, options.device)
    torch.set_num_threads(settings.threads)
    order = [case.name for case in cases if case.device == settings.device]
    return int(_measure_all(chosen, order, settings, _command(options), folder) > 0)


def _measure_all(
    cases: Sequence[Case], order: Sequence[str], settings: Settings, command: str,
    folder: Path | None,
) -> int:  # fmt: skip
    """Returns the number of faults; writes the theme's documents after each case.

    Each case runs in a process of its own, except in a quick run.
    """
    measure = measure_case if settings.quick else measure_apart
    machine = describe_machine(settings.device, settings.threads)
    limits = isolated_limits(settings)
    records: dict[str, Results] = {}
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
            records[case.theme] = record = new_record(command, machine, results, limits)
            if folder is not None:
                write_results(folder, case.theme, settings.device, record, order)
    for theme, record in records.items():
        shown = to_markdown(theme, settings.device, [record], order)
        print(shown if folder is None else f"written: {folder / theme}")
    return faults


def measure_apart(case: Case, settings: Settings, limits: Limits) -> CaseResult:
    """Measures a case in a process of its own, so that others go on if it crashes or hangs."""
    try:
        return run_apart(_measure_named, case.name, settings, limits, threads=settings.threads)
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


def _check(options: argparse.Namespace) -> None:
    if options.threads < 1:
        advice = f"leave it out for {THREADS}"
        raise ValueError(expected("--threads", "1 or more", options.threads, advice))
    if options.device == "cuda" and not options.list and not torch.cuda.is_available():
        got = f"none that torch {torch.__version__} sees"
        advice = "run this where nvidia-smi shows one, with a CUDA build of torch"
        raise ValueError(expected("--device cuda", "a GPU", got, advice))


def _command(options: argparse.Namespace) -> str:
    """The call without the folder, whose name is the caller's own."""
    flags = [
        *(["--peers"] if options.peers else []),
        *(["--quick"] if options.quick else []),
        *([f"--device {options.device}"] if options.device != "cpu" else []),
        *([f"--threads {options.threads}"] if options.threads != THREADS else []),
        *([f"--only {options.only}"] if options.only else []),
    ]
    return " ".join(["python -m benchmarks", *flags])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    parser.add_argument("--only", default="", metavar="PART", help="cases whose name contains this")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--peers", action="store_true", help="measure other libraries too")
    parser.add_argument("--quick", action="store_true", help=QUICK)
    parser.add_argument("--threads", type=int, default=THREADS, help="threads for torch")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"of the results ({RESULTS})")
    return parser
