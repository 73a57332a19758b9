"""What is measured of recognizers that stream, and the page about several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from linattn_lab.plots import Panel, plot_panels
from linattn_lab.store import Record, latest_results
from linattn_lab.tables import markdown_table, memory, seconds
from speech.live import LiveMeasures

WHOLE = "whole"
PLOT = "streaming.png"
Column = Mapping[str, str]  # by the name of the row


class Streaming(BaseModel, frozen=True):
    """What was measured of one run.

    Attributes:
        split: the utterances.
        search: what the second error rates are decoded with.
        updates: of its training.
        frame_ms: milliseconds of an output frame.
        chunk: output frames of a chunk, where nothing else is said.
        errors: by chunk, greedy and by the search; WHOLE: the utterance in one chunk.
        live: by chunk, then by the number of streams side by side.
        levels: greedy error rates, by decibels.
        minutes, long: of the stream without a reset, and its greedy error rate.
        step_seconds: of the model alone, in torch and in onnxruntime.
        growth_minutes, growth: of the stream whose memory is measured, and bytes it grew by.
        search_bytes: the most bytes of its hypotheses, and of the frames that are kept for them.
    """

    split: str
    search: str
    updates: int
    frame_ms: float
    chunk: int
    errors: dict[str, tuple[float, float]]
    live: dict[str, dict[str, LiveMeasures]]
    levels: dict[str, float]
    minutes: float
    long: float
    step_seconds: dict[str, float]
    growth_minutes: float
    growth: int
    search_bytes: int

    def heard(self, chunk: str) -> str:
        """How much is heard before an answer, in words."""
        return "all at once" if chunk == WHOLE else f"{int(chunk) * self.frame_ms:g} ms"


def write_document(records: Sequence[Record[Streaming]], folder: Path) -> str:
    """The page and, in the folder, its plot; `records` are not empty, the newest first."""
    runs = dict(sorted(latest_results(records).items()))
    first = next(iter(runs.values()))
    plot_errors(folder / PLOT, runs)
    machines = dict.fromkeys(f"{x.machine.hardware}; {x.machine.software}" for x in records)
    commands = dict.fromkeys(x.command for x in reversed(records))
    dates = ", ".join(dict.fromkeys(x.date for x in reversed(records)))
    threads = ", ".join(dict.fromkeys(str(x.machine.threads) for x in records))
    parts = [
        "# Speech as it arrives",
        f"![Phone error rates, over the milliseconds that are heard before an answer]({PLOT})",
        f"Phone error rates on {first.split}: the same weights answer after each of these times.",
        "## Errors",
        _table(runs, describe_errors),
        f"search: {first.search}. all at once: an utterance in one chunk. dB: utterances that are "
        f"louder. Rows without a time: {first.heard(str(first.chunk))}.",
        "## Delay and cost",
        _table(runs, describe_cost),
        "delay: from the end of a phone to the result from which on it stays, p50 / p95, without "
        "computing. revised: results that change phones of the result before. streams: seconds of "
        f"computing for a second of audio of each, with the search; threads: {threads}. step: the "
        "model alone, for one stream.",
        f"Measured on {dates}: {'; '.join(machines)}.",
        "Made by:\n\n" + "\n".join(f"    {x}" for x in commands),
    ]
    return "\n\n".join(parts) + "\n"


def plot_errors(path: Path, runs: Mapping[str, Streaming]) -> None:
    """Error rates over what is heard before an answer, a curve for each run."""
    panels = []
    for place, title in enumerate(("greedy", next(iter(runs.values())).search)):
        curves = {
            name: [
                (int(chunk) * run.frame_ms, 100 * rates[place])
                for chunk, rates in run.errors.items()
                if chunk != WHOLE
            ]
            for name, run in runs.items()
        }
        panels.append(Panel("milliseconds before an answer", curves, title))
    plot_panels(path, panels, ylabel="phone error rate, %")


def _table(runs: Mapping[str, Streaming], describe: Callable[[Streaming], Column]) -> str:
    """A column for each run."""
    columns = [describe(run) for run in runs.values()]
    rows = dict.fromkeys(name for column in columns for name in column)
    cells = [[row, *(column.get(row, "-") for column in columns)] for row in rows]
    return markdown_table(["", *runs], cells).strip()


def describe_errors(run: Streaming) -> Column:
    """The error rates of a run."""
    column = {"updates": f"{run.updates:,}"}
    for chunk, (greedy, search) in run.errors.items():
        heard = run.heard(chunk)
        column |= {f"{heard}, greedy": f"{greedy:.2%}", f"{heard}, search": f"{search:.2%}"}
    column |= {f"{level}, greedy": f"{rate:.2%}" for level, rate in run.levels.items()}
    column[f"{run.minutes:g} minutes without reset, greedy"] = f"{run.long:.2%}"
    return column


def describe_cost(run: Streaming) -> Column:
    """Delays, computing time and memory of a run."""
    column: dict[str, str] = {}
    state_bytes = 0
    for chunk, beside in run.live.items():
        heard, one = run.heard(chunk), next(iter(beside.values()))  # as many say the same
        state_bytes = one.state_bytes
        delays = f"{seconds(one.delay_p50)} / {seconds(one.delay_p95)}"
        column |= {f"{heard}, delay": delays, f"{heard}, revised": f"{one.revised:.1%}"}
        column |= {f"{heard}, streams: {n}": f"{x.real_time_factor:.3f}" for n, x in beside.items()}
    column |= {f"step, {library}": seconds(x) for library, x in run.step_seconds.items()}
    column["state of a stream"] = memory(state_bytes)
    column["hypotheses, at most"] = memory(run.search_bytes)
    column[f"growth over {run.growth_minutes:g} minutes"] = memory(run.growth)
    return column
