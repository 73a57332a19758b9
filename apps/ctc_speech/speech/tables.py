"""The results of a comparison as a document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from linattn_lab.compare import name_environments
from linattn_lab.tables import figure, markdown_table, table_of
from speech.comparison import model_name
from speech.error_rate import KINDS
from speech.presets import PAPER

SPLITS = ("dev", "test")


def comparison_document(results: Mapping[str, Any], command: str) -> str:
    """The tables, what their columns mean, the curves, and the paper's numbers."""
    parts = [
        f"# Phonemes from audio: {results['corpus']}",
        comparison_table(results).rstrip(),
        *_absent(results["absent"]),
        "\n\n".join([*_error_notes(results), *_cost_notes(results)]),
        "![The error rate of the dev set over updates and over time](curves.png)",
        "Greedy decoding, the weights of that update. Minutes are updates times the seconds per "
        "update above, not the clock of the training.",
        "The paper's table 3, larger data and models trained to the end:",
        _paper_table().rstrip(),
        _provenance(results["runs"]),
        f"Made by this command:\n\n    {command}",
    ]
    return "\n\n".join(parts) + "\n"


def comparison_table(results: Mapping[str, Any]) -> str:
    """Errors and costs, a row for each run that has ended."""
    runs, timing = results["runs"], results["timing"]
    errors = [{"model": name, **_errors(run, results["average"])} for name, run in runs.items()]
    costs = [{"model": name, **_costs(name, run, timing)} for name, run in runs.items()]
    return "\n".join(
        markdown_table(list(x[0]), [list(y.values()) for y in x]) for x in (errors, costs)
    )


def _errors(run: Mapping[str, Any], average: int) -> dict[str, str]:
    """A row of the table of errors, by column."""
    recognition = run["recognition"]
    tested = "test" in recognition
    row = _rates(recognition, "test") if tested else {}
    if tested and average > 1:
        row["test, last weights"] = f"{run['metrics']['phoneme_error_rate']:.2%}"
    row |= _rates(recognition, "dev")
    kinds = recognition["test" if tested else "dev"]["selected"]
    row |= {
        column: f"{kinds[kind]:.2%}"
        for column, kind in zip(("subst.", "ins.", "del."), KINDS, strict=True)
    }
    return row | {"selected": recognition["selected"]}


def _rates(recognition: Mapping[str, Any], split: str) -> dict[str, str]:
    of = recognition[split]
    return {
        f"{split}, greedy": f"{of['greedy']['phoneme_error_rate']:.2%}",
        f"{split}, selected": f"{of['selected']['phoneme_error_rate']:.2%}",
    }


def _costs(name: str, run: Mapping[str, Any], timing: Mapping[str, Any]) -> dict[str, str]:
    """A row of the table of costs, by column."""
    model = model_name(name)
    seconds, size = timing["seconds"][model], timing["bytes"].get(model)
    return {
        "updates": f"{run['steps']:,}",
        "s per update": figure(seconds),
        "s per epoch": figure(seconds * timing["batches"]),
        "parameters": f"{run['parameters']:,}",
        "memory": "-" if size is None else f"{size / 1e6:,.0f} MB",
    }


def _absent(absent: Mapping[str, str]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for name, reason in absent.items():
        by_reason.setdefault(reason, []).append(name)
    named = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
    return [f"Not in the tables: {named}."] if named else []


def _error_notes(results: Mapping[str, Any]) -> list[str]:
    recognition = next(iter(results["runs"].values()))["recognition"]
    tested, average = "test" in recognition, results["average"]
    mean = f"the mean of the last {average} checkpoints' weights"
    weights = mean if average > 1 else "the last weights"
    grid = {name: ", ".join(map("{:g}".format, x)) for name, x in recognition["grid"].items()}
    notes = [
        f"Phoneme error rates on {results['corpus']}, preset {results['preset']}, with {weights}. "
        "`-conv`: with a convolution before each block; `-seedN`: another seed than 0.",
        "selected: the decoding in the last column, which has the fewest errors on the dev set. "
        "The same were tried there for each model: greedy, and prefix beam search "
        f"({recognition['beam']} prefixes) without a language model and with n-grams of the "
        f"training transcripts, of order {grid['order']}, weight {grid['weight']} and a bonus of "
        f"{grid['bonus']} nats per phone. The test set "
        f"{'decided nothing' if tested else 'was left out'}.",
        f'subst., ins., del.: the parts of "{"test" if tested else "dev"}, selected". '
        f"{_sizes(recognition)}",
    ]
    if tested and average > 1:
        notes.append("test, last weights: greedy, as measured at the end of training.")
    return notes


def _sizes(recognition: Mapping[str, Any]) -> str:
    named = [f"{x} has {recognition[x]['phones']:,} phones" for x in SPLITS if x in recognition]
    return f"{', '.join(named)}."


def _cost_notes(results: Mapping[str, Any]) -> list[str]:
    timing = results["timing"]
    where = timing["environment"]
    return [
        f"Each model has {results['minutes']:g} minutes of updates, by the seconds per update that "
        f"were measured first, the models taking turns ({timing['rounds']} rounds); torch "
        f"{where['torch']}, {where['device']}, threads: {where['threads']}.",
        *([timing["note"]] if "note" in timing else []),
        "memory: by how much it rises during an update of the longest batch.",
    ]


def _provenance(runs: Mapping[str, Mapping[str, Any]]) -> str:
    recognitions = [run["recognition"] for run in runs.values()]
    dates = ", ".join(dict.fromkeys(recognition["date"] for recognition in recognitions))
    trained = name_environments(run["environment"] for run in runs.values())
    decoded = name_environments(recognition["environment"] for recognition in recognitions)
    return f"Trained at {trained}. Decoded on {dates} at {decoded}."


def _paper_table() -> str:
    """Table 3 of the paper: WSJ, on a GPU."""
    columns: dict[str, Callable[[tuple[float, int]], str]] = {
        "validation": lambda row: f"{row[0]}%",
        "s per epoch (GPU)": lambda row: f"{row[1]:,}",
    }
    return table_of(PAPER, columns, first="paper, WSJ")
