"""The results of a comparison as a document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from linattn_lab.compare import name_environments
from linattn_lab.tables import figure, table_of
from speech.comparison import model_name
from speech.error_rate import KINDS
from speech.presets import PAPER

Results = Mapping[str, Any]
"""The content of results.json."""
Columns = dict[str, Callable[[Any], str]]

PAPER_COLUMNS: Columns = {
    "validation": lambda row: f"{row[0]}%",
    "s per epoch (GPU)": lambda row: f"{row[1]:,}",
}


def comparison_document(results: Results, command: str) -> str:
    """The tables, what their columns mean, the curves, and the paper's numbers."""
    absent = [f"{name} ({how_far})" for name, how_far in results["absent"].items()]
    parts = [
        f"# Phonemes from audio: {results['corpus']}",
        comparison_table(results).rstrip(),
        f"Not in the tables: {'; '.join(absent)}." if absent else "",
        _error_notes(results),
        _cost_notes(results),
        "![The error rate of the dev set over updates and over time](curves.png)",
        "Greedy decoding, the weights of that update. Minutes are updates times the seconds per "
        "update above, not the clock of the training.",
        "The paper's table 3, larger data and models trained to the end:",
        table_of(PAPER, PAPER_COLUMNS, first="paper, WSJ").rstrip(),
        _provenance(results["runs"]),
        f"Made by this command:\n\n    {command}",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def comparison_table(results: Results) -> str:
    """Errors and costs, a row for each run that has ended."""
    runs = {name: {"name": name, **run} for name, run in results["runs"].items()}
    both = _error_columns(results), _cost_columns(results["timing"])
    return "\n".join(table_of(runs, columns, first="model") for columns in both)


def _error_columns(results: Results) -> Columns:
    def rate(split: str, decoding: str, kind: str = "phoneme_error_rate") -> Callable[[Any], str]:
        return lambda run: f"{run['recognition'][split][decoding][kind]:.2%}"

    split, averaged = _last_split(results), results["average"] > 1
    columns: Columns = {}
    for each in dict.fromkeys((split, "dev")):
        columns[f"{each}, greedy"] = rate(each, "greedy")
        columns[f"{each}, selected"] = rate(each, "selected")
        if each == "test" and averaged:
            columns["test, last weights"] = lambda x: f"{x['metrics']['phoneme_error_rate']:.2%}"
    for title, kind in zip(("subst.", "ins.", "del."), KINDS, strict=True):
        columns[title] = rate(split, "selected", kind)
    return {**columns, "selected": lambda run: str(run["recognition"]["selected"])}


def _last_split(results: Results) -> str:
    """The test set, or the dev set as long as the test set was left out."""
    recognition = next(iter(results["runs"].values()))["recognition"]
    return "test" if "test" in recognition else "dev"


def _cost_columns(timing: Mapping[str, Any]) -> Columns:
    def seconds(run: Mapping[str, Any]) -> float:
        return float(timing["seconds"][model_name(run["name"])])

    def memory(run: Mapping[str, Any]) -> str:
        size = timing["bytes"].get(model_name(run["name"]))
        return "-" if size is None else f"{size / 1e6:,.0f} MB"

    return {
        "updates": lambda run: f"{run['steps']:,}",
        "s per update": lambda run: figure(seconds(run)),
        "s per epoch": lambda run: figure(seconds(run) * timing["batches"]),
        "parameters": lambda run: f"{run['parameters']:,}",
        "memory": memory,
    }


def _error_notes(results: Results) -> str:
    recognition = next(iter(results["runs"].values()))["recognition"]
    split, average = _last_split(results), results["average"]
    mean = f"the mean of the last {average} checkpoints' weights"
    grid = {name: ", ".join(map("{:g}".format, x)) for name, x in recognition["grid"].items()}
    sizes = [f"{x} has {recognition[x]['phones']:,} phones" for x in dict.fromkeys(("dev", split))]
    return f"""\
Phoneme error rates on {results["corpus"]}, preset {results["preset"]}, with \
{mean if average > 1 else "the last weights"} (last weights: greedy, with those of the last \
update). `-conv`: with a convolution before each block; `-seedN`: another seed than 0.

selected: the decoding in the last column, which has the fewest errors on the dev set. The same \
were tried there for each model: greedy, and prefix beam search ({recognition["beam"]} prefixes) \
without a language model and with n-grams of the training transcripts, of order {grid["order"]}, \
weight {grid["weight"]} and a bonus of {grid["bonus"]} nats per phone. The test set \
{"decided nothing" if split == "test" else "was left out"}.

subst., ins., del.: the parts of "{split}, selected". {", ".join(sizes)}."""


def _cost_notes(results: Results) -> str:
    timing = results["timing"]
    where = timing["environment"]
    note = f"{timing['note']}\n\n" if "note" in timing else ""
    return f"""\
Each model has {results["minutes"]:g} minutes of updates, by the seconds per update that were \
measured first, the models taking turns ({timing["rounds"]} rounds); torch {where["torch"]}, \
{where["device"]}, threads: {where["threads"]}.

{note}memory: by how much it rises during an update of the longest batch."""


def _provenance(runs: Mapping[str, Mapping[str, Any]]) -> str:
    recognitions = [run["recognition"] for run in runs.values()]
    dates = ", ".join(dict.fromkeys(recognition["date"] for recognition in recognitions))
    trained = name_environments(run["environment"] for run in runs.values())
    decoded = name_environments(recognition["environment"] for recognition in recognitions)
    return f"Trained at {trained}. Decoded on {dates} at {decoded}."
