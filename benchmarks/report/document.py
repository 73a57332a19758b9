"""The document of a theme: the latest result of each of its cases, and the run of each."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.measure.machine import Limits, Machine
from benchmarks.measure.results import NOT_ASKED, CaseResult, from_record, to_record
from benchmarks.report.series import sections
from benchmarks.report.tables import measurements, targets
from linattn_models.files import replace_file

CLOSING = (
    "Medians with quartiles over interleaved rounds; ratios are taken round by round. A method "
    "is measured only after its result agreed with a float64 oracle. The shares are of the run's "
    "rates of GEMM ({gemm}), of multiply-adds in registers (FMA, float32) and of copying, counting "
    "the least operations and the least bytes that the algorithm needs; with data in the caches, "
    "the latter can exceed 100%."
)
GEMM = {"cpu": "float32", "cuda": "bfloat16"}
QUICK = "A quick run at tiny sizes: the cases run, the numbers mean nothing."


@dataclasses.dataclass(frozen=True)
class Run:
    """When, by which code and where cases were measured.

    Args:
        limits: the machine's.
        quick: at tiny sizes.
    """

    machine: Machine
    limits: Limits
    quick: bool = False

    def __str__(self) -> str:
        machine, limits = self.machine, self.limits
        rates = [f"GEMM {limits.gemm_float32 / 1e9:,.0f} GFLOP/s in float32"]
        if limits.gemm_bfloat16 is not None:
            rates.append(f"GEMM {limits.gemm_bfloat16 / 1e9:,.0f} GFLOP/s in bfloat16")
        if limits.fma_float32 is not None:
            rates.append(f"multiply-adds in registers {limits.fma_float32 / 1e9:,.0f} GFLOP/s")
        rates.append(f"copy {limits.copy_bandwidth / 1e9:,.1f} GB/s (read and written)")
        return (
            f"{machine.date}, commit {machine.commit}; {machine.hardware}, {machine.threads} "
            f"threads used; {machine.software}; backends: {machine.backends}. Limits: "
            f"{', '.join(rates)}."
        )


@dataclasses.dataclass(frozen=True)
class Document:
    """The results of a theme on a device, each with its run.

    Args:
        entries: in the order of the registry.
    """

    theme: str
    device: str
    entries: tuple[tuple[Run, CaseResult], ...] = ()

    def updated(self, run: Run, result: CaseResult, order: Iterable[str]) -> Document:
        """Returns the document in which this result takes the place of an earlier one.

        Args:
            order: the names of all the cases that there are; others leave the document.
        """
        # Rounded as in JSON. Otherwise, cases that are read again would seem to be of another run,
        # and the last case would show digits that its JSON does not have.
        run = from_record(Run, to_record(run))
        result = from_record(CaseResult, to_record(result))
        entries = {entry[1].case.name: entry for entry in (*self.entries, (run, result))}
        known = tuple(entries[name] for name in order if name in entries)
        return dataclasses.replace(self, entries=known)

    @property
    def results(self) -> list[CaseResult]:
        """The results without their runs."""
        return [result for _, result in self.entries]

    @property
    def runs(self) -> list[Run]:
        """The runs that results are of, the latest first."""
        runs = dict.fromkeys(run for run, _ in self.entries)
        return sorted(runs, key=lambda run: run.machine.date, reverse=True)


def read(folder: Path, theme: str, device: str) -> Document:
    """Returns the document of a theme as it was last written, or an empty one."""
    path = _stem(folder, theme, device).with_suffix(".json")
    if not path.exists():
        return Document(theme, device)
    record = json.loads(path.read_text(encoding="utf-8"))
    runs = [from_record(Run, run) for run in record["runs"]]
    entries = tuple(
        (runs[entry.pop("run")], from_record(CaseResult, entry)) for entry in record["cases"]
    )
    return Document(theme, device, entries)


def write(document: Document, folder: Path) -> None:
    """Writes the document and its JSON."""
    stem = _stem(folder, document.theme, document.device)
    stem.parent.mkdir(parents=True, exist_ok=True)
    replace_file(stem.with_suffix(".md"), to_markdown(document).encode())
    replace_file(stem.with_suffix(".json"), to_json(document).encode())


def _stem(folder: Path, theme: str, device: str) -> Path:
    return folder / theme / ("results" if device == "cpu" else f"results-{device}")


def to_json(document: Document) -> str:
    """Returns what `read` reads: a line for each run and each case."""
    runs = document.runs
    cases = [{"run": runs.index(run), **to_record(result)} for run, result in document.entries]
    return f'{{\n"runs": {_lines(map(to_record, runs))},\n"cases": {_lines(cases)}\n}}\n'


def _lines(records: Iterable[dict[str, Any]]) -> str:
    compact = (json.dumps(record, allow_nan=False, separators=(",", ":")) for record in records)
    return "[\n" + ",\n".join(compact) + "\n]"


def to_markdown(document: Document) -> str:
    """Returns the document for readers."""
    theme, device, results, runs = document.theme, document.device, document.results, document.runs
    letters = {run: chr(ord("a") + number) for number, run in enumerate(runs)}
    of_case = {result.case.name: letters[run] for run, result in document.entries}
    quick = any(run.quick for run in runs)
    parts = [
        f"# Measured: {theme}, {device}",
        *([QUICK] if quick else []),
        f"By `{_command(document)}`. Each case shows the latest run that measured it:",
        "\n".join(f"- **run {letters[run]}**: {run}" for run in runs),
        "## Targets",
        targets(results, of_case),
        *sections(results),
        "## Everything measured",
        measurements(results, of_case),
        CLOSING.format(gemm=GEMM[device]),
    ]
    return "\n\n".join(parts) + "\n"


def _command(document: Document) -> str:
    """The command that measures the theme again; without --peers if one of its runs had no peers.

    A theme without peers keeps the flag, which measures nothing there.
    """
    left_out = any(
        method.status == NOT_ASKED for result in document.results for method in result.methods
    )
    flags = [
        *([] if left_out else ["--peers"]),
        *([] if document.device == "cpu" else [f"--device {document.device}"]),
        f"--only {document.theme}/",
    ]
    return " ".join(["python -m benchmarks", *flags])
