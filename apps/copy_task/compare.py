"""Train every kind of attention to copy, on the same sequences in the same order.

    python apps/copy_task/compare.py                        minutes; the paper's figure 2
    python apps/copy_task/compare.py --preset smoke         seconds

Into --out go curves.png (the loss over updates, and over time), table.md, and a run folder for each
attention. A comparison that was stopped continues with the same command and --resume.
"""

from __future__ import annotations

if __name__ == "__main__":
    import linattn_lab.interruption  # noqa: F401  (before torch)

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from copying.presets import PRESETS, Attention, PresetName, Recipe
from copying.training import APP, train_model
from linattn_core.errors import expected
from linattn_lab.plots import Panel, Points, plot_panels, points
from linattn_lab.script import preset_flags, run_script
from linattn_lab.tables import figure, markdown_table
from linattn_models.files import replace_file
from linattn_models.training import RunFolder, publish, require_run, trained_run

ATTENTIONS: tuple[Attention, ...] = ("linear", "softmax", "lsh-1", "lsh-4")


@dataclasses.dataclass(frozen=True)
class Flags:
    """What is compared, and where it goes."""

    preset: PresetName
    """smoke: seconds; laptop: minutes on two cores; paper: the paper's own numbers."""
    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    out: Path | None = None
    """Folder for all of it; runs/copy_task/compare-PRESET if not given."""
    publish: Path | None = None
    """Folder that gets a copy without the weights, such as docs/results/copy_task."""
    resume: bool = False
    """Keep the runs that have ended, and continue one that was stopped."""


def main() -> None:
    """Trains what is not trained yet, draws, prints the table, and publishes a copy."""
    presets: dict[str, Flags] = {name: Flags(name, recipe()) for name, recipe in PRESETS.items()}
    flags = preset_flags(presets, "laptop", description=__doc__)
    out = flags.out or Path("runs", APP, f"compare-{flags.preset}")
    runs = {attention: RunFolder(out / attention) for attention in ATTENTIONS}
    steps = flags.recipe.training.config().steps
    settings = {"training.steps": steps}  # to which the learning rate is scheduled
    for run in runs.values():
        require_startable(run, settings, resume=flags.resume)
    for folder in (out, flags.publish or out):
        folder.mkdir(parents=True, exist_ok=True)  # refused now, not after the training
    for attention, run in runs.items():
        print(f"{attention}, {steps:,} updates, in {run.path}", flush=True)
        train = partial(train_model, flags.recipe, attention, flags.preset, run.path)
        trained_run(run.path, train, settings)
    print(f"\n{write_comparison(runs, out)}\nTable, picture and runs are in {out}.")
    if flags.publish is not None:
        publish(out, flags.publish, ("curves.png", "table.md"), runs.values())


def require_startable(run: RunFolder, settings: Mapping[str, object], *, resume: bool) -> None:
    """Refuses a run that is there already, unless it is resumed with the same settings."""
    if run.holds_run() and not resume:
        advice = "give --resume to keep it, or another --out"
        raise ValueError(expected(str(run.path), "a folder without a run", "one with", advice))
    if run.holds_run():
        require_run(run, settings)


def write_comparison(runs: Mapping[Attention, RunFolder], out: Path) -> str:
    """Leaves the picture and the table in `out`; returns the table."""
    text = table({attention: run.summary() for attention, run in runs.items()})
    plot_panels(
        out / "curves.png",
        [loss_panel(runs, "step", "updates"), loss_panel(runs, "seconds", "seconds of training")],
        ylabel="cross-entropy, nats per symbol",
        log_scale=True,
    )
    replace_file(out / "table.md", text.encode())
    return text


def loss_panel(runs: Mapping[Attention, RunFolder], over: str, xlabel: str) -> Panel:
    """The loss of each attention in training, as in the paper's figure 2.

    No sequence is used twice, so this is the loss on sequences that were not seen before.
    """
    curves: dict[str, Points] = {
        name: points(run.metrics(), "loss", split="train", over=over) for name, run in runs.items()
    }
    return Panel(xlabel, curves)


def table(summaries: Mapping[Attention, dict[str, Any]]) -> str:
    """A row for each attention, and what code trained them on what."""
    header = ["attention", "updates", "parameters", "s of training", "held out: nats per symbol"]
    header += ["symbols right", "whole copies right"]
    rows = [_row(name, values) for name, values in summaries.items()]
    return f"{markdown_table(header, rows)}\n{_provenance(summaries)}\n"


def _provenance(summaries: Mapping[Attention, dict[str, Any]]) -> str:
    """Every commit and every device that the records name, in a sentence."""
    where = [summary["environment"] for summary in summaries.values()]
    commits = dict.fromkeys((each["commit"] or "unknown")[:7] for each in where)
    devices = dict.fromkeys(
        f"torch {each['torch']}, {each['device']}, threads: {each['threads']}" for each in where
    )
    return f"Trained at commit {', '.join(commits)}; {'; '.join(devices)}."


def _row(name: str, summary: dict[str, Any]) -> list[str]:
    metrics = summary["metrics"]
    return [
        name,
        f"{summary['steps']:,}",
        f"{summary['parameters']:,}",
        f"{summary['train_seconds']:,.0f}",
        figure(metrics["loss"]),
        f"{metrics['accuracy']:.2%}",
        f"{metrics['sequence_accuracy']:.1%}",
    ]


if __name__ == "__main__":
    run_script(main)
