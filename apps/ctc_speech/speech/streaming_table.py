"""What is measured of recognizers that stream, and the table of several."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from linattn_lab.store import Record, latest_results
from linattn_lab.tables import markdown_table
from speech.live import LiveMeasures

WHOLE = "whole"


class Streaming(BaseModel, frozen=True):
    """What was measured of one run.

    Attributes:
        split: the utterances.
        search: what the second error rates are decoded with.
        updates: of its training.
        chunk: output frames of a chunk, where nothing else is said.
        errors: by chunk, greedy and by the search; WHOLE: the utterance in one chunk.
        live: by chunk and number of streams side by side.
        levels: greedy error rates, by decibels.
        minutes, long: of the stream without a reset, and its greedy error rate.
        step_seconds: of the model alone, in torch and in onnxruntime.
        growth_minutes, growth: of the stream whose memory is measured, and bytes it grew by.
        search_bytes: the most bytes of its hypotheses, and of the frames that are kept for them.
    """

    split: str
    search: str
    updates: int
    chunk: int
    errors: dict[str, tuple[float, float]]
    live: dict[str, LiveMeasures]
    levels: dict[str, float]
    minutes: float
    long: float
    step_seconds: dict[str, float]
    growth_minutes: float
    growth: int
    search_bytes: int


def write_document(records: Sequence[Record[Streaming]]) -> str:
    """The table, a column for each run by its name; `records` are not empty, the newest first."""
    runs = dict(sorted(latest_results(records).items()))
    columns = {name: write_column(run) for name, run in runs.items()}
    rows = dict.fromkeys(name for column in columns.values() for name in column)
    first = next(iter(runs.values()))
    machines = dict.fromkeys(f"{x.machine.hardware}; {x.machine.software}" for x in records)
    commands = dict.fromkeys(x.command for x in reversed(records))
    dates = ", ".join(dict.fromkeys(x.date for x in reversed(records)))
    parts = [
        "# Speech as it arrives",
        markdown_table(
            ["", *runs], [[row, *(x.get(row, "-") for x in columns.values())] for row in rows]
        ).strip(),
        f"Phoneme error rates on {first.split}. A chunk has frames of 40 ms. search: "
        f"{first.search}. all at once: the same weights, an utterance in one chunk. delay: from "
        "the end of a phone to the result from which on it stays, without computing. revised: "
        "results that change phones of the result before. a step: the model alone, one stream, on "
        "a CPU.",
        f"Measured on {dates}: {'; '.join(machines)}.",
        "Made by:\n\n" + "\n".join(f"    {x}" for x in commands),
    ]
    return "\n\n".join(parts) + "\n"


def write_column(run: Streaming) -> dict[str, str]:
    """What was measured of a run, by the name of the row."""
    column = {"updates": f"{run.updates:,}"}
    for chunk, (greedy, search) in run.errors.items():
        which = "all at once" if chunk == WHOLE else f"chunk {chunk}"
        column |= {f"{which}, greedy": f"{greedy:.2%}", f"{which}, search": f"{search:.2%}"}
    here = f"chunk {run.chunk}, greedy"
    column |= {f"{here}, {level}": f"{rate:.2%}" for level, rate in run.levels.items()}
    column[f"{here}, {run.minutes:g} minutes without reset"] = f"{run.long:.2%}"
    for name, x in run.live.items():
        delays = (x.delay_p50, x.delay_p95)
        column |= {
            f"{name}: seconds for one of audio": f"{x.real_time_factor:.3f}",
            f"{name}: delay p50 / p95": " / ".join(map(_milliseconds, delays)),
            f"{name}: revised": f"{x.revised:.1%}",
            f"{name}: bytes of a state": f"{x.state_bytes:,}",
        }
    for name, seconds in run.step_seconds.items():
        column[f"chunk {run.chunk}: a step, {name}"] = f"{1e3 * seconds:.2f} ms"
    column[f"growth over {run.growth_minutes:g} minutes"] = f"{run.growth / 1e6:.2f} MB"
    column["bytes of hypotheses, at most"] = f"{run.search_bytes:,}"
    return column


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.0f} ms"
