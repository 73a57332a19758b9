"""On which machine, by which code, a measurement was made; and whether that code still stands."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.measure.cases import Settings
from benchmarks.measure.machine import Machine, describe_machine
from linattn_models.files import replace_file

ROOT = Path(__file__).parent.parent
DIRTY, UNKNOWN = "-dirty", "unknown"


def this_machine() -> Machine:
    """The machine and the code of this process."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return describe_machine(Settings(threads=torch.get_num_threads(), device=device))


def at_commit(machine: Machine, sources: Sequence[str]) -> Machine:
    """The machine, its commit dirty only where what a measurement depends on has changed."""
    commit = machine.commit.removesuffix(DIRTY)
    changed = _git("status", "--porcelain", "--", *sources).stdout
    return dataclasses.replace(machine, commit=commit + DIRTY * bool(changed))


def key(machine: Machine) -> str:
    """A name for all measurements that may stand side by side: same hardware, same versions."""
    words = re.sub(r"[^a-z0-9]+", "-", machine.hardware.lower()).strip("-")[:40].strip("-")
    versions = re.findall(r"(?:torch|linattn-core) [\w.+]+", machine.software)
    text = f"{machine.hardware}; {'; '.join(versions)}; {machine.threads}"
    return f"{words}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def why_stale(commit: str, sources: Sequence[str]) -> str | None:
    """Why a measurement of a commit does not speak for this checkout; None where it does.

    Args:
        commit: of the measurement, with "-dirty" where files differed from it.
        sources: files and folders that the measurement depends on.
    """
    if commit.endswith(DIRTY):
        return "measured with uncommitted changes"
    known = _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if known.returncode:
        return f"measured at a commit that is not here ({commit[:12]})"
    changed = _git("diff", "--name-only", known.stdout.strip(), "--", *sources).stdout.split()
    return f"{len(changed)} files that it depends on have changed since" if changed else None


def date_of(commit: str) -> str:
    """The day of a commit; "unknown" where it is not here."""
    shown = _git("show", "-s", "--format=%cs", commit.removesuffix(DIRTY))
    return shown.stdout.strip() or UNKNOWN


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def write_figures(folder: Path, figures: Mapping[str, float]) -> None:
    """Leaves the figures in a folder, and prints them."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"figures": figures}, indent=1)
    replace_file(folder / "figures.json", f"{text}\n".encode())
    print(text)
