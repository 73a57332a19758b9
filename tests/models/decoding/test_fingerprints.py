"""A state has the fingerprint of the weights that made it; other weights refuse it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from linattn_models import (
    AutoregressiveTransformer,
    DecodingState,
    compile_decoder,
    load,
    save,
)
from tests.models.decoding.decoders import model_of, needs_cpu_backend
from tests.models.tiny import random_tokens, tiny_model


def state_of(model: Any, batch: int = 2, **fields: Any) -> DecodingState:
    state: DecodingState
    _, state = model.generate(batch, length=3, return_state=True, **fields)
    return state


def train(model: AutoregressiveTransformer) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    model.loss(random_tokens(model, 2, 4)).backward()
    optimizer.step()


USES: dict[str, Callable[[Any, DecodingState], object]] = {
    "generate": lambda model, state: model.generate(state=state, length=1),
    "stream": lambda model, state: list(model.stream(state=state, length=1)),
    "beam_search": lambda model, state: model.beam_search(state=state, length=1, num_beams=2),
    "prefill": lambda model, state: model.prefill(torch.tensor([[1], [2]]), state=state),
    "step": lambda model, state: model.step(torch.tensor([1, 2]), state),
}


def test_a_loaded_state_is_refused_by_other_weights(attention: str, tmp_path: Path) -> None:
    model = tiny_model(attention)
    save(model, tmp_path / "model")
    state_of(model).save(tmp_path / "state")
    stream = model.stream(2, return_state=True)
    next(stream)
    assert stream.state.fingerprint == model.fingerprint()

    again = load(tmp_path / "model")
    own = json.loads((tmp_path / "model" / "config.json").read_text())["sha256"]
    assert own == model.fingerprint() == DecodingState.load(tmp_path / "state").fingerprint
    for use in USES.values():
        use(again, DecodingState.load(tmp_path / "state"))
    train(again)
    for use in USES.values():
        state = DecodingState.load(tmp_path / "state")
        with pytest.raises(ValueError, match=r"^state: expected .* weights") as refusal:
            use(again, state)
        assert "\n" not in str(refusal.value)
        use(again, replace(state, fingerprint=None))


@needs_cpu_backend
def test_decoders_have_the_fingerprint_of_their_model() -> None:
    model = model_of()
    decoders = [compile_decoder(model, weights) for weights in ("float32", "int8")]
    own = model.fingerprint()
    for decoder in decoders:
        _, fresh = decoder.prefill(torch.tensor([[1, 2], [3, 4]]))
        states = [fresh, decoder.step(torch.tensor([1, 2]), fresh)[1], state_of(decoder)]
        states += [state_of(model, decoder=decoder), state_of(model, decoder="compiled")]
        assert {state.fingerprint for state in states} == {own}
    state = state_of(model)
    train(model)
    assert state_of(model, decoder=decoders[0]).fingerprint == own != model.fingerprint()
    for use in USES.values():
        use(decoders[0], state.clone())
        with pytest.raises(ValueError, match="state: expected"):
            use(model, state)
        with pytest.raises(ValueError, match="state: expected"):
            use(decoders[0], state_of(model))


def test_a_stream_has_the_fingerprint_of_the_weights_that_began_it() -> None:
    model = tiny_model()
    own, stream = model.fingerprint(), model.stream(2, return_state=True)
    next(stream)
    train(model)
    next(stream)
    assert stream.state.fingerprint == own != model.fingerprint()


def test_steps_and_parts_keep_the_fingerprint(attention: str) -> None:
    model = tiny_model(attention)
    state, own = state_of(model), model.fingerprint()
    with torch.no_grad():
        _, state = model.step(torch.tensor([1, 2]), state)
        _, state = model.prefill(torch.tensor([[1], [2]]), torch.tensor([1, 0]), state)
    states = [state, state.index_select([1, 1]), *state.split(1), state.clone()]
    assert {x.fingerprint for x in [*states, DecodingState.cat(states)]} == {own}
    _, bare = model.prefill(torch.tensor([[1, 2]]))
    assert bare.fingerprint is None
    assert DecodingState.cat([*states, bare.detach()]).fingerprint is None
    other = replace(state, fingerprint="0")
    with pytest.raises(ValueError, match="states"):
        DecodingState.cat([state, other])
