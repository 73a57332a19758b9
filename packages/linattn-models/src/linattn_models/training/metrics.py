"""Measurements: logs of runs, plots of curves, tables."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from linattn_core.errors import expected
from linattn_models.files import replace_file

if TYPE_CHECKING:
    from matplotlib.axis import Axis

# Names in a line of metrics.jsonl that are not measurements.
NOT_MEASURED = frozenset({"step", "split", "seconds"})

Line = Mapping[str, Any]  # of metrics.jsonl
Points = list[tuple[float, float]]


class MetricsLog:
    """Appends measurements to a run folder; closed at the end of its `with` block.

    Args:
        path: `metrics.jsonl`, already cut back to the step from which the run continues.
        step: updates made so far.
        steps: updates in all.
    """

    def __init__(self, path: Path, step: int, steps: int) -> None:
        self._path = path
        self._file = self._path.open("ab")
        content = self._path.read_bytes()
        self._bytes = len(content)
        self.lines = content.count(b"\n")
        # purge_step hides the points of a killed run at steps that are now repeated.
        self._writer = SummaryWriter(str(path.parent / "tensorboard"), purge_step=step + 1)
        self._bar = tqdm(total=steps, initial=step, unit="step", file=sys.stderr)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()
        self._file.close()
        self._writer.close()

    def advance(self) -> None:
        """Moves the progress bar on by one step."""
        self._bar.update()

    def log(self, step: int, split: str, values: Mapping[str, float], seconds: float) -> None:
        """Writes one line of measurements at once; inf and nan, which JSON lacks, become null."""
        named = {name: finite_or_none(value) for name, value in values.items()}
        line = {"step": step, "split": split, **named, "seconds": round(seconds, 3)}
        self._bytes += self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()
        self.lines += 1
        for name, value in values.items():
            self._writer.add_scalar(f"{split}/{name}", value, step)
        if split == "train":
            self._bar.set_postfix(
                loss=f"{values['loss']:.4f}", lr=f"{values['learning_rate']:.1e}", refresh=False
            )

    def sync(self) -> None:
        """Flushes every line so far to disk.

        Raises:
            ValueError: if another process has replaced the file or written into it; the run's lock
                prevents this only on file systems with locks.
        """
        os.fsync(self._file.fileno())
        own = os.fstat(self._file.fileno())
        same = self._path.exists() and os.path.samestat(own, self._path.stat())
        if not same or own.st_size != self._bytes:
            wanted = f"the {self.lines} lines that this process wrote"
            advice = "another process writes into the run, so stop one and resume"
            raise ValueError(expected(str(self._path), wanted, "a changed file", advice))


def finite_or_none(value: float) -> float | None:
    """`value`, or None where JSON could not hold it."""
    return value if math.isfinite(value) else None


def checked_metrics(values: Mapping[str, Any]) -> dict[str, float]:
    """The result of an evaluation as plain floats.

    Raises:
        ValueError: if a metric has a name that each line of `metrics.jsonl` uses already.
    """
    for name in sorted(values.keys() & NOT_MEASURED):
        raise ValueError(expected("metrics", "names that no line has already", repr(name)))
    return {name: float(value) for name, value in values.items()}


@dataclass(frozen=True)
class Panel:
    """One panel of a plot: the label of its x-axis, and the points (x, y) of each curve by name."""

    xlabel: str
    curves: Mapping[str, Points]
    title: str = ""


def points(
    lines: Iterable[Line], quantity: str, *, split: str, over: str = "step", scale: float = 1.0
) -> Points:
    """The values of `quantity` in `split`, each at `scale` times "step" or "seconds"; null is NaN.

    Args:
        lines: of a run's `metrics.jsonl`, as `RunFolder.metrics` reads them.
    """
    return [
        (scale * line[over], math.nan if line[quantity] is None else float(line[quantity]))
        for line in lines
        if line["split"] == split and quantity in line
    ]


def run_panels(lines: Sequence[Line]) -> list[Panel]:
    """A panel for each quantity that a run logged, loss first, with a curve for each split."""
    splits = sorted({line["split"] for line in lines})
    quantities = {name for line in lines for name in line.keys() - NOT_MEASURED}
    panels = []
    for quantity in sorted(quantities, key=lambda name: (name != "loss", name)):
        curves = {split: points(lines, quantity, split=split) for split in splits}
        shown = {split: curve for split, curve in curves.items() if curve}
        panels.append(Panel("step", shown, quantity.replace("_", " ")))
    return panels


def plot_panels(
    path: Path, panels: Sequence[Panel], *, ylabel: str = "", log_scale: bool = False
) -> Path:
    """Draws panels side by side as a PNG at `path`; returns `path`.

    Args:
        path: the PNG file.
        panels: what to draw.
        ylabel: a label for the y-axis, whose scale all panels then share; without it each panel has
            its own scale and legend.
        log_scale: whether the y-axis is logarithmic.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    shared = bool(ylabel)
    drawing = Figure(figsize=(4.5 * len(panels), 3.4), layout="constrained")
    axes = drawing.subplots(1, len(panels), sharey=shared, squeeze=False)[0]
    for place, panel in zip(axes, panels, strict=True):
        for name, curve in panel.curves.items():
            marker = "o" if len(curve) < 40 else None
            xs, ys = zip(*curve, strict=True) if curve else ((), ())
            place.plot(xs, ys, label=name, marker=marker, markersize=3, linewidth=1.2)
        place.set(xlabel=panel.xlabel, title=panel.title, yscale="log" if log_scale else "linear")
        place.xaxis.set_major_locator(MaxNLocator("auto", integer=True))  # no half updates
        place.grid(alpha=0.3)
        if not shared:
            place.legend()
    if log_scale:  # now that limits, which panels may share, include every curve
        for place in axes:
            label_log_axis(place.yaxis)
    if shared:
        axes[0].set(ylabel=ylabel)
        # Beside the panels: many curves leave no room for it among them.
        drawing.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
    picture = io.BytesIO()
    drawing.savefig(picture, format="png", dpi=120)
    replace_file(path, picture.getvalue())
    return path


def label_log_axis(axis: Axis) -> None:
    """Ticks at 1, 2 and 5 times powers of ten, written as 0.2 rather than 2 x 10^-1.

    Where fewer than three are within the limits, the ticks are evenly spaced numbers instead.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    low, high = axis.get_view_interval()
    locator = LogLocator(subs=(1, 2, 5))
    within = [tick for tick in locator.tick_values(low, high) if low <= tick <= high]
    axis.set_major_locator(locator if len(within) > 2 else MaxNLocator(6))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with padded columns, the first aligned left, the others right."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(_line(cells, widths) for cells in (header, rule, *rows)) + "\n"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cells[0].ljust(widths[0])]
    padded += [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
    return f"| {' | '.join(padded)} |"


def figure(value: float | None, estimated: bool = False) -> str:
    """A number with three digits, after "~" if it is estimated; "-" for None."""
    if value is None:
        return "-"
    digits = f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:#.3g}".rstrip(".")
    return f"~{digits}" if estimated else digits
