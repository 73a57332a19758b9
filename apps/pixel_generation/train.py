"""Train a transformer to predict images pixel by pixel.

    python apps/pixel_generation/train.py                                  digits, minutes
    python apps/pixel_generation/train.py --preset smoke                   seconds
    python apps/pixel_generation/train.py --dataset mnist --data-dir DIR --attention softmax

What is left at None is taken from the preset. A run is a folder: config.json, metrics.jsonl,
summary.json, checkpoints, and two pictures, curve.png and samples.png. Stopped or killed, it goes
on where it was when the same command is given again with --resume.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import tyro
from accelerate import PartialState
from pixel_datasets import DatasetName, Images, load
from pixel_presets import Attention, HeadName, PresetName, Recipe, recipe_for
from pixel_runs import APP
from pixel_tokens import Layout
from pixel_training import train_model

from linattn_models.training import run_script


@dataclasses.dataclass(frozen=True)
class Flags:
    """The settings of a run; those that default to None override the preset."""

    preset: PresetName = "laptop"
    """smoke: seconds; laptop: minutes on two cores; paper: the paper's own numbers."""
    dataset: DatasetName = "digits"
    """digits comes with scikit-learn; the others are read from --data-dir."""
    data_dir: Path | None = None
    """Folder of the dataset's published files, or with a subfolder of its name that has them."""
    attention: Attention = "linear"
    """linear: the paper's; softmax: the usual kind; lsh-1, lsh-4: Reformer's, in 1 or 4 rounds."""
    seed: int = 0
    """Decides the weights at the start, the order of the images, and dropout."""
    out: Path | None = None
    """Run folder; runs/pixel_generation/DATASET-ATTENTION-PRESET if not given."""
    resume: bool = False
    """Go on with the run in --out from its newest checkpoint."""

    steps: int | None = None
    """Updates of the weights, in all."""
    batch_size: int | None = None
    """Images an update sees."""
    learning_rate: float | None = None
    """The highest rate."""
    optimizer: Literal["radam", "adam", "adamw"] | None = None
    schedule: Literal["constant", "cosine"] | None = None
    warmup_steps: int | None = None
    """Updates over which the rate rises; a tenth of --steps at most."""
    weight_decay: float | None = None
    dropout: float | None = None
    mixed_precision: Literal["no", "bf16", "fp16"] | None = None
    num_layers: int | None = None
    num_heads: int | None = None
    head_dim: int | None = None
    ffn_dim: int | None = None
    head: HeadName | None = None
    """What predicts a token: a probability for each level, or a mixture of logistics."""
    layout: Layout | None = None
    """Colors as three tokens a pixel, or as one."""
    log_every: int | None = None
    eval_every: int | None = None
    """Updates between looks at the validation images."""
    checkpoint_every: int | None = None

    def recipe(self, images: Images) -> Recipe:
        """The preset's recipe with the flags that were given in its place."""
        preset = recipe_for(self.preset, images)
        names = {field.name for field in dataclasses.fields(Recipe)}
        given = {name: value for name, value in vars(self).items() if value is not None}
        return dataclasses.replace(preset, **{n: v for n, v in given.items() if n in names})

    def run_folder(self) -> Path:
        """Where the run goes."""
        default = Path("runs", APP, f"{self.dataset}-{self.attention}-{self.preset}")
        return self.out if self.out is not None else default


def main(flags: Flags) -> None:
    """Trains, measures on the test images, draws."""
    images = load(flags.dataset, flags.data_dir)
    out = flags.run_folder()
    _, summary = train_model(
        images,
        flags.recipe(images),
        attention=flags.attention,
        preset=flags.preset,
        seed=flags.seed,
        out=out,
        resume=flags.resume,
    )
    if PartialState().is_main_process:
        report(summary, out)


def report(summary: dict[str, Any], out: Path) -> None:
    """The numbers, on the terminal."""
    metrics = summary["metrics"]
    print(f"{summary['attention']} attention on {summary['dataset']}, in {out}")
    print(f"  {metrics['bits_per_dim']:.3f} bits/dim on {metrics['test_images']} test images")
    print(f"  {metrics['validation_bits_per_dim']:.3f} bits/dim on the validation images")
    print(f"  {metrics['independent_pixels_bits_per_dim']:.3f} bits/dim if pixels were independent")
    print(f"  {summary['parameters']:,} parameters, {summary['steps']:,} steps,", end=" ")
    print(f"{summary['train_seconds']:.0f} s of training")


if __name__ == "__main__":
    run_script(lambda: main(tyro.cli(Flags, description=__doc__)))
