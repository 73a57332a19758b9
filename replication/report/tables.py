"""The report's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.measure.machine import Limits
from benchmarks.report.tables import table
from linattn_models.training import figure
from replication.claims import CLAIMS, Claim
from replication.claims.claim import NOT_RUN, VERDICTS, Figures, Ratio
from replication.claims.generation import ALONE, THROUGHPUT, shown
from replication.collect import Status
from replication.experiments import EXPERIMENTS
from replication.experiments.cost import MNIST
from replication.measurement import Measurement
from replication.report.plots import LENGTHS, counted

STALE = "stale: "
Best = Mapping[str, Measurement]
RIVALS = {"softmax": "softmax that reruns", "stateful-softmax": "softmax with a cache"}


def verdict(claim: Claim, measurement: Measurement | None, status: Status) -> str:
    """The verdict in words, marked where the measurement is stale."""
    if measurement is None or not measurement.sound:
        return NOT_RUN
    words = claim.judge(measurement.figures, measurement.preset)
    return STALE + words if words != NOT_RUN and status.why(measurement) else words


def tally(best: Best, status: Status) -> str:
    """How many claims came out how."""
    counts = Counter(verdict(claim, best.get(claim.experiment), status) for claim in CLAIMS)
    rows = [
        [words, str(counts[words]), str(counts[STALE + words]) if words != NOT_RUN else "-"]
        for words in VERDICTS
    ]
    return table(["verdict", "claims", "by stale measurements"], rows)


def claims(chosen: Iterable[Claim], best: Best, status: Status) -> str:
    """A row for each claim: the verdict, the paper's number and ours, both ratios, the command."""
    names = ["claim", "verdict", "the paper", "here", "ratio, paper", "ratio, here", "command"]
    columns = zip(names, *(_row(claim, best, status) for claim in chosen), strict=True)
    header, *rows = zip(*(column for column in columns if any(column[1:])), strict=True)
    return table(header, rows)


def _row(claim: Claim, best: Best, status: Status) -> list[str]:
    measurement = best.get(claim.experiment)
    figures: Figures = measurement.figures if measurement is not None else {}
    ours = figures.get(claim.rule.figure)
    ratios = ["", ""]
    if isinstance(claim.rule, Ratio):
        over = figures.get(claim.rule.over)
        ratios[0] = shown(claim.rule.paper / claim.rule.paper_over)
        ratios[1] = "-" if ours is None or over is None else shown(ours / over)
    note = f" ({claim.note})" if claim.note else ""
    return [
        f"{claim.says}{note}",
        verdict(claim, measurement, status),
        claim.paper,
        "-" if ours is None else f"{ours:,.4g} {claim.unit}",
        *ratios,
        f"[{claim.experiment}](#{claim.experiment})",
    ]


def resources(best: Best, limits: Limits) -> str:
    """What each experiment should cost, and what it did."""
    rows = []
    for name, experiment in EXPERIMENTS.items():
        measurement = best.get(name)
        preset = "laptop" if measurement is None else measurement.preset
        cost, spent = experiment.cost(preset), None if measurement is None else measurement.spent
        least = cost.seconds(limits) if spent is None else spent.least_seconds
        rows.append([
            f"[{name}](#{name})",
            preset,
            f"{cost.operations / 1e12:,.2f}",
            _duration(least),
            "-" if spent is None else _duration(spent.seconds),
            f"{cost.memory / 1e9:.1f}",
            "-" if spent is None else f"{spent.memory / 1e9:.1f}",
        ])  # fmt: skip
    header = ["experiment", "preset", "10^12 operations", "least time", "time taken", "least GB"]
    return table([*header, "GB taken"], rows)


def _duration(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def machines(best: Best, others: Sequence[Measurement], status: Status) -> str:
    """Where and by which code each verdict was measured, and what else is kept."""
    known = [*best.values(), *others]
    where = list(dict.fromkeys(map(_machine, known)))
    rows = [
        [
            each.experiment,
            f"{each.source or 'nox -s paper'}, {each.preset}",
            each.machine.date,
            f"`{each.machine.commit}`",
            f"{where.index(_machine(each)) + 1}",
            _state(each, status),
            "yes" if best.get(each.experiment) is each else "no, kept apart",
        ]
        for each in known
    ]
    header = ["experiment", "from", "date", "commit", "machine", "state", "verdicts rest on it"]
    listed = "\n".join(f"{number}. {words}" for number, words in enumerate(where, 1))
    return f"{table(header, rows)}\n\nMachines:\n\n{listed}"


def _state(measurement: Measurement, status: Status) -> str:
    if measurement.error:
        return "failed: `" + measurement.error.replace("`", "'") + "`"
    return status.why(measurement) or "fresh"


def _machine(measurement: Measurement) -> str:
    machine = measurement.machine
    versions = machine.software.partition(", linattn")[0]
    return f"{machine.hardware}; {machine.threads} threads; {versions}"


def speed_ups(best: Best) -> str:
    """The gain over both rivals, taken apart: for one image, and what more come from batches."""
    header = ["images", "times as fast as", "operations alone", "where", "one image"]
    header += ["by larger batches", "best batch of each"]
    rows = []
    for shape, length in LENGTHS.items():
        measured = best.get(f"generation-{shape}")
        for rival, words in RIVALS.items():
            count = figure(counted(MNIST, rival, length)) + "x"
            start = [f"{shape}, {length:,}", words, count]
            paper = _paper_gain(shape, rival)
            rows.append([*start, "the paper, GPU", *_apart(*paper)])
            if measured is not None:
                rows += [
                    [*start, f"here, {made}", *_apart(*gain)]
                    for name, made in _linears(measured.figures)
                    if (gain := _gain(measured.figures, name, rival))
                ]
    return table(header, rows)


def _linears(figures: Figures) -> list[tuple[str, str]]:
    names = [name.removesuffix("/1/seconds") for name in figures if name.endswith("/1/seconds")]
    eager = next((name for name in names if name.startswith("linear (eager")), None)
    return [("linear", "compiled"), *([(eager, "in PyTorch")] if eager else [])]


def _gain(figures: Figures, linear: str, rival: str) -> tuple[float, float] | None:
    try:
        alone = figures[f"{rival}/1/seconds"] / figures[f"{linear}/1/seconds"]
        many = "best/images-per-second"
        return alone, figures[f"{linear}/{many}"] / figures[f"{rival}/{many}"]
    except KeyError:
        return None


def _paper_gain(shape: str, rival: str) -> tuple[float, float]:
    alone = ALONE[shape][rival][1] / ALONE[shape]["linear"][1]
    return alone, THROUGHPUT[shape]["linear"] / THROUGHPUT[shape][rival]


def _apart(alone: float, many: float) -> list[str]:
    return [f"{shown(value)}x" for value in (alone, many / alone, many)]


def grid(figures: Figures) -> str:
    """The speed-up over length and batch, where it was measured."""
    cases = [name.split("/") for name in figures if name.startswith("linear/")]
    rows = []
    for _, length, batch, _ in cases:
        seconds = {way: figures.get(f"{way}/{length}/{batch}/seconds") for way in WAYS}
        ours, eager = seconds["linear"], seconds["linear-eager"]
        rows.append([
            f"{int(length):,}",
            batch,
            figure(ours),
            *("-" if t is None or not s else f"{t / s:,.3g}x"
              for t in (seconds["stateful-softmax"], seconds["softmax"]) for s in (ours, eager)),
        ])  # fmt: skip
    header = ["tokens", "batch", "s a sequence", "over softmax with a cache", "(in PyTorch)"]
    return table([*header, "over softmax that reruns", "(in PyTorch)"], rows)


WAYS = ("linear", "linear-eager", "stateful-softmax", "softmax")
