"""One dated Markdown document and one JSON from the results of a run."""

from __future__ import annotations

import dataclasses
import datetime
import json
from pathlib import Path

from benchmarks import crossing, growth
from benchmarks.machine import Limits, Machine
from benchmarks.records import case_record
from benchmarks.runner import CaseResult
from benchmarks.tables import measurements, series, targets

CLOSING = (
    "Medians with quartiles over interleaved rounds; ratios are taken round by round. A method "
    "is measured only after its result agreed with a float64 oracle. The shares are of the "
    "float32 GEMM rate and the copy bandwidth above, counting the least operations and the "
    "least bytes that the algorithm needs; caches that hold the bytes can take the latter over "
    "100%. The first table shows the larger share of the method that is to be fast."
)


@dataclasses.dataclass(frozen=True)
class Report:
    """A run: when, where, and what came out.

    Args:
        quick: taken at tiny sizes; the document says that its numbers mean nothing.
        complete: False when the run was stopped before its last case.
        limits: the machine's; None when the run ended before they were measured.
        notes, sections: Markdown that stands before what was to be reached, and after the series.
        closing: how it was measured.
        more: what the JSON holds beside the cases.
    """

    date: datetime.date
    machine: Machine
    limits: Limits | None
    results: tuple[CaseResult, ...]
    quick: bool = False
    complete: bool = True
    notes: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    closing: str = CLOSING
    more: dict[str, object] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The file name without its ending, such as 2026-11-21-2-core-avx512."""
        quick = "-quick" if self.quick else ""
        return f"{self.date.isoformat()}-{self.machine.host_class}{quick}"


def write(report: Report, folder: Path, name: str | None = None) -> tuple[Path, Path]:
    """Writes `<name>.md` and `<name>.json` and returns their paths.

    A second run of a day takes the next free number: dated results are never overwritten.

    Args:
        name: a name that `free_name` gave, for a run that writes its documents again as it goes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = name or free_name(folder, report.name)
    paths = folder / f"{name}.md", folder / f"{name}.json"
    for path, text in zip(paths, (to_markdown(report), to_json(report)), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def to_json(report: Report) -> str:
    """Returns the whole report, samples of every round included."""
    document = {
        "date": report.date.isoformat(),
        "quick": report.quick,
        "complete": report.complete,
        "machine": dataclasses.asdict(report.machine),
        "limits": report.limits and dataclasses.asdict(report.limits),
        **report.more,
        "cases": [case_record(result) for result in report.results],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def to_markdown(report: Report) -> str:
    """Returns the document for readers."""
    parts = [f"# Benchmarks of {report.date.isoformat()}, {report.machine.host_class}"]
    if report.quick:
        parts.append("A quick run at tiny sizes: the cases run, the numbers mean nothing.")
    if not report.complete:
        parts.append("The run was stopped before its last case.")
    parts.append(_machine_list(report.machine, report.limits))
    parts += report.notes
    parts += ["## What was to be reached", targets(report.results)]
    parts += series(report.results)
    parts += growth.sections(report.results, quick=report.quick)
    parts += crossing.sections(report.results)
    parts += report.sections
    parts += ["## Everything measured", measurements(report.results)]
    parts.append(report.closing)
    return "\n\n".join(parts) + "\n"


def free_name(folder: Path, name: str) -> str:
    """Returns the name, or the first of `name-2`, `name-3`, ... that no document has."""
    number, candidate = 1, name
    while (folder / f"{candidate}.md").exists() or (folder / f"{candidate}.json").exists():
        number += 1
        candidate = f"{name}-{number}"
    return candidate


def _machine_list(machine: Machine, limits: Limits | None) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    backends = "; ".join(f"{name}: {what}" for name, what in machine.backends.items())
    lines = [
        f"Hardware: {machine.cpu}, {machine.cores} cores, {machine.memory_gib:g} GiB, "
        f"{machine.system}; {machine.threads} threads used.",
        f"Software: torch {machine.torch}, Python {machine.python}, {packages}; "
        f"commit {machine.commit}; {machine.allocator}.",
        f"Backends: {backends}.",
        f"Limits: {_rates(limits)}.",
    ]
    if machine.accelerator:
        lines.insert(0, f"GPU: {machine.accelerator}.")
    return "\n".join(f"- {line}" for line in lines)


def _rates(limits: Limits | None) -> str:
    if limits is None:
        return "not measured"
    return (
        f"GEMM {limits.gemm_float32 / 1e9:,.0f} GFLOP/s in float32 and "
        f"{limits.gemm_bfloat16 / 1e9:,.0f} in bfloat16, copy "
        f"{limits.copy_bandwidth / 1e9:,.1f} GB/s (read and written)"
    )
