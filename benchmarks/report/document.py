"""The document of a theme: the latest figures of each of its cases, and of which run they are."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure.machine import Limits, Machine
from benchmarks.measure.results import CaseResult, from_record, to_record
from benchmarks.report import crossing, growth
from benchmarks.report.tables import measurements, series, targets

CLOSING = (
    "Medians with quartiles over interleaved rounds; ratios are taken round by round. A method "
    "is measured only after its result agreed with a float64 oracle. The shares are of the GEMM "
    "rate ({gemm}) and the copy bandwidth of the run, counting the least operations and the least "
    "bytes that the algorithm needs; caches that hold the bytes can take the latter over 100%."
)
GEMM = {"cpu": "float32", "cuda": "bfloat16"}
QUICK = "A quick run at tiny sizes: the cases run, the numbers mean nothing."


@dataclasses.dataclass(frozen=True)
class Run:
    """When, by which code and where cases were measured.

    Args:
        limits: the machine's.
        quick: taken at tiny sizes.
    """

    machine: Machine
    limits: Limits
    quick: bool = False


@dataclasses.dataclass(frozen=True)
class Document:
    """The results of a theme on a device, each with its run.

    Args:
        entries: in the order of the registry.
    """

    theme: str
    device: str
    entries: tuple[tuple[Run, CaseResult], ...] = ()

    def updated(self, run: Run, results: Iterable[CaseResult], order: Iterable[str]) -> Document:
        """Returns the document in which these results take the place of earlier ones.

        Args:
            order: the names of all the cases that there are; others leave the document.
        """
        entries = {result.case.name: (known, result) for known, result in self.entries}
        entries |= {result.case.name: (run, result) for result in results}
        kept = tuple(entries[name] for name in order if name in entries)
        return dataclasses.replace(self, entries=kept)

    @property
    def results(self) -> list[CaseResult]:
        """The results without their runs."""
        return [result for _, result in self.entries]

    @property
    def runs(self) -> list[Run]:
        """The runs that results are of, the latest first."""
        found = dict.fromkeys(run for run, _ in self.entries)
        return sorted(found, key=lambda run: run.machine.date, reverse=True)


def file_name(device: str) -> str:
    """The name of the documents without their ending."""
    return "results" if device == "cpu" else f"results-{device}"


def read(folder: Path, theme: str, device: str) -> Document:
    """Returns the document of a theme as it was last written, or an empty one."""
    path = folder / theme / f"{file_name(device)}.json"
    if not path.exists():
        return Document(theme, device)
    record = json.loads(path.read_text(encoding="utf-8"))
    runs = [
        Run(Machine(**run["machine"]), Limits(**run["limits"]), run.get("quick", False))
        for run in record["runs"]
    ]
    entries = tuple((runs[entry["run"]], from_record(entry)) for entry in record["cases"])
    return Document(theme, device, entries)


def write(document: Document, folder: Path) -> list[Path]:
    """Writes the document, its JSON and, where lengths were measured, the picture."""
    place = folder / document.theme
    place.mkdir(parents=True, exist_ok=True)
    stem = place / file_name(document.device)
    picture = stem.with_suffix(".png")
    drawn = _draw(document, picture)
    paths = [stem.with_suffix(".md"), stem.with_suffix(".json")]
    texts = (to_markdown(document, picture.name if drawn else None), to_json(document))
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    return [*paths, picture] if drawn else paths


def to_json(document: Document) -> str:
    """Returns what `read` reads: a line for each run and each case."""
    runs = document.runs
    lines = {
        "runs": [to_record(run) for run in runs],
        "cases": [
            {"run": runs.index(run), **to_record(result)} for run, result in document.entries
        ],
    }
    parts = [f"{json.dumps(name)}: [\n{_lines(records)}\n]" for name, records in lines.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def to_markdown(document: Document, picture: str | None = None) -> str:
    """Returns the document for readers."""
    results, runs = document.results, document.runs
    letters = {run: chr(ord("a") + number) for number, run in enumerate(runs)}
    of_case = {result.case.name: letters[run] for run, result in document.entries}
    quick = any(run.quick for run in runs)
    parts = [f"# Measured: {document.theme}, {document.device}", *([QUICK] if quick else [])]
    parts.append(f"By `{command(document)}`. Each case shows the latest run that measured it:")
    parts.append("\n".join(_run_words(run, letters[run]) for run in runs))
    parts += [f"![{document.theme} by length]({picture})"] if picture else []
    parts += ["## What was to be reached", targets(results, of_case)]
    parts += series(results)
    parts += growth.sections(results, quick=quick)
    parts += crossing.sections(results)
    parts += ["## Everything measured", measurements(results, of_case)]
    parts.append(CLOSING.format(gemm=GEMM[document.device]))
    return "\n\n".join(parts) + "\n"


def command(document: Document) -> str:
    """The command that measures the theme."""
    device = "" if document.device == "cpu" else f" --device {document.device}"
    return f"python -m benchmarks --peers{device} --only {document.theme}/"


def _lines(records: Iterable[Mapping[str, Any]]) -> str:
    compact = (json.dumps(record, allow_nan=False, separators=(",", ":")) for record in records)
    return ",\n".join(compact)


def _run_words(run: Run, letter: str) -> str:
    machine, limits = run.machine, run.limits
    bfloat16 = "none in bfloat16 (not measured: this processor has no instructions for it)"
    if limits.gemm_bfloat16 is not None:
        bfloat16 = f"{limits.gemm_bfloat16 / 1e9:,.0f} in bfloat16"
    return (
        f"- **run {letter}**: {machine.date}, commit {machine.commit}; {machine.hardware}, "
        f"{machine.threads} threads used; {machine.software}; backends: {machine.backends}. "
        f"Limits: GEMM {limits.gemm_float32 / 1e9:,.0f} GFLOP/s in float32 and {bfloat16}, copy "
        f"{limits.copy_bandwidth / 1e9:,.1f} GB/s (read and written)."
    )


def _draw(document: Document, picture: Path) -> bool:
    try:
        from benchmarks.report import figure
    except ImportError:  # matplotlib is not needed to measure
        return False
    return figure.draw(document.results, picture)
