"""Train a transformer to say again what it has just read.

    python apps/copy_task/train.py                          linear attention, minutes
    python apps/copy_task/train.py --preset smoke           seconds
    python apps/copy_task/train.py --attention softmax

What is left at None is taken from the preset. A run is a folder: config.json, metrics.jsonl,
summary.json, checkpoints, and a picture, curve.png. Stopped or killed, it goes on where it was when
the same command is given again with --resume.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import tyro
from accelerate import PartialState
from copy_presets import Attention, PresetName, Recipe, recipe_for
from copy_training import APP, train_model

from linattn_models.training import require_at_least, run_script


@dataclasses.dataclass(frozen=True)
class Flags:
    """The settings of a run; those that default to None override the preset."""

    preset: PresetName = "laptop"
    """smoke: seconds; laptop: minutes on two cores; paper: the paper's own numbers."""
    dataset: Literal["copy"] = "copy"
    """The one there is; its sequences are made as they are needed."""
    attention: Attention = "linear"
    """linear: the paper's; softmax: the usual kind; lsh-X: Reformer's, X rounds of hashing."""
    seed: int = 0
    """Decides the weights at the start and the sequences."""
    out: Path | None = None
    """Run folder; runs/copy_task/ATTENTION-PRESET if not given."""
    resume: bool = False
    """Go on with the run in --out from its newest checkpoint."""

    steps: int | None = None
    """Updates of the weights, in all."""
    batch_size: int | None = None
    """Sequences an update sees."""
    max_length: int | None = None
    """Positions of a sequence; the longest copy is of half of them, less one."""
    learning_rate: float | None = None
    """The highest rate."""
    optimizer: Literal["radam", "adam", "adamw"] | None = None
    warmup_steps: int | None = None
    """Updates over which the rate rises; a tenth of --steps at most."""
    mixed_precision: Literal["no", "bf16", "fp16"] | None = None
    num_layers: int | None = None
    num_heads: int | None = None
    head_dim: int | None = None
    ffn_dim: int | None = None
    lsh_buckets: int | None = None
    """Of each round of hashing; an even number."""
    lsh_chunk: int | None = None
    """Positions of a chunk, in the order of their buckets."""
    log_every: int | None = None
    eval_every: int | None = None
    """Updates between looks at the held-out sequences."""
    checkpoint_every: int | None = None

    def recipe(self) -> Recipe:
        """The preset's recipe with the flags that were given in its place."""
        names = {field.name for field in dataclasses.fields(Recipe)}
        given = {name: value for name, value in vars(self).items() if value is not None}
        kept = {name: value for name, value in given.items() if name in names}
        return dataclasses.replace(recipe_for(self.preset), **kept)

    def run_folder(self) -> Path:
        """Where the run goes."""
        return self.out or Path("runs", APP, f"{self.attention}-{self.preset}")


def main(flags: Flags) -> None:
    """Trains, and measures on held-out sequences."""
    require_at_least(flags, {"seed": 0})
    out = flags.run_folder()
    summary = train_model(
        flags.recipe(),
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
    print(f"{summary['attention']} attention, in {out}")
    print(f"  {metrics['loss']:.5f} nats a copied symbol on held-out sequences")
    print(f"  {metrics['accuracy']:.2%} of symbols right,", end=" ")
    print(f"{metrics['sequence_accuracy']:.1%} of copies without a fault")
    print(f"  {summary['parameters']:,} parameters, {summary['steps']:,} steps,", end=" ")
    print(f"{summary['train_seconds']:.0f} s of training")


if __name__ == "__main__":
    run_script(lambda: main(tyro.cli(Flags, description=__doc__)))
