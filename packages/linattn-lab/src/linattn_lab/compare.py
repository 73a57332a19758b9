"""A comparison of trainings: what is trained, in which budget, and what is shown of it.

    compare(Trainings(out, variants), Display(columns, curves), budget=..., publish_to=...)

trains what is not trained yet, and leaves table.md, curves.png and figures.json in the folder. A
row of the table is the summary of a run, with means over seeds; with a budget it also has
"seconds_per_update", and the summary of a second run, in equal time, as "equal_time".
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from linattn_core.errors import expected
from linattn_lab import figures
from linattn_lab.plots import Panel, plot_panels
from linattn_lab.runs import make_folders, publish
from linattn_lab.seeds import average_curves, base_name, compare_rows, merge_seeds
from linattn_lab.tables import name_environments, table_of
from linattn_lab.trainings import Runs, Summary, Trainings, curves, with_steps
from linattn_lab.updates import UpdateTimes
from linattn_models.basics.files import replace_file
from linattn_models.training import RunFolder, TrainingFlags

FILES = ("table.md", "curves.png", figures.FILE)
TIMES = "timings.json"

Rows = Mapping[str, Summary]
Columns = Mapping[str, Callable[[Any], str]]
"""The cell of a row, by the column's title."""


def name_trainings(rows: Rows) -> str:
    """When and where the runs were trained."""
    return f"Trained {name_environments(row['environment'] for row in rows.values())}."


@dataclass(frozen=True)
class Curve:
    """A panel of the picture: a quantity of metrics.jsonl, with a curve for each run.

    Attributes:
        xlabel: the label of the x-axis.
        quantity: what is drawn.
        split: of what, such as "train".
        over: "step"; or "pace", steps times the seconds of an update, which a budget has. The
            clock of a training is not drawn: other work on the machine makes it run ahead.
        scale: what the values of the x-axis are multiplied with.
    """

    xlabel: str
    quantity: str
    split: str = "eval"
    over: Literal["step", "pace"] = "step"
    scale: float = 1.0


@dataclass(frozen=True)
class Display:
    """What a comparison shows.

    Attributes:
        columns: of the table.
        curves: the panels of curves.png.
        figures: those of all rows, by name.
        ylabel, log_scale: of the picture's y-axis.
        summarize: the summary of a run that has ended.
        notes: what stands below the table, of the rows of all runs.
        first: the title of the first column.
        judged: what below the table says which rows differ beyond the noise of seeds: figures by
            the end of their names, and the words for them.
        baseline: the row that they are compared with.
    """

    columns: Columns
    curves: Sequence[Curve]
    figures: Callable[[Rows], Mapping[str, float | None]]
    ylabel: str
    log_scale: bool = False
    summarize: Callable[[RunFolder], Summary] = RunFolder.summary
    notes: Callable[[Rows], str] = name_trainings
    first: str = "attention"
    judged: Mapping[str, str] = field(default_factory=dict)
    baseline: str = "linear"


@dataclass(frozen=True)
class Budget:
    """What an update of each run takes, and equal time for each.

    Attributes:
        times: of an update, as timings.json has them.
        seconds: of updates, for each run; None for the updates that its flags say.
        way: "once", in equal time alone; "twice", after equal updates in updates/NAME, too, and in
            equal time in time/NAME; "curves", in equal time in time/NAME, and what equal updates
            give is read from the curves of `quantity`.
        training: with "curves", the flags of all runs.
        quantity: with "curves", what is read; the row has it as "validation_QUANTITY".
    """

    times: UpdateTimes
    seconds: float | None = None
    way: Literal["once", "twice", "curves"] = "once"
    training: TrainingFlags | None = None
    quantity: str = ""

    def pace(self, names: Sequence[str]) -> dict[str, float]:
        """Seconds of an update of each run."""
        return {name: self.times.seconds[base_name(name)] for name in names}


@dataclass(frozen=True)
class Compared:
    """The runs of a comparison: after equal updates, and in equal time; and what is missing."""

    updates: Runs
    time: Runs
    absent: Mapping[str, str]


def compare(
    trainings: Trainings,
    display: Display,
    *,
    budget: Budget | None = None,
    publish_to: Path | None = None,
    train: bool = True,
) -> str:
    """Trains what is not trained yet, writes table, picture and figures; returns the table.

    Args:
        trainings: what is compared; its folder gets the files.
        display: what is shown.
        budget: of time; None for equal updates whose time is not shown.
        publish_to: a folder that gets a copy without weights.
        train: False shows the runs that have ended, and names the others that were begun.
    """
    make_folders(trainings.out, publish_to)
    compared = train_runs(trainings, budget) if train else _find_ended(fit(trainings, budget))
    rows = read_rows(compared, display, budget)
    merged = merge_seeds(rows)
    table = table_of(merged, display.columns, first=display.first)
    absent = [f"{name} ({how_far})" for name, how_far in compared.absent.items()]
    read = display.figures(merged)
    notes = [display.notes(rows), *judge_rows(display, read)]
    notes += [f"Not in the table: {'; '.join(absent)}."] if absent else []
    text = "\n".join([table, *notes]).rstrip() + "\n"
    out = trainings.out
    _draw(out / "curves.png", compared, display, budget)
    figures.write_figures(out, read)
    replace_file(out / "table.md", text.encode())
    if publish_to is not None:
        files = [*FILES, *([TIMES] if (out / TIMES).exists() else [])]
        publish(out, publish_to, files, [*compared.updates.values(), *compared.time.values()])
    return f"\n{text}\nTable, picture and runs are in {out}."


def judge_rows(display: Display, read: Mapping[str, float | None]) -> list[str]:
    """A sentence for each figure that is judged, by the spread of seeds."""
    sentences = []
    for figure, words in display.judged.items():
        if rows := compare_rows(read, figure, display.baseline):
            sentences.append(
                f"{words}, compared with {display.baseline} by two standard errors: {rows}."
            )
    return sentences


def train_runs(trainings: Trainings, budget: Budget | None) -> Compared:
    """Makes, resumes or keeps each run."""
    if budget is None:
        return Compared(trainings.equal_updates(), {}, {})
    timed = fit(trainings, budget)
    if budget.way == "once":
        runs = timed.equal_updates()
        return Compared(runs, runs, {})
    if budget.way == "curves":
        assert budget.training is not None
        runs = share_schedule(timed, budget.training).equal_updates("time")
        return Compared(runs, runs, {})
    updates = trainings.equal_updates("updates")
    pairs = zip(trainings.variants, timed.variants, strict=True)
    time = {
        x.name: updates[x.name] if x.flags.steps == y.flags.steps else timed.run(y, "time")
        for x, y in pairs
    }
    return Compared(updates, time, {})


def fit(trainings: Trainings, budget: Budget | None) -> Trainings:
    """The trainings with the updates for which a budget has time."""
    if budget is None or budget.seconds is None:
        return trainings
    return trainings.within(budget.seconds, budget.pace(trainings.names))


def _find_ended(trainings: Trainings) -> Compared:
    runs, absent = trainings.find_complete()
    if not runs:
        advice = "train first"
        raise ValueError(expected(str(trainings.out), "a run that has ended", "none", advice))
    return Compared(runs, runs, absent)


def share_schedule(timed: Trainings, training: TrainingFlags) -> Trainings:
    """The same updates, by flags with which all curves are of the same training at first.

    They are evaluated after the same updates, with the same rates until the shortest one cools
    down: a cosine, which falls from the first update on, becomes a trapezoid.
    """
    evaluated = with_steps(training, min(each.flags.steps for each in timed.variants))
    schedule = "trapezoid" if training.schedule == "cosine" else training.schedule
    shared = replace(evaluated, schedule=schedule, warmup_steps=evaluated.config().warmup)
    variants = [
        replace(each, flags=replace(shared, steps=each.flags.steps)) for each in timed.variants
    ]
    return replace(timed, variants=variants)


def read_rows(compared: Compared, display: Display, budget: Budget | None) -> dict[str, Summary]:
    """The row of each run."""
    rows: dict[str, Summary] = {x: display.summarize(run) for x, run in compared.updates.items()}
    if budget is None:
        return rows
    pace = budget.pace(list(rows))
    rows = {name: {**row, "seconds_per_update": pace[name]} for name, row in rows.items()}
    if budget.way == "once":
        return rows
    time = {name: display.summarize(run) for name, run in compared.time.items()}
    if budget.way == "curves":
        points = _read_shared_points(compared.time, budget.quantity)
        rows = {name: {**row, **points[name]} for name, row in rows.items()}
    return {name: {**row, "equal_time": time[name]} for name, row in rows.items()}


def _read_shared_points(runs: Runs, quantity: str) -> dict[str, Summary]:
    """The value of each run after the most updates that all of them made with the same rates."""
    updates = _count_shared_updates(runs, quantity)
    values = {name: dict(curve)[updates] for name, curve in curves(runs, quantity).items()}
    return {
        name: {"steps": updates, "metrics": {f"validation_{quantity}": value}}
        for name, value in values.items()
    }


def _count_shared_updates(runs: Runs, quantity: str) -> int:
    """The most updates at which all runs were evaluated, all with the same rates until then."""
    rates = [dict(x) for x in curves(runs, "learning_rate", split="train").values()]
    logged = sorted(set(rates[0]).intersection(*rates))
    same = itertools.takewhile(lambda step: len({x[step] for x in rates}) == 1, logged)
    last = max(same, default=0)
    evaluated = [dict(x).keys() for x in curves(runs, quantity).values()]
    equal = [step for step in set(evaluated[0]).intersection(*evaluated) if step <= last]
    if not equal:
        wanted = "an evaluation of all before their learning rates differ"
        raise ValueError(expected("the time", wanted, "none", "give more seconds"))
    return int(max(equal))


def _draw(path: Path, compared: Compared, display: Display, budget: Budget | None) -> None:
    panels = []
    counts = sorted({*Counter(map(base_name, compared.updates)).values()})
    seeds = f"means of {' or '.join(map(str, counts))} seeds ± two standard errors"
    for curve in display.curves:
        paced = curve.over == "pace" and budget is not None
        runs = compared.time if paced else compared.updates
        pace = budget.pace(list(runs)) if budget is not None and paced else dict.fromkeys(runs, 1.0)
        scales = {name: curve.scale * value for name, value in pace.items()}
        means, errors = average_curves(curves(runs, curve.quantity, split=curve.split, pace=scales))
        panels.append(Panel(curve.xlabel, means, seeds * (counts != [1]), errors))
    plot_panels(path, panels, ylabel=display.ylabel, log_scale=display.log_scale)
