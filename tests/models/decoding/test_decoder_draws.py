"""What decoders draw: the model's own tokens for the same seed, also side by side."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from linattn_models import AutoregressiveTransformer, Head
from tests.models.decoding.decoders import (
    LONG,
    Halves,
    Kind,
    close,
    forced,
    long_model,
    model_of,
    sized,
)
from tests.models.tiny import HEADS, MAX_LENGTH, heads, tiny_config


@heads
@pytest.mark.parametrize(
    ("temperature", "batch"), [(0.0, 5), (0.7, 1), (1.0, 5), ([0.5, 1.0, 2.0], 3)], ids=str
)
def test_the_same_seed_draws_the_models_own_tokens(
    compiled: Kind, head: Head, temperature: Any, batch: int
) -> None:
    model = long_model(head).to(compiled.device)
    decoder = compiled.decoder(model)
    fields: dict[str, Any] = {"temperature": temperature}
    sources = ((model, "eager"), (model, decoder), (decoder, "auto"), (model, "auto"))
    eager, *others = (
        source.generate(batch, generator=compiled.seeded(), decoder=which, **fields)
        for source, which in sources
    )
    assert all(torch.equal(tokens, eager) for tokens in others)
    streamed = torch.stack(list(decoder.stream(batch, generator=compiled.seeded(), **fields)), 1)
    assert torch.equal(streamed, eager)


def test_streams_side_by_side_and_steps_between_them(compiled: Kind) -> None:
    model = long_model(HEADS[2]).to(compiled.device)
    decoder = compiled.decoder(model)
    expected = [
        model.generate(2, generator=compiled.seeded(seed), decoder="eager") for seed in (1, 2)
    ]
    streams = [decoder.stream(2, generator=compiled.seeded(seed)) for seed in (1, 2)]
    drawn: list[list[torch.Tensor]] = [[], []]
    _, state = decoder.prefill(expected[0][:, :1])
    for position in range(LONG):
        for stream, tokens in zip(streams, drawn, strict=True):
            tokens.append(next(stream))
        if position > 1:
            parameters, state = decoder.step(expected[0][:, position - 1], state)
    for tokens, right in zip(drawn, expected, strict=True):
        assert torch.equal(torch.stack(tokens, 1), right)
    close(parameters, model(expected[0])[:, -1].detach())


def test_a_custom_head_samples_for_itself(kind: Kind) -> None:
    model = AutoregressiveTransformer(tiny_config(), Halves(), LONG).eval()
    model.to(kind.device)
    eager = model.generate(3, decoder="eager")
    assert torch.equal(kind.decoder(model).generate(3), eager)


def test_two_threads_at_once(kind: Kind) -> None:
    model = model_of(**sized((2, 32, 64))).to(kind.device)
    decoder = kind.decoder(model)
    sequences = [kind.tokens(model, batch, MAX_LENGTH) for batch in (1, 5, 1, 5)]
    with torch.no_grad():
        expected = [model(tokens) for tokens in sequences]

    def run(tokens: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            return [forced(decoder, tokens) for _ in range(10)]

    torch.set_num_threads(2)
    with ThreadPoolExecutor(4) as pool:
        for actual, right in zip(pool.map(run, sequences), expected, strict=True):
            for one in actual:
                close(one, right)
