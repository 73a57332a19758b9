"""A script in an environment without linattn-lab says so in one sentence."""

from __future__ import annotations

import subprocess
import sys

from tests.apps.app_scripts import SCRIPTS


def test_it_says_what_to_install() -> None:
    for path in SCRIPTS:
        command = [sys.executable, "-E", "-S", str(path)]  # which sees no installed package
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and not done.stdout
        assert done.stderr == (
            f"{path}: expected the package linattn_lab, got none installed; "
            f"{path.with_name('README.md')} says how to install it.\n"
        )
