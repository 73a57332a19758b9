"""An experiment's process ends with the one that runs it."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from replication.run import run_command

PATIENCE = 60  # seconds; no test needs longer

SLEEPS = """
import os, pathlib, subprocess, sys, time
below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
file = pathlib.Path(sys.argv[1])
file.with_suffix(".tmp").write_text(f"{os.getpid()} {below.pid}")
file.with_suffix(".tmp").rename(file)
time.sleep(600)
"""


def wait_until(exists: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not exists.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_sigterm_ends_the_experiment_too(tmp_path: Path) -> None:
    script, pids = tmp_path / "sleeps.py", tmp_path / "pids.txt"
    script.write_text(SLEEPS)

    def signal_when_it_runs() -> None:
        wait_until(pids)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=signal_when_it_runs, daemon=True).start()
    with pytest.raises(SystemExit) as ended:
        run_command(f"{script} {pids}", tmp_path, "cpu")

    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    assert not any(map(is_running, map(int, pids.read_text().split())))


def is_running(pid: int) -> bool:
    """Whether a process runs; one that was ended is given time."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return False
        except psutil.NoSuchProcess:
            return False
        time.sleep(0.01)
    return True
