"""What is said below a table of how it was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pixel_speed import Speed, how_it_ran

SPEED = Speed("linear", 1, 2.0, 0.5, 100, estimated=False, compiled=True)
WHERE = {"torch": "2.13.0", "device": "cpu", "threads": 2}


@pytest.mark.parametrize(
    ("backends", "compiled", "said"),
    [
        (["reference"], False, "linear attention in plain torch."),
        (["cpu", "reference"], False, "linear attention by the backend cpu."),
        (["cpu", "reference"], True, "cpu, which also compiled the decoder of: linear."),
    ],
)
def test_it_says_what_was_native(backends: list[str], compiled: bool, said: str) -> None:
    speeds = [replace(SPEED, compiled=compiled)] * 2

    line = how_it_ran({**WHERE, "backends": backends}, speeds)

    assert line.startswith("torch 2.13.0, cpu, 2 threads; ") and line.endswith(said)
