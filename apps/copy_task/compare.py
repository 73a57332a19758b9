"""Train every kind of attention to copy, on the same sequences in the same order.

    python apps/copy_task/compare.py                        minutes; the paper's figure 2
    python apps/copy_task/compare.py --preset smoke         seconds

Into --out go curves.png (the loss over updates, and over time), table.md, and a run folder for each
attention. A comparison that was stopped continues with the same command and --resume.
"""

from __future__ import annotations

if __name__ == "__main__":
    import linattn_lab.startup
    import linattn_lab.threads  # noqa: F401

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, get_args

import tyro

from copying.model import build_model
from copying.presets import PRESETS, Attention, PresetName, Recipe
from copying.training import APP, train_model
from linattn_lab.compare import Comparison, Summary, Variant, curves
from linattn_lab.plots import Panel, plot_panels
from linattn_lab.runs import make_folders, publish
from linattn_lab.script import preset_flags, require_one_process, run_script
from linattn_lab.tables import figure, name_environments, table_of
from linattn_models.files import replace_file
from linattn_models.training import RunFolder, TrainingFlags

COLUMNS: dict[str, Callable[[Summary], str]] = {
    "updates": lambda run: f"{run['steps']:,}",
    "parameters": lambda run: f"{run['parameters']:,}",
    "s of training": lambda run: f"{run['train_seconds']:,.0f}",
    "held out: nats per symbol": lambda run: figure(run["metrics"]["loss"]),
    "symbols right": lambda run: f"{run['metrics']['accuracy']:.2%}",
    "whole copies right": lambda run: f"{run['metrics']['sequence_accuracy']:.1%}",
}


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
    require_one_process()
    flags.recipe.training.config()  # refused before a folder is made
    out = flags.out or Path("runs", APP, f"compare-{flags.preset}")
    comparison = Comparison(out, [variant(flags, attention) for attention in get_args(Attention)])
    if not flags.resume:
        comparison.refuse_runs()
    make_folders(out, flags.publish)
    runs = comparison.equal_updates()
    print(f"\n{write_comparison(runs, out)}\nTable, picture and runs are in {out}.")
    if flags.publish is not None:
        publish(out, flags.publish, ("curves.png", "table.md"), runs.values())


def variant(flags: Flags, attention: Attention) -> Variant:
    """The training of one attention."""

    def train(training: TrainingFlags, out: Path, resume: bool) -> object:
        recipe = dataclasses.replace(flags.recipe, training=training)
        return train_model(recipe, attention, flags.preset, out, resume)

    model = build_model(flags.recipe, attention).to_dict()
    own = {"attention": attention, "held_out": flags.recipe.held_out, "model": model}
    return Variant(attention, flags.recipe.training, train, own)


def write_comparison(runs: Mapping[str, RunFolder], out: Path) -> str:
    """Leaves the picture and the table in `out`; returns the table.

    The curves are those of the loss in training, as in the paper's figure 2: each sequence is drawn
    anew, so that few were seen before.
    """
    panels = [
        Panel(label, curves(runs, "loss", split="train", over=over))
        for over, label in (("step", "updates"), ("seconds", "seconds of training"))
    ]
    ylabel = "cross-entropy, nats per symbol"
    plot_panels(out / "curves.png", panels, ylabel=ylabel, log_scale=True)
    summaries = {name: run.summary() for name, run in runs.items()}
    trained = name_environments(summary["environment"] for summary in summaries.values())
    text = f"{table_of(summaries, COLUMNS, first='attention')}\nTrained at {trained}.\n"
    replace_file(out / "table.md", text.encode())
    return text


if __name__ == "__main__":
    run_script(main)
