"""Files of tensors: their size is compared before memory is taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from linattn_models.weights.tensor_files import read_tensors


def test_a_sparse_file_takes_no_memory(tmp_path: Path) -> None:
    numbers = 1 << 38  # a terabyte of float32, of which the disk holds nothing
    entry = {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}
    header = json.dumps({"weight": entry}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    with file.open("r+b") as content:
        content.truncate(8 + len(header) + 4 * numbers)

    with pytest.raises(ValueError, match=r"model\.safetensors.* more than the free memory"):
        read_tensors(file, "the weights of a model")
