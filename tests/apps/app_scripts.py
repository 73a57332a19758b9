"""An application's scripts, run as a user runs them."""

from __future__ import annotations

import io
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

APPS = Path(__file__).parents[2] / "apps"
# Without run_onnx.py, which shows how a model runs where no package of linattn is.
SCRIPTS = sorted(x for x in APPS.glob("*/[a-z]*.py") if x.name != "run_onnx.py")
PNG = b"\x89PNG"  # how a picture's file begins


@dataclass(frozen=True)
class Finished:
    """How a script ended and what it said."""

    code: int
    stdout: str
    stderr: str


Script = Callable[..., Finished]


# Looks for the path whenever Python opens, makes or renames something.
KILLED = """
import os, runpy, signal, sys
_, path, *sys.argv = sys.argv
sys.path[0] = os.path.dirname(sys.argv[0])

def look(event, _):
    if event in ("open", "os.mkdir", "os.rename") and os.path.exists(path):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(look)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def command(app: str, name: str, *arguments: object) -> list[str]:
    """What runs the script `name` of `app` in a process of its own."""
    return [sys.executable, str(APPS / app / f"{name}.py"), *map(str, arguments)]


def run(app: str, name: str, *arguments: object) -> Finished:
    """The script as `__main__` of this process, which has torch loaded already."""
    out, err = io.StringIO(), io.StringIO()
    argv = command(app, name, *arguments)[1:]
    with mock.patch.object(sys, "argv", argv), redirect_stdout(out), redirect_stderr(err):
        try:
            runpy.run_path(argv[0], run_name="__main__")
        except SystemExit as ended:
            return Finished(int(ended.code or 0), out.getvalue(), err.getvalue())
    raise AssertionError(f"{name} returned without an exit code")


def kill_when_there(process: list[str], path: Path) -> None:
    """Runs a script until it has made the file or folder, and kills it then, on any machine."""
    interpreter, *script = process
    ended = subprocess.run(
        [interpreter, "-c", KILLED, str(path), *script], capture_output=True, text=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def cells(table: str) -> dict[str, list[str]]:
    """The rows of a Markdown table by their first cell."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in rows[2:]}
