"""What a run ran on, for `summary.json`; whatever cannot be found out is null."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import torch

from linattn_core import backends


def environment(device: torch.device) -> dict[str, object]:
    """The versions, device, threads and source commit of this process; never fails."""
    return {
        "torch": torch.__version__,
        "device": _device_name(device),
        "threads": torch.get_num_threads(),
        "backends": list(backends()),
        # The script's checkout; where there is none, that of an editable installation.
        "commit": source_commit(Path(sys.argv[0]).resolve().parent)
        or source_commit(Path(__file__).parent),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def source_commit(folder: Path) -> str | None:
    """The commit of the git checkout around `folder`; None without git, checkout or commit."""
    command = ["git", "-C", str(folder), "rev-parse", "--verify", "HEAD"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def _device_name(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    return f"cuda ({torch.cuda.get_device_name(device)})"
