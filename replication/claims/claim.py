"""What a claim of the paper is, and the rule that decides whether a measurement confirms it."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
RULES = {
    "ratio": (
        "A number of the paper is compared as a ratio to a second number of the same table, which "
        "other hardware scales alike. Confirmed: our ratio is the paper's within the tolerance "
        "(a factor of 1.25 for speeds, 1.02 for bits per dimension, 1.1 for error rates), or lies "
        "beyond it on the side that the paper claims. Confirmed in direction: our ratio is on the "
        "paper's side of 1, by more than noise (5% of a speed, 0.5% of bits, 2% of error rates). "
        "Not confirmed: it is not."
    ),
    "bound": "A statement is confirmed when its figure lies within the bounds that it names.",
    "scale": (
        "What a smaller model, shorter training or other data shows is at best confirmed in "
        "direction."
    ),
    "picture": (
        "A grid of samples is confirmed in direction when the model that drew it predicts held-out "
        "images at least a fifth better than independent pixels do; the reader judges the picture."
    ),
    "stale": (
        "A measurement is stale when the code that it depends on differs between the commit that "
        "was measured and this checkout, or when that code had uncommitted changes. A stale "
        "measurement confirms nothing: its verdict is shown as stale and counted apart."
    ),
}


@dataclass(frozen=True)
class Ratio:
    """A figure over another of the same run, beside the paper's two.

    Args:
        figure, over: names among an experiment's figures.
        paper, paper_over: the paper's numbers.
        tolerance: a factor within which ratios agree.
        noise: a factor by which figures may differ and still be equal.
    """

    figure: str
    over: str
    paper: float
    paper_over: float
    tolerance: float = 1.25
    noise: float = 1.05

    def judge(self, figures: Figures, *, same_scale: bool) -> Verdict:
        """The verdict; "not run" where a figure is missing."""
        if self.figure not in figures or self.over not in figures:
            return NOT_RUN
        ours = math.log(figures[self.figure] / figures[self.over])
        theirs = math.log(self.paper / self.paper_over)
        side = math.copysign(1.0, theirs) if theirs else 0.0
        agrees = abs(ours - theirs) <= math.log(self.tolerance)
        if same_scale and (agrees or side * (ours - theirs) > 0):
            return CONFIRMED
        in_direction = side * ours > math.log(self.noise) if side else agrees
        return IN_DIRECTION if in_direction else NOT_CONFIRMED


@dataclass(frozen=True)
class Bound:
    """A figure that has to lie within bounds.

    Args:
        figure: a name among an experiment's figures.
        low, high: both included.
    """

    figure: str
    low: float = -math.inf
    high: float = math.inf

    def judge(self, figures: Figures, *, same_scale: bool) -> Verdict:
        """The verdict; "not run" where the figure is missing."""
        if self.figure not in figures:
            return NOT_RUN
        if not self.low <= figures[self.figure] <= self.high:
            return NOT_CONFIRMED
        return CONFIRMED if same_scale else IN_DIRECTION


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
    """

    name: str
    where: str
    says: str
    experiment: str
    rule: Ratio | Bound
    unit: str = ""
    paper: str = ""
    hardware: str = ""
    same_scale: tuple[str, ...] = ("laptop", "paper")
    note: str = ""

    def judge(self, figures: Figures, preset: str) -> Verdict:
        """The verdict on a measurement of a preset."""
        return self.rule.judge(figures, same_scale=preset in self.same_scale)
