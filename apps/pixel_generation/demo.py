"""The paper in five minutes: the same transformer with two kinds of attention, on real digits.

    python apps/pixel_generation/demo.py

First, the model in pretrained/ draws and completes digits of MNIST. Then two small models learn,
for the same number of updates, to predict scikit-learn's 8x8 scans of digits pixel by pixel. Both
draw digits and complete halves of them, and the table shows the cost of a pixel: linear attention
carries a state of fixed size from one pixel to the next, as an RNN does; softmax attention carries
the keys and values of all pixels before, or runs them all again.

Everything goes into --out: completions, samples and speeds as PNG, the table as table.md, its
numbers as figures.json, and a run folder for each model. Running the demo again starts over.
"""

from __future__ import annotations

if __name__ == "__main__":
    import pixels  # noqa: F401, I001 - stops without linattn-lab
    import linattn_lab.startup
    import linattn_lab.threads  # noqa: F401

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from linattn_lab.figures import FILE, write_figures
from linattn_lab.plots import plot_bars
from linattn_lab.runs import make_folders, publish
from linattn_lab.script import parse_flags, require_at_least, require_one_process, run_script
from linattn_lab.tables import decimals, figure, markdown_table, name_environments
from linattn_lab.throughput import generation_throughput
from linattn_models import AutoregressiveTransformer
from linattn_models.basics.files import replace_file
from linattn_models.training import RunFolder
from pixels.datasets import Images, load
from pixels.models import PRETRAINED, TrainedRun, load_run
from pixels.pictures import write_completions, write_samples
from pixels.presets import Attention, Recipe, demo
from pixels.sampling import Draw
from pixels.training import train_model

ATTENTIONS: tuple[Attention, ...] = ("linear", "softmax")
# What is timed: the attention, and whether a state is kept or the prefix runs again.
WAYS: dict[str, tuple[Attention, str]] = {
    "linear": ("linear", "stateful"),
    "stateful-softmax": ("softmax", "stateful"),
    "softmax": ("softmax", "rerun"),
}
RERUNS, SPEED = "softmax", "images-per-second"
PICTURES = ("samples", "completions")
PUBLISHED = ("table.md", FILE)


@dataclasses.dataclass(frozen=True)
class Flags:
    """Train linear and softmax attention on digits, generate, complete, compare."""

    out: Path = Path("runs/demo")
    """Folder for pictures, table and runs."""
    steps: int | None = None
    """Updates of each model; fewer take less time and draw worse."""
    batch: int = 1_000
    """Images of the batch whose speed is measured; one image alone is measured too."""
    positions: int = 17
    """Pixels of an image that are timed, of 64."""
    seed: int = 0
    """Decides the weights at the start and every draw."""
    publish: Path | None = None
    """Folder that gets a copy of the table and its numbers, such as docs/results/demo."""

    def recipe(self, attention: Attention) -> Recipe:
        """The demo's training of one model."""
        recipe = demo()
        steps = recipe.training.steps if self.steps is None else self.steps
        training = dataclasses.replace(recipe.training, steps=steps, seed=self.seed)
        return dataclasses.replace(recipe, attention=attention, training=training)


def main(flags: Flags) -> None:
    """Trains, draws, times, prints the table."""
    require_one_process()
    require_at_least(flags, {"batch": 1, "positions": 2})
    recipes = {attention: flags.recipe(attention) for attention in ATTENTIONS}
    for recipe in recipes.values():
        recipe.training.config()  # refused before an earlier demo is removed
    make_folders(flags.out, flags.publish)
    say("Drawing and completing digits of 28x28 pixels with the model in pretrained/")
    draw_pretrained(flags)
    images = load("digits")
    models, summaries = {}, {}
    for attention, recipe in recipes.items():
        say(f"Training with {attention} attention, {recipe.training.steps:,} updates")
        out = flags.out / attention
        models[attention], summaries[attention] = train_from_start(images, recipe, out)
    for attention, recipe in recipes.items():
        say(f"Drawing and completing digits with {attention} attention")
        model, steps = models[attention], recipe.training.steps
        trained = TrainedRun(model, "digits", attention, recipe.layout, steps)
        draw(flags, images, trained, attention, 64)
    say("Timing generation")
    figures = time_ways(models, flags.batch, flags.positions)
    text = f"{tabulate(figures, summaries, flags.batch)}\n{describe(summaries)}\n"
    replace_file(flags.out / "table.md", text.encode())
    plot_bars(
        flags.out / "speed.png", gains(figures, flags.batch),
        "times as fast as softmax that reruns the prefix",
    )  # fmt: skip
    bits = {f"{x}/bits": run["metrics"]["bits_per_dim"] for x, run in summaries.items()}
    write_figures(flags.out, {**figures, **bits})
    if flags.publish is not None:
        publish(flags.out, flags.publish, PUBLISHED)
    print(f"\n{text}\nPictures, table and runs are in {flags.out}. Look at the digits first:")
    print(flags.out / "completions-linear.png")


def train_from_start(
    images: Images, recipe: Recipe, out: Path
) -> tuple[AutoregressiveTransformer, dict[str, Any]]:
    """A model and its summary; the run of an earlier demo is removed first."""
    folder = RunFolder(out)
    if folder.config_file.exists() and folder.config().get("preset") == recipe.preset:
        with folder.lock():  # refused while another demo trains there
            shutil.rmtree(out)
    try:
        return train_model(images, recipe, out)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; running the demo again starts over") from None


def draw_pretrained(flags: Flags) -> None:
    """The two pictures of the pretrained model."""
    run = load_run(PRETRAINED)
    draw(flags, None, run, run.dataset, 16)


def draw(flags: Flags, images: Images | None, run: TrainedRun, name: str, count: int) -> None:
    """The two pictures of one model: `count` samples, and completions of ten digits.

    Without images, the digits are its own samples.
    """
    by_seed = Draw(seed=flags.seed, progress=True)
    label = f"{run.dataset}, {run.attention} attention"
    samples, completions = (flags.out / f"{kind}-{name}.png" for kind in PICTURES)
    blank = run.blank_images()
    drawn = write_samples(samples, run.model, blank, count, label, draw=by_seed)
    print(samples, flush=True)
    images = images or dataclasses.replace(blank, test=drawn)
    write_completions(completions, run.model, images, run.layout, 10, 4, label, draw=by_seed)
    print(completions, flush=True)


def time_ways(
    models: Mapping[Attention, AutoregressiveTransformer], batch: int, positions: int
) -> dict[str, float]:
    """Images per second of each way, one image alone and a batch; bytes of an image's state."""
    figures = {}
    for name, (attention, method) in tqdm(WAYS.items(), unit="way", disable=None):
        for size in (1, batch):
            timed = generation_throughput(
                models[attention].eval(), batch=size, method=method, steps=positions
            )
            figures[f"{name}/{size}/{SPEED}"] = timed.samples_per_second
        figures[f"{name}/state-bytes"] = timed.state_bytes_per_sample
    return figures


def gains(figures: Mapping[str, float], batch: int) -> dict[str, float]:
    """How many times as fast as rerunning softmax each other way is, at each batch."""
    return {
        f"{name}, batch {n:,}": figures[f"{name}/{n}/{SPEED}"] / figures[f"{RERUNS}/{n}/{SPEED}"]
        for name in WAYS
        if name != RERUNS
        for n in dict.fromkeys((1, batch))
    }


def tabulate(figures: Mapping[str, float], summaries: Mapping[Attention, Any], batch: int) -> str:
    """What was learned and what generating costs, a row for each way to generate."""
    rows = []
    for name, (attention, _) in WAYS.items():
        bits = decimals(summaries[attention]["metrics"]["bits_per_dim"], 2)
        rates = (figure(figures[f"{name}/{n}/{SPEED}"]) for n in (1, batch))
        rows.append([name, bits, *rates, f"{figures[f'{name}/state-bytes']:,.0f}"])
    speeds = (f"images/s, batch {n:,}" for n in (1, batch))
    return markdown_table(["attention", "bits/dim", *speeds, "bytes of state per image"], rows)


def describe(summaries: Mapping[Attention, Any]) -> str:
    """What stands below the table."""
    run, runs = summaries["linear"], summaries.items()
    alone = run["metrics"]["independent_pixels_bits_per_dim"]
    seconds = ", ".join(f"{summary['train_seconds']:.0f} s {name}" for name, summary in runs)
    return (
        f"Independent pixels, each position with its own frequencies, cost {alone:.2f} bits/dim.\n"
        f"Held-out images: {run['metrics']['test_images']}; updates: {run['steps']:,} each; "
        f"training: {seconds}; parameters: {run['parameters']:,}.\n"
        f"Made {name_environments([run['environment']])}.\n"
        "Speeds are from pixels spread over the image, the others interpolated. Linear attention "
        "steps by a compiled decoder, where there is one; softmax attention has none."
    )


def say(words: str) -> None:
    """A heading on the terminal."""
    print(f"\n{words}", flush=True)


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
