"""Measures the cases and writes their results by theme: python -m benchmarks --help."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm

import benchmarks.cases  # noqa: F401  (registers the cases)
from benchmarks.measure.cases import Case, NotMeasured, Registry, Settings, registry
from benchmarks.measure.machine import Limits, describe_machine, measure_limits
from benchmarks.measure.processes import HOUR, apart
from benchmarks.measure.results import NOT_CORRECT, RAISED, CaseResult, MethodResult
from benchmarks.measure.runner import measured, unmeasured
from benchmarks.report.document import QUICK, Document, Run, read, to_markdown, write
from linattn_core.errors import expected

RESULTS = Path("docs") / "results"
Measure = Callable[[Case, Settings, Limits], CaseResult]


def main(
    arguments: Sequence[str] | None = None,
    cases: Registry = registry,
    measure: Measure | None = None,
) -> int:
    """Returns the exit code: 0, or 1 when a method was wrong or broke, or 2 for a wrong call.

    Args:
        measure: measures a case; by default in a process of its own, in a quick run in this one.
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
    measure = measure or (
        measured if options.quick else partial(isolated, seconds=options.case_seconds)
    )
    order = [case.name for case in cases if case.device == settings.device]
    results = _measure_all(chosen, order, settings, folder, measure)
    return int(any(_broken(method) for result in results for method in result.methods))


def _measure_all(
    cases: Sequence[Case],
    order: Sequence[str],
    settings: Settings,
    folder: Path | None,
    measure: Measure,
) -> list[CaseResult]:
    """Measures case after case, and writes the theme's documents after each."""
    limits = measure_limits(settings) if settings.quick else isolated_limits(settings)
    run = Run(describe_machine(settings), limits, settings.quick)
    results: list[CaseResult] = []
    documents: dict[str, Document] = {}
    with tqdm(cases, unit="case") as bar:
        for case in bar:
            bar.set_description(case.name, refresh=sys.stderr.isatty())
            earlier = tuple(r for r in results if case.series and r.case.series == case.series)
            result = measure(case, dataclasses.replace(settings, earlier=earlier), limits)
            results.append(result)
            _report_faults(result)
            document = documents.get(case.theme) or _started(case.theme, settings, folder)
            documents[case.theme] = document = document.updated(run, result, order)
            if folder is not None:
                write(document, folder)
    for document in documents.values():
        print(to_markdown(document) if folder is None else f"written: {folder / document.theme}")
    return results


def isolated(case: Case, settings: Settings, limits: Limits, *, seconds: float) -> CaseResult:
    """Measures a case in a process of its own, so that others go on if it crashes or hangs."""
    asked = (case.name, settings, limits)
    try:
        return apart(_named, *asked, threads=settings.threads, seconds=seconds)
    except NotMeasured as reason:
        return unmeasured(case, f"not measured: {reason}")


def _named(name: str, settings: Settings, limits: Limits) -> CaseResult:
    return measured(registry.named(name, settings.device), settings, limits)


def isolated_limits(settings: Settings) -> Limits:
    """Measures the machine's limits in a process of its own, which leaves a GPU to the cases."""
    return apart(measure_limits, settings, threads=settings.threads)


def _started(theme: str, settings: Settings, folder: Path | None) -> Document:
    """The document so far; a quick run starts with nothing, so that it mixes with nothing."""
    if folder is None or settings.quick:
        return Document(theme, settings.device)
    return read(folder, theme, settings.device)


def _report_faults(result: CaseResult) -> None:
    for method in result.methods:
        if method.status == NOT_CORRECT or method.status.startswith(RAISED):
            detail = f": {method.detail}" if method.detail else ""
            words = f"{result.case.name}, {method.name}: {method.status}{detail}"
            tqdm.write(words, file=sys.stderr)


def _broken(method: MethodResult) -> bool:
    """Whether the method is wrong, or is one of ours and raised."""
    ours = method.name.startswith(("linear", "every"))
    return method.status == NOT_CORRECT or (ours and method.status.startswith(RAISED))


def _check(options: argparse.Namespace) -> None:
    if options.threads < 1:
        raise ValueError(expected("--threads", "1 or more", options.threads, "leave it out for 2"))
    if not options.case_seconds > 0:
        raise ValueError(expected("--case-seconds", "more than 0", options.case_seconds))
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
    parser.add_argument(
        "--case-seconds", type=float, default=HOUR, metavar="SECONDS",
        help="a case that takes longer is stopped (default: an hour)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"of the results ({RESULTS})")
    return parser
