"""Filters inside the compiled step: it draws the tokens that torch draws from filtered logits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from linattn_models import Categorical, compile_decoder
from linattn_models.decoding import Filters, SamplingParams, start_draws
from tests.models.tiny import seeded, tiny_model

ROWS = 20


def drawn_from(logits: Tensor, params: SamplingParams) -> Tensor:
    """The tokens (ROWS,) that a step draws, with the same logits (V,) for every row."""
    model = tiny_model("linear", len(logits)).float()
    with torch.no_grad():
        model.output.weight.zero_()
        model.output.bias.copy_(logits)
    decoder = compile_decoder(model, backend="cpu")
    token = torch.zeros(ROWS, dtype=torch.int64)
    _, state = decoder.prefill(token[:, None])
    draws = start_draws(params, ROWS, model.head, decoder.device)
    (parameters,), (drawn,), _ = decoder.steps_and_draws(token, state, draws, 1)
    torch.testing.assert_close(
        parameters, logits.expand_as(parameters), rtol=0, atol=0, equal_nan=True
    )
    return drawn


def drawn_by_torch(logits: Tensor, params: SamplingParams, passing: Tensor) -> Tensor:
    """The tokens (ROWS,) that the head draws from the logits that pass."""
    head = Categorical(len(logits))
    plain = SamplingParams(params.temperature, seed=params.seed)
    draws = start_draws(plain, ROWS, head, logits.device)
    return draws.draw(head, passing.expand(ROWS, -1))


@pytest.mark.usefixtures("two_threads", "instruction_set")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    vocabulary=st.sampled_from([2, 3, 40, 900]),
    with_ties=st.booleans(),
    filters=st.builds(
        Filters,
        top_k=st.none() | st.integers(1, 50),
        top_p=st.none() | st.floats(1e-6, 0.999),
        min_p=st.none() | st.floats(0.0, 1.0),
    ),
    temperature=st.sampled_from([1e-3, 0.3, 1.0, 2.0, 50.0]),
    seed=st.integers(0, 999),
)
def test_a_step_draws_from_what_passes_in_float64(
    vocabulary: int, with_ties: bool, filters: Filters, temperature: float, seed: int
) -> None:
    logits = 2 * torch.randn(vocabulary, generator=seeded(seed))
    logits = logits.round() if with_ties else logits
    params = SamplingParams(temperature, **vars(filters), seed=seed)
    passing = filters(logits.double()[None], temperature).float()
    assert torch.equal(drawn_from(logits, params), drawn_by_torch(logits, params, passing))


@pytest.mark.parametrize(
    "filters", [Filters(top_k=2), Filters(top_p=0.5), Filters(min_p=0.1), Filters(3, 0.9, 0.1)]
)
@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("everywhere", [False, True])
def test_logits_that_are_not_finite(filters: Filters, special: float, everywhere: bool) -> None:
    logits = torch.randn(21, generator=seeded())
    logits[slice(None) if everywhere else slice(3, 5)] = special
    params = SamplingParams(**vars(filters), seed=0)
    passing = filters(logits.expand(ROWS, -1), 1.0)
    drawn = drawn_from(logits, params)
    assert drawn.min() >= 0 and drawn.max() < 21
    if special == special:  # no NaN, which the caller refuses
        assert torch.equal(drawn, drawn_by_torch(logits, params, passing))
