"""The report as Markdown: report.md beside this file, its tables and plots filled in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import jinja2

from benchmarks.measure.machine import Limits
from replication.claims import CLAIMS
from replication.collect import Stored, best, figures_of
from replication.experiments import EXPERIMENTS, PRESETS
from replication.report import plots, tables
from replication.report.phrases import Phrases
from replication.report.speedups import RIVALS, SHAPES

TEMPLATE = Path(__file__).with_name("report.md")


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
    say = Phrases(chosen, measurements)
    plotted = plots.pictures(chosen, say.with_runs)
    trained = say.mnist()

    def claims_of(*places: str) -> str:
        return tables.claims((x for x in CLAIMS if x.name.split("/")[0] in places), chosen)

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, autoescape=False, trim_blocks=True
    )
    text = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        claims=len(CLAIMS),
        tally=tables.tally(chosen),
        machines=tables.machines(chosen, measurements),
        limits=limits,
        resources=tables.resources(chosen, limits, measurements),
        images=tables.images(chosen),
        best_batches=tables.best_batches(chosen, measurements),
        grid=tables.grid(chosen),
        trained=trained,
        mnist=tables.mnist(trained),
        plotted=plotted,
        grids=tables.grids(chosen),
        fewest=tables.FEWEST_UPDATES,
        experiments=EXPERIMENTS.values(),
        measured={name: figures_of(chosen, name) for name in EXPERIMENTS},
        claimed={name: sum(name in x.experiments for x in CLAIMS) for name in EXPERIMENTS},
        presets=PRESETS,
        claims_of=claims_of,
        rivals=RIVALS,
        shapes=SHAPES,
        say=say,
    )
    lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
    return Report(re.sub(r"\n{3,}", "\n\n", lines) + "\n", plotted)
