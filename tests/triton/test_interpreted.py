"""The kernels by Triton's interpreter, on the CPU, held to a part of the contract.

`TRITON_INTERPRET=1 python -m pytest tests/contract --backend triton` runs all of it, for long.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")

CASES = (
    "plain",
    "dtype=bfloat16",
    "is_causal=False,dtype=float16",
    "is_causal=False,feature_map=relu,dtype=float16",
    "queries=11,keys=70,is_causal=False",
    "queries=70,keys=11,is_causal=False,dtype=bfloat16",
    "queries=3,head_dim=1,value_dim=1",
    "key_lengths=(30, 9),mask=gaps",
    "batch=1,is_causal=False,cu_seqlens=(0, 0, 20, 37),initial_state=True",
    "heads=4,kv_heads=2",
    "value_dim=0,initial_state=True,return_normalizer=True",
)
PART = [
    *(f"tests/contract/test_oracle.py::test_within_budget[triton-{case}]" for case in CASES),
    "tests/contract/test_edges.py::test_empty_sequence_returns_its_initial_state[triton]",
    "tests/contract/test_edges.py::test_empty_inputs_give_empty_outputs[triton-False]",
    "tests/contract/test_edges.py::test_elu_does_not_cancel[triton-torch.float16]",
    "tests/contract/test_edges.py::test_every_output_is_written[triton-True]",
    "tests/contract/test_properties.py::"
    "test_a_step_in_place_is_the_step_that_returns_its_state[triton]",
    "tests/triton/test_decay.py",
    "tests/triton/test_segments.py",
    "tests/triton/test_sums.py",
]


@pytest.mark.slow
def test_a_part_of_the_contract(repository: Path) -> None:
    quietly = ("-q", "-p", "no:cacheprovider")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *quietly, "--backend", "triton", *PART],
        env=os.environ | {"TRITON_INTERPRET": "1"}, cwd=repository, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-5_000:]
    assert "skipped" not in ran.stdout, ran.stdout
