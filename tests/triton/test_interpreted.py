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

CASES = {
    "tests/contract/test_oracle.py::test_within_budget": (
        "plain-torch.float32",
        "plain-torch.bfloat16",
        "plain-torch.float16",
        "feature_map=relu-torch.float16",
        "queries=11,keys=70,is_causal=False-torch.float32",
        "queries=65-torch.bfloat16",
        "queries=3,head_dim=1,value_dim=1-torch.float32",
    ),
    "tests/contract/test_extended.py::test_within_budget": (
        "key_lengths=(30, 9),mask=gaps-torch.float32",
        "batch=1,is_causal=False,cu_seqlens=(0, 0, 20, 37),initial_state=True-torch.float32",
        "heads=4,kv_heads=2-torch.float32",
        "value_dim=0,initial_state=True,return_normalizer=True-torch.float32",
    ),
}
PART = [
    *(f"{test}[triton-{case}]" for test, cases in CASES.items() for case in cases),
    "tests/contract/test_edges.py::test_empty_sequence_returns_its_initial_state[triton]",
    "tests/contract/test_edges.py::test_empty_inputs_give_empty_outputs[triton-2-0-5-5-False]",
    "tests/contract/test_edges.py::test_elu_does_not_cancel[triton-torch.float16]",
    "tests/contract/test_edges.py::test_every_output_is_written[triton]",
    "tests/contract/test_edges.py::test_step_inplace_updates_the_state_itself[triton]",
    "tests/triton/test_decay.py",
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
