"""What each attention learns from an equal number of updates, and in an equal time.

    python apps/pixel_generation/compare_attentions.py
    python apps/pixel_generation/compare_attentions.py --dataset mnist --data-dir DIR --steps 400

First a few updates of each attention are timed, in turn. Then each is trained for --steps updates,
from the same seed and on the same images in the same order; and once more, with a schedule of its
own, for as many updates as fit into the time that linear attention takes for --steps.

Into --out go table.md, curves.png, results.json, timings.json, and the runs in updates/ATTENTION
and time/ATTENTION (where equal time comes to --steps updates, there is the first run only). Given
again after an interruption, the same command goes on where it was, with the times it measured.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import get_args

import tyro
from pixel_attention_table import attention_report
from pixel_budgets import trained, updates_within, with_updates
from pixel_comparison import Comparison, Pair
from pixel_datasets import DatasetName, Images, load
from pixel_presets import Attention, PresetName, Recipe, recipe_for
from pixel_runs import APP
from pixel_update_times import UpdateTimes, times_kept_in

from linattn_models.files import replace_file
from linattn_models.training import RunFolder, require_at_least, run_script


@dataclasses.dataclass(frozen=True)
class Flags:
    """Train every attention within the same budget of updates and of time, and compare."""

    preset: PresetName = "laptop"
    """smoke: seconds; laptop: minutes a run on two cores; paper: the paper's own numbers."""
    dataset: DatasetName = "digits"
    """digits comes with scikit-learn; the others are read from --data-dir."""
    data_dir: Path | None = None
    """Folder of the dataset's published files, or with a subfolder of its name that has them."""
    attentions: tuple[Attention, ...] = get_args(Attention)
    """What is compared."""
    steps: int | None = None
    """Updates of each where updates are equal; the preset's if not given."""
    seconds: float | None = None
    """The equal time; what linear attention takes for --steps if not given."""
    rounds: int = 7
    """Turns that each attention has while updates are timed."""
    seed: int = 0
    """Decides the weights at the start, the order of the images, and dropout."""
    out: Path | None = None
    """Folder for all of it; runs/pixel_generation/attentions-DATASET-PRESET if not given."""
    publish: Path | None = None
    """Folder that gets a copy without the weights, such as docs/results/attentions."""

    def folder(self) -> Path:
        """Where everything goes."""
        default = Path("runs", APP, f"attentions-{self.dataset}-{self.preset}")
        return self.out if self.out is not None else default


def main(flags: Flags) -> None:
    """Times, trains, draws, prints the table."""
    check(flags)
    images = load(flags.dataset, flags.data_dir)
    recipe = recipe_for(flags.preset, images)
    recipe = with_updates(recipe, recipe.steps if flags.steps is None else flags.steps)
    out = flags.folder()
    for folder in (out, flags.publish):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)  # refused now, not after the training
    file = out / "timings.json"
    names, preset, rounds = flags.attentions, flags.preset, flags.rounds
    times = times_kept_in(file, images, recipe, names, preset=preset, rounds=rounds)
    comparison = train_all(flags, images, recipe, times)
    results = comparison.results()
    text = attention_report(results)
    replace_file(out / "curves.png", comparison.picture())
    replace_file(out / "results.json", (json.dumps(results, indent=2) + "\n").encode())
    replace_file(out / "table.md", text.encode())
    if flags.publish is not None:
        comparison.publish(out, flags.publish)
    print(f"\n{text}\nTable, picture and runs are in {out}.")


def check(flags: Flags) -> None:
    """Refuses flags that no comparison follows from."""
    require_at_least(flags, {"steps": 1, "rounds": 1, "seed": 0})
    named = " ".join(flags.attentions) or "none"
    if not flags.attentions or len(set(flags.attentions)) < len(flags.attentions):
        raise ValueError(f"expected --attentions with one name or more, each once, got {named}")
    if flags.seconds is None and "linear" not in flags.attentions:
        raise ValueError(
            "expected linear among --attentions, since its time is the budget of all, or a budget "
            f"in --seconds, got {named}"
        )
    if flags.seconds is not None and not 0 < flags.seconds < math.inf:
        raise ValueError(f"expected --seconds above 0, got {flags.seconds}")


def train_all(flags: Flags, images: Images, recipe: Recipe, times: UpdateTimes) -> Comparison:
    """Makes every run that has not ended yet: equal updates first, then equal time."""
    budget = flags.seconds
    if budget is None:
        budget = recipe.steps * times.seconds["linear"]
    equal_updates = {
        name: train_one(flags, images, recipe, name, "updates") for name in flags.attentions
    }
    pairs = {}
    for name, run in equal_updates.items():
        steps = updates_within(budget, times.seconds[name])
        if steps == recipe.steps:
            pairs[name] = Pair(run, run)
            continue
        own = with_updates(recipe, steps)
        pairs[name] = Pair(run, train_one(flags, images, own, name, "time"))
    of_linear = flags.seconds is None
    return Comparison(flags.seed, recipe.steps, budget, of_linear, times, pairs)


def train_one(
    flags: Flags, images: Images, recipe: Recipe, attention: Attention, budget: str
) -> RunFolder:
    """One run, which has ended when this returns."""
    run = flags.folder() / budget / attention
    print(f"\n{attention} attention, {recipe.steps:,} updates, in {run}", flush=True)
    return trained(images, recipe, attention, preset=flags.preset, seed=flags.seed, out=run)


if __name__ == "__main__":
    run_script(lambda: main(tyro.cli(Flags, description=__doc__)))
