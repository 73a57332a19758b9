"""docs/replication/claims.md: the claims, what generation took, and when all was measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from linattn_lab.machine import Device
from linattn_lab.tables import figure, literal, markdown_table
from replication.claims import (
    ABOVE_ZERO,
    CLAIMS,
    FEW_UPDATES,
    VERDICTS,
    Claim,
    Figures,
    Rule,
    divide,
)
from replication.experiments import EXPERIMENTS
from replication.readers import BEST
from replication.records import Evidence, find_evidence, judge_claim

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
HEADER = """# Claims and measurements

Written by `nox -s report` from the records beside this file. [The report](report.md#method) has the
rules of the verdicts.
"""


def write_claims(evidence: list[Evidence], pictures: Iterable[Path] = ()) -> str:
    """Returns the document.

    Args:
        pictures: of trained models, in the folder of their experiment.
    """
    verdicts = Counter(judge_claim(claim, find_evidence(claim, evidence)) for claim in CLAIMS)
    parts = [
        HEADER,
        markdown_table(["verdict", "claims"], [[x, f"{verdicts[x]}"] for x in VERDICTS]),
    ]
    for title, places in SECTIONS.items():
        chosen = [claim for claim in CLAIMS if claim.place in places]
        hardware = "; ".join(dict.fromkeys(claim.hardware for claim in chosen if claim.hardware))
        parts += [f"## {title}\n", claims_table(chosen, evidence)]
        parts += [f"The paper measured on: {hardware}.\n"] * bool(hardware)
    parts += ["## Pictures\n", *map(show_picture, pictures), "## Generation\n"]
    parts += [generation_table(evidence)]
    parts += ["## Measurements\n", measurements_table(evidence)]
    return "\n".join(parts)


def show_picture(picture: Path) -> str:
    """A picture under what it shows."""
    what, place = literal(picture.stem), quote("/".join(picture.parts[-3:]))
    return f"{literal(picture.parent.name)}, {what}:\n\n![{what}]({place})\n"


def claims_table(claims: Iterable[Claim], evidence: list[Evidence]) -> str:
    """A row for each claim: verdict, the paper's number, the rule, ours, the experiment."""
    header = ["claim", "verdict", "the paper", "confirmed if", "here", "ratio here", "measured by"]
    return markdown_table(header, [claim_row(claim, evidence) for claim in claims])


def claim_row(claim: Claim, evidence: list[Evidence]) -> list[str]:
    """The cells of a claim."""
    found, rule = find_evidence(claim, evidence), claim.rules[0]
    if found is None:
        here, ratio, name = "-", "-", claim.experiments[-1]
    else:
        here, name = describe_figures(claim, found), found.experiment
        known = all(each in found.figures for each in rule.figures)
        ratio = figure(rule.value(found.figures)) if known and rule.over else ""
    return [
        f"{claim.where}: {claim.says}" + f" ({claim.note})" * bool(claim.note),
        judge_claim(claim, found),
        claim.paper,
        "; ".join(f"{x.figure} " * (x is not rule) + describe_rule(x) for x in claim.rules),
        here,
        ratio,
        name,
    ]


def describe_rule(rule: Rule) -> str:
    """The bounds in words."""
    low, high = figure(rule.low), figure(rule.high)
    if rule.low == ABOVE_ZERO:
        bounds = f"above 0, at most {high}" if rule.high < math.inf else "above 0"
    elif rule.high == math.inf:
        bounds = f"at least {low}"
    elif rule.low == -math.inf:
        bounds = f"at most {high}"
    else:
        bounds = low if low == high else f"{low} to {high}"
    return "ratio " * bool(rule.over) + bounds


def describe_figures(claim: Claim, found: Evidence) -> str:
    """Our figure with its unit, both of a ratio; of which training, and whether on the CPU."""
    figures, rule = found.figures, claim.rules[0]
    amounts = " over ".join(figure(figures[x]) for x in rule.figures if x in figures)
    updates = claim.count_updates(figures)
    words = f"{amounts} {claim.unit}"
    if updates is not None:
        in_equal_time = rule.figure.endswith("equal-time")
        words += " in equal time" if in_equal_time else f" after {updates:,.0f} updates"
        words += ", too few updates to tell" * (updates < FEW_UPDATES)
    on_cpu = claim.scale == "gpu" and found.device == "cpu"
    return words + ", on the CPU" * on_cpu


def generation_table(evidence: list[Evidence]) -> str:
    """What images took by each method, and how many times as fast linear attention is."""
    header = ["images, method", "images/s", "at batch", "times as fast as reruns", "as a cache"]
    header += ["s for one image", "times as fast as reruns", "as a cache", "bytes of state"]
    rows = [
        [f"{shape}, {device.upper().replace('CUDA', 'GPU')}, {label}", *speed_cells(figures, name)]
        for shape, device, figures in generation_figures(evidence)
        for name, label in METHODS.items()
        if f"{name}/1/seconds" in figures
    ]
    return markdown_table(header, rows)


def generation_figures(evidence: list[Evidence]) -> list[tuple[str, Device, dict[str, float]]]:
    """The figures of the paper's images on a CPU and on a GPU."""
    known = {each.experiment: each for each in evidence}
    names = [
        (f"generation-{x}{end}", shape) for x, shape in SHAPES.items() for end in ("", "-cuda")
    ]
    return [(shape, known[x].device, known[x].figures) for x, shape in names if x in known]


def speed_cells(figures: Figures, name: str) -> list[str]:
    """The cells of a method."""
    rivals, alone = ("softmax", "stateful-softmax"), "1/seconds"
    many = [divide(figures, f"{name}/{BEST}", f"{x}/{BEST}") for x in rivals]
    one = [divide(figures, f"{x}/{alone}", f"{name}/{alone}") for x in rivals]
    cells = [figures.get(f"{name}/{BEST}"), figures.get(f"{name}/best/batch"), *many]
    cells += [figures.get(f"{name}/{alone}"), *one, figures.get(f"{name}/state-bytes")]
    return [f"{x:,.0f}" if x is not None and x % 1 == 0 else figure(x) for x in cells]


def measurements_table(evidence: Sequence[Evidence]) -> str:
    """When, where and how long each experiment ran, and the machines."""
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
            duration(each.measurement.seconds),
        ]
        for each in chosen
    ]
    header = ["experiment", "preset", "date", "commit", "machine", "least time", "time"]
    listed = "\n".join(f"{number}. {words}" for number, words in enumerate(machines, 1))
    return f"{markdown_table(header, rows)}\nMachines:\n\n{listed}\n"


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
