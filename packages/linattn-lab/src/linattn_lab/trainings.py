"""Trainings of several variants, in equal updates or in equal time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from linattn_core.errors import expected
from linattn_lab.plots import Points, points
from linattn_lab.runs import require_run
from linattn_models.training import RunFolder, TrainingFlags
from linattn_models.training.config import FREE_ON_RESUME, flatten

_EVALUATIONS = 8  # while a model trains, at least: the points of its curve

Summary = Mapping[str, Any]
"""The content of a run's summary.json."""
Runs = dict[str, RunFolder]


@dataclass(frozen=True)
class Variant:
    """One of the trainings that are compared.

    Attributes:
        name: of its run folder, and in tables.
        flags: how it is trained; their steps are its updates.
        train: (flags, run folder, whether to resume) makes or resumes the run.
        settings: what config.json must hold in addition to the settings of the training: nested
            mappings, or names joined by dots.
    """

    name: str
    flags: TrainingFlags
    train: Callable[[TrainingFlags, Path, bool], object]
    settings: Mapping[str, object]


@dataclass(frozen=True)
class Trainings:
    """Variants, and the folder of their runs.

    Attributes:
        out: the folder; a run is in out/NAME, or in a folder between the two.
        variants: what is compared, in the order of training.
        complete: whether a run with this summary was tested, too; one that was killed between its
            last update and its test also has a summary.
    """

    out: Path
    variants: Sequence[Variant]
    complete: Callable[[Summary], bool] = lambda summary: True

    @property
    def names(self) -> list[str]:
        """Of the variants."""
        return [variant.name for variant in self.variants]

    def equal_updates(self, folder: str = "") -> Runs:
        """The run of each variant: made, resumed, or left as it is if it had ended before."""
        return {variant.name: self.run(variant, folder) for variant in self.variants}

    def refuse_runs(self) -> None:
        """Raises a ValueError where a run is there already, for a script without --resume."""
        for variant in self.variants:
            if (run := RunFolder(self.out / variant.name)).holds_run():
                advice = "give --resume to keep it, or another --out"
                raise ValueError(
                    expected(str(run.path), "a folder without a run", "one with", advice)
                )

    def within(self, seconds: float, pace: Mapping[str, float]) -> Trainings:
        """The trainings in which each variant has the updates that fit into `seconds`.

        Args:
            seconds: the budget of each.
            pace: seconds of an update by the variant's name.
        """
        variants = []
        for variant in self.variants:
            flags = with_steps(variant.flags, updates_within(seconds, pace[variant.name]))
            variants.append(replace(variant, flags=flags))
        return replace(self, variants=variants)

    def run(self, variant: Variant, folder: str = "") -> RunFolder:
        """The run of one variant, as `equal_updates`."""
        run = self._folder(variant, folder)
        print(f"\n{variant.name}, {variant.flags.steps:,} updates, in {run.path}", flush=True)
        if not self._is_complete(run):
            variant.train(variant.flags, run.path, run.holds_run())
        return run

    def find_complete(self) -> tuple[Runs, dict[str, str]]:
        """The runs that have ended; and, of the others that were begun, how far they are."""
        runs = {variant.name: self._folder(variant, "") for variant in self.variants}
        begun = {name: run for name, run in runs.items() if run.holds_run()}
        absent = {name: _progress(run) for name, run in begun.items() if not self._is_complete(run)}
        return {name: run for name, run in begun.items() if name not in absent}, absent

    def _folder(self, variant: Variant, folder: str) -> RunFolder:
        run, flags = RunFolder(self.out / folder / variant.name), variant.flags
        if run.holds_run():
            require_run(run, {"training.steps": flags.steps})  # its warm-up may not fit others
            training = flags.config().settle_warmup(run.config()).to_dict()
            decisive = [name for name in training if name not in FREE_ON_RESUME]
            own = {f"training.{name}": training[name] for name in decisive}
            require_run(run, {**flatten(variant.settings), **own})
        return run

    def _is_complete(self, run: RunFolder) -> bool:
        return run.summary_file.exists() and self.complete(run.summary())


def _progress(run: RunFolder) -> str:
    lines = run.metrics() if run.metrics_file.exists() else []
    made, steps = max((x["step"] for x in lines), default=0), run.config()["training"]["steps"]
    return f"unfinished, {made:,} of {steps:,} updates"


def with_steps(flags: TrainingFlags, steps: int) -> TrainingFlags:
    """The flags with `steps` updates, and with at least eight evaluations (if `steps` >= 8)."""
    share = max(1, steps // _EVALUATIONS)
    return replace(
        flags,
        steps=steps,
        eval_every=min(share, flags.eval_every or share),
        checkpoint_every=min(share, flags.checkpoint_every or share),
    )


def updates_within(seconds: float, seconds_per_update: float) -> int:
    """How many whole updates fit into `seconds`, at least 1."""
    # (n * s) / s may round to slightly less than n.
    return max(1, math.floor(seconds / seconds_per_update * (1 + 1e-9)))


def curves(
    runs: Mapping[str, RunFolder],
    quantity: str,
    *,
    split: str = "eval",
    pace: Mapping[str, float] | None = None,
) -> dict[str, Points]:
    """The values of `quantity` in each run over its updates.

    Args:
        pace: by run, what their number is multiplied with, such as the seconds of an update.
    """
    scales = dict.fromkeys(runs, 1.0) if pace is None else pace
    return {
        name: points(run.metrics(), quantity, split=split, scale=scales[name])
        for name, run in runs.items()
    }
