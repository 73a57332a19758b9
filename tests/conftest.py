"""What every test gets: fixed seeds, one thread, and the way to the real data."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

# Tests run side by side, one process a core; set before torch loads, so that its OpenMP heeds it,
# and inherited by the scripts that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import numpy as np
import pytest
import torch

ROOT = Path(__file__).parent.parent

# A shared core can take any time over an example; the same examples come on every run.
hypothesis.settings.register_profile("linattn", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("linattn")


@pytest.fixture(autouse=True)
def _seed() -> None:
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
