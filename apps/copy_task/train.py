"""Train a transformer to repeat a sequence that it has just read.

    python apps/copy_task/train.py                          linear attention, minutes
    python apps/copy_task/train.py --preset smoke           seconds
    python apps/copy_task/train.py --attention softmax

Every default is the preset's. A run is a folder: config.json, metrics.jsonl, summary.json,
checkpoints, and a picture, curve.png. A run that was stopped or killed continues with the same
command and --resume.
"""

from __future__ import annotations

if __name__ == "__main__":
    import copying  # noqa: F401 - stops without linattn-lab
    import linattn_lab.startup
    import linattn_lab.threads  # noqa: F401

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from copying.presets import PRESETS, Attention, PresetName, Recipe
from copying.training import APP, train_model
from linattn_lab.script import preset_flags, run_script
from linattn_lab.tables import decimals, training_cost
from linattn_models.training import is_main_process


@dataclasses.dataclass(frozen=True)
class Flags:
    """The settings of a run."""

    preset: PresetName
    """smoke: seconds; laptop: minutes on two cores; paper: the paper's own numbers."""
    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    dataset: Literal["copy"] = "copy"
    """The only one; its sequences are made as they are needed."""
    data_dir: Path | None = None
    """Not used: there is nothing to read."""
    attention: Attention = "linear"
    """linear: the paper's; softmax: the usual kind; lsh-X: Reformer's, X rounds of hashing."""
    out: Path | None = None
    """Run folder; runs/copy_task/ATTENTION-PRESET if not given."""
    resume: bool = False
    """Continue the run in --out from its newest checkpoint."""


def main() -> None:
    """Trains, and measures on held-out sequences."""
    presets: dict[str, Flags] = {name: Flags(name, recipe()) for name, recipe in PRESETS.items()}
    flags = preset_flags(presets, description=__doc__)
    out = flags.out or Path("runs", APP, f"{flags.attention}-{flags.preset}")
    summary = train_model(flags.recipe, flags.attention, flags.preset, out, flags.resume)
    if is_main_process():
        report(summary, out)


def report(summary: dict[str, Any], out: Path) -> None:
    """Prints the numbers."""
    metrics = summary["metrics"]
    print(f"{summary['attention']} attention, in {out}")
    print(f"  {decimals(metrics['loss'], 5)} nats per copied symbol on held-out sequences")
    print(f"  {metrics['accuracy']:.2%} of symbols right,", end=" ")
    print(f"{metrics['sequence_accuracy']:.1%} of copies without an error")
    print(f"  {training_cost(summary)}")


if __name__ == "__main__":
    run_script(main)
