"""Draw images from a trained model, and complete images of which the lower half is hidden.

    python apps/pixel_generation/generate.py --run runs/pixel_generation/digits-linear-laptop

Two pictures go into --out, laid out as in figures 3 and 4 of the paper: samples.png, made from
nothing, and completions.png, where each row holds an image of the test set with its lower half
hidden, several completions of it, and the image as it was. Each pixel costs the model one step
from a state of fixed size: with linear attention, generating is running an RNN.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import tyro
from pixel_datasets import load
from pixel_pictures import affordable_samples, write_completions, write_samples
from pixel_runs import load_run

from linattn_models.training import require_at_least, run_script


@dataclasses.dataclass(frozen=True)
class Flags:
    """Which run, how many images, and where they go."""

    run: Path
    """Folder of the run that train.py made; its newest checkpoint is taken."""
    out: Path | None = None
    """Folder for the pictures; the run's own if not given."""
    data_dir: Path | None = None
    """Where the run's dataset is read from, for the images to complete; digits needs none."""
    count: int | None = None
    """Images made from nothing; 64, or fewer where images are large."""
    completed: int = 8
    """Test images to complete."""
    copies: int = 4
    """Completions of each."""
    temperature: float = 1.0
    """Below 1 the likely is made likelier; 0 always takes the likeliest."""
    seed: int = 0
    """Decides every draw."""


def main(flags: Flags) -> None:
    """Writes samples.png and completions.png."""
    require_numbers(flags)
    run = load_run(flags.run)
    images = load(run.dataset, flags.data_dir)
    out = flags.out if flags.out is not None else flags.run
    label = f"{images.name}, {run.attention} attention, step {run.step:,}"
    affordable = affordable_samples(run.model, images)
    count = affordable if flags.count is None else flags.count
    write_samples(
        out / "samples.png",
        run.model,
        images,
        count,
        label,
        temperature=flags.temperature,
        seed=flags.seed,
    )
    print(out / "samples.png")
    write_completions(
        out / "completions.png",
        run.model,
        images,
        run.layout,
        flags.completed,
        flags.copies,
        label,
        temperature=flags.temperature,
        seed=flags.seed,
    )
    print(out / "completions.png")


def require_numbers(flags: Flags) -> None:
    """Refuses numbers that no picture can be made with."""
    require_at_least(flags, {"count": 1, "completed": 1, "copies": 1})
    if not 0 <= flags.temperature < math.inf:
        raise ValueError(f"expected --temperature of 0 or more, got {flags.temperature}")


if __name__ == "__main__":
    run_script(lambda: main(tyro.cli(Flags, description=__doc__)))
