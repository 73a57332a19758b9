"""Ctrl-C while a program imports torch, which takes seconds, is one line and exit code 130."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.apps.app_scripts import APPS

ROOT = APPS.parent
SCRIPTS = [
    path.relative_to(ROOT).as_posix()
    for path in sorted(APPS.glob("*/*.py"))
    if path.stem != "__init__"
]
MODULES = ["benchmarks", "replication.paper", "replication.report"]
# Makes the import of torch wait for a signal. In short sleeps: one that arrives just before a sleep
# does not end it.
SLOW_IMPORT = """
import importlib.abc, runpy, sys, time
class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch":
            print("importing", flush=True)
            while True:
                time.sleep(0.05)
sys.meta_path.insert(0, Slow())
program = sys.argv[1]
if program.endswith(".py"):
    sys.path[0] = program.rpartition("/")[0]
    runpy.run_path(program, run_name="__main__")
else:
    runpy.run_module(program, run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("program", [*SCRIPTS, *MODULES])
def test_ctrl_c_while_a_program_imports_is_one_line(program: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_IMPORT, program],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate() == ("", "interrupted\n")
    assert process.returncode == 130
