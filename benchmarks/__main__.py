"""Measures the cases and writes the dated result: python -m benchmarks --help."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm import tqdm

import benchmarks.cases  # noqa: F401  (registers the cases)
from benchmarks import figure
from benchmarks.machine import describe_machine, measure_limits
from benchmarks.registry import Case, Registry, Settings, registry
from benchmarks.report import Report, to_markdown, write
from benchmarks.runner import CaseResult, run_cases

RESULTS = Path("benchmarks") / "results"


def main(arguments: Sequence[str] | None = None, cases: Registry = registry) -> int:
    """Returns the exit code: 0, or 1 when a method was not correct, or 2 for a call that is not."""
    options = _parser().parse_args(arguments)
    try:
        chosen = cases.matching(options.only)
        _check_threads(options.threads)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(f"{case.name}: {case.shows}" for case in chosen))
        return 0
    torch.set_num_threads(options.threads)
    settings = Settings(quick=options.quick, peers=options.peers, threads=options.threads)
    return _measure(chosen, settings, _folder(options))


def _measure(cases: Sequence[Case], settings: Settings, folder: Path | None) -> int:
    machine, limits = describe_machine(), measure_limits(quick=settings.quick)
    results: list[CaseResult] = []
    try:
        with tqdm(total=len(cases), unit="case") as bar:
            running = run_cases(
                cases,
                settings,
                limits=limits,
                progress=lambda words: bar.set_description(words, refresh=sys.stderr.isatty()),
            )
            for result in running:
                results.append(result)
                _tell_faults(result)
                bar.update()
    finally:
        # What an interruption leaves is still worth keeping: a whole run takes many minutes.
        report = Report(
            datetime.datetime.now(tz=datetime.UTC).date(),
            machine,
            limits,
            tuple(results),
            quick=settings.quick,
            complete=len(results) == len(cases),
        )
        if results:
            _present(report, folder)
    return int(any(method.detail for result in results for method in result.methods))


def _tell_faults(result: CaseResult) -> None:
    for method in result.methods:
        if method.detail is not None:
            words = f"{result.case.name}, {method.name}: {method.status}: {method.detail}"
            tqdm.write(words, file=sys.stderr)


def _present(report: Report, folder: Path | None) -> None:
    print(to_markdown(report))
    if folder is not None:
        paths = list(write(report, folder))
        picture = paths[0].with_suffix(".png")
        reason = figure.draw(report.results, picture)
        paths += [] if reason else [picture]
        print("\n".join(f"written: {path}" for path in paths))
        if reason == figure.NO_MATPLOTLIB:
            print(f"no picture of figure 1: {reason}", file=sys.stderr)


def _folder(options: argparse.Namespace) -> Path | None:
    """Where to write: a quick run leaves nothing unless a folder was named for it."""
    if options.out is None:
        return None if options.quick else RESULTS
    return Path(options.out)


def _check_threads(threads: int) -> None:
    if threads < 1:
        raise ValueError(f"--threads must be at least 1, got {threads}; leave it out for 2")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", metavar="PATTERN", help="cases whose name contains this")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--peers", action="store_true", help="measure other libraries too")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does every case run?")
    parser.add_argument("--threads", type=int, default=2, help="threads for torch (default 2)")
    parser.add_argument("--out", metavar="FOLDER", help=f"folder of the results ({RESULTS})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
