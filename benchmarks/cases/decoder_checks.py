"""The checks of decoders: step by step against the whole sequence in float64."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from benchmarks import oracle
from benchmarks.cases.peer_decoder import PeerDecoder
from linattn_models import AutoregressiveTransformer, CompiledDecoder
from linattn_models.decoding import Draws, SamplingParams, start_draws

STEPS = "decoding by steps"
# What the compiled decoder's parameters may differ from the float64 oracle's by, as largest error
# over largest magnitude. Rounded weights are another model: the bounds are about five times the
# error that was measured with these models; of language models, it is larger.
TOLERANCE = {"float32": 1e-3, "bfloat16": 3e-2, "int8": 2e-2}
# The share of tokens that may be drawn differently: rounding decides between near candidates.
MOST_OTHER_DRAWS = 1e-3
CHECKED_BATCH = 2


@torch.no_grad()
def check_steps(decoder: AutoregressiveTransformer | PeerDecoder) -> str | None:
    """Compares decoding with known tokens, step by step, with the whole sequence in float64."""
    model = decoder.model if isinstance(decoder, PeerDecoder) else decoder
    tokens, exact = _tokens_and_oracle(model)
    parameters, state = decoder.prefill(tokens[:, :0])
    stepped = [parameters]
    for token in tokens[:, :-1].unbind(1):
        parameters, state = decoder.step(token, state)  # type: ignore[arg-type]
        stepped.append(parameters)
    return oracle.find_disagreement(STEPS, torch.stack(stepped, 1), exact)


@torch.no_grad()
def check_compiled(
    model: AutoregressiveTransformer, decoder: CompiledDecoder, batch: int, **limits: Any
) -> str | None:
    """As `check_steps`, with the batch that is timed, and what is drawn from the parameters.

    The rows repeat a few sequences, which keeps the oracle small.

    Args:
        limits: of the draws, by the names of `SamplingParams`.
    """
    tokens, exact = _tokens_and_oracle(model)
    rows = torch.arange(batch, device=model.device) % len(tokens)
    ours, theirs = _draw_alike(decoder, batch, limits)
    parameters, state = decoder.prefill(tokens[rows, :0])
    stepped, others = [parameters], 0
    for token in tokens[rows, :-1].unbind(1):
        (parameters,), (drawn,), state = decoder.steps_and_draws(token, state, ours, 1)
        stepped.append(parameters)
        others += int((drawn != theirs.draw(model.head, parameters)).sum())
    if others > max(1, MOST_OTHER_DRAWS * batch * model.max_length):
        return f"{others} of {batch * model.max_length} tokens drawn are not the head's own"
    if not _steps_at_once_agree(decoder, tokens[rows, 0], limits):
        return "several steps in one call differ from single ones"
    tolerance = TOLERANCE[decoder.weights]
    return oracle.find_disagreement(STEPS, torch.stack(stepped, 1), exact[rows], tolerance)


def _steps_at_once_agree(decoder: CompiledDecoder, token: Tensor, limits: dict[str, Any]) -> bool:
    """Whether the steps that `generate` makes by one call draw what single steps draw."""
    state = decoder.prefill(token.unsqueeze(1)[:, :0])[1]
    ours, theirs = _draw_alike(decoder, len(token), limits)
    count, single = decoder.count_steps(state, ours, decoder.native.most_steps), state.clone()
    parameters, drawn, _ = decoder.steps_and_draws(token, state, ours, count)
    for own, tokens in zip(parameters, drawn, strict=True):
        expected, again, single = decoder.steps_and_draws(token, single, theirs, 1)
        token = again[0]
        if not (torch.equal(own, expected[0]) and torch.equal(tokens, token)):
            return False
    return True


def _draw_alike(decoder: CompiledDecoder, rows: int, limits: dict[str, Any]) -> list[Draws]:
    """Two draws of the same tokens."""
    params = SamplingParams(seed=3, **limits)
    return [start_draws(params, rows, decoder.head, decoder.device) for _ in range(2)]


def _tokens_and_oracle(model: AutoregressiveTransformer) -> tuple[Tensor, Tensor]:
    """Random tokens (B, N) and the parameters (B, N, P) that predict them, in float64."""
    generator = torch.Generator().manual_seed(2)
    shape = (CHECKED_BATCH, model.max_length)
    tokens = torch.randint(model.head.levels, shape, generator=generator).to(model.device)
    return tokens, copy.deepcopy(model).double()(tokens)
