"""Train a transformer to predict images pixel by pixel.

    python apps/pixel_generation/train.py                                  digits, minutes
    python apps/pixel_generation/train.py --preset smoke                   seconds
    python apps/pixel_generation/train.py --dataset mnist --download --attention softmax
    python apps/pixel_generation/train.py --dataset folder --data-dir DIR --size 32 --color

Every default is the preset's. A run is a folder: config.json, metrics.jsonl, summary.json,
checkpoints, and two pictures, curve.png and samples.png. A run that was stopped or killed continues
with the same command and --resume.
"""

from __future__ import annotations

if __name__ == "__main__":
    import pixels  # noqa: F401, I001 - stops without linattn-lab
    import linattn_lab.startup
    import linattn_lab.threads  # noqa: F401

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from linattn_lab.script import peek_flag, preset_flags, require_at_least, run_script
from linattn_lab.tables import decimals, training_cost
from linattn_models.training import is_main_process
from pixels.datasets import FolderSettings, load, require_dataset
from pixels.models import APP
from pixels.presets import PRESETS, Recipe
from pixels.training import train_model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(Recipe):
    """The settings of a run."""

    preset: Literal["smoke", "laptop", "paper"]
    """smoke: seconds; laptop: minutes on two cores; paper: the paper's own numbers."""
    data_dir: Path | None = None
    """Folder of your own pictures, or of the dataset's published files, or with a subfolder of its
    name that has them; the cache of downloads if not given."""
    settings: Annotated[FolderSettings, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=FolderSettings
    )
    download: bool = False
    """Download the dataset first, where it is not there yet."""
    out: Path | None = None
    """Run folder; runs/pixel_generation/DATASET-ATTENTION-PRESET if not given."""
    resume: bool = False
    """Continue the run in --out from its newest checkpoint."""

    def run_folder(self) -> Path:
        """Where the run goes."""
        default = Path("runs", APP, f"{self.dataset}-{self.attention}-{self.preset}")
        return self.out if self.out is not None else default


def main() -> None:
    """Trains, evaluates the test images, draws."""
    dataset = require_dataset(peek_flag("dataset", "digits"))
    presets = {name: Flags(**vars(preset(dataset))) for name, preset in PRESETS.items()}
    flags = preset_flags(presets, description=__doc__)
    require_at_least(flags, {"validation_images": 1, "test_images": 1})
    images = load(flags.dataset, flags.data_dir, download=flags.download, settings=flags.settings)
    out = flags.run_folder()
    _, summary = train_model(images, flags, out, resume=flags.resume)
    if is_main_process():
        report(summary, out)


def report(summary: dict[str, Any], out: Path) -> None:
    """The numbers, on the terminal."""
    metrics = summary["metrics"]
    tested, validated = (
        decimals(metrics[name], 3) for name in ("bits_per_dim", "validation_bits_per_dim")
    )
    print(f"{summary['attention']} attention on {summary['dataset']}, in {out}")
    print(f"  {tested} bits/dim on {metrics['test_images']} test images")
    print(f"  {validated} bits/dim on the validation images")
    print(f"  {metrics['independent_pixels_bits_per_dim']:.3f} bits/dim if pixels were independent")
    print(f"  {training_cost(summary)}")


if __name__ == "__main__":
    run_script(main)
