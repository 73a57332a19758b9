"""What a claim of the paper is, and the rule that decides whether a measurement confirms it."""

from __future__ import annotations

import math
import sys
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final, Literal

Figures = Mapping[str, float]
"""What an experiment measured: figures by name, such as "linear/best/images-per-second"."""

Verdict = Literal["confirmed", "confirmed in direction", "not confirmed", "not run"]
CONFIRMED: Final = "confirmed"
IN_DIRECTION: Final = "confirmed in direction"
NOT_CONFIRMED: Final = "not confirmed"
NOT_RUN: Final = "not run"
VERDICTS: tuple[Verdict, ...] = (CONFIRMED, IN_DIRECTION, NOT_CONFIRMED, NOT_RUN)
ABOVE_ZERO = 5e-324  # the least positive float64
COMPILED = "linear-compiled/"  # in place of "linear/" in the names of figures
RULES = {
    "number": (
        "A number of the paper is compared as a ratio to a second number of the same table, which "
        "other hardware scales alike. Confirmed: our ratio is the paper's within a factor of 1.25 "
        "for speeds, 1.02 for bits per dimension, 1.1 for error rates, on both sides. Confirmed in "
        "direction: our ratio is on the paper's side of 1, by more than noise (5% of a speed, 0.5% "
        "of bits, 2% of error rates), be it smaller or larger than the paper's. Not confirmed: it "
        "is not."
    ),
    "more than": (
        'A claim of "more than", "less than" or "up to" is confirmed when our ratio reaches the '
        "number that is named, without a tolerance; in direction when it is on the same side of 1."
    ),
    "bound": "A statement is confirmed when its figure lies within the bounds of its row.",
    "scale": (
        "What a smaller model, shorter training or other data shows is at best confirmed in "
        "direction. So is a time, a speed or a memory of the paper's GPU that was measured on a "
        "CPU."
    ),
    "eager": (
        "Speeds of generation are judged by linear attention whose layers run step by step in "
        "PyTorch, as in the paper and as its rivals here. The column of compiled steps is beside "
        "and decides nothing."
    ),
    "picture": (
        "A grid of samples is confirmed in direction when the model that drew it predicts held-out "
        "images at least a fifth better than independent pixels do; the reader judges the picture."
    ),
    "faulty": "A ratio of figures that are 0, below or not finite is not confirmed.",
    "stale": (
        "Each record holds a SHA-256 of the source files that its experiment depends on, taken "
        "before the run. A measurement is stale when these files differ in this checkout, when "
        "they had uncommitted changes, and when it was read from documents that hold no SHA-256 "
        "or are from runs of several commits. A stale measurement confirms nothing: its verdict "
        "is shown as stale and counted apart."
    ),
}


def shown(value: float) -> str:
    """To three digits, thousands with commas."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def interval(low: float, high: float) -> str:
    """Bounds in words."""
    if low == ABOVE_ZERO:
        return f"above 0, at most {shown(high)}" if high < math.inf else "above 0"
    if low == high:
        return shown(low)
    if high == math.inf:
        return f"at least {shown(low)}"
    return f"at most {shown(high)}" if low == -math.inf else f"{shown(low)} to {shown(high)}"


@dataclass(frozen=True)
class Rule:
    """A figure, or its ratio to another of the same run, that has to lie within bounds.

    Args:
        figure: a name among an experiment's figures.
        low, high: of what is confirmed, both included.
        over: the figure that it is divided by; empty for none.
        direction: of what is confirmed in direction; `low` to `high` if not given.
        paper: the paper's ratio.
    """

    figure: str
    low: float = -math.inf
    high: float = math.inf
    over: str = ""
    direction: tuple[float, float] | None = None
    paper: float | None = None

    @property
    def figures(self) -> tuple[str, ...]:
        """The figures that decide."""
        return (self.figure, self.over) if self.over else (self.figure,)

    @property
    def words(self) -> str:
        """The bounds as the report shows them."""
        return "ratio " * bool(self.over) + interval(self.low, self.high)

    def fault(self, figures: Figures) -> str:
        """Why the figures cannot be compared; empty where they can, or are missing."""
        least = ABOVE_ZERO if self.over else -sys.float_info.max
        for name in self.figures:
            if name in figures and not least <= figures[name] < math.inf:
                return f"{name} is {figures[name]:g}"
        return ""

    def value(self, figures: Figures) -> float | None:
        """What is judged; None where a figure is missing or faulty."""
        if self.fault(figures) or any(name not in figures for name in self.figures):
            return None
        return figures[self.figure] / (figures[self.over] if self.over else 1.0)

    def judge(self, figures: Figures, *, same_scale: bool) -> Verdict:
        """The verdict; "not run" where a figure is missing."""
        if any(name not in figures for name in self.figures):
            return NOT_RUN
        value = self.value(figures)
        if value is None:
            return NOT_CONFIRMED
        if same_scale and self.low <= value <= self.high:
            return CONFIRMED
        low, high = self.direction or (self.low, self.high)
        return IN_DIRECTION if low <= value <= high else NOT_CONFIRMED


def ratio(
    figure: str, over: str, paper: float, paper_over: float,
    tolerance: float = 1.25, noise: float = 1.05,
) -> Rule:  # fmt: skip
    """The paper's number over a second one, which ours has to agree with.

    Args:
        figure, over: names among an experiment's figures.
        paper, paper_over: the paper's numbers.
        tolerance: a factor within which ratios agree.
        noise: a factor by which figures may differ and still be equal.
    """
    theirs = paper / paper_over
    sides = {1: (noise, math.inf), -1: (0.0, 1.0 / noise), 0: None}
    direction = sides[(theirs > 1) - (theirs < 1)]
    return Rule(figure, theirs / tolerance, theirs * tolerance, over, direction, theirs)


def at_least(figure: str, over: str, least: float, noise: float = 1.05) -> Rule:
    """A ratio of "more than" or "up to" a number above 1: without a tolerance."""
    return Rule(figure, least, over=over, direction=(noise, math.inf), paper=least)


@dataclass(frozen=True)
class Every:
    """Bounds all of which have to hold: the verdict is the worst of theirs.

    Args:
        rules: the first one's figure is shown.
        words: all of them in a few words.
    """

    rules: tuple[Rule, ...]
    words: str

    @property
    def figure(self) -> str:
        """The figure that is shown."""
        return self.rules[0].figure

    @property
    def figures(self) -> tuple[str, ...]:
        """The figures that decide."""
        return tuple(rule.figure for rule in self.rules)

    def fault(self, figures: Figures) -> str:
        """Why a figure cannot be compared; empty where all can."""
        return next(filter(None, (rule.fault(figures) for rule in self.rules)), "")

    def judge(self, figures: Figures, *, same_scale: bool) -> Verdict:
        """The verdict; what fails counts before what is missing."""
        verdicts = {rule.judge(figures, same_scale=same_scale) for rule in self.rules}
        worst: tuple[Verdict, ...] = (NOT_CONFIRMED, NOT_RUN, IN_DIRECTION, CONFIRMED)
        return next(verdict for verdict in worst if verdict in verdicts)


@dataclass(frozen=True)
class Claim:
    """A number or statement of the paper.

    Args:
        name: where it stands, and what it is of: "table1/linear/images-per-second".
        where: the place in words.
        says: the statement, with the paper's numbers.
        experiment: the name of what measures it.
        rule: decides the verdict.
        unit: of the figure.
        paper: the paper's number as the report shows it.
        hardware: what the paper measured on; empty where it does not matter.
        same_scale: presets whose model, data and training are the paper's for this claim.
        note: what a reader has to know beside the number.
        gpu: a time, a speed or a memory of a GPU: a CPU confirms its direction at best.
        on_gpu: the experiment that measures it on a GPU, where there is one.
    """

    name: str
    where: str
    says: str
    experiment: str
    rule: Rule | Every
    unit: str = ""
    paper: str = ""
    hardware: str = ""
    same_scale: tuple[str, ...] = ("laptop", "paper")
    note: str = ""
    gpu: bool = False
    on_gpu: str = ""

    @property
    def experiments(self) -> tuple[str, ...]:
        """What measures it, the better one first."""
        return (self.on_gpu, self.experiment) if self.on_gpu else (self.experiment,)

    def measured_by(self, *measured: Container[str]) -> str | None:
        """The first of its experiments in the first of the groups that has one."""
        names = (name for group in measured for name in self.experiments if name in group)
        return next(names, None)

    def judge(self, figures: Figures, preset: str, device: str) -> Verdict:
        """The verdict on a measurement of a preset, on "cpu" or "cuda"."""
        same_scale = preset in self.same_scale and (device == "cuda" or not self.gpu)
        return self.rule.judge(figures, same_scale=same_scale)

    def compiled(self, figures: Figures) -> float | None:
        """The rule's ratio with compiled steps of linear attention; None where there is none."""
        if not isinstance(self.rule, Rule) or not self.rule.over:
            return None
        names = [COMPILED + x[7:] if x.startswith("linear/") else x for x in self.rule.figures]
        if tuple(names) == self.rule.figures:
            return None
        return Rule(names[0], over=names[1]).value(figures)
