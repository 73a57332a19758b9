"""What scripts settle before torch is imported; what a person has set holds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os
import linattn_lab.startup, linattn_lab.threads
print(*(os.environ.get(name) for name in ("GOMP_SPINCOUNT", "TQDM_DISABLE")))
"""


@pytest.mark.parametrize(
    ("variables", "settled"),
    [
        ({}, "5000 1"),
        ({"GOMP_SPINCOUNT": "7", "TQDM_DISABLE": "yes"}, "7 yes"),
        ({"OMP_WAIT_POLICY": "active"}, "None 1"),
    ],
)
def test_a_person_s_settings_hold(variables: dict[str, str], settled: str) -> None:
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "TQDM_DISABLE")
    usual = {name: value for name, value in os.environ.items() if name not in names}
    command, environment = [sys.executable, "-c", SCRIPT], {**usual, **variables}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == settled
