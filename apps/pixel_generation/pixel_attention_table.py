"""The table that sets the attentions side by side."""

from __future__ import annotations

from typing import Any

from paper_figures import PAPER

from linattn_models.training import figure, markdown_table


def attention_report(results: dict[str, Any]) -> str:
    """A row for each attention, and below what the columns mean."""
    paper = {row.method: row.bits_per_dim for row in PAPER.get(results["dataset"], ())}
    header = ["attention", "bits/dim, equal updates", "updates", "bits/dim, equal time"]
    header += ["updates in it", "s an update", "parameters"]
    rows = [_row(name, result) for name, result in results["attentions"].items()]
    if paper:
        header.append("the paper's bits/dim")
        for row in rows:
            bits = paper.get(row[0])
            row.append("-" if bits is None else f"{bits:g}")
    return "\n".join([markdown_table(header, rows), *_notes(results)]) + "\n"


def _row(name: str, result: dict[str, Any]) -> list[str]:
    updates, timed = result["equal_updates"], result["equal_time"]
    return [
        name,
        f"{updates['metrics']['bits_per_dim']:.3f}",
        f"{updates['steps']:,}",
        f"{timed['metrics']['bits_per_dim']:.3f}",
        f"{timed['steps']:,}",
        figure(result["seconds_an_update"]),
        f"{updates['parameters']:,}",
    ]


def _notes(results: dict[str, Any]) -> list[str]:
    metrics = next(iter(results["attentions"].values()))["equal_updates"]["metrics"]
    where = results["timing"]["environment"]
    budget = f"Equal time is {figure(results['budget_seconds'])} s of updates"
    if results["budget_of_linear"]:
        budget += f", what linear attention takes for {results['steps']:,}"
    notes = [
        f"{results['dataset']}, preset {results['preset']}, seed {results['seed']}; "
        f"{metrics['test_images']:,} test images, of which independent pixels cost "
        f"{metrics['independent_pixels_bits_per_dim']:.3f} bits/dim.",
        f"{budget}.",
        f"Seconds an update: the median of {results['timing']['rounds']} rounds in which the "
        f"attentions took turns; torch {where['torch']}, {where['device']}, threads: "
        f"{where['threads']}.",
    ]
    if results["dataset"] in PAPER and results["preset"] != "paper":
        notes.append("The paper's figures are of larger models, trained for far longer.")
    return notes
