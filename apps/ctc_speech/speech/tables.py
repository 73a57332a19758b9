"""The results of a comparison as a document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from linattn_models.training import figure, markdown_table

# Table 3 of the paper: phoneme error rate on WSJ's validation set, %, and seconds per epoch.
PAPER = {
    "lstm": (10.94, 1_047),
    "softmax": (5.12, 2_711),
    "lsh-4": (9.33, 2_250),
    "linear": (8.08, 824),
}


def comparison_document(results: Mapping[str, Any], command: str) -> str:
    """The table, what its columns mean, the curves, and the paper's numbers."""
    parts = [
        f"# Phonemes from audio: {results['corpus']}",
        comparison_table(results).rstrip(),
        "\n".join(_notes(results)),
        "![The error rate of the dev set over updates and over time](curves.png)",
        "The paper's table 3, larger data and models trained to the end:",
        _paper_table().rstrip(),
        f"Made by this command:\n\n    {command}",
    ]
    return "\n\n".join(parts) + "\n"


def comparison_table(results: Mapping[str, Any]) -> str:
    """A row for each run that has ended."""
    average = results["average"]
    header = ["model", "test"]
    if average > 1:
        header += [f"test, mean of {average}", f"dev, mean of {average}"]
    header += ["dev", "updates", "s per update", "s per epoch", "parameters", "memory"]
    timing = results["timing"]
    rows = [_row(name, run, timing) for name, run in results["runs"].items()]
    return markdown_table(header, rows)


def _row(name: str, run: Mapping[str, Any], timing: Mapping[str, Any]) -> list[str]:
    metrics, model = run["metrics"], name.partition("-seed")[0]
    seconds, averaged = timing["seconds"][model], run.get("averaged", {})
    return [
        name,
        f"{metrics['phoneme_error_rate']:.2%}",
        *[f"{averaged[split]:.2%}" for split in ("test", "dev") if averaged],
        f"{metrics['dev_phoneme_error_rate']:.2%}",
        f"{run['steps']:,}",
        figure(seconds),
        figure(seconds * timing["batches"]),
        f"{run['parameters']:,}",
        _memory(timing["bytes"].get(model)),
    ]


def _memory(size: float | None) -> str:
    return "-" if size is None else f"{size / 1e6:,.0f} MB"


def _notes(results: Mapping[str, Any]) -> list[str]:
    timing, average = results["timing"], results["average"]
    where = timing["environment"]
    notes = [
        f"Phoneme error rates on {results['corpus']}, preset {results['preset']}. `-conv`: with "
        "a convolution before each block; `-seedN`: another seed than 0.",
        f"Each model has {results['minutes']:g} minutes of updates, by the seconds per update that "
        f"were measured first, the models taking turns ({timing['rounds']} rounds); torch "
        f"{where['torch']}, {where['device']}, threads: {where['threads']}.",
        "memory: by how much it rises during an update of the longest batch.",
    ]
    if average > 1:
        notes.append(f"mean of {average}: of the weights of the last {average} checkpoints.")
    return notes


def _paper_table() -> str:
    """Table 3 of the paper: WSJ, on a GPU."""
    rows = [[name, f"{error}%", f"{seconds:,}"] for name, (error, seconds) in PAPER.items()]
    return markdown_table(["paper, WSJ", "validation", "s per epoch (GPU)"], rows)
