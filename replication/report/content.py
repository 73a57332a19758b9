"""The report as Markdown: report.md beside this file, its tables and plots filled in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import jinja2

from benchmarks.measure.machine import Limits
from replication.claims import CLAIMS
from replication.collect import RESULTS, Stored, best, figures_of
from replication.experiments import EXPERIMENTS, PRESETS
from replication.report import plots, tables
from replication.report.speedups import RIVALS, gains, paper_gain, times

TEMPLATE = Path(__file__).with_name("report.md")
DRAWN = ("mnist-linear/samples", "mnist-linear/completions",
         "mnist-softmax/samples", "mnist-softmax/completions")  # fmt: skip


@dataclass(frozen=True)
class Report:
    """The report's text, and its plots by name."""

    text: str
    plots: dict[str, str]


def compose(measurements: list[Stored], limits: Limits) -> Report:
    """The whole report.

    Args:
        measurements: all that are kept, and whether they are stale.
        limits: rates of the machine, for what experiments should cost.
    """
    chosen = best(measurements)
    drawn = plots.pictures(chosen)

    def claims_of(*places: str) -> str:
        return tables.claims((x for x in CLAIMS if x.name.split("/")[0] in places), chosen)

    def gain(*case: str) -> str:
        eager, compiled = gains(chosen, *case)
        return f"{times(eager)} in PyTorch, {times(compiled)} compiled"

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, autoescape=False, trim_blocks=True
    )
    text = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        claims=len(CLAIMS),
        tally=tables.tally(chosen),
        machines=tables.machines(chosen, measurements),
        limits=limits,
        resources=tables.resources(chosen, limits),
        speed_ups=tables.speed_ups(chosen),
        drawn=drawn,
        samples=[name for name in DRAWN if (RESULTS / "mnist" / f"{name}.png").exists()],
        experiments=EXPERIMENTS.values(),
        measured={name: figures_of(chosen, name) for name in EXPERIMENTS},
        claimed={name: sum(name in x.experiments for x in CLAIMS) for name in EXPERIMENTS},
        presets=PRESETS,
        claims_of=claims_of,
        rivals=RIVALS,
        gain=gain,
        eager=lambda *case: times(gains(chosen, *case)[0]),
        paper=lambda *case: times(paper_gain(*case)),
    )
    lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
    return Report(re.sub(r"\n{3,}", "\n\n", lines) + "\n", drawn)
