"""Steps of fused kernels: the tokens of other steps, by few kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from linattn_models import AutoregressiveTransformer, Linear, TransformerConfig
from linattn_models.decoding.graph import EagerRecorder, Result, fuse
from tests.models.decoding.decoders import forced, recorded, worst
from tests.models.tiny import random_tokens


class Fused(EagerRecorder):
    """Runs fused work, as a recorder of CUDA graphs does before it records."""

    name = "fused"

    def record(self, work: Callable[[], Result]) -> Callable[[], Result]:
        return fuse(work)


def language_model(**fields: Any) -> AutoregressiveTransformer:
    attention = Linear(decay="gated", **fields)
    config = TransformerConfig.language(2, 4, 4, num_kv_heads=2, attention=attention)
    return AutoregressiveTransformer(config, 11, 12).eval()


@pytest.mark.slow
def test_fused_steps_draw_the_tokens_of_the_model() -> None:
    model = language_model(window_size=3)
    settings = {"seeds": 5, "top_k": 9, "top_p": 0.9}
    fused = recorded(model, recorder=Fused()).generate(3, **settings)
    assert torch.equal(fused, model.generate(3, decoder="eager", **settings))


@pytest.mark.slow
@torch.no_grad()
def test_fused_steps_of_bfloat16_stay_near() -> None:
    model = language_model()
    tokens = random_tokens(model, 1, 12)
    fused = forced(recorded(model, "bfloat16", Fused()), tokens)
    assert worst(fused, model(tokens)) < 0.05


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are counted for a fake GPU")
@pytest.mark.parametrize(("window", "most"), [(0, 8), (64, 14)])
def test_a_layer_is_few_kernels(window: int, most: int) -> None:
    """One row of a language model: products and what follows them are one kernel."""
    pytest.importorskip("triton")
    from tests.models.decoding.launches import count_kernels

    def count(layers: int) -> int:
        attention = Linear(window_size=window, decay="gated")
        config = TransformerConfig.language(layers, 16, 128, attention=attention)
        with torch.device("meta"):
            model = AutoregressiveTransformer(config, 32_000, positions="rotary")
            description = model.describe()
        return count_kernels(description, model.head, "bfloat16", batch=1)

    assert 0 < count(3) - count(2) <= most
