"""The registry: every number and statement of the paper (arXiv 2006.16236) and its supplement.

A line of claims.csv is a claim: its place and words, the experiments that measure it (the better
one first), the rule that decides, and what the paper has. Rules have two numbers:

    within                the bounds of the figure, both included; an empty one is open
    least                 a factor over the figure `over` that has to be reached; `first` alone
    more                  the figure is more than `over`; of one seed, by the factor `first`
    no more               the figure is not more than `over`; of one seed, by at most `first`
    speed, bits, errors   the paper's number and that of `over`: ours have to have their ratio

Figures of several seeds have errors (`linattn_lab.seeds`), which then say what is noise: a
difference within two standard errors. With one seed, a margin of the rule stands in for them.
The column scale says what is confirmed in direction at best: "gpu", a time, speed or memory of a
GPU when it was measured on a CPU; "training", what any preset but the paper's has trained. Further
lines of the same name are further rules, and all of them have to hold. A training of fewer than
FEW_UPDATES updates tests nothing. Tables 1 to 5 were compared with two independent transcriptions
of the paper's third version.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final, Literal

from linattn_core.errors import expected, near, quote
from linattn_lab.seeds import Judgement, error_of_difference, judge_difference

Figures = Mapping[str, float]
"""What an experiment measured: figures by name, such as "linear/best/images-per-second"."""

Order = Literal["", "less", "more", "no more"]
Verdict = Literal["confirmed", "confirmed in direction", "not confirmed", "not tested"]
CONFIRMED: Final = "confirmed"
IN_DIRECTION: Final = "confirmed in direction"
NOT_CONFIRMED: Final = "not confirmed"
NOT_TESTED: Final = "not tested"
VERDICTS: tuple[Verdict, ...] = (CONFIRMED, IN_DIRECTION, NOT_CONFIRMED, NOT_TESTED)
WORST_FIRST: tuple[Verdict, ...] = (NOT_CONFIRMED, NOT_TESTED, IN_DIRECTION, CONFIRMED)
ABOVE_ZERO = 5e-324  # the least positive float64
# A factor within which ratios agree, and the noise where a training has one seed: a factor by which
# a ratio may differ from 1 by chance. That of speeds was seen: in nine of ten ratios of
# docs/results, measured on CPUs, half the distance of the quartiles is at most 15 % of the median.
# That of bits, too: bits-mnist, run twice, gave softmax attention 1.324 and 1.341 bits/dim. That of
# errors is two standard errors of the ratio of two trainings on AN4, by the seeds of
# docs/results/speech: 2.30 and 2.94 % by the Bi-LSTM, 3.33 and 2.89 % by linear attention.
MARGINS = {"speed": (1.25, 1.15), "bits": (1.02, 1.013), "errors": (1.1, 1.5)}
FEW_UPDATES = 500  # fewer say nothing of a model; MNIST's 120 show 960 images


@dataclass(frozen=True)
class Rule:
    """A figure, or its ratio to another of the same run, that has to lie within bounds.

    Args:
        figure: a name among an experiment's figures.
        low, high: of what is confirmed, both included.
        over: the figure that it is compared with; empty for none.
        order: what `figure` is to be beside `over`; decided by the spread of seeds, where known.
        direction: what is confirmed in direction of one seed; `low` to `high` if not given.
        paper: the paper's ratio; None where it has none.
        noise: a factor within which a ratio of one seed is not told from 1.
    """

    figure: str
    low: float = -math.inf
    high: float = math.inf
    over: str = ""
    order: Order = ""
    direction: tuple[float, float] | None = None
    paper: float | None = None
    noise: float = 1.0

    @property
    def is_number(self) -> bool:
        """Whether the paper's ratio has to be met, not only a bound."""
        return self.paper is not None and self.high < math.inf

    @property
    def figures(self) -> tuple[str, ...]:
        """The names of the figures that decide."""
        return (self.figure, self.over) if self.over else (self.figure,)

    def value(self, figures: Figures) -> float | None:
        """What is judged; None where a figure is missing or cannot be compared."""
        values = [figures.get(name, math.nan) for name in self.figures]
        least = ABOVE_ZERO if self.over else -sys.float_info.max
        if not all(least <= value < math.inf for value in values):
            return None
        if not self.over:
            return values[0]
        return values[0] - values[1] if self.order == "no more" else values[0] / values[1]

    def judge(self, figures: Figures, *, same_scale: bool) -> Verdict:
        """The verdict; "not tested" where a figure is missing."""
        if any(name not in figures for name in self.figures):
            return NOT_TESTED
        value = self.value(figures)
        if value is None:
            return NOT_CONFIRMED
        in_direction = self.is_in_direction(value, figures)
        confirmed = in_direction if self.paper is None else self.low <= value <= self.high
        if confirmed and same_scale:
            return CONFIRMED
        return IN_DIRECTION if in_direction else NOT_CONFIRMED

    def is_in_direction(self, value: float, figures: Figures) -> bool:
        """Whether a value is on the side that is claimed, by the spread of seeds if it is known."""
        spread = self.judge_spread(figures)
        if not self.order or spread == "one seed":
            low, high = self.direction or (self.low, self.high)
            return low <= value <= high
        return spread != "more" if self.order == "no more" else spread == self.order

    def judge_spread(self, figures: Figures) -> Judgement:
        """Whether the figure is less or more than the other, beyond the noise of seeds."""
        difference = figures[self.figure] - figures.get(self.over, 0.0)
        return judge_difference(difference, error_of_difference(figures, *self.figures))


def divide(figures: Figures, name: str, over: str) -> float | None:
    """A figure over another; None where they cannot be compared."""
    return Rule(name, over=over).value(figures)


def make_rule(kind: str, figure: str, over: str, first: str, second: str) -> Rule:
    """The rule of a line; see the module's words."""
    if kind == "within":
        low = ABOVE_ZERO if first == "above 0" else float(first or -math.inf)
        return Rule(figure, low, float(second or math.inf), over)
    if kind == "least":
        return Rule(figure, float(first), over=over, direction=(1.05, math.inf), paper=float(first))
    if kind == "more":
        return Rule(figure, float(first), over=over, order="more", noise=float(first))
    if kind == "no more":
        return Rule(figure, high=float(first), over=over, order="no more")
    tolerance, noise = MARGINS[kind]
    paper = float(first) / float(second)
    sides: dict[int, tuple[Order, tuple[float, float] | None]] = {
        1: ("more", (noise, math.inf)), -1: ("less", (0.0, 1.0 / noise)), 0: ("", None)
    }  # fmt: skip
    order, direction = sides[(paper > 1) - (paper < 1)]
    return Rule(figure, paper / tolerance, paper * tolerance, over, order, direction, paper, noise)


@dataclass(frozen=True)
class Claim:
    """A number or statement of the paper.

    Args:
        name: where it stands, and what it is of: "table1/linear/images-per-second".
        where: the place in words.
        says: the statement, with the paper's numbers.
        experiments: the names of what measures it, the better one first.
        rules: decide the verdict, which is the worst of theirs; the first one's figure is shown.
        unit: of the figure.
        paper: the paper's number as the table shows it.
        hardware: what the paper measured on; empty where it does not matter.
        scale: what keeps a verdict from being more than "in direction": "gpu", "training" or "".
        note: what a reader has to know beside the number.
    """

    name: str
    where: str
    says: str
    experiments: tuple[str, ...]
    rules: tuple[Rule, ...]
    unit: str = ""
    paper: str = ""
    hardware: str = ""
    scale: str = ""
    note: str = ""

    @property
    def place(self) -> str:
        """The first part of the name: a table, figure or section of the paper."""
        return self.name.split("/")[0]

    def count_updates(self, figures: Figures) -> float | None:
        """The updates of the first figure's training; None if it is not of one.

        For a figure of runs in equal time, it is the number of the runs with equal updates.
        """
        method, _, what = self.rules[0].figure.partition("/")
        drawn = "-drawn" if what.endswith("-over-independent") else ""
        return figures.get(f"{method}/updates{drawn}")

    def judge(self, figures: Figures, preset: str, device: str) -> Verdict:
        """The verdict on a measurement of a preset, on "cpu" or "cuda"."""
        other = {"gpu": device != "cuda", "training": preset != "paper"}.get(self.scale, False)
        same_scale = preset != "smoke" and not other
        updates = self.count_updates(figures)
        if updates is not None and updates < FEW_UPDATES:
            return NOT_TESTED
        verdicts = {rule.judge(figures, same_scale=same_scale) for rule in self.rules}
        return next(verdict for verdict in WORST_FIRST if verdict in verdicts)


def read_claims(file: Path) -> tuple[Claim, ...]:
    """The claims of a CSV file; see the module's words."""
    with file.open(encoding="utf-8", newline="") as lines:
        by_name = [list(rows) for _, rows in groupby(csv.DictReader(lines), lambda x: x["name"])]
    shared = ("name", "where", "says", "unit", "paper", "hardware", "scale", "note")
    of_rules = ("rule", "figure", "over", "first", "second")
    return tuple(
        Claim(
            **{name: rows[0][name] for name in shared},
            experiments=tuple(rows[0]["experiments"].split()),
            rules=tuple(make_rule(*(row[name] for name in of_rules)) for row in rows),
        )
        for rows in by_name
    )


CLAIMS = read_claims(Path(__file__).with_suffix(".csv"))
PAPER = {claim.name: claim.paper for claim in CLAIMS}


def paper_number(claim: str) -> float:
    """The number of the paper that a claim is about."""
    return float(PAPER[claim].replace(",", ""))


def select_claims(names: Sequence[str], others: Iterable[str] = ()) -> list[Claim]:
    """The claims of these names or of places such as "table5" and "table5/mnist"; all for none.

    Args:
        others: what else may have been meant by a name that is wrong.
    """
    for name in names:
        if not any(is_within(claim, name) for claim in CLAIMS):
            known = dict.fromkeys(claim.name if "/" in name else claim.place for claim in CLAIMS)
            wanted = "a claim, its place or an experiment"
            raise ValueError(expected("claim", wanted, quote(name), near(name, [*known, *others])))
    return [claim for claim in CLAIMS if not names or any(is_within(claim, x) for x in names)]


def is_within(claim: Claim, name: str) -> bool:
    """Whether a name is the claim's, or a place that it stands in."""
    return claim.name == name or claim.name.startswith(f"{name.rstrip('/')}/")
