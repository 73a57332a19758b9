"""What is installed and what is live: `python -m linattn_core.info`, to paste into a bug report."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence

import torch

import linattn_core
from linattn_core.feature_maps import feature_map_names
from linattn_core.registry import installed_backends

# What sets how long OpenMP's threads spin before they sleep.
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def lines() -> list[str]:
    """The report, one item per line."""
    cuda = torch.version.cuda
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU at hand"
    report = [
        f"linattn-core   {linattn_core.__version__}",
        f"python         {platform.python_version()} on {platform.system()} {platform.machine()}",
        f"torch          {torch.__version__} (CUDA {cuda or 'not built in'}, {gpu})",
        f"CPU            {torch.backends.cpu.get_cpu_capability()}, "
        f"{torch.get_num_threads()} threads, {_waiting()}",
        "feature maps   " + ", ".join(feature_map_names()),
        "backends       in the order in which backend='auto' asks them",
    ]
    entries = installed_backends()
    for entry in entries:
        about = "" if entry.backend is None else f", {entry.backend.description}"
        report.append(f"  {entry.name:<12} {entry.condition} ({entry.origin}{about})")
    if len(entries) == 1:
        report.append("  no native backend is installed; everything runs in plain torch operations")
    return report


def _waiting() -> str:
    """How threads wait for the next call."""
    chosen = [f"{name}={os.environ[name]}" for name in _WAITING if name in os.environ]
    if chosen:
        return f"which wait as {', '.join(chosen)} say{'s' * (len(chosen) == 1)}"
    return f"which spin while they wait ({_WAITING[0]} and {_WAITING[1]} are not set)"


def main(arguments: Sequence[str] = ()) -> int:
    """Prints the report; takes no argument but --help."""
    argparse.ArgumentParser("python -m linattn_core.info", description=__doc__).parse_args(
        arguments
    )
    print("\n".join(lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
