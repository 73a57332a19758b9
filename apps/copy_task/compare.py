"""Teach every kind of attention to copy, from the same sequences in the same order.

    python apps/copy_task/compare.py                        minutes; the paper's figure 2
    python apps/copy_task/compare.py --preset smoke         seconds

Into --out go curves.png (the loss over updates, and over time), table.md, and for each attention a
folder of its own with config.json, metrics.jsonl and summary.json: everything that says what was
done and what came of it. The runs themselves, with their weights, are in --runs; a comparison that
was stopped goes on when the same command is given again with --resume.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import tyro
from copy_pictures import curves, table
from copy_presets import Attention, PresetName, recipe_for
from copy_training import APP, train_model

from linattn_models.files import replace_file
from linattn_models.training import RunFolder, require_at_least, run_script

ATTENTIONS: tuple[Attention, ...] = ("linear", "softmax", "lsh-1", "lsh-4")


@dataclasses.dataclass(frozen=True)
class Flags:
    """What is compared, and where it goes."""

    preset: PresetName = "laptop"
    """smoke: seconds; laptop: minutes on two cores; paper: the paper's own numbers."""
    steps: int | None = None
    """Updates of each model; the preset's if not given."""
    seed: int = 0
    """Decides the weights at the start and the sequences."""
    out: Path | None = None
    """Folder for the picture, the table and the runs' records; runs/copy_task/compare-PRESET."""
    runs: Path | None = None
    """Folder of the run folders, one named after each attention;
    runs/copy_task/compare-PRESET/runs if not given."""
    resume: bool = False
    """Keep the runs that have ended, go on with one that was stopped."""

    def run(self, attention: Attention) -> RunFolder:
        """Where an attention's run goes."""
        runs = Path("runs", APP, f"compare-{self.preset}", "runs")
        return RunFolder((runs if self.runs is None else self.runs) / attention)

    def comparison(self) -> Path:
        """Where the comparison goes."""
        return self.out or Path("runs", APP, f"compare-{self.preset}")


def main(flags: Flags) -> None:
    """Trains what is not trained yet, draws, prints the table, and copies what was recorded."""
    require_at_least(flags, {"steps": 1, "seed": 0})
    runs = {attention: flags.run(attention) for attention in ATTENTIONS}
    recipe = recipe_for(flags.preset)
    if flags.steps is not None:
        recipe = dataclasses.replace(recipe, steps=flags.steps)
    for run in runs.values():
        require_fit(run, recipe.steps, resume=flags.resume)
    for folder in (flags.comparison(), *(run.path for run in runs.values())):
        folder.mkdir(parents=True, exist_ok=True)  # refused now, not after the training
    for attention, run in runs.items():
        print(f"{attention}, {recipe.steps:,} updates, in {run.path}", flush=True)
        train_model(
            recipe,
            attention=attention,
            preset=flags.preset,
            seed=flags.seed,
            out=run.path,
            resume=run.holds_run(),
        )
    write_comparison(runs, flags.comparison())


def require_fit(run: RunFolder, steps: int, *, resume: bool) -> None:
    """Refuses a run that is there already, unless it is to go on to its own last update."""
    if not run.holds_run():
        return
    if not resume:
        raise ValueError(
            f"{run.path} already holds a run: give --resume to keep it, or another --runs"
        )
    training = run.config().get("training")
    begun = training.get("steps") if isinstance(training, dict) else None
    if begun != steps:
        raise ValueError(
            f"{run.path} holds a run of {begun} updates and {steps} were asked for, which its "
            "learning rate was not scheduled for: give another --runs"
        )


def write_comparison(runs: dict[Attention, RunFolder], out: Path) -> None:
    """Leaves the picture, the table and the records in `out`."""
    text = table({attention: run.summary() for attention, run in runs.items()})
    picture = curves({attention: run.metrics() for attention, run in runs.items()})
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / "curves.png", picture)
    replace_file(out / "table.md", text.encode())
    for attention, run in runs.items():
        (out / attention).mkdir(exist_ok=True)
        for file in (run.config_file, run.metrics_file, run.summary_file):
            replace_file(out / attention / file.name, file.read_bytes())
    print(f"\n{text}\nPicture, table and records are in {out}.")


if __name__ == "__main__":
    run_script(lambda: main(tyro.cli(Flags, description=__doc__)))
