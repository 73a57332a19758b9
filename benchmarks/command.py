"""Measures the cases and writes their results by theme: python -m benchmarks --help."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm import tqdm

import benchmarks.cases  # noqa: F401  (registers the cases)
from benchmarks.measure.cases import Case, NotMeasured, Registry, Settings, registry
from benchmarks.measure.machine import Limits, describe_machine, measure_limits
from benchmarks.measure.processes import apart
from benchmarks.measure.results import FAULTS, LOST, CaseResult
from benchmarks.measure.runner import measured, unmeasured
from benchmarks.report.document import QUICK, Document, Run, read, to_markdown, write
from linattn_core.errors import expected

RESULTS = Path("docs") / "results"


def main(arguments: Sequence[str] | None = None, cases: Registry = registry) -> int:
    """Returns the exit code: 0, or 1 when a method was wrong or broke, or 2 for a wrong call.

    A method broke when it raised, or when its process ended without an answer.
    """
    options = _parser().parse_args(arguments)
    try:
        chosen = cases.matching(options.only, options.device)
        _check(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(f"{case.name}: {case.shows}" for case in chosen))
        return 0
    settings = Settings(options.quick, options.peers, options.threads, options.device)
    torch.set_num_threads(settings.threads)
    folder = options.out or (None if options.quick else RESULTS)
    order = [case.name for case in cases if case.device == settings.device]
    return int(_measure_all(chosen, order, settings, folder) > 0)


def _measure_all(
    cases: Sequence[Case], order: Sequence[str], settings: Settings, folder: Path | None
) -> int:
    """Returns the number of faults; writes the theme's documents after each case.

    Each case runs in a process of its own, except in a quick run.
    """
    measure = measured if settings.quick else isolated
    limits = isolated_limits(settings)
    run = Run(describe_machine(settings), limits, settings.quick)
    documents: dict[str, Document] = {}
    faults = 0
    with tqdm(cases, unit="case") as bar:
        for case in bar:
            bar.set_description(case.name, refresh=sys.stderr.isatty())
            result = measure(case, settings, limits)
            for fault in _faults(result):
                faults += 1
                tqdm.write(fault, file=sys.stderr)
            document = documents.get(case.theme) or Document(case.theme, settings.device)
            if folder is not None and not settings.quick:  # those of a quick run stay apart
                document = read(folder, case.theme, settings.device)
            documents[case.theme] = document = document.updated(run, result, order)
            if folder is not None:
                write(document, folder)
    for document in documents.values():
        print(to_markdown(document) if folder is None else f"written: {folder / document.theme}")
    return faults


def isolated(case: Case, settings: Settings, limits: Limits) -> CaseResult:
    """Measures a case in a process of its own, so that others go on if it crashes or hangs."""
    try:
        return apart(_named, case.name, settings, limits, threads=settings.threads)
    except NotMeasured as reason:
        return unmeasured(case, f"{LOST}: {reason}")


def _named(name: str, settings: Settings, limits: Limits) -> CaseResult:
    return measured(registry.named(name, settings.device), settings, limits)


def isolated_limits(settings: Settings) -> Limits:
    """Measures the machine's limits in a process of its own, which leaves a GPU to the cases.

    Those of a quick run are measured in this process.
    """
    if settings.quick:
        return measure_limits(settings)
    return apart(measure_limits, settings, threads=settings.threads)


def _faults(result: CaseResult) -> list[str]:
    """The methods that were wrong or broke, in a sentence each."""
    return [
        f"{result.case.name}, {method.name}: {method.status}"
        + (f": {method.detail}" if method.detail else "")
        for method in result.methods
        if method.status.startswith(FAULTS)
    ]


def _check(options: argparse.Namespace) -> None:
    if options.threads < 1:
        raise ValueError(expected("--threads", "1 or more", options.threads, "leave it out for 2"))
    if options.device == "cuda" and not options.list and not torch.cuda.is_available():
        got = f"none that torch {torch.__version__} sees"
        advice = "run this where nvidia-smi shows one, with a CUDA build of torch"
        raise ValueError(expected("--device cuda", "a GPU", got, advice))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    parser.add_argument("--only", default="", metavar="PART", help="cases whose name contains this")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--peers", action="store_true", help="measure other libraries too")
    parser.add_argument("--quick", action="store_true", help=QUICK)
    parser.add_argument("--threads", type=int, default=2, help="threads for torch (default 2)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"of the results ({RESULTS})")
    return parser
