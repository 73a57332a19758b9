"""The report's tables."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.measure.machine import Limits
from benchmarks.report.tables import table
from linattn_lab.tables import figure
from replication.claims import CLAIMS, NOT_RUN, VERDICTS, Claim, Figures, digits
from replication.collect import FOLDER, Best, Stored
from replication.experiments import EXPERIMENTS
from replication.read import PICTURES, SUMMARY
from replication.report.curve import Run
from replication.report.phrases import DAY, PAPER_IMAGES
from replication.report.speedups import (
    COMPILED,
    ON,
    OPERATOR,
    RIVALS,
    SHAPES,
    SPEEDS,
    WAYS,
    cases,
    gains,
    gains_in,
    paper_gain,
    times,
)
from replication.validation import loaded

STALE = "stale: "
FEWEST_UPDATES = 500  # that say something of a model; MNIST's 120 show 960 images
# What the preset laptop of an experiment needs, in words.
NEEDS = {
    name: "needs a GPU" if need == "cuda" else f"needs the data set {need}"
    for name, x in EXPERIMENTS.items()
    if (need := x.needs.get("laptop"))
}


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


def grids(best: Best) -> list[tuple[str, str]]:
    """The pictures that the measurements behind the verdicts kept: files and captions."""
    known: dict[str, str] = {}
    for claim in CLAIMS:
        attention, _, drawn = claim.rule.figure.partition("/")
        picture, stored = drawn.removesuffix("-over-independent"), behind(claim, best)
        if picture not in PICTURES or stored is None or attention not in stored.trainings:
            continue
        run = stored.trainings[attention]
        file = run / f"{picture}.png"
        if file.exists():
            with loaded(run / SUMMARY) as summary:
                images, updates = SHAPES.get(summary["dataset"], ""), summary["steps"]
            words = f"{attention} attention: {picture} of {images} after {updates:,} updates"
            known[Path(os.path.relpath(file, FOLDER)).as_posix()] = words
    return list(known.items())


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
    return table(["verdict", "by fresh measurements", "by stale measurements"], rows)


def claims(chosen: Iterable[Claim], best: Best) -> str:
    """A row for each claim: verdict, the paper's number, the rule, ours, ratios, command.

    Below it, what the paper measured these on, and what those that were not run need.
    """
    chosen = list(chosen)
    names = ["claim", "verdict", "the paper", "confirmed if", "here", "ratio, paper"]
    names += ["ratio, here", "compiled steps", "command"]
    columns = zip(names, *(_row(claim, best) for claim in chosen), strict=True)
    header, *rows = zip(*(column for column in columns if any(column[1:])), strict=True)
    hardware = "; ".join(dict.fromkeys(claim.hardware for claim in chosen if claim.hardware))
    below = [f"The paper measured on: {hardware}."] * bool(hardware)
    missing = [claim.experiments[-1] for claim in chosen if behind(claim, best) is None]
    below += [f"Not run: {_lacking(name, best)}." for name in dict.fromkeys(missing)]
    return "\n\n".join([table(header, rows), *below])


def _lacking(name: str, best: Best) -> str:
    """Why an experiment has no measurement, and what to do."""
    experiment, link = EXPERIMENTS[name], f"[{name}](#{name})"
    if failure := _failure(name, best):
        return f"{link} {failure}"
    need = NEEDS.get(name)
    return f"{link} {need}: {experiment.missing}" if need else f"no run of {link} is kept"


def _failure(name: str, best: Best) -> str:
    """How an experiment failed; empty where it did not, or was not run."""
    error = best[name].measurement.error if name in best else None
    return "failed: `" + error.replace("`", "'") + "`" if error else ""


def _row(claim: Claim, best: Best) -> list[str]:
    stored, rule = behind(claim, best), claim.rule
    figures: Figures = {} if stored is None else stored.measurement.figures
    reason = claim.fault(figures)
    if stored is None:
        failures = [failure for x in claim.experiments if (failure := _failure(x, best))]
        reason = next(iter(failures), NEEDS.get(claim.experiments[-1], ""))
    ratios = ["", "", ""]
    if rule.paper is not None:
        value, compiled = rule.value(figures), claim.compiled(figures)
        ratios = [digits(rule.paper), "-" if value is None else digits(value)]
        ratios += ["" if compiled is None else digits(compiled)]
    name = claim.experiments[0] if stored is None else stored.measurement.experiment
    return [
        f"{claim.where}: {claim.says}" + f" ({claim.note})" * bool(claim.note),
        verdict(claim, stored) + f"; {reason}" * bool(reason),
        claim.paper,
        "; ".join(f"{each.figure} " * (each is not rule) + each.words for each in claim.rules),
        _ours(claim, figures) + _where(claim, stored, best),
        *ratios,
        f"[{name}](#{name})",
    ]


def _ours(claim: Claim, figures: Figures) -> str:
    """Our figure; for a ratio both, and for what was trained the updates."""
    if claim.rule.figure not in figures:
        return "-"
    attention, _, what = claim.rule.figure.partition("/")
    updates = figures.get(f"{attention}/updates")
    if what.endswith("-over-independent"):  # of a picture, whose model may have had more
        updates = figures.get(f"{attention}/updates-drawn", updates)
    after = "" if updates is None else f" after {updates:,.0f} updates"
    if updates is not None and updates < FEWEST_UPDATES:
        after += ", too few to decide"
    if what == "loss-above-softmax" and (share := figures.get("softmax/loss-over-linear")):
        after += f": {figure(1 / share)} times softmax's loss"
    return f"{_amounts(claim, figures)} {claim.unit}{after}"


def _amounts(claim: Claim, figures: Figures) -> str:
    """The figure that is shown; for a ratio both."""
    names = [name for name in claim.rule.figures if name in figures]
    return " over ".join(_amount(figures[name]) for name in names)


def _where(claim: Claim, stored: Stored | None, best: Best) -> str:
    """That a CPU decides on a GPU's row; beside it a GPU's measurement, which is stale then."""
    if claim.scale != "gpu" or stored is None or stored.measurement.device == "cuda":
        return ""
    kept = (best[name].measurement for name in claim.experiments if name in best)
    gpu: Figures = next((x.figures for x in kept if x.sound and x.device == "cuda"), {})
    beside = f" (stale, on a GPU: {_amounts(claim, gpu)})" if claim.rule.figure in gpu else ""
    return f", on the CPU{beside}"


def _amount(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


def resources(best: Best, limits: Limits, everything: Sequence[Stored]) -> str:
    """What each experiment should cost, and what it did; rows that did not run by `limits`."""
    rows, where = [], numbered(best, everything)
    for name, experiment in EXPERIMENTS.items():
        made = best[name].measurement if name in best else None
        spent = None if made is None else made.spent
        preset = "laptop" if made is None else made.preset
        cost = experiment.expected_cost(preset)
        least, memory, taken = cost.seconds(limits), cost.memory, ["-", "-", "-"]
        if made is not None and spent is not None:
            least, memory = spent.least_seconds, spent.least_memory
            host = " (host's)" if made.device == "cuda" else ""
            taken = [_duration(spent.seconds), f"{spent.memory / 1e9:.1f}{host}"]
            taken.append(f"{where.index(_machine(best[name])) + 1}")
        work, needed = f"{cost.operations / 1e12:,.2f}", f"{memory / 1e9:.1f}"
        link = f"[{name}](#{name})"
        rows.append([link, preset, work, _duration(least), taken[0], needed, *taken[1:]])
    header = ["experiment", "preset", "10^12 operations", "least time", "measured time"]
    return table([*header, "least GB", "measured GB", "machine"], rows)


def _duration(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def machines(best: Best, everything: Sequence[Stored]) -> str:
    """Where and by which code each verdict was measured, and what else is kept."""
    chosen = {id(each) for each in best.values()}
    where = numbered(best, everything)
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
        for each in _in_order(best, everything)
    ]
    header = ["experiment", "from", "date", "commit", "machine", "state", "verdicts rest on it"]
    listed = "\n".join(f"{number}. {words}" for number, words in enumerate(where, 1))
    return f"{table(header, rows)}\n\nMachines:\n\n{listed}"


def _in_order(best: Best, everything: Sequence[Stored]) -> list[Stored]:
    """Those that verdicts rest on before the others."""
    chosen = {id(each) for each in best.values()}
    return sorted(everything, key=lambda each: id(each) not in chosen)


def numbered(best: Best, everything: Sequence[Stored]) -> list[str]:
    """The machines of all that is kept, in the order in which the report counts them."""
    return list(dict.fromkeys(map(_machine, _in_order(best, everything))))


def _state(stored: Stored) -> str:
    made = stored.measurement
    if failure := _failure(made.experiment, {made.experiment: stored}):
        return failure
    return f"stale: {stored.stale}" if stored.stale else "fresh"


def _machine(stored: Stored) -> str:
    machine = stored.measurement.machine
    versions = machine.software.partition(", linattn")[0]
    threads = f"{machine.threads} thread" + "s" * (machine.threads != 1)
    return f"{machine.hardware}; {threads}; {versions}"


def images(best: Best) -> str:
    """The gain over both rivals on the paper's images: here and the paper's."""
    header = ["compared with", "images", "batch", *(f"CPU, {way}" for way in WAYS), "paper, CPU"]
    header += [*(f"GPU, {way}" for way in WAYS), "paper, GPU"]
    rows = [
        [words, name, {"one": "1", "best": "the best of each"}[which],
         *map(times, gains(best, shape, rival, which).values()),
         times(paper_gain(shape, rival, which, "cpu")) if which == "one" else "-",
         *map(times, gains(best, shape, rival, which, "gpu").values()),
         times(paper_gain(shape, rival, which))]
        for rival, words in RIVALS.items()
        for shape, name in SHAPES.items()
        for which in SPEEDS
    ]  # fmt: skip
    return table(header, rows)


def best_batches(best: Best, everything: Sequence[Stored]) -> str:
    """The gain at the best batches by every kept measurement, and which batches these are."""
    header = ["images", "machine", "state", "batch: linear", "compiled", "cache", "reruns"]
    shown = (OPERATOR, COMPILED)
    header += [f"over {x}, {y}" for x in ("reruns", "a cache") for y in shown]
    where = numbered(best, everything)
    ways = (*(WAYS[way] for way in shown), *reversed(RIVALS))
    recorded = {_run(each) for each in everything if not each.measurement.source}
    rows = []
    for each in _in_order(best, everything):
        made = each.measurement
        names = {on.format(shape): shape for shape in SHAPES for on in ON.values()}
        if made.experiment not in names or made.preset == "smoke" or not made.figures:
            continue
        if made.source and _run(each) in recorded:  # a document of the same run
            continue
        batches = [made.figures.get(f"{way}/best/batch") for way in ways]
        gained = [gains_in(made.figures, rival, "best") for rival in RIVALS]
        factors = [factor[way] for factor in gained for way in shown]
        machine = f"{where.index(_machine(each)) + 1}"
        state = "stale" if each.stale else "fresh"
        rows.append(
            [SHAPES[names[made.experiment]], machine, state,
             *("-" if x is None else f"{x:,.0f}" for x in batches), *map(times, factors)]
        )  # fmt: skip
    return table(header, rows)


def _run(stored: Stored) -> tuple[str, str]:
    """What was run, and of which commit."""
    return stored.measurement.experiment, stored.measurement.machine.commit


def grid(best: Best) -> str:
    """The gain over both rivals by length and batch, on a CPU; and the counted ones."""
    header = ["compared with", "tokens", "batch", OPERATOR, COMPILED, "by operations"]
    rows = [
        [words, f"{case.length:,}", f"{case.batch}", times(case.eager), times(case.compiled),
         times(case.operations), times(case.traffic)]
        for rival, words in RIVALS.items()
        for case in sorted(cases(best, rival))
    ]  # fmt: skip
    return table([*header, "by bytes"], rows) if rows else ""


def mnist(runs: Iterable[Run]) -> str:
    """The longer trainings, and where their curves lead."""
    header = ["attention", "images seen", "bits/dim, test", "images/s", "images in a day"]
    header += ["bits/dim after a day", "after 250 epochs", "the paper, 250 epochs"]
    paper = {claim.name.split("/")[1]: claim.paper for claim in CLAIMS if _is_bits(claim)}
    rows = []
    for run in runs:
        rate = run.images / run.seconds
        rows.append(
            [run.name, f"{run.images:,}", f"{run.summary['metrics']['bits_per_dim']:.3f}",
             figure(rate), f"{rate * DAY:,.0f}", _led(run, rate * DAY),
             _led(run, PAPER_IMAGES), paper.get(run.name, "-")]
        )  # fmt: skip
    return table(header, rows) if rows else ""


def _is_bits(claim: Claim) -> bool:
    return claim.name.startswith("table1/") and claim.name.endswith("/bits-per-dim")


def _led(run: Run, images: float) -> str:
    """What the run's curve says after so many images."""
    if run.curve is None:
        return "-"
    least, most = run.curve.between(images)
    return f"{run.curve.at(images):.2f} ({least:.2f} to {most:.2f})"
