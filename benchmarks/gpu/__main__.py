"""Builds, tests and measures on a GPU, and writes it down: python -m benchmarks.gpu --out DIR."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.gpu import build
from benchmarks.gpu.probe import STAND_IN, Gpu
from benchmarks.gpu.stages import run_stages

MINUTES = 9.0
WRITING = 30.0  # seconds kept for the documents and the start of interpreters


class Refused(Exception):
    """There is nothing to run on here; the message is the one sentence that says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 1 when something failed, or 2 where nothing can run."""
    options = _parser().parse_args(arguments)
    try:
        gpu, nvcc = (STAND_IN, None) if options.device == "cpu" else _machine()
    except Refused as reason:
        print(reason, file=sys.stderr)
        return 2
    # The documents are made with linattn_core, which need not be installed here.
    sys.path[:0] = [str(folder) for folder in build.source_folders()]
    from benchmarks.gpu.session import Session

    with tempfile.TemporaryDirectory(prefix="linattn-gpu-") as scratch, _stoppable():
        session = Session(
            gpu, nvcc, Path(options.out), Path(scratch), quick=options.quick or nvcc is None,
            commit=options.commit, only=options.only, tests=not options.no_tests,
        )  # fmt: skip
        with contextlib.suppress(KeyboardInterrupt):
            for outcome in run_stages(session.stages(), options.minutes * 60 - WRITING):
                print(f"{outcome.name}: {outcome.status}, {outcome.seconds:.0f} s", file=sys.stderr)
                session.note(outcome)
            session.run.complete = True
        return session.finish()


def _machine() -> tuple[Gpu, str]:
    """Returns the GPU and nvcc.

    Raises:
        Refused: where one of them is missing.
    """
    gpu = _gpu()
    nvcc = build.find_nvcc()
    if nvcc is None:
        raise Refused(
            "The kernels are built for the GPU at hand, which needs nvcc, and none is on PATH: "
            "install CUDA's compiler (13.0 or later)."
        )
    return gpu, nvcc


def _gpu() -> Gpu:
    """Asks in a process of its own, so that this one holds nothing of the GPU."""
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.probe"],
        cwd=build.ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise Refused(f"No GPU could be looked for: {last}")
    record = json.loads(answer.stdout.strip().splitlines()[-1])
    if "none" in record:
        raise Refused(f"A GPU is needed and none was found: {record['none']}")
    return Gpu(**record)


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """A polite end from outside interrupts, so that what was found is still written."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the documents")
    parser.add_argument("--only", metavar="PATTERN", help="cases whose name contains this")
    parser.add_argument("--no-tests", action="store_true", help="build and measure alone")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does every case run?")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help=f"for the whole run (default {MINUTES:g})"
    )
    parser.add_argument(
        "--commit", default="", help="of the source tree, where it is a copy without its history"
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda",
        help="cpu builds and tests nothing, at tiny sizes: it shows that the cases run",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
