"""Train a model of text, byte by byte: by default on the source of Python's standard library.

    python apps/text_generation/train.py                    minutes on two cores
    python apps/text_generation/train.py --preset smoke     seconds
    python apps/text_generation/train.py --dataset files --data-dir FOLDER

Every default is the preset's. A run is a folder: config.json, metrics.jsonl, summary.json,
checkpoints, and a picture, curve.png. A run that was stopped or killed continues with the same
command and --resume. generate.py writes text with it.
"""

from __future__ import annotations

if __name__ == "__main__":
    import language  # noqa: F401 - stops without linattn-lab
    import linattn_lab.startup
    import linattn_lab.threads  # noqa: F401

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from language.data import Dataset, read_texts
from language.presets import PRESETS, RECOMMENDED, Attention, PresetName, Recipe
from language.training import APP, train_model
from linattn_lab.script import preset_flags, run_script
from linattn_lab.tables import decimals
from linattn_models.training import is_main_process


@dataclasses.dataclass(frozen=True)
class Flags:
    """The settings of a run."""

    preset: PresetName
    """smoke: seconds; laptop: minutes on two cores; large: hours of a GPU."""
    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    dataset: Dataset = "stdlib"
    """stdlib: the source of Python's standard library; files: all files of --data-dir."""
    data_dir: Path | None = None
    """Folder of the texts, with --dataset files."""
    attention: Attention = RECOMMENDED
    """linear: the paper's; fixed-decay, learned-decay: sums that fade; hedgehog-decay: with a
    learned feature map too; window: softmax for the last keys; softmax: the usual kind."""
    out: Path | None = None
    """Run folder; runs/text_generation/DATASET-ATTENTION-PRESET if not given."""
    resume: bool = False
    """Continue the run in --out from its newest checkpoint."""


def main() -> None:
    """Trains, and measures on held-out files."""
    presets: dict[str, Flags] = {name: Flags(name, recipe()) for name, recipe in PRESETS.items()}
    flags = preset_flags(presets, "laptop", description=__doc__)
    flags.recipe.training.config()  # refused before files are read
    out = flags.out or Path("runs", APP, f"{flags.dataset}-{flags.attention}-{flags.preset}")
    summary = train_model(
        flags.recipe,
        read_texts(flags.dataset, flags.data_dir, out),
        attention=flags.attention,
        preset=flags.preset,
        dataset=flags.dataset,
        out=out,
        resume=flags.resume,
    )
    if is_main_process():
        report(summary, out)


def report(summary: dict[str, Any], out: Path) -> None:
    """Prints the numbers."""
    metrics = summary["metrics"]
    print(f"{summary['attention']} attention, in {out}")
    nats, bits = (decimals(metrics[name], 3) for name in ("loss", "bits_per_byte"))
    print(f"  {nats} nats, {bits} bits per held-out byte,")
    print(f"  {metrics['accuracy']:.1%} of bytes right")
    print(f"  {summary['parameters']:,} parameters, {summary['steps']:,} steps,", end=" ")
    print(f"{summary['train_seconds']:.0f} s of training")


if __name__ == "__main__":
    run_script(main)
