"""What came of a comparison of attentions: as JSON, as a picture, and to publish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pixel_curves import Curve, Panel, draw, validation_curve
from pixel_presets import Attention
from pixel_records import copy_records, summary_of
from pixel_runs import APP
from pixel_update_times import UpdateTimes

from linattn_models.files import replace_file
from linattn_models.training import RunFolder

FILES = ("table.md", "curves.png", "results.json", "timings.json")


@dataclass(frozen=True)
class Pair:
    """The two runs of one attention, which may be the same one."""

    equal_updates: RunFolder
    equal_time: RunFolder


@dataclass(frozen=True)
class Comparison:
    """All runs, which have ended, and their budgets.

    Attributes:
        steps: the budget of updates.
        seconds: the budget of time.
        of_linear: whether that is what linear attention takes for `steps`.
        times: seconds an update.
        pairs: the runs of each attention.
    """

    seed: int
    steps: int
    seconds: float
    of_linear: bool
    times: UpdateTimes
    pairs: Mapping[Attention, Pair]

    def results(self) -> dict[str, Any]:
        """The content of results.json."""
        return {
            "app": APP,
            "dataset": self.times.dataset,
            "preset": self.times.preset,
            "seed": self.seed,
            "steps": self.steps,
            "budget_seconds": self.seconds,
            "budget_of_linear": self.of_linear,
            "timing": {"rounds": self.times.rounds, "environment": self.times.environment},
            "attentions": {
                name: {
                    "seconds_an_update": self.times.seconds[name],
                    "equal_updates": summary_of(pair.equal_updates),
                    "equal_time": summary_of(pair.equal_time),
                }
                for name, pair in self.pairs.items()
            },
        }

    def picture(self) -> bytes:
        """A PNG: equal updates over updates, and equal time over seconds at the measured pace."""
        over_updates: dict[str, Curve] = {}
        over_time: dict[str, Curve] = {}
        for name, pair in self.pairs.items():
            over_updates[name] = validation_curve(pair.equal_updates, "step")
            pace = self.times.seconds[name]
            over_time[name] = validation_curve(pair.equal_time, "step", pace)
        return draw(
            Panel("updates, equally many of each", over_updates),
            Panel("seconds of updates, equally long for each", over_time),
        )

    def publish(self, out: Path, folder: Path) -> None:
        """Copies what was written into `out` to `folder`, and of the runs there their records."""
        for file in FILES:
            replace_file(folder / file, (out / file).read_bytes())
        for pair in self.pairs.values():
            for run in (pair.equal_updates, pair.equal_time):
                copy_records(run, folder / run.path.relative_to(out))
