"""The report's tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from benchmarks.measure.machine import Limits
from benchmarks.report.tables import table
from replication.claims import CLAIMS, NOT_RUN, VERDICTS, Claim, Figures, digits
from replication.collect import Best, Stored
from replication.experiments import EXPERIMENTS
from replication.report.speedups import RIVALS, cases, counted, times

STALE = "stale: "


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
    names = defaultdict[str, list[object]](list)
    for claim in CLAIMS:
        # Rows that turn a ratio around, or name it in two places, rest on one measurement.
        figures = frozenset(name for rule in claim.rules for name in rule.figures)
        names[verdict(claim, behind(claim, best))].append((claim.experiments[-1], figures))
    rows = [
        [
            words,
            *(f"{len(each)} ({len(set(each))})" for each in (names[words], names[STALE + words])),
        ]
        for words in VERDICTS
    ]
    return table(["verdict", "claims (distinct measurements)", "by stale measurements"], rows)


def claims(chosen: Iterable[Claim], best: Best) -> str:
    """A row for each claim: verdict, the paper's number, the rule, ours, ratios, command.

    Below it, what the paper measured these on.
    """
    chosen = list(chosen)
    names = ["claim", "verdict", "the paper", "confirmed if", "here", "ratio, paper"]
    names += ["ratio, here", "compiled steps", "command"]
    columns = zip(names, *(_row(claim, best) for claim in chosen), strict=True)
    header, *rows = zip(*(column for column in columns if any(column[1:])), strict=True)
    hardware = "; ".join(dict.fromkeys(claim.hardware for claim in chosen if claim.hardware))
    return table(header, rows) + f"\n\nThe paper measured on: {hardware}." * bool(hardware)


def _row(claim: Claim, best: Best) -> list[str]:
    stored, rule = behind(claim, best), claim.rule
    figures: Figures = {} if stored is None else stored.measurement.figures
    ours, fault, ratios = figures.get(rule.figure), claim.fault(figures), ["", "", ""]
    if rule.paper is not None:
        value, compiled = rule.value(figures), claim.compiled(figures)
        ratios = [digits(rule.paper), "-" if value is None else digits(value)]
        ratios += ["" if compiled is None else digits(compiled)]
    name = claim.experiments[0] if stored is None else stored.measurement.experiment
    return [
        f"{claim.where}: {claim.says}" + f" ({claim.note})" * bool(claim.note),
        verdict(claim, stored) + f"; {fault}" * bool(fault),
        claim.paper,
        "; ".join(f"{each.figure} " * (each is not rule) + each.words for each in claim.rules),
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
        cost = experiment.expected_cost(preset)
        least, taken = cost.seconds(limits), ["-", "-"]
        if measurement is not None and (spent := measurement.spent) is not None:
            least, taken = (
                spent.least_seconds,
                [_duration(spent.seconds), f"{spent.memory / 1e9:.1f}"],
            )
        work, memory = f"{cost.operations / 1e12:,.2f}", f"{cost.memory / 1e9:.1f}"
        rows.append(
            [f"[{name}](#{name})", preset, work, _duration(least), taken[0], memory, taken[1]]
        )
    header = ["experiment", "preset", "10^12 operations", "least time", "measured time"]
    return table([*header, "least GB", "measured GB"], rows)


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
    threads = f"{machine.threads} thread" + "s" * (machine.threads != 1)
    return f"{machine.hardware}; {threads}; {versions}"


def speed_ups(best: Best) -> str:
    """The gain over both rivals by length and batch: in PyTorch, compiled, and the paper's."""
    header = ["compared with", "tokens", "batch", "CPU here, in PyTorch", "CPU here, compiled"]
    header += ["paper, CPU", "GPU here, in PyTorch", "paper, GPU", "by operations"]
    rows = [
        [words, f"{case.length:,}", case.batch, times(case.eager), times(case.compiled),
         times(case.paper_cpu), times(case.gpu), times(case.paper_gpu),
         times(counted(rival, case.length))]
        for rival, words in RIVALS.items()
        for case in sorted(cases(best, rival), key=lambda case: case.length)
    ]  # fmt: skip
    return table(header, rows)
