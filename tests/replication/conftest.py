"""Experiments that take no time."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from replication import paper
from replication.experiments import Experiment

COUNTS = """
    import pathlib, sys
    folder = pathlib.Path(sys.argv[-1])
    runs = folder / "runs.txt"
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    (folder / "figures.json").write_text('{"positive": 2.0}')
"""


def make_experiment(folder: Path, name: str, program: str, **fields: object) -> Experiment:
    """An experiment that runs a program."""
    script = folder / f"{name}.py"
    script.write_text(textwrap.dedent(program))
    presets = ("smoke", "laptop", "paper")
    known: dict[str, object] = {
        "name": name, "shows": "a test", "command": str(script),
        "flags": dict.fromkeys(presets, ""), "seconds": dict.fromkeys(presets, 1.0),
    }  # fmt: skip
    return Experiment.model_validate(known | fields)


@pytest.fixture
def experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Experiment]:
    """One that counts its runs, one that fails, one that is asked for by name."""
    known = {
        "failing": make_experiment(tmp_path, "failing", "raise SystemExit('it is broken')"),
        "equations": make_experiment(tmp_path, "equations", COUNTS),
        "mnist": make_experiment(tmp_path, "mnist", COUNTS, by_name=True),
    }
    monkeypatch.setattr(paper, "EXPERIMENTS", known)
    monkeypatch.setattr(paper, "CLAIMS", tuple(
        claim for claim in paper.CLAIMS if set(claim.experiments) <= {"equations", "mnist"}
    ))  # fmt: skip
    return known
