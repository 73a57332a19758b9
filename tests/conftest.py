"""For every test: fixed seeds, one thread, the folder of real data."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

# Tests run in parallel, one process per core. Set before torch is imported, because OpenMP reads it
# then; the scripts that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import numpy as np
import pytest
import torch

ROOT = Path(__file__).parent.parent

# On a shared core an example may take any time. Every run has the same examples.
hypothesis.settings.register_profile("linattn", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("linattn")


@pytest.fixture(autouse=True)
def _same_start() -> None:
    torch.set_num_threads(1)
    random.seed(0)
    np.random.seed(0)  # scikit-learn draws from the global generator
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """The folder of real data sets, if it has the one that is named, such as "speech/an4".

    It is LINATTN_DATA, or shared/data beside the checkout. The test is skipped where it lacks the
    data set.
    """
    folder = Path(os.environ.get("LINATTN_DATA", ROOT.parent / "shared" / "data"))

    def folder_with(name: str) -> Path:
        if not (folder / name).is_dir():
            pytest.skip(f"no {name} in {folder}: set LINATTN_DATA to the folder that holds it")
        return folder

    return folder_with


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--backend NAME` (repeatable): the backends that the contract suite runs over.

    `--instruction-set NAME`: the one by which linattn-cpu computes there.
    """
    parser.addoption("--backend", action="append", default=[], help="backend under contract")
    parser.addoption("--instruction-set", help="of linattn-cpu, under contract")


# Why tests are skipped, by words of their reasons; the first that is found counts.
SKIPPED = {
    r"refuses|no float64|no gradients|causal": "what a backend may refuse",
    r"GPU|CUDA|nvcc|device": "no GPU, or no compiler for one",
    r"LINATTN_DATA": "no data set",
    r"AMX|tiles": "no tiles in this processor",
    r"install|import|need": "a package or program that is not installed",
}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many tests were skipped and why, in groups, and what was left out by default."""
    reasons = Counter(
        next((why for words, why in SKIPPED.items() if re.search(words, reason)), "other reasons")
        for reason in map(skip_reason, terminalreporter.stats.get("skipped", ()))
    )
    if reasons:
        groups = "; ".join(f"{count} {why}" for why, count in reasons.most_common())
        terminalreporter.write_line(f"skipped: {groups} (-rs lists them)")
    if terminalreporter.config.option.markexpr == "not slow":
        terminalreporter.write_line('tests marked slow did not run: -m "" runs them, too')


def skip_reason(report: pytest.TestReport) -> str:
    """What a skipped test said."""
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
