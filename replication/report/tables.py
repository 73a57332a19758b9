"""The report's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from benchmarks.measure.machine import Limits
from benchmarks.report.tables import table
from linattn_models.training import figure
from replication.claims import CLAIMS, Claim
from replication.claims.claim import NOT_RUN, VERDICTS, Figures, Rule, shown
from replication.claims.generation import ALONE, THROUGHPUT
from replication.collect import Best, Stored
from replication.experiments import EXPERIMENTS
from replication.experiments.cost import MNIST
from replication.report.plots import LENGTHS, WAYS, by_batch, counted, ratio

STALE = "stale: "
RIVALS = {"softmax": "softmax that reruns", "stateful-softmax": "softmax with a cache"}
SPEEDS = {"one": "1/seconds", "best": "best/images-per-second"}


def behind(claim: Claim, best: Best) -> Stored | None:
    """The measurement that the claim's verdict rests on: a fresh one before a stale one."""
    sound = {name: each for name, each in best.items() if each.measurement.sound}
    fresh = {name for name, each in sound.items() if each.stale is None}
    name = claim.measured_by(fresh, sound)
    return None if name is None else sound[name]


def verdict(claim: Claim, stored: Stored | None) -> str:
    """The verdict in words, marked where the measurement is stale."""
    if stored is None:
        return NOT_RUN
    measurement = stored.measurement
    words = claim.judge(measurement.figures, measurement.preset, measurement.device)
    return STALE + words if words != NOT_RUN and stored.stale else words


def tally(best: Best) -> str:
    """How many claims came out how, and how many measurements that differ stand behind them."""
    counts: Counter[str] = Counter()
    measured: dict[str, set[object]] = {}
    for claim in CLAIMS:
        words = verdict(claim, behind(claim, best))
        counts[words] += 1
        # Rows that turn a ratio around, or name it in two places, rest on one measurement.
        measured.setdefault(words, set()).add((claim.experiment, frozenset(claim.rule.figures)))
    rows = [
        [words, *(_counted(counts, measured, mark + words) for mark in ("", STALE))]
        for words in VERDICTS
    ]
    header = ["verdict", "claims (distinct measurements)", "by stale measurements"]
    return table(header, rows)


def _counted(counts: Counter[str], measured: dict[str, set[object]], words: str) -> str:
    if words == STALE + NOT_RUN:
        return "-"
    return f"{counts[words]} ({len(measured.get(words, ()))})"


def claims(chosen: Iterable[Claim], best: Best) -> str:
    """A row for each claim: verdict, the paper's number, the rule, ours, ratios, command."""
    names = ["claim", "verdict", "the paper", "confirmed if", "here", "ratio, paper"]
    names += ["ratio, here", "compiled steps", "command"]
    columns = zip(names, *(_row(claim, best) for claim in chosen), strict=True)
    header, *rows = zip(*(column for column in columns if any(column[1:])), strict=True)
    return table(header, rows)


def _row(claim: Claim, best: Best) -> list[str]:
    stored, rule = behind(claim, best), claim.rule
    figures: Figures = {} if stored is None else stored.measurement.figures
    ours, fault, ratios = figures.get(rule.figure), rule.fault(figures), ["", "", ""]
    if isinstance(rule, Rule) and rule.paper is not None:
        compiled = claim.compiled(figures)
        value = rule.value(figures)
        ratios = [
            shown(rule.paper),
            "-" if value is None else shown(value),
            "" if compiled is None else shown(compiled),
        ]
    note = f" ({claim.note})" if claim.note else ""
    name = claim.experiments[0] if stored is None else stored.measurement.experiment
    return [
        f"{claim.says}{note}",
        verdict(claim, stored) + (f"; {fault}" if fault else ""),
        claim.paper,
        rule.words,
        "-" if ours is None else f"{ours:,.4g} {claim.unit}",
        *ratios,
        f"[{name}](#{name})",
    ]


def resources(best: Best, limits: Limits) -> str:
    """What each experiment should cost, and what it did."""
    rows = []
    for name, experiment in EXPERIMENTS.items():
        measurement = best[name].measurement if name in best else None
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


def machines(best: Best, everything: Iterable[Stored]) -> str:
    """Where and by which code each verdict was measured, and what else is kept."""
    chosen = {id(each) for each in best.values()}
    known = sorted(everything, key=lambda each: id(each) not in chosen)
    where = list(dict.fromkeys(map(_machine, known)))
    rows = [
        [
            each.measurement.experiment,
            f"{each.measurement.source or 'nox -s paper'}, {each.measurement.preset}",
            each.measurement.machine.date,
            f"`{each.measurement.machine.commit}`",
            f"{where.index(_machine(each)) + 1}",
            _state(each),
            "yes" if id(each) in chosen else "no, kept apart",
        ]
        for each in known
    ]
    header = ["experiment", "from", "date", "commit", "machine", "state", "verdicts rest on it"]
    listed = "\n".join(f"{number}. {words}" for number, words in enumerate(where, 1))
    return f"{table(header, rows)}\n\nMachines:\n\n{listed}"


def _state(stored: Stored) -> str:
    if stored.measurement.error:
        return "failed: `" + stored.measurement.error.replace("`", "'") + "`"
    return f"stale: {stored.stale}" if stored.stale else "fresh"


def _machine(stored: Stored) -> str:
    machine = stored.measurement.machine
    versions = machine.software.partition(", linattn")[0]
    return f"{machine.hardware}; {machine.threads} threads; {versions}"


def speed_ups(best: Best) -> str:
    """The gain over both rivals by length and batch: in PyTorch, compiled, and the paper's."""
    header = ["tokens", "batch", "times as fast as", "in PyTorch", "compiled", "operations alone"]
    rows = [
        [f"{length:,}", batch, words, times(eager), times(compiled),
         times(counted(MNIST, rival, length)), times(paper)]
        for rival, words in RIVALS.items()
        for length, batch, eager, compiled, paper in sorted(_cases(best, rival), key=lambda x: x[0])
    ]  # fmt: skip
    return table([*header, "the paper, GPU"], rows)


Case = tuple[int, str, float | None, float | None, float | None]


def _cases(best: Best, rival: str) -> Iterator[Case]:
    """Length, batch, gains in PyTorch and compiled, and the paper's."""
    for shape, length in LENGTHS.items():
        for which, batch in (("one", "1, an image"), ("best", "the best of each")):
            yield length, batch, *gains(best, shape, rival, which), paper_gain(shape, rival, which)
    grid = best["speedup"].measurement.figures if "speedup" in best else {}
    for side_by_side, points in by_batch(grid, rival).items():
        for at, eager in points:
            name = f"{at:.0f}/{side_by_side}/seconds"
            compiled = ratio(grid, "linear-compiled", rival, name)
            yield int(at), str(side_by_side), eager, compiled, None


def gains(best: Best, shape: str, rival: str, which: str) -> tuple[float | None, float | None]:
    """Times as fast as a rival, in PyTorch and compiled; one image, or the best batch of each."""
    name = f"generation-{shape}"
    figures = best[name].measurement.figures if name in best else {}
    eager, compiled = (ratio(figures, way, rival, SPEEDS[which]) for _, way in WAYS)
    return eager, compiled


def paper_gain(shape: str, rival: str, which: str) -> float:
    """The paper's gain on a GPU: for one image (table 5), or at the best batch (table 4)."""
    if which == "one":
        return ALONE[shape][rival][1] / ALONE[shape]["linear"][1]
    return THROUGHPUT[shape]["linear"] / THROUGHPUT[shape][rival]


def times(gain: float | None) -> str:
    """A factor as "317x"; a dash for none."""
    return "-" if gain is None else f"{figure(gain)}x"
