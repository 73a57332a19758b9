"""What a comparison found: the content of results.json, and its curves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linattn_lab.plots import Panel, Points, plot_panels, points
from linattn_lab.runs import run_summary
from linattn_models.training import RunFolder
from speech.comparison import Comparison
from speech.models import APP
from speech.selection import Selection

YLABEL = "phoneme error rate, dev set"


def results_of(
    comparison: Comparison,
    runs: Mapping[str, RunFolder],
    absent: Mapping[str, str],
    timing: Mapping[str, Any],
    selection: Selection,
    test: bool,
) -> dict[str, Any]:
    """Budget, timing, and of each run its summary and its errors.

    Args:
        absent: how far runs that have not ended are, by name.
        test: whether the test set is recognized.
    """
    summaries = {name: run_summary(run, APP) for name, run in runs.items()}
    for name, run in runs.items():
        print(f"{name}:", flush=True)
        summaries[name]["recognition"] = selection.recognize(run, test).model_dump(
            exclude_none=True
        )
    return {
        "app": APP,
        "corpus": comparison.corpus.name,
        "preset": comparison.preset,
        "minutes": comparison.minutes,
        "average": selection.average,
        "timing": dict(timing),
        "runs": summaries,
        "absent": dict(absent),
    }


def draw(path: Path, runs: Mapping[str, RunFolder], timing: Mapping[str, Any]) -> None:
    """The paper's figure 5: the error rate over updates, and over time at the measured pace."""
    pace = {name: timing["seconds"][name.partition("-seed")[0]] for name in runs}
    over_updates = {name: curve(run) for name, run in runs.items()}
    over_time = {name: curve(run, pace[name] / 60) for name, run in runs.items()}
    panels = [Panel("updates", over_updates), Panel("minutes of updates", over_time)]
    plot_panels(path, panels, ylabel=YLABEL, log_scale=True)


def curve(run: RunFolder, scale: float = 1.0) -> Points:
    """The error rate of the dev set over `scale` times the step."""
    return points(run.metrics(), "phoneme_error_rate", split="eval", scale=scale)
