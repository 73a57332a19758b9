"""Runs cases in a process of its own, writing each result as soon as it is there.

python -m benchmarks.gpu.measure --only attention/ --records FILE --seconds 100
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gpu import cases
from benchmarks.gpu.instrument import instrument
from benchmarks.gpu.measure_records import LOST, done_cases, read, write
from benchmarks.gpu.placed import DeviceLost
from benchmarks.machine import Limits, describe_machine
from benchmarks.records import case_record, unmeasured
from benchmarks.registry import Case, Registry, Settings
from benchmarks.runner import run_case

PACKAGES = (
    "linattn-core", "linattn-cuda", "linattn-models", "cupy-cuda13x", "triton",
    "flash-linear-attention", "pytorch-fast-transformers",
)  # fmt: skip
NO_TIME = "not measured: no time was left"


def main(arguments: Sequence[str] | None = None, registry: Registry = cases.registry) -> int:
    """Returns the exit code: 0, or LOST when a kernel left the GPU unusable for this process."""
    options = _parser().parse_args(arguments)
    records = Path(options.records)
    settings = Settings(quick=options.quick, peers=True, device=options.device)
    done = done_cases(read(records))
    waiting = [case for case in registry.matching(options.only) if case.name not in done]
    try:
        return _measure(waiting, settings, records, time.monotonic() + options.seconds)
    except DeviceLost:
        return LOST


def _measure(waiting: Sequence[Case], settings: Settings, records: Path, end: float) -> int:
    limits = _limits(settings, records)
    for case in waiting:
        if time.monotonic() >= end:
            write(records, {"case": case_record(unmeasured(case, NO_TIME))})
            continue
        lost = None
        write(records, {"began": case_record(unmeasured(case, "its process ended"))})
        try:
            result = run_case(case, settings, limits=limits)
        except DeviceLost as error:
            lost, result = error, unmeasured(case, f"not measured: {error}")
        except Exception as error:  # noqa: BLE001 - one broken case must not end the others
            words = f"{type(error).__name__}: {error}".splitlines()[0]
            result = unmeasured(case, f"not measured: {words}")
        write(records, {"case": case_record(result)})
        if lost is not None:
            raise lost
        _let_go()
    return 0


def _limits(settings: Settings, records: Path) -> Limits:
    """The device's limits, measured by the first process of a run and read by the others."""
    for record in read(records):
        if "limits" in record:
            return Limits(**record["limits"])
    limits = instrument(settings.device).limits()
    machine = dataclasses.asdict(describe_machine(PACKAGES))
    write(records, {"limits": dataclasses.asdict(limits), "machine": machine})
    return limits


def _let_go() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.measure", description=__doc__)
    parser.add_argument("--only", metavar="PATTERN", help="cases whose name contains this")
    parser.add_argument("--records", metavar="FILE", required=True, help="where results go")
    parser.add_argument("--seconds", type=float, required=True, help="no case begins after so many")
    parser.add_argument("--device", default="cuda", help="cpu shows that the cases run")
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
