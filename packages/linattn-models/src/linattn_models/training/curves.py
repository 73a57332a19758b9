"""The curves of a run as one picture."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from linattn_models.files import replace_file

# Names that a line of metrics.jsonl has besides what was measured.
_NOT_MEASURED = frozenset({"step", "split", "seconds"})


def curves_by_quantity(
    lines: Iterable[Mapping[str, Any]],
) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """The points (step, value) of each split of each quantity, in the order they were logged."""
    curves: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for line in lines:
        for quantity in line.keys() - _NOT_MEASURED:
            value = math.nan if line[quantity] is None else float(line[quantity])
            points = curves.setdefault(quantity, {}).setdefault(str(line["split"]), [])
            points.append((int(line["step"]), value))
    return curves


def plot_curves(lines: Iterable[Mapping[str, Any]], path: Path) -> Path:
    """Draws one panel a quantity, loss first, one line a split, as a PNG at `path`; returns `path`.

    Raises:
        ValueError: if there is nothing to draw.
        ImportError: if matplotlib is not installed.
    """
    curves = curves_by_quantity(lines)
    if not curves:
        raise ValueError(f"{path.parent} has logged nothing yet, so there is no curve to draw")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "plotting curves needs matplotlib: pip install linattn-models[train]"
        ) from error

    quantities = sorted(curves, key=lambda quantity: (quantity != "loss", quantity))
    figure = Figure(figsize=(4.5 * len(quantities), 3.2), layout="constrained")
    for position, quantity in enumerate(quantities, start=1):
        axes = figure.add_subplot(1, len(quantities), position)
        for split, points in sorted(curves[quantity].items()):
            steps, values = zip(*points, strict=True)
            marker = "o" if len(points) < 40 else None
            axes.plot(steps, values, label=split, marker=marker, markersize=3)
        axes.set(title=quantity.replace("_", " "), xlabel="step")
        axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    replace_file(path, picture.getvalue())
    return path
