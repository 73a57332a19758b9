"""Runs the paper's claims: python -m replication.paper [claim ...] [--preset smoke|laptop|paper].

    nox -s paper -- --preset smoke              every claim's code, in minutes
    nox -s paper -- table1 figure2              some of them, as two cores can
    nox -s paper -- speedup                     an experiment, and the claims that it measures
    nox -s paper -- --preset laptop --publish   and keep figures and curves for the report

A claim is a place in the paper, such as table5, or one of its numbers, such as
table5/mnist/linear/cpu; --list names all. Claims that one experiment measures are run together.
The experiments are in experiments.toml, and one can be chosen by its name.
What has ended is not run again as long as its code is the same, so that the command that was
interrupted continues when it is given again: a training from its checkpoint, timings of minutes
from their start. A claim that fails is recorded with its error, the others go on, and the exit code
is 1. Smoke runs and runs of uncommitted code get no verdict.
"""

from __future__ import annotations

if __name__ == "__main__":
    import linattn_lab.interruption  # noqa: F401  (before torch)

import dataclasses
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import tyro
from tqdm import tqdm

from benchmarks.command import isolated_limits
from benchmarks.measure.cases import Settings
from linattn_core.errors import expected
from linattn_lab.script import parse_flags, run_script
from linattn_lab.tables import figure, markdown_table
from linattn_models.training import RunFolder
from replication.claims import CLAIMS, NOT_RUN, Claim, chosen
from replication.collect import FOLDER
from replication.experiments import EXPERIMENTS, PresetName
from replication.kept import keep, place
from replication.machine import is_committed, key, require_current_builds, this_machine
from replication.measurement import Measurement, read_or_set_aside, write
from replication.runner import Runs, lacking
from replication.sources import ROOT


@dataclasses.dataclass(frozen=True)
class Flags:
    """Run claims of the paper."""

    claims: tyro.conf.Positional[tuple[str, ...]] = ()
    """Places or names of claims, or names of experiments; all if none is given."""
    preset: PresetName = "laptop"
    """smoke: minutes, figures mean nothing; laptop: hours of two cores; paper: its own sizes."""
    list: bool = False
    """Name the claims and stop."""
    again: bool = False
    """Run also what has ended, from the start: what earlier runs left is removed."""
    publish: bool = False
    """Keep the figures in docs/replication, where `nox -s report` finds them, and the curves and
    pictures of trained runs in docs/replication/runs."""
    out: Path = Path("runs/replication")
    """Folder of the runs."""


def main(flags: Flags) -> None:
    """Runs what the claims need, and prints a verdict for each claim."""
    claims, names = selected(flags.claims)
    if flags.list:
        print("\n".join(f"{claim.name}: {claim.says}" for claim in claims))
        return
    if flags.publish and flags.preset == "smoke":
        advice = "a smoke run's figures mean nothing"
        raise ValueError(expected("--publish", "the preset laptop or paper", "smoke", advice))
    require_current_builds()
    flags.out.mkdir(parents=True, exist_ok=True)  # refused now, not after the first run
    quick = flags.preset == "smoke"
    limits = cache(lambda device: isolated_limits(Settings(quick=quick, device=device)))
    runs = Runs(flags.out.absolute(), flags.preset, this_machine(), limits)
    with RunFolder(flags.out).locked():  # runs beside each other would time each other's load
        for name in names if flags.again else ():
            if lacking(EXPERIMENTS[name], runs.preset) is None:
                runs.again(EXPERIMENTS[name])
        records = run_all(runs, names)
        print(verdicts(claims, records), ending(flags), sep="\n\n")
        if flags.publish:
            publish(records, lambda record: runs.folder_of(record.code, record.experiment))
    if any(isinstance(record, Measurement) and record.error for record in records.values()):
        sys.exit(1)


def selected(words: Sequence[str]) -> tuple[list[Claim], list[str]]:
    """The claims and the experiments that are asked for; everything for no words."""
    places, named = [x for x in words if x not in EXPERIMENTS], EXPERIMENTS.keys() & set(words)
    asked = chosen(places, tuple(EXPERIMENTS)) if places or not words else []
    needed = {name for claim in asked for name in claim.experiments} | named
    needed |= {other for name in needed for other in EXPERIMENTS[name].beside}
    measured = [x for x in CLAIMS if x.measured_by(named) and x not in asked]
    return [*asked, *measured], [name for name in EXPERIMENTS if not words or name in needed]


def run_all(runs: Runs, names: Sequence[str]) -> dict[str, Measurement | str]:
    """The record of each experiment, or why there is none: a bar for all, one for each."""
    records: dict[str, Measurement | str] = {}
    with tqdm(total=len(names), unit="experiment", position=0) as whole:
        for name in names:
            whole.set_description(name)
            records[name] = reason = recorded(runs, name)
            error = reason if isinstance(reason, str) else reason.error
            if error:
                tqdm.write(f"{name}: {error}", file=sys.stderr)
            whole.update()
    return records


def recorded(runs: Runs, name: str) -> Measurement | str:
    """As `one`; what fails before or beside the run becomes a record, too."""
    try:
        return one(runs, name)
    except Exception as fault:  # noqa: BLE001 (the others go on)
        error = f"{type(fault).__name__}: {fault}"
        return Measurement(name, runs.preset, runs.machine, error=error)


def one(runs: Runs, name: str) -> Measurement | str:
    """Runs an experiment that has not ended yet."""
    experiment = EXPERIMENTS[name]
    if reason := lacking(experiment, runs.preset):
        return f"not run: {reason}"
    if record := runs.read_again(experiment):
        return record
    least = max(1.0, runs.least_seconds(experiment))
    shown = "{desc} {elapsed}, at least {total:.0f} s by its operations |{bar}|"
    with tqdm(total=least, desc=f"  {name}", position=1, leave=False, disable=None,
              bar_format=shown) as part:  # fmt: skip
        return runs.run(experiment, lambda s: part.update(min(s, least - part.n)))


def verdicts(claims: Sequence[Claim], records: dict[str, Measurement | str]) -> str:
    """A row for each claim; no verdict on smoke runs and uncommitted code."""
    measured = {name: x for name, x in records.items() if isinstance(x, Measurement) and x.sound}
    rows = []
    for claim in claims:
        name = claim.measured_by(measured)
        here, verdict = "-", NOT_RUN
        if name is not None:
            record = measured[name]
            here = figure(record.figures.get(claim.rule.figure))
            judged = record.preset != "smoke" and is_committed(record.machine)
            verdict = claim.judge(record.figures, record.preset, record.device) if judged else "-"
        rows.append([claim.name, claim.paper, here, verdict])
    return markdown_table(["claim", "paper", "here", "verdict"], rows)


def ending(flags: Flags) -> str:
    """What follows from a run."""
    if flags.preset == "smoke":
        return "The preset smoke checks that the commands run. Its figures get no verdict."
    kept = "" if flags.publish else " --publish keeps the figures for `nox -s report`."
    return f"The runs are in {flags.out}.{kept}"


def publish(
    records: dict[str, Measurement | str], folder_of: Callable[[Measurement], Path]
) -> None:
    """Keeps the figures beside those of other experiments on the same machine, and trained runs.

    A kept record stays if it is worth more than the new one; see `worth`.

    Args:
        folder_of: the folder in which a measurement was made.
    """
    ended = [each for each in records.values() if isinstance(each, Measurement) and each.ended]
    for name in {key(record.machine) for record in ended}:
        file = FOLDER / f"{name}.json"
        kept = {each.experiment: each for each in read_or_set_aside(file)}
        for record in (each for each in ended if key(each.machine) == name):
            old = kept.get(record.experiment)
            if old is not None and worth(old) > worth(record):
                note = "not published, because the kept measurement is better"
                advice = f"remove that one from {file.name} to replace it"
                print(f"{record.experiment}: {note}; {advice}", file=sys.stderr)
                continue
            kept[record.experiment] = record
            if record.sound:
                keep(folder_of(record), place(FOLDER, record))
        write(file, [kept[name] for name in EXPERIMENTS if name in kept])
        print(f"kept: {file.relative_to(ROOT)}")


def worth(record: Measurement) -> tuple[bool, bool, bool]:
    """How records are compared: ended well, then committed code, then the preset paper."""
    return record.sound, is_committed(record.machine), record.preset == "paper"


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
