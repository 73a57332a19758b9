"""Draws at the edges of float32, and outputs that are NaN."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from linattn_models import Head
from linattn_models.decoding import sampling
from tests.models.decoding.decoders import KINDS, Kind, draw_alike, long_model, needs_cpu_backend
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


class OnGpu(torch.Tensor):
    """Parameters whose reading would wait for a device."""

    is_cpu = False  # type: ignore[assignment]


def test_a_stream_without_an_end_is_checked_from_time_to_time() -> None:
    check, numbers = sampling.NanCheck(), torch.ones(1, 1, 1).as_subclass(OnGpu)
    for _ in range(sampling._MOST_UNREAD - 1):
        check.add(numbers)
    with pytest.raises(ValueError, match=f"at step {sampling._MOST_UNREAD - 1}: "):
        check.add(numbers * torch.nan)


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


@needs_cpu_backend
@heads
@torch.no_grad()
def test_what_a_compiled_step_draws_from_nan_is_a_token(head: Head) -> None:
    """It is the next input, before the caller refuses the NaN."""
    model = long_model(head)
    model.output.bias[3 if head.kind == "categorical" else slice(None)] = torch.nan
    decoder, token = Kind("native").decoder(model), random_tokens(model, 2, 1)
    for temperature in (0.0, 1.0):
        _, state = decoder.prefill(token)
        draws, _ = draw_alike(head, 2, temperature=temperature)
        _, drawn, _ = decoder.steps_and_draws(token[:, 0], state, draws, 1)
        assert drawn.min() >= 0 and drawn.max() < head.levels
