"""Runs the paper's claims: python -m replication.paper [claim ...] [--preset smoke|laptop|paper].

    nox -s paper -- --preset smoke              the code of most claims, in minutes
    nox -s paper                                all but the longest trainings, in hours of two cores
    nox -s paper -- table1 figure2              some of them
    nox -s paper -- mnist                       an experiment, and the claims that it measures
    nox -s paper -- --publish                   and keep figures and curves for the report

A claim is a place in the paper, such as table5, or one of its numbers, such as
table5/mnist/linear/cpu; --list names all. Claims that one experiment measures are run together.
The experiments are in experiments.toml. Those that train for hours, mnist and mnist-shape, run only
where their names are given. What has a record in the run folder is not run again, so that an
interrupted command continues when it is given again: a training from its checkpoint, timings of
minutes from their start. An experiment that fails is recorded with its error, the others go on, and
the exit code is 1. Smoke runs get no verdict.
"""

from __future__ import annotations

if __name__ == "__main__":
    import linattn_lab.startup  # noqa: F401  (before torch)

import dataclasses
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import tyro

from linattn_core.errors import expected
from linattn_lab.runs import make_folders
from linattn_lab.script import parse_flags, run_script
from linattn_lab.store import record_file, remove_results
from linattn_lab.tables import figure, markdown_table
from linattn_models.training import RunFolder
from replication.claims import CLAIMS, Claim, select_claims
from replication.experiments import EXPERIMENTS, Preset
from replication.published import publish, try_published
from replication.records import DEVICES, Evidence, find_evidence, judge_claim, read_evidence
from replication.run import LOG, run_experiment


@dataclasses.dataclass(frozen=True)
class Flags:
    """Run claims of the paper."""

    claims: tyro.conf.Positional[tuple[str, ...]] = ()
    """Places or names of claims, or names of experiments; all but mnist if none is given."""
    preset: Preset = "laptop"
    """smoke: minutes, figures mean nothing; laptop: hours of two cores; paper: its own sizes."""
    list: bool = False
    """Name the claims and stop."""
    again: bool = False
    """Run also what has ended, from the start: what earlier runs left is removed."""
    publish: bool = False
    """Keep figures, curves and pictures in docs, where `nox -s report` finds them."""
    out: Path = Path("runs/replication")
    """Folder of the runs."""


def main(flags: Flags) -> None:
    """Runs what the claims need, and prints a verdict for each claim."""
    claims, names = select(flags.claims)
    if flags.list:
        print("\n".join(f"{claim.name}: {claim.says}" for claim in claims))
        return
    if flags.publish and flags.preset == "smoke":
        advice = "a smoke run's figures mean nothing"
        raise ValueError(expected("--publish", "the preset laptop or paper", "smoke", advice))
    folder = flags.out.absolute() / flags.preset
    make_folders(folder)
    if flags.publish:
        try_published()
    with RunFolder(folder).lock():  # runs beside each other would time each other's load
        run_all(names, flags.preset, folder, again=flags.again)
    evidence = [each for each in read_evidence(folder) if each.experiment in names]
    print(show_verdicts(claims, evidence), f"The runs are in {folder}.", sep="\n")
    for name in left_out(claims, names):
        print(f"{name} trains for hours and runs only where its name is given.")
    for each in evidence if flags.publish else ():
        if not each.measurement.error:
            publish(each, folder)
    if any(each.measurement.error for each in evidence):
        sys.exit(1)


def select(words: Sequence[str]) -> tuple[list[Claim], list[str]]:
    """The claims that are asked for, and what measures them or stands beside that."""
    if not words:
        return list(CLAIMS), [name for name, each in EXPERIMENTS.items() if not each.by_name]
    named = {word for word in words if word in EXPERIMENTS}
    places = [word for word in words if word not in EXPERIMENTS]
    claims = select_claims(places, EXPERIMENTS) if places else []
    measured = {name for claim in claims for name in claim.experiments}
    needed = named | {name for name in measured if not EXPERIMENTS[name].by_name}
    needed |= {other for name in needed for other in EXPERIMENTS[name].beside}
    claims += [x for x in CLAIMS if x not in claims and not named.isdisjoint(x.experiments)]
    return claims, [name for name in EXPERIMENTS if name in needed]


def left_out(claims: Sequence[Claim], names: Sequence[str]) -> list[str]:
    """Experiments that would measure some of the claims, but run only if they are named."""
    wanted = {name for claim in claims for name in claim.experiments}
    return [x for x, each in EXPERIMENTS.items() if each.by_name and x in wanted.difference(names)]


def run_all(names: Sequence[str], preset: Preset, folder: Path, *, again: bool) -> None:
    """Runs the experiments that can run here and have no sound record in the folder yet."""
    ended = {x.experiment for x in read_evidence(folder) if not x.measurement.error and not again}
    for number, name in enumerate(names, 1):
        experiment = EXPERIMENTS[name]
        say(f"{number} of {len(names)}: {name}: {experiment.shows}")
        if reason := experiment.lacks(preset):
            say(f"{name}: not run: it {reason}")
        elif name in ended:
            say(f"{name}: has ended before")
        else:
            if again:
                remove_run(name, folder)
            say(f"{name}: since {time.strftime('%H:%M')}; its output is in {folder / name / LOG}")
            measurement = run_experiment(experiment, preset, folder).results[name]
            say(f"{name}: {measurement.error or f'took {measurement.seconds:,.0f} s'}")


def say(words: str) -> None:
    """Tells at once what is done; the results are printed at the end."""
    print(words, file=sys.stderr, flush=True)


def remove_run(name: str, folder: Path) -> None:
    """Removes what an experiment left; its records first, as they say that the run has ended."""
    for device in DEVICES:
        remove_results(record_file(folder.parent, folder.name, device), [name])
    shutil.rmtree(folder / name, ignore_errors=True)


def show_verdicts(claims: Sequence[Claim], evidence: list[Evidence]) -> str:
    """A row for each claim; smoke runs get no verdict."""
    rows = []
    for claim in claims:
        found = find_evidence(claim, evidence)
        figures = {} if found is None else found.figures
        smoke = found is not None and found.measurement.preset == "smoke"
        verdict = "-" if smoke else judge_claim(claim, found)
        here = figure(figures.get(claim.rules[0].figure))
        rows.append([claim.name, claim.paper, here, verdict])
    return markdown_table(["claim", "paper", "here", "verdict"], rows)


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
