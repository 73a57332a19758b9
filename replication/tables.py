"""docs/replication/claims.md: the claims, what generation took, and when all was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from linattn_lab.machine import Device
from linattn_lab.seeds import IN_WORDS, figure_with_noise
from linattn_lab.tables import code, figure, literal, markdown_table, memory
from replication.claims import (
    ABOVE_ZERO,
    CLAIMS,
    FEW_UPDATES,
    NOT_TESTED,
    Claim,
    Figures,
    Rule,
    divide,
)
from replication.counts import count_verdicts
from replication.experiments import EXPERIMENTS
from replication.readers import BEST
from replication.records import Evidence, describe_experiments, find_evidence, judge_claim, latest

SECTIONS = {
    "The operator: sections 3.2 to 3.4": ("section3.2", "section3.3", "section3.4"),
    "Time and memory by length: figure 1": ("figure1",),
    "Convergence: figure 2": ("figure2",),
    "MNIST: table 1": ("table1",),
    "CIFAR-10: table 2": ("table2",),
    "Speech: table 3": ("table3", "section4.3"),
    "Softmax with a cache: table 4": ("table4",),
    "One image alone: table 5": ("table5",),
    "Generation in the text": ("abstract", "section4.2", "supplementC"),
    "Samples and completions: figures 3, 4 and 6 to 9": (
        "figure3", "figure4", "figure6", "figure7", "figure8", "figure9"
    ),
}  # fmt: skip
METHODS = {
    "linear-compiled": "linear, compiled",
    "linear": "linear, linattn's operator",
    "linear (eager, reference)": "linear, plain PyTorch",
    "stateful-softmax": "softmax with a cache",
    "softmax": "softmax that reruns",
    "lsh-1": "lsh-1",
    "lsh-4": "lsh-4",
}
SHAPES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
RIVALS = ("softmax", "stateful-softmax")
HEADER = """# Claims and measurements

Written by `nox -s report` from the records beside this file. [The report](report.md#method) has the
rules of the verdicts. A number that the paper gives in two places, or as a ratio and its inverse,
counts once:
"""
NAMES = """A claim's name is also an argument of `python -m nox -s paper --`. Where a claim compares
two numbers, the tables show their ratio, by which it is judged; below them are the numbers.
"""


def write_claims(evidence: list[Evidence]) -> str:
    """Returns the document."""
    parts = [HEADER, count_verdicts(evidence), NAMES]
    for title, places in SECTIONS.items():
        chosen = [claim for claim in CLAIMS if claim.place in places]
        hardware = "; ".join(dict.fromkeys(claim.hardware for claim in chosen if claim.hardware))
        parts += [f"## {title}\n", claims_table(chosen, evidence)]
        parts += [describe_claim(claim, evidence) for claim in chosen]
        parts += [f"\nThe paper measured on: {hardware}.\n" if hardware else ""]
    parts += ["## Generation\n", generation_tables(evidence)]
    parts += ["## Measurements\n", measurements_table(evidence)]
    return "\n".join(parts)


def claims_table(claims: Iterable[Claim], evidence: list[Evidence]) -> str:
    """A row for each claim: verdict, the paper's number or ratio, and ours."""
    rows = []
    for claim in claims:
        found, rule = find_evidence(claim, evidence), claim.rules[0]
        verdict = judge_claim(claim, found)
        here = figure(rule.value(found.figures)) if found and verdict != NOT_TESTED else "-"
        paper = figure(rule.paper) if rule.is_number else claim.paper
        rows.append([claim.name, verdict, paper, here])
    return markdown_table(["claim", "verdict", "the paper", "here"], rows)


def describe_claim(claim: Claim, evidence: list[Evidence]) -> str:
    """What a claim says and where, its rule, our figures, and what measured them."""
    found, rules = find_evidence(claim, evidence), claim.rules
    note = f" ({claim.note})" * bool(claim.note)
    others = [f"{rule.figure} {describe_rule(rule)}" for rule in rules[1:]]
    bounds = "; ".join([describe_rule(rules[0]), *others])
    words = f"{claim.where}: {claim.says}{note} Confirmed if: {bounds}."
    if found:
        words += f" Here: {describe_figures(claim, found)}, by {found.experiment}."
    return f"- {code(claim.name)}: {literal(words)}"


def describe_rule(rule: Rule) -> str:
    """The bounds in words; of several seeds, their noise stands in for those of an order."""
    low, high = figure(rule.low), figure(rule.high)
    if rule.low == ABOVE_ZERO:
        bounds = f"above 0, at most {high}" if rule.high < math.inf else "above 0"
    elif rule.high == math.inf:
        bounds = f"at least {low}"
    elif rule.low == -math.inf:
        bounds = f"at most {high}"
    else:
        bounds = low if low == high else f"{low} to {high}"
    what = "difference " if rule.order == "no more" else "ratio " * bool(rule.over)
    by_order = bool(rule.order) and rule.paper is None
    seeds = " with one seed; with several, beyond their noise"
    return f"{what}{bounds}{seeds * by_order}"


def describe_figures(claim: Claim, found: Evidence) -> str:
    """Our figure with its unit, both of a ratio; of which training, and whether on the CPU."""
    figures, rule = found.figures, claim.rules[0]
    updates = claim.count_updates(figures)
    if updates is not None and updates < FEW_UPDATES:
        return f"{updates:,.0f} updates, which only show that the code runs"
    known = [x for x in rule.figures if x in figures]
    beside = " beside " if rule.order == "no more" else " over "
    amounts = beside.join(figure_with_noise(figures, x) for x in known)
    words = f"{amounts} {claim.unit}"
    if updates is not None:
        in_equal_time = rule.figure.endswith("equal-time")
        words += " in equal time" if in_equal_time else f" after {updates:,.0f} updates"
    on_cpu = claim.scale == "gpu" and found.device == "cpu"
    return words + describe_noise(claim, figures) + ", on the CPU" * on_cpu


def describe_noise(claim: Claim, figures: Figures) -> str:
    """Whether a difference is noise, as the end of a sentence: by seeds, or by a margin."""
    rule, value = claim.rules[0], claim.rules[0].value(figures)
    trained = claim.scale == "training" and bool(rule.order) and value is not None
    spread = rule.judge_spread(figures) if trained else "one seed"
    if spread != "one seed":
        return f", {IN_WORDS[spread]}"
    inside = value is not None and 1 / rule.noise < value < rule.noise
    return ", one seed" * trained + ", within noise" * inside


def generation_tables(evidence: list[Evidence]) -> str:
    """What many images and one image take by each method, and how many times as fast it is."""
    first, rivals = "images, method", ["times as fast as reruns", "as a cache"]
    many, one = [], []
    for shape, device, figures in generation_figures(evidence):
        for name, label in METHODS.items():
            if f"{name}/1/seconds" in figures:
                words = f"{shape}, {device.upper().replace('CUDA', 'GPU')}, {label}"
                many.append([words, *many_cells(figures, name)])
                one.append([words, *one_cells(figures, name)])
    names = [f"generation-{shape}{end}" for end in ("", "-cuda") for shape in SHAPES]
    return "\n".join([
        "Many images, each method with its best batch:\n",
        markdown_table([first, "images/s", "batch", *rivals], many),
        "A single image, and the bytes of its state:\n",
        markdown_table([first, "s", *rivals, "state"], one),
        f"{describe_experiments(evidence, *names)}\n",
    ])  # fmt: skip


def generation_figures(evidence: list[Evidence]) -> list[tuple[str, Device, dict[str, float]]]:
    """The figures of the paper's images on a CPU and on a GPU."""
    known = latest(evidence)
    names = [
        (f"generation-{x}{end}", shape) for x, shape in SHAPES.items() for end in ("", "-cuda")
    ]
    return [(shape, known[x].device, known[x].figures) for x, shape in names if x in known]


def many_cells(figures: Figures, name: str) -> list[str]:
    """Images per second by a method at its best batch, and over those of softmax attention."""
    own, batch = figures.get(f"{name}/{BEST}"), figures.get(f"{name}/best/batch")
    gains = [divide(figures, f"{name}/{BEST}", f"{rival}/{BEST}") for rival in RIVALS]
    return [figure(own), "-" if batch is None else f"{batch:,.0f}", *map(figure, gains)]


def one_cells(figures: Figures, name: str) -> list[str]:
    """Seconds for one image by a method, those of softmax attention over them, and its state."""
    own, state = f"{name}/1/seconds", figures.get(f"{name}/state-bytes")
    gains = [divide(figures, f"{rival}/1/seconds", own) for rival in RIVALS]
    return [figure(figures.get(own)), *map(figure, gains), memory(state) if state else "-"]


def measurements_table(evidence: Sequence[Evidence]) -> str:
    """When, where and how long each experiment ran, unless with others, and the machines."""
    chosen = [each for name in EXPERIMENTS for each in evidence if each.experiment == name]
    machines = list(dict.fromkeys(describe_machine(each) for each in chosen))
    rows = [
        [
            each.experiment,
            each.measurement.preset,
            each.record.date,
            each.record.commit,
            f"{machines.index(describe_machine(each)) + 1}",
            duration(EXPERIMENTS[each.experiment].seconds.get(each.measurement.preset)),
            duration(each.measurement.seconds or None),
        ]
        for each in chosen
    ]
    header = ["experiment", "preset", "date", "commit", "machine", "least time", "time"]
    listed = "\n".join(f"{number}. {words}" for number, words in enumerate(machines, 1))
    along = "Without a time: measured along with other benchmarks."
    return f"{markdown_table(header, rows)}\n{along}\n\nMachines:\n\n{listed}\n"


def describe_machine(evidence: Evidence) -> str:
    """The hardware, the threads and the versions of Python and torch."""
    machine = evidence.record.machine
    threads = f"{machine.threads} thread" + "s" * (machine.threads != 1)
    software = machine.software.partition(", linattn")[0]
    return literal(f"{machine.hardware}; {threads}; {software}")


def duration(seconds: float | None) -> str:
    """A time in the largest unit of which there are two."""
    if seconds is None:
        return "-"
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{figure(seconds / size)} {unit}"
    return f"{figure(seconds)} s"
