"""Ctrl-C while a program imports torch, which takes seconds, is one line and exit code 130."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.apps.app_scripts import APPS, SCRIPTS

ROOT = APPS.parent
FILES = [path.relative_to(ROOT).as_posix() for path in SCRIPTS]
MODULES = ["benchmarks", "replication.paper", "replication.report"]
# Runs each program in a fork, which the import of torch interrupts.
PROGRAMS = """
import importlib.abc, json, os, runpy, signal, sys, tempfile, traceback

class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch":
            signal.raise_signal(signal.SIGINT)

def run(program):
    sys.meta_path.insert(0, Interrupting())
    sys.argv = [program]
    if program.endswith(".py"):
        sys.path[0] = program.rpartition("/")[0]
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)

ended = {}
for program in sys.argv[1:]:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        if not (child := os.fork()):
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            try:
                run(program)
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0), err.seek(0)
        ended[program] = [code, out.read(), err.read()]
print(json.dumps(ended))
"""


def test_ctrl_c_while_a_program_imports_is_one_line() -> None:
    command = [sys.executable, "-c", PROGRAMS, *FILES, *MODULES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        program: [130, "", "interrupted\n"] for program in [*FILES, *MODULES]
    }
