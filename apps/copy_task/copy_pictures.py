"""What the attentions learned, as a picture and as a table."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from linattn_models.training import figure, markdown_table

Line = dict[str, Any]  # of metrics.jsonl


def curves(runs: Mapping[str, list[Line]]) -> bytes:
    """A PNG: the loss of each attention over updates, as in the paper's figure 2, and over time.

    It is the loss in training, each point the mean since the one before it. No sequence comes
    twice, so it has nothing that could have been learned by heart.
    """
    drawing = Figure(figsize=(9, 3.6), layout="constrained")
    panels = drawing.subplots(1, 2, sharey=True)
    for panel, over, label in zip(
        panels, ("step", "seconds"), ("gradient steps", "seconds of training"), strict=True
    ):
        for name, lines in runs.items():
            shown = [line for line in lines if line["split"] == "train"]
            panel.plot(
                [line[over] for line in shown],
                [line["loss"] for line in shown],
                label=name,
                linewidth=1.2,
            )
        panel.set(xlabel=label, yscale="log")
        panel.grid(alpha=0.3)
    panels[0].set(ylabel="cross-entropy, nats a symbol")
    panels[0].legend()
    png = io.BytesIO()
    drawing.savefig(png, format="png", dpi=120)
    return png.getvalue()


def table(summaries: Mapping[str, dict[str, Any]]) -> str:
    """A row for each attention."""
    header = ["attention", "updates", "parameters", "s of training", "held out: nats a symbol"]
    header += ["symbols right", "whole copies right"]
    return markdown_table(header, [_row(name, values) for name, values in summaries.items()])


def _row(name: str, summary: dict[str, Any]) -> list[str]:
    metrics = summary["metrics"]
    return [
        name,
        f"{summary['steps']:,}",
        f"{summary['parameters']:,}",
        f"{summary['train_seconds']:,.0f}",
        figure(metrics["loss"]),
        f"{metrics['accuracy']:.2%}",
        f"{metrics['sequence_accuracy']:.1%}",
    ]
