"""On which machine, and by which code, a measurement is made."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.measure.cases import Settings
from benchmarks.measure.machine import Machine, describe_machine
from replication.sources import ROOT

DIRTY = "-dirty"


def this_machine() -> Machine:
    """The machine and the code of this process."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return describe_machine(Settings(threads=torch.get_num_threads(), device=device))


def at_commit(machine: Machine, sources: Sequence[Path]) -> Machine:
    """The machine, its commit dirty only where what a measurement depends on has changed."""
    command = ["git", "-C", str(ROOT), "status", "--porcelain", "--", *map(str, sources)]
    changed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return dataclasses.replace(
        machine, commit=machine.commit.removesuffix(DIRTY) + DIRTY * bool(changed)
    )


def key(machine: Machine) -> str:
    """A name for all measurements that may stand side by side: same hardware, same versions."""
    words = re.sub(r"[^a-z0-9]+", "-", machine.hardware.lower()).strip("-")[:40].strip("-")
    versions = re.findall(r"(?:torch|linattn-core) [\w.+]+", machine.software)
    text = f"{machine.hardware}; {'; '.join(versions)}; {machine.threads}"
    return f"{words}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
