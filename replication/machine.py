"""On which machine, and by which code, a measurement is made."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.measure.cases import Settings
from benchmarks.measure.machine import Machine, describe_machine, git
from linattn_core.errors import expected
from replication.sources import ROOT, files_of

DIRTY = "-dirty"
# The folders whose C++ and CUDA are in a compiled module, and the module; in packages/.
_BUILDS = {
    "linattn_cpu": ("linattn-cpu/native", "linattn-core/native"),
    "linattn_cuda": ("linattn-cuda/native", "linattn-core/native", "../kernels-cuda"),
}


def require_current_builds(root: Path = ROOT) -> None:
    """Refuses to measure by a compiled module that is older than its sources.

    Raises:
        RuntimeError: naming the package.
    """
    for package, folders in _BUILDS.items():
        if importlib.util.find_spec(package) is None:
            continue
        module = importlib.util.find_spec(f"{package}._native")
        if module is None or module.origin is None:
            continue
        sources = [file for x in folders for file in files_of(root / "packages" / x)]
        if max(file.stat().st_mtime for file in sources) > Path(module.origin).stat().st_mtime:
            name, advice = package.replace("_", "-"), "install it again"
            raise RuntimeError(expected(name, "a build of these sources", "an older one", advice))


def this_machine() -> Machine:
    """The machine and the code of this process."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return describe_machine(Settings(threads=torch.get_num_threads(), device=device))


def at_commit(machine: Machine, sources: Sequence[Path]) -> Machine:
    """The machine with the commit of now, dirty only where what a measurement needs has changed.

    Where git cannot say it, it is dirty, too.
    """
    try:
        commit = git("rev-parse", "--short", "HEAD")
        changed = git("status", "--porcelain", "--", *map(str, sources))
    except (FileNotFoundError, subprocess.CalledProcessError):
        commit, changed = machine.commit.removesuffix(DIRTY), "unknown"
    return dataclasses.replace(machine, commit=commit + DIRTY * bool(changed))


def is_committed(machine: Machine) -> bool:
    """Whether a commit says what code was measured."""
    return not machine.commit.endswith(DIRTY)


def key(machine: Machine) -> str:
    """A name for all measurements that may stand side by side: same hardware, same versions."""
    words = re.sub(r"[^a-z0-9]+", "-", machine.hardware.lower()).strip("-")[:40].strip("-")
    versions = re.findall(r"(?:torch|linattn-core) [\w.+]+", machine.software)
    text = f"{machine.hardware}; {'; '.join(versions)}; {machine.threads}"
    return f"{words}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
