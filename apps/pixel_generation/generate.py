"""Draw images from a trained model, and complete images of which the lower half is hidden.

    python apps/pixel_generation/generate.py
    python apps/pixel_generation/generate.py --run runs/pixel_generation/digits-linear-laptop
    python apps/pixel_generation/generate.py --run RUN --data-dir DIR

Without --run, the model is the one in pretrained/, of MNIST's digits.

Two pictures go into --out, laid out as in figures 3 and 4 of the paper: samples.png, drawn without
a prompt, and completions.png, where each row holds an image of the test set with its lower half
hidden, several completions of it, and the original image. Samples need the run alone. Completions
need images of the run's dataset: digits are always there, others where --data-dir, --download or
--completed asks for them. Without them, a saved model completes the samples that it has drawn.
A run of your own pictures reads them from --data-dir as the training did.

A terminal shows how far they are. Pictures grow by a few images at a time, so that what was drawn
is kept when the program is interrupted.

Each pixel costs the model one step from a state of fixed size: with linear attention, generating
is running an RNN.
"""

from __future__ import annotations

if __name__ == "__main__":
    import pixels  # noqa: F401, I001 - stops without linattn-lab
    import linattn_lab.startup
    import linattn_lab.threads  # noqa: F401

import dataclasses
import math
import sys
from pathlib import Path

from linattn_core.errors import expected
from linattn_lab.figures import add_figures
from linattn_lab.runs import make_folders
from linattn_lab.script import parse_flags, require_at_least, run_script
from linattn_models.training import RunFolder
from linattn_models.weights.model_files import is_saved_model
from pixels.datasets import Images, load
from pixels.models import APP, PRETRAINED, TrainedRun, load_run
from pixels.pictures import affordable_samples, write_completions, write_samples
from pixels.sampling import Draw
from pixels.training import picture_figures, tested_summary

COMPLETED = 8


@dataclasses.dataclass(frozen=True)
class Flags:
    """Which run, how many images, and where they go."""

    run: Path = PRETRAINED
    """Folder of the run that train.py made, whose newest checkpoint is taken, or of a saved
    model."""
    out: Path | None = None
    """Folder for the pictures; if not given, the run's own, or runs/pixel_generation/NAME for a
    saved model in a folder NAME."""
    data_dir: Path | None = None
    """Folder with the run's dataset, for the images to complete; digits needs none."""
    download: bool = False
    """Download the run's dataset for that, where it is not there yet."""
    count: int | None = None
    """Samples, 0 for none; if not given 64, or fewer where images are large."""
    completed: int | None = None
    """Test images to complete; if not given 8, or none where no images are there."""
    copies: int = 4
    """Completions of each."""
    temperature: float = 1.0
    """Below 1, likely levels are drawn more often; at 0, the likeliest always."""
    seed: int = 0
    """Decides every draw."""

    def folder(self) -> Path:
        """Where the pictures go."""
        if self.out is not None:
            return self.out
        return Path("runs", APP, self.run.resolve().name) if is_saved_model(self.run) else self.run


def main(flags: Flags) -> None:
    """Writes samples.png, and completions.png where images are completed."""
    require_numbers(flags)
    run, out = load_run(flags.run), flags.folder()
    images, completed = read_images(flags, run)
    blank = run.blank_images()
    count = affordable_samples(run.model, blank) if flags.count is None else flags.count
    make_folders(out)
    draw = Draw(flags.temperature, flags.seed, progress=True)
    last = "original" if images else "sample"
    label = f"{run.dataset}, {run.attention} attention, step {run.step:,}"
    if count:
        drawn = write_samples(out / "samples.png", run.model, blank, count, label, draw=draw)
        keep(flags, out, "samples")
        images = images or dataclasses.replace(blank, test=drawn)
    if completed and images:
        path, copies = out / "completions.png", flags.copies
        write_completions(
            path, run.model, images, run.layout, completed, copies, label, last=last, draw=draw
        )
        keep(flags, out, "completions")
    elif flags.completed is None:
        print("no image is completed: --data-dir names the folder of the dataset", file=sys.stderr)


def read_images(flags: Flags, run: TrainedRun) -> tuple[Images | None, int]:
    """The images of a run's dataset, if they are there, and how many images are completed."""
    asked = run.dataset == "digits" or flags.data_dir is not None or flags.download
    completes_own = is_saved_model(flags.run) and flags.count != 0
    completed = flags.completed
    if completed is None:
        completed = COMPLETED if asked or completes_own else 0
    if completed and (asked or not completes_own):
        images = load(run.dataset, flags.data_dir, download=flags.download, settings=run.settings)
        return images, completed
    return None, completed


def keep(flags: Flags, out: Path, picture: str) -> None:
    """Names the picture, and writes the figures of a model whose training has ended."""
    print(out / f"{picture}.png", flush=True)
    if (run := RunFolder(flags.run)).summary_file.exists():
        add_figures(out, picture_figures(tested_summary(run), picture))


def require_numbers(flags: Flags) -> None:
    """Refuses numbers that are out of range."""
    require_at_least(flags, {"count": 0, "completed": 0, "copies": 1})
    if not 0 <= flags.temperature < math.inf:
        raise ValueError(expected("--temperature", "0 or more, and finite", flags.temperature))


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
