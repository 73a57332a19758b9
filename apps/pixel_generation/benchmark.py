"""Images per second and seconds per image: tables 1, 2, 4 and 5 of the paper, less LSH.

    python apps/pixel_generation/benchmark.py                    the paper's MNIST model
    python apps/pixel_generation/benchmark.py --shape cifar10
    python apps/pixel_generation/benchmark.py --runs runs/pixel_generation/mnist-linear-paper

What an image costs does not depend on what the model has learned, so the weights are random unless
--runs names trained runs; their bits per dimension then stand in the table too. One image at a time
says what somebody waits for, a batch what a machine puts out. Rerunning the prefix for each of 784
pixels would take most of an hour, so positions spread over the image are timed and the rest
interpolated: such figures carry a ~.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
import tyro
from benchmark_tables import report
from flag_checks import require_at_least
from pixel_datasets import Images
from pixel_presets import Attention, paper
from pixel_runs import APP, build_model, default_device, load_run
from pixel_speed import METHODS, MethodName, measure

from linattn_models import AutoregressiveTransformer, TransformerConfig
from linattn_models.atomic import replace_file
from linattn_models.training import RunFolder, run_script
from linattn_models.training.environment import environment

Shape = Literal["digits", "mnist", "cifar10"]


@dataclasses.dataclass(frozen=True)
class Flags:
    """Time the generation of images by linear, stateful-softmax and softmax attention."""

    shape: Shape = "mnist"
    """The dataset whose images, and whose model in the paper, are measured."""
    runs: tuple[Path, ...] = ()
    """Trained runs, one for each attention at most, to measure in place of --shape."""
    batch: int | None = None
    """Images side by side, beside one alone; 100 of MNIST and digits, 4 of CIFAR-10."""
    positions: int = 9
    """Pixels timed of each image, spread over it."""
    whole: bool = False
    """Time every pixel, in order, where a state is kept; rerunning is sampled even then."""
    methods: tuple[MethodName, ...] = tuple(METHODS)
    """What to time."""
    threads: int | None = None
    """Threads of the CPU; torch's choice if not given."""
    out: Path | None = None
    """Folder for benchmark.json and benchmark.md; runs/pixel_generation/benchmark-SHAPE."""


def main(flags: Flags) -> None:
    """Measures, prints the table, and writes it."""
    require_at_least(flags, {"batch": 1, "positions": 2, "threads": 1})
    if flags.threads is not None:
        torch.set_num_threads(flags.threads)
    models, bits, shape = trained(flags.runs) if flags.runs else untrained(flags.shape)
    batch = flags.batch or (4 if shape == "cifar10" else 100)
    positions = None if flags.whole else flags.positions
    speeds = measure(models, sorted({1, batch}), positions, flags.methods)
    record = {
        "app": APP,
        "shape": shape,
        "model": models["linear"].to_dict(),
        "environment": environment(default_device()),
        "bits_per_dim": bits,
        "speeds": [dataclasses.asdict(speed) for speed in speeds],
    }
    text = report(record, speeds, batch)
    out = flags.out or Path("runs", APP, f"benchmark-{shape}")
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / "benchmark.json", (json.dumps(record, indent=2) + "\n").encode())
    replace_file(out / "benchmark.md", text.encode())
    print(text)


Models = dict[Attention, AutoregressiveTransformer]


def untrained(shape: Shape) -> tuple[Models, dict[str, float], str]:
    """The paper's model for images of this shape, with random weights."""
    one = {"digits": (1, 8, 8), "mnist": (1, 28, 28), "cifar10": (1, 32, 32, 3)}[shape]
    blank = np.zeros(one, np.uint8)
    images = Images(shape, blank, blank, blank, levels=17 if shape == "digits" else 256)
    recipe = paper(images)
    device = default_device()
    models = {name: build_model(recipe, name, images).to(device) for name in get_args(Attention)}
    return models, {}, shape


def trained(folders: Sequence[Path]) -> tuple[Models, dict[str, float], str]:
    """The runs' models; an attention that no run has gets one alike with random weights."""
    runs = [load_run(folder) for folder in folders]
    names = [run.attention for run in runs]
    if len(set(names)) != len(names):
        raise ValueError(f"expected one run an attention, got runs of {', '.join(names)}")
    if len({run.dataset for run in runs}) != 1:
        raise ValueError(f"expected runs on one dataset, got {[run.dataset for run in runs]}")
    models: Models = {run.attention: run.model for run in runs}
    for name in set(get_args(Attention)) - set(models):
        models[name] = _alike(runs[0].model, name)
    bits: dict[str, float] = {
        run.attention: RunFolder(folder).summary().get("metrics", {}).get("bits_per_dim")
        for run, folder in zip(runs, folders, strict=True)
    }
    return models, bits, runs[0].dataset


def _alike(model: AutoregressiveTransformer, attention: Attention) -> AutoregressiveTransformer:
    values: dict[str, Any] = model.to_dict()
    config = dataclasses.replace(model.config, attention=attention)
    return AutoregressiveTransformer.from_dict(
        {**values, "transformer": TransformerConfig.to_dict(config)}
    ).to(default_device())


if __name__ == "__main__":
    run_script(lambda: main(tyro.cli(Flags, description=__doc__)))
