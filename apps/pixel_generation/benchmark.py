"""Images per second and seconds per image: tables 1, 2, 4 and 5 of the paper.

    python apps/pixel_generation/benchmark.py                    the paper's MNIST model
    python apps/pixel_generation/benchmark.py --shape cifar10
    python apps/pixel_generation/benchmark.py --runs runs/pixel_generation/mnist-linear-paper

What an image costs does not depend on what the model has learned, so the weights are random unless
--runs names trained runs; the table then has their bits per dimension too. One image at a time
shows the latency, a batch the throughput: each method is timed at its best batch size, which is
searched within the free memory. Rerunning the prefix for each of 784 pixels would take most of an
hour, so positions spread over the image are timed and the others interpolated: such values have
a ~. A method that cannot run has a dash, and the reason below the table.
"""

from __future__ import annotations

if __name__ == "__main__":
    import linattn_lab.startup  # noqa: F401  (before torch)

import dataclasses
import math
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import torch
from tqdm import tqdm

from linattn_core.errors import expected
from linattn_lab.machine import default_device
from linattn_lab.runs import make_folders
from linattn_lab.script import parse_flags, require_at_least, run_script
from linattn_models import AutoregressiveTransformer
from linattn_models.files import replace_file
from linattn_models.training import RunFolder, write_json
from pixels.datasets import blank
from pixels.methods import MethodName, measure_outcome, read_environment, select_methods
from pixels.models import APP, build_model, load_run, with_attention
from pixels.presets import Attention, paper
from pixels.tables import benchmark_report
from pixels.training import tested_summary

Shape = Literal["digits", "mnist", "cifar10"]
Models = dict[Attention, AutoregressiveTransformer]


@dataclasses.dataclass(frozen=True)
class Flags:
    """Time the generation of images by linear, softmax and LSH attention."""

    shape: Shape = "mnist"
    """The dataset whose images, and whose model in the paper, are measured."""
    runs: tuple[Path, ...] = ()
    """Trained runs, at most one for each attention, to measure in place of --shape."""
    batch: int | None = None
    """Images of a batch; the best number for each method if not given."""
    largest_batch: int | None = None
    """The largest batch of that search; 1,024, or 10,000 on a GPU, if not given."""
    position_seconds: float = 20.0
    """The longest time of one pixel; a batch that is expected to take longer is not tried."""
    positions: int = 9
    """Pixels timed of each image, spread over it."""
    whole: bool = False
    """Time every pixel, in order, where a state is kept; rerunning is sampled even then."""
    methods: tuple[MethodName, ...] = get_args(MethodName)
    """What to time; linear-eager is linear without the compiled decoder, by each backend."""
    threads: int | None = None
    """Threads of the CPU; torch's choice if not given."""
    out: Path | None = None
    """Folder for benchmark.json and benchmark.md; runs/pixel_generation/benchmark-SHAPE."""


def main(flags: Flags) -> None:
    """Measures, prints the table, and writes it."""
    require_numbers(flags)
    if flags.threads is not None:
        torch.set_num_threads(flags.threads)
    methods = select_methods(flags.methods, torch.device(default_device()))
    attentions = list(dict.fromkeys(method.attention for method in methods))
    if flags.runs:
        models, bits, shape = load_models(flags.runs, attentions)
    else:
        models, bits, shape = build_models(flags.shape, attentions), {}, flags.shape
    out = flags.out or Path("runs", APP, f"benchmark-{shape}")
    make_folders(out)
    time = partial(
        measure_outcome,
        positions=None if flags.whole else flags.positions,
        batch=flags.batch,
        largest=flags.largest_batch or (10_000 if default_device() == "cuda" else 1_024),
        most_seconds=flags.position_seconds,
    )
    progress = tqdm(methods, desc="timing", unit="method", disable=None)
    outcomes = [time(models, method) for method in progress]
    record = {
        "app": APP,
        "shape": shape,
        "model": next(iter(models.values())).to_dict(),
        "environment": read_environment(),
        "bits_per_dim": bits,
        "speeds": [dataclasses.asdict(speed) for x in outcomes for speed in x.speeds],
        "largest_batches": {x.method.name: x.largest for x in outcomes if x.largest},
        "bounded_by": {x.method.name: x.bounded_by for x in outcomes if x.bounded_by},
        "failures": {x.method.name: x.failure for x in outcomes if x.failure},
    }
    text = benchmark_report(record, outcomes, searched=flags.batch is None)
    write_json(out / "benchmark.json", record)
    replace_file(out / "benchmark.md", text.encode())
    print(text)


def require_numbers(flags: Flags) -> None:
    """Refuses numbers that are out of range."""
    require_at_least(flags, {"batch": 1, "largest_batch": 1, "positions": 2, "threads": 1})
    if not 0 < flags.position_seconds < math.inf:
        raise ValueError(expected("--position-seconds", "more than 0", flags.position_seconds))
    if not flags.methods:
        raise ValueError(expected("--methods", "one name or more", "none"))


def build_models(shape: Shape, attentions: Collection[Attention]) -> Models:
    """The paper's model for images of this shape, with random weights."""
    images, recipe = blank(shape), paper(shape)
    recipes = {name: dataclasses.replace(recipe, attention=name) for name in attentions}
    return {x: build_model(y, images).to(default_device()) for x, y in recipes.items()}


def load_models(
    folders: Sequence[Path], attentions: Collection[Attention]
) -> tuple[Models, dict[str, float], str]:
    """The runs' models; an attention without a run gets random weights in the same model."""
    runs = [load_run(folder) for folder in folders]
    names = [run.attention for run in runs]
    if len(set(names)) != len(names):
        raise ValueError(expected("--runs", "one run per attention", ", ".join(names)))
    datasets = [run.dataset for run in runs]
    if len(set(datasets)) != 1:
        raise ValueError(expected("--runs", "runs on one dataset", ", ".join(datasets)))
    models: Models = {run.attention: run.model for run in runs}
    for name in set(attentions) - set(models):
        models[name] = with_attention(runs[0].model, name)
    bits: dict[str, float] = {
        run.attention: tested_summary(RunFolder(folder))["metrics"]["bits_per_dim"]
        for run, folder in zip(runs, folders, strict=True)
    }
    return models, bits, runs[0].dataset


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
