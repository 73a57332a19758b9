"""Draws at the edges of float32, and outputs that are NaN."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from linattn_models import Head
from tests.models.decoding.decoders import KINDS, Kind, long_model
from tests.models.tiny import heads, random_tokens, seeded, tiny_model


@heads
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_tiny_temperatures_are_greedy(head: Head, dtype: torch.dtype) -> None:
    parameters = torch.randn(200, head.num_parameters, dtype=dtype) * 5
    greedy = head.sample(parameters, temperature=0.0)
    for temperature in (1e-29, 1e-37, 1e-38, 1e-39, 1e-45, 1e-300):
        assert torch.equal(head.sample(parameters, temperature=temperature), greedy)


@pytest.mark.parametrize("kind", [*KINDS, "rerun"])
def test_nan_is_refused_with_its_step(kind: Any) -> None:
    model = long_model()
    with torch.no_grad():
        model.positions.table[5] = torch.nan
    fields: dict[str, Any] = {"decoder": "eager"}
    if kind == "rerun":
        fields = {"method": "rerun"}
    elif kind != "eager":
        model.to(Kind(kind).device)
        fields = {"decoder": Kind(kind).decoder(model)}
    said = "the model's outputs at step 5: expected numbers, got NaN"
    with pytest.raises(ValueError, match=re.escape(said)):
        model.generate(2, **fields)
    stream = model.stream(2, **fields)
    if model.device.type == "cpu":
        for _ in range(5):
            next(stream)
    with pytest.raises(ValueError, match=re.escape(said)):
        list(stream)
    prefix = random_tokens(model, 2, 3).to(model.device)
    with pytest.raises(ValueError, match="at step 2: expected numbers, got NaN"):
        model.generate(prefix=prefix, **fields)


def test_infinite_logits_are_not_nan() -> None:
    model = tiny_model()
    with torch.no_grad():
        model.output.bias[2:] = -torch.inf
    tokens = model.generate(20, generator=seeded())
    assert tokens.max() == 1


@heads
def test_tokens_drawn_from_nan_stay_in_range(head: Head) -> None:
    """On a GPU they index tables before the NaN is noticed."""
    tokens = head.sample(torch.full((4, head.num_parameters), torch.nan))
    assert tokens.min() >= 0 and tokens.max() < head.levels
