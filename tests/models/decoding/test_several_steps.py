"""Several steps of a compiled decoder in one call: the same as one call for each."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linattn_models import AutoregressiveTransformer, Categorical, Head
from linattn_models.decoding import SamplingParams, start_draws
from tests.models.decoding.decoders import (
    LONG,
    Halves,
    Kind,
    long_model,
    needs_cpu_backend,
    same_state,
)
from tests.models.tiny import HEADS, tiny_config

NATIVE = Kind("native")


@pytest.fixture(autouse=True, scope="module")
def few_steps_a_call() -> Iterator[None]:
    """So that short sequences take several calls."""
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("linattn_cpu"):
            patch.setattr("linattn_cpu.decoder._MOST_STEPS", 8)
        yield


@needs_cpu_backend
@settings(max_examples=40)
@given(
    head=st.sampled_from(HEADS),
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    most=st.integers(1, 2 * LONG),
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    top_k=st.none() | st.integers(1, 5),
    weights=st.sampled_from(["float32", "bfloat16", "int8"]),
)
@torch.no_grad()
def test_they_are_single_steps_that_read_what_was_drawn(
    head: Head, lengths: list[int], most: int, temperature: float, top_k: int | None, weights: str
) -> None:
    model = long_model(head)
    decoder = NATIVE.decoder(model, weights)
    params = SamplingParams(temperature, top_k if isinstance(head, Categorical) else None, seed=1)
    device = NATIVE.device
    ours, theirs = (start_draws(params, len(lengths), head, device) for _ in range(2))
    prompts = NATIVE.tokens(model, len(lengths), 6)
    _, state = decoder.prefill(prompts, torch.tensor(lengths))
    token, single = prompts[:, 0], state.clone()
    count = decoder.count_steps(state, ours, most)
    assert count == min(most, decoder.native.most_steps, LONG - max(lengths) - 1)
    parameters, drawn, state = decoder.steps_and_draws(token, state, ours, count)
    assert len(parameters) == len(drawn) == count
    for i in range(count):
        expected, again, single = decoder.steps_and_draws(token, single, theirs, 1)
        token = again[0]
        assert torch.equal(parameters[i], expected[0]) and torch.equal(drawn[i], token)
    same_state(state, single)
    assert torch.equal(parameters[-1], state.parameters)
    following = [each.numbers().uniform for each in (ours, theirs)]
    assert torch.equal(*following)


def test_decoders_without_it_make_single_steps(compiled: Kind) -> None:
    head: Any = Halves()
    custom = AutoregressiveTransformer(tiny_config(), head, LONG).eval().to(compiled.device)
    decoder = compiled.decoder(custom)
    tokens = torch.empty(2, 0, dtype=torch.int64, device=compiled.device)
    _, state = decoder.prefill(tokens)
    draws = start_draws(SamplingParams(), 2, head, compiled.device)
    assert decoder.count_steps(state, draws, 9) == 1
    _, drawn, state = decoder.steps_and_draws(tokens.new_zeros(2), state, draws, 1)
    assert len(drawn) == 1 and state.position == 2
    if compiled.name != "native":
        with pytest.raises(TypeError, match="steps"):
            decoder.native.steps(tokens, 0, (), draws.numbers(2), 2)


@needs_cpu_backend
@pytest.mark.parametrize("length", [1, 2, 17, 18, LONG - 1])
def test_generate_takes_them_and_stream_does_not(length: int) -> None:
    decoder = NATIVE.decoder(long_model())
    calls: list[int] = []
    steps = decoder.native.steps
    decoder.native.steps = lambda *x: calls.append(x[4]) or steps(*x)
    fields: dict[str, Any] = {"length": length, "num_samples": 2, "seeds": 3}
    drawn = decoder.generate(2, **fields)
    most = decoder.native.most_steps
    several = [min(most, length - 1 - done) for done in range(0, length - 1, most)]
    assert calls == [n for n in several if n > 1]
    calls.clear()
    streamed = torch.stack(list(decoder.stream(2, **fields)), 1)
    assert torch.equal(drawn, streamed) and not calls
    ended, state = decoder.generate(2, **fields, return_state=True)
    assert torch.equal(drawn, ended) and calls == [n for n in several if n > 1]
    stream = decoder.stream(2, **fields, return_state=True)
    assert torch.equal(torch.stack(list(stream), 1), drawn)
    same_state(state, stream.state)


@needs_cpu_backend
@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=9),
    new_tokens=st.lists(st.integers(1, 15), min_size=9, max_size=9),
    stops=st.sets(st.integers(0, 6), max_size=3),
    penalty=st.sampled_from([1.0, 1.3]),
)
def test_rows_end_inside_of_a_call_as_between_calls(
    lengths: list[int], new_tokens: list[int], stops: set[int], penalty: float
) -> None:
    decoder = NATIVE.decoder(long_model())
    prompts = NATIVE.tokens(long_model(), len(lengths), 6)
    fields: dict[str, Any] = {
        "prefix": prompts, "prefix_lengths": torch.tensor(lengths), "seeds": 5,
        "max_new_tokens": new_tokens[: len(lengths)], "stop_tokens": sorted(stops) or None,
        "repetition_penalty": penalty,
    }  # fmt: skip
    rows = decoder.generate(**fields).tolist()
    steps = [step.tolist() for step in decoder.stream(**fields)]
    streamed = [[step[row] for step in steps] for row in range(len(lengths))]
    ours = [row[length:] for row, length in zip(rows, lengths, strict=True)]
    assert [[x for x in row if x >= 0] for row in ours] == [
        [x for x in row if x >= 0] for row in streamed
    ]
