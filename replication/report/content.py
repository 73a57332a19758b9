"""The report as Markdown: report.md beside this file, its tables and plots filled in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jinja2

from benchmarks.measure.machine import Limits
from replication.claims import CLAIMS
from replication.claims.claim import RULES, Figures
from replication.collect import Best, Stored, best
from replication.experiments import ATTENTIONS, EXPERIMENTS, RESULTS
from replication.experiments.experiment import PRESETS, Experiment
from replication.report import plots, tables

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
    drawn = {name: text for name, text in pictures(chosen).items() if text is not None}

    def plot(name: str, caption: str) -> str:
        return picture(f"figures/{name}.svg", caption) if name in drawn else ""

    def claims_of(*places: str) -> str:
        these = (claim for claim in CLAIMS if claim.name.split("/")[0] in places)
        return tables.claims(these, chosen)

    def gain(shape: str, rival: str, which: str) -> str:
        """For the text: the gain in PyTorch and compiled."""
        eager, compiled = tables.gains(chosen, shape, rival, which)
        return f"{tables.times(eager)} in PyTorch, {tables.times(compiled)} compiled"

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    text = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        claims=len(CLAIMS),
        tally=tables.tally(chosen),
        machines=tables.machines(chosen, measurements),
        rules="\n\n".join(f"- *{name}*: {words}" for name, words in RULES.items()),
        gemm=f"{limits.gemm_float32 / 1e9:,.0f}",
        copy=f"{limits.copy_bandwidth / 1e9:,.1f}",
        resources=tables.resources(chosen, limits),
        speed_ups=tables.speed_ups(chosen),
        grid="speedup" in chosen,
        samples="\n\n".join(samples()),
        commands="\n\n".join(map(section, EXPERIMENTS.values())),
        figure=plot,
        claims_of=claims_of,
        gain=gain,
        paper=lambda *case: tables.times(tables.paper_gain(*case)),
        bits=bits(figures_of(chosen, "mnist")),
    )
    return Report("\n".join(line.rstrip() for line in text.splitlines()) + "\n", drawn)


def figures_of(chosen: Best, name: str) -> Figures:
    """What an experiment measured; nothing where it did not run."""
    return chosen[name].measurement.figures if name in chosen else {}


def bits(figures: Figures) -> str:
    """Bits per dimension of linear and softmax attention, trained longer."""
    names = ("linear", "softmax")
    return ", ".join(f"{name} {figures.get(f'{name}/bits', float('nan')):.3f}" for name in names)


def picture(source: str, caption: str) -> str:
    """A picture with its caption below."""
    return f"![{caption}]({source})\n\n*{caption}*"


def pictures(chosen: Best) -> dict[str, str | None]:
    """The plots by name; None where nothing was measured."""
    generation = {
        shape: figures
        for shape in plots.LENGTHS
        if (figures := figures_of(chosen, f"generation-{shape}"))
    }
    grid, lengths = figures_of(chosen, "speedup"), figures_of(chosen, "lengths")
    long = [(name, RESULTS / "mnist" / f"mnist-{name}") for name in ("linear", "softmax")]
    copies = [(name, RESULTS / "copy_task" / name) for name in ATTENTIONS]
    updates = [(name, RESULTS / "attentions" / "mnist" / "updates" / name) for name in ATTENTIONS]
    spoken = sorted((plots.ROOT / RESULTS / "speech").glob("*/metrics.jsonl"))
    speech = [(file.parent.name, file.parent.relative_to(plots.ROOT)) for file in spoken]
    bits = "bits/dim, validation images"
    return {
        "over-rerunning": plots.speed_up("softmax", generation, grid),
        "over-cache": plots.speed_up("stateful-softmax", generation, grid),
        "time": plots.by_length(lengths, "time", 1e3, "milliseconds a sample"),
        "memory": plots.by_length(lengths, "memory", 2**-20, "peak memory a sample, MiB"),
        "copy": plots.learned(copies, "train", "loss", "nats a symbol", yscale="log"),
        "mnist": plots.learned(long, "train", "loss", "nats a pixel, in training"),
        "attentions": plots.learned(updates, "eval", "bits_per_dim", bits),
        "speech": plots.learned(speech, "eval", "phoneme_error_rate", "phoneme error rate"),
    }


def samples() -> list[str]:
    """The pictures that trained models drew."""
    found = [
        (f"{name} attention: {drawn} of MNIST", Path("mnist", f"mnist-{name}", f"{drawn}.png"))
        for name in ("linear", "softmax")
        for drawn in ("samples", "completions")
    ]
    there = [(words, path) for words, path in found if (plots.ROOT / RESULTS / path).exists()]
    return [picture(f"../results/{path.as_posix()}", words) for words, path in there]


def section(experiment: Experiment) -> str:
    """What an experiment is, what it needs, and its commands."""
    claims = sum(experiment.name in claim.experiments for claim in CLAIMS)
    words = f"{experiment.shows[0].upper()}{experiment.shows[1:]}; {claims} claims."
    if experiment.needs:
        needs = (f"{preset}: {need}" for preset, need in experiment.needs.items())
        what = ", ".join(needs).replace("cuda", "an NVIDIA GPU")
        words += f" Needs {what}; {experiment.missing}."
    lines = (f"    {experiment.command(preset)}  # {preset}" for preset in PRESETS)
    return "\n\n".join([f"### {experiment.name}", words, "\n".join(lines)])
