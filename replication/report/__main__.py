"""Makes the report from what was measured: python -m replication.report.

Reads the records in docs/replication and what docs/results holds, judges them by the files of this
checkout, and writes docs/replication/report.md with its figures, and build/replication/report.html,
one page that stands alone. The same records and files give the same bytes.
"""

from __future__ import annotations

if __name__ == "__main__":
    import linattn_lab.interruption  # noqa: F401  (before torch)

import dataclasses
from pathlib import Path

from linattn_lab.script import parse_flags, run_script
from linattn_models.files import replace_file
from replication import collect
from replication.collect import FOLDER
from replication.report.content import compose
from replication.report.page import page
from replication.sources import ROOT

PAGE = "report.html"


@dataclasses.dataclass(frozen=True)
class Flags:
    """Make the replication report."""

    page: Path = ROOT / "build" / "replication"
    """Folder of the page of HTML."""


def main(flags: Flags) -> None:
    """Writes the report."""
    files = rendered()
    for name, content in files.items():
        file = (flags.page if name == PAGE else FOLDER) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, content.encode())
    for file in (FOLDER / "figures").glob("*.svg"):
        if f"figures/{file.name}" not in files:
            file.unlink()  # its measurement is gone
    print(f"written: {FOLDER / 'report.md'}, {flags.page / PAGE}")


def rendered() -> dict[str, str]:
    """The report's files, by name, from what is stored."""
    report = compose(collect.stored(), collect.limits())
    plots = {f"figures/{name}.svg": text for name, text in report.plots.items()}
    return {"report.md": report.text, PAGE: page(report.text, report.plots, FOLDER), **plots}


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
