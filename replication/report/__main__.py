"""Makes the report from what was measured: python -m replication.report [--stored].

Collects what docs/results holds, judges which measurements are stale in this checkout, and writes
docs/replication/report.md, report.html and figures/. With --stored, what was collected and judged
before is taken as it is: the same bytes come out.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import tyro

from linattn_models.files import replace_file
from linattn_models.training import run_script
from replication import collect, measurement
from replication.collect import COLLECTED, FOLDER, STATUS
from replication.report.content import compose
from replication.report.page import page


@dataclasses.dataclass(frozen=True)
class Flags:
    """Make the replication report."""

    stored: bool = False
    """Collect and judge nothing anew."""
    out: Path = FOLDER
    """Folder of the report."""


def main(flags: Flags) -> None:
    """Writes the report."""
    if not flags.stored:
        measurement.write(FOLDER / COLLECTED, collect.from_results())
        status = collect.judged(collect.stored())
        text = json.dumps(dataclasses.asdict(status), indent=1)
        replace_file(FOLDER / STATUS, f"{text}\n".encode())
    for name, content in rendered().items():
        file = flags.out / name
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, content.encode())
    print(f"written: {flags.out / 'report.md'}, {flags.out / 'report.html'}")


def rendered() -> dict[str, str]:
    """The report's files, by name, from what is stored."""
    report = compose(collect.stored(), collect.status(), collect.limits())
    plots = {f"figures/{name}.svg": text for name, text in report.plots.items()}
    html = page(report.text, report.plots, FOLDER)
    return {"report.md": report.text, "report.html": html, **plots}


if __name__ == "__main__":
    run_script(lambda: main(tyro.cli(Flags, description=__doc__)))
