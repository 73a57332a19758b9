"""The pretrained model of Python's sources: as good as its record says, and it writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from language.data import spread_windows
from language.files import find_parts, read_blocks
from language.training import text_measures
from linattn_models import load, read_config
from tests.apps.app_scripts import APPS, Script

PRETRAINED = APPS / "text_generation" / "pretrained"
LARGEST = 3_000_000  # bytes, of a clone


def test_held_out_files_cost_the_bits_of_its_record(tmp_path: Path) -> None:
    """Of this Python's library, which may be of another version."""
    assert sum(file.stat().st_size for file in PRETRAINED.iterdir()) < LARGEST
    config = read_config(PRETRAINED)
    assert config["weights"] == "int8" and config["extra"]["environment"]["commit"]
    promised = config["extra"]["metrics"]["bits_per_byte"]
    held_out = find_parts((), tmp_path).held_out
    text = b"".join(block for part in held_out for block in read_blocks(part))
    pieces = spread_windows(np.frombuffer(text, np.uint8), 64, 256)
    measured = text_measures(load(PRETRAINED), pieces, 1.0)["bits_per_byte"]
    assert measured == pytest.approx(promised, abs=0.3)


def test_it_continues_a_prompt(script: Script) -> None:
    done = script("generate", "--length", 300)
    assert done.code == 0, done.stderr
    assert done.stdout.startswith("import ") and len(done.stdout) > 300
    other = script("generate", PRETRAINED, "def main(", "--length", 20)
    assert other.stdout.startswith("def main(")
