"""What every decoder promises: the numbers and states of the model.

The model itself is the eager decoder. Recorded steps are repeated by a tape that repeats addresses
as a CUDA graph does, and where there is a GPU by CUDA graphs. What decoders draw is in
test_decoder_draws.py, what they refuse in test_decoder_refusals.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linattn_models import DecodingState, Head, Transformer
from linattn_models.attention.rotary import Llama3Scaling
from tests.models.decoding.decoders import (
    Kind,
    close,
    forced,
    model_of,
    same_state,
    sized,
    trained,
)
from tests.models.tiny import HEADS, MAX_LENGTH, tiny_config

# Widths below a vector, between two and of whole panels, of each instruction set.
SIZES = [(1, 1, 1), (3, 5, 7), (2, 24, 40), (2, 32, 64)]


# The numbers of the model


@given(
    head=st.sampled_from(HEADS),
    size=st.sampled_from(SIZES),
    norm_first=st.booleans(),
    ffn=st.sampled_from(["gelu", "relu"]),
)
@settings(max_examples=30)
@torch.no_grad()
def test_steps_equal_the_whole_sequence(
    kind: Kind, head: Head, size: tuple[int, int, int], norm_first: bool, ffn: str
) -> None:
    model = model_of(head, **sized(size, norm_first=norm_first, ffn=ffn)).to(kind.device)
    tokens = kind.tokens(model, 3, MAX_LENGTH)
    close(forced(kind.decoder(model), tokens), model(tokens))


@torch.no_grad()
def test_one_decoder_for_any_number_of_rows(kind: Kind) -> None:
    model = model_of().to(kind.device)
    decoder = kind.decoder(model)
    for batch in (1, 2, 17, 300, 1, 5, 6, 7, 8, 2):
        tokens = kind.tokens(model, batch, MAX_LENGTH)
        close(forced(decoder, tokens), model(tokens))


@pytest.mark.parametrize(
    ("feature_map", "positions"),
    [
        ("elu", "sinusoidal"), ("relu", "none"), ("identity", "learned"), ("hedgehog", "learned"),
    ],
)  # fmt: skip
@torch.no_grad()
def test_maps_and_positions(kind: Kind, feature_map: str, positions: str) -> None:
    # With the identity, denominators of either sign come near 0: eps keeps the comparison sane.
    eps = 100.0 if feature_map == "identity" else 1e-6
    model = model_of(positions=positions, feature_map=feature_map, eps=eps).to(kind.device)
    tokens = kind.tokens(model, 3, MAX_LENGTH)
    close(forced(kind.decoder(model), tokens), model(tokens))


# What language models have, alone and together.
OPTIONS: dict[str, dict[str, Any]] = {
    "one head of keys": {"num_kv_heads": 1},
    "groups": {"num_kv_heads": 2, "num_heads": 6},
    "fixed decay": {"decay": "fixed"},
    "learned decay": {"decay": "learned", "num_kv_heads": 1},
    "decay in a range": {"decay": "learned", "decay_range": (0.5, 1.0)},
    "gated decay": {"decay": "gated", "num_kv_heads": 1, "norm_first": False},
    "gate": {"ffn": "swiglu", "bias": False},
    "rotary": {"rotary": True},
    "scaled rotary": {
        "rotary": True,
        "rotary_scaling": Llama3Scaling(
            factor=8.0, low_freq_factor=0.01, high_freq_factor=4.0, original_max_length=16
        ),
    },
    "all of a language model": {
        "ffn": "swiglu",
        "bias": False,
        "norm": "rms",
        "rotary": True,
        "decay": "learned",
        "num_kv_heads": 1,
        "tie_embeddings": True,
    },
    "window": {"window_size": 3},
    "window, groups, rotary": {
        "window_size": 1,
        "num_kv_heads": 1,
        "rotary": True,
        "feature_map": "relu",
    },
    "wide window": {"window_size": 64},
    "window, learned decay": {"window_size": 2, "decay": "learned"},
    "window, gated decay": {"window_size": 3, "decay": "gated", "num_heads": 4, "num_kv_heads": 2},
    "a learned map for each head": {
        "feature_map": "hedgehog",
        "feature_map_options": {"num_features": 6, "num_heads": 4, "num_kv_heads": 2},
        "num_heads": 4,
        "num_kv_heads": 2,
        "decay": "learned",
    },
    "learned maps beside a window": {
        "feature_map": "hedgehog",
        "feature_map_options": {"num_features": 10, "num_heads": 2, "num_kv_heads": 1},
        "num_kv_heads": 1,
        "rotary": True,
        "window_size": 3,
        "decay": "gated",
    },
    "RMSNorm, no biases": {"norm": "rms", "bias": False},
    "tied embeddings": {"tie_embeddings": True},
}
options = pytest.mark.parametrize("fields", OPTIONS.values(), ids=OPTIONS)


@options
@pytest.mark.parametrize("head_dim", [6, 24])
@torch.no_grad()
def test_options_of_language_models(kind: Kind, fields: dict[str, Any], head_dim: int) -> None:
    model = trained(model_of(head_dim=head_dim, **fields)).to(kind.device)
    decoder = kind.decoder(model)
    for batch in (1, 3):  # one row is shared by its heads
        tokens = kind.tokens(model, batch, MAX_LENGTH)
        close(forced(decoder, tokens), model(tokens))
        own = torch.arange(1, batch + 1, device=kind.device)
        actual, ours = decoder.prefill(tokens[:, :4], own)
        expected, theirs = model.prefill(tokens[:, :4], own)
        close(actual, expected)
        same_state(ours, theirs)


@given(
    head=st.sampled_from(HEADS),
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    steps=st.integers(0, 3),
)
@settings(max_examples=50)
@torch.no_grad()
def test_prefill_of_any_lengths_and_steps_after_it(
    compiled: Kind, head: Head, lengths: list[int], steps: int
) -> None:
    model = model_of(head).to(compiled.device)
    decoder = compiled.decoder(model)
    tokens = compiled.tokens(model, len(lengths), 5)
    own = torch.tensor(lengths, dtype=torch.int32, device=compiled.device)
    actual, ours = decoder.prefill(tokens, own)
    expected, theirs = model.prefill(tokens, own)
    for _ in range(steps):
        close(actual, expected)
        token = compiled.tokens(model, len(lengths), 1)[:, 0]
        actual, ours = decoder.step(token, ours)
        expected, theirs = model.step(token, theirs)
    close(actual, expected)
    same_state(ours, theirs)


@pytest.mark.parametrize("lengths", [None, [4, 0, 2]])
@torch.no_grad()
def test_a_bare_transformer(kind: Kind, lengths: list[int] | None) -> None:
    model = Transformer(tiny_config(**sized((3, 5, 7)))).eval().to(kind.device)
    decoder = kind.decoder(model)
    own = None if lengths is None else torch.tensor(lengths, device=kind.device)
    x = torch.randn(3, 6, 15, device=kind.device)
    x_before = x.clone()
    actual, ours = decoder.prefill(x[:, :4], own)
    expected, theirs = model.prefill(x[:, :4], own)
    for row in range(3):
        real = 4 if lengths is None else lengths[row]
        close(actual[row, :real], expected[row, :real])
    for position in (4, 5):
        actual, ours = decoder.step(x[:, position], ours)
        expected, theirs = model.step(x[:, position], theirs)
        close(actual, expected)
    same_state(ours, theirs)
    close(decoder.step(x[:, 0], decoder.initial_state(3))[0], model(x[:, :1])[:, 0])
    assert torch.equal(x, x_before)


# States


@torch.no_grad()
def test_either_takes_over_from_the_other(kind: Kind) -> None:
    model = model_of().to(kind.device)
    decoder = kind.decoder(model)
    tokens = kind.tokens(model, 3, MAX_LENGTH)
    for first, second in ((model, decoder), (decoder, model), (decoder, decoder)):
        _, state = first.prefill(tokens[:, :2])
        _, state = first.step(tokens[:, 2], state)
        state = state.index_select(torch.tensor([2, 0, 0, 1]))  # reordered and forked
        followed = tokens[[2, 0, 0, 1]]
        for position in range(3, MAX_LENGTH - 1):
            parameters, state = second.step(followed[:, position], state)
        close(parameters, model(followed)[:, -1])


@torch.no_grad()
def test_windows_of_rows_that_join_leave_and_fork(kind: Kind) -> None:
    """Rows before, at and after the position from which keys leave their window."""
    model = trained(model_of(window_size=3)).to(kind.device)
    decoder = kind.decoder(model)
    tokens = kind.tokens(model, 3, 6)
    own = torch.tensor([0, 2, 6], device=kind.device)
    _, state = decoder.prefill(tokens, own)
    _, lone = decoder.prefill(tokens[:1, :2])
    state = DecodingState.cat([state.index_select([2, 0, 1, 1]), lone])
    rows = [tokens[2], tokens[0, :0], tokens[1, :2], tokens[1, :2], tokens[0, :2]]
    for _ in range(MAX_LENGTH - 7):
        token = kind.tokens(model, 5, 1)
        rows = [torch.cat(pair) for pair in zip(rows, token, strict=True)]
        parameters, state = decoder.step(token[:, 0], state)
    for row, after in zip(rows, parameters, strict=True):
        close(after, model.prefill(row[None])[0][0])


@torch.no_grad()
def test_a_step_updates_the_state_it_is_given(kind: Kind) -> None:
    model = model_of().to(kind.device)
    decoder = kind.decoder(model)
    _, state = decoder.prefill(kind.tokens(model, 2, 3))
    copy, shared = state.clone(), state.detach()
    token = kind.tokens(model, 2, 1)[:, 0]
    first, after = decoder.step(token, state)
    first_before = first.clone()
    assert after.layers[0].s is state.layers[0].s
    assert torch.equal(shared.layers[1].s, state.layers[1].s)
    assert not torch.equal(state.layers[0].s, copy.layers[0].s)
    again, resumed = decoder.step(token, copy)
    assert torch.equal(first, again)
    same_state(resumed, after)
    decoder.step(token, after)
    assert torch.equal(first, first_before)  # the next step does not write into these outputs


@torch.no_grad()
def test_sequences_side_by_side_do_not_touch_one_another(kind: Kind) -> None:
    model = model_of().to(kind.device)
    decoder = kind.decoder(model)
    sequences = [kind.tokens(model, batch, MAX_LENGTH) for batch in (2, 2, 5, 2)]
    states = [decoder.prefill(tokens[:, :1])[1] for tokens in sequences]
    for position in range(1, MAX_LENGTH - 1):
        for i, tokens in enumerate(sequences):
            parameters, states[i] = decoder.step(tokens[:, position], states[i])
            close(parameters, model(tokens)[:, position + 1])


def test_weights_changed_later_do_not_reach_the_decoder(compiled: Kind) -> None:
    model = model_of().to(compiled.device)
    decoder = compiled.decoder(model)
    tokens = compiled.tokens(model, 2, 5)
    before = forced(decoder, tokens)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert torch.equal(forced(decoder, tokens), before)


def test_autograd_notices_that_a_step_updated_the_state(compiled: Kind) -> None:
    model = model_of().to(compiled.device)
    tokens = compiled.tokens(model, 2, MAX_LENGTH)
    parameters, state = model.prefill(tokens[:, :1])
    parameters, state = model.step(tokens[:, 1], state)
    stepped, _ = compiled.decoder(model).step(tokens[:, 2], state.detach())
    assert not stepped.requires_grad
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        parameters.sum().backward()


def test_inference_mode_comes_and_goes(compiled: Kind) -> None:
    model = model_of().to(compiled.device)
    decoder = compiled.decoder(model)
    tokens = compiled.tokens(model, 2, MAX_LENGTH)
    with torch.no_grad():
        expected = model(tokens)
    for first in (True, False):
        for inside in (first, not first):
            with torch.inference_mode(inside):
                actual = forced(decoder, tokens)
            close(actual, expected)
            assert actual.is_inference() == inside
        decoder = compiled.decoder(model)
    with torch.inference_mode():
        _, state = decoder.prefill(tokens[:, :1])
    for position in (1, 2):
        actual, state = decoder.step(tokens[:, position], state)
        close(actual, expected[:, position + 1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_defaults_of_torch_and_autocast_change_nothing(compiled: Kind, dtype: torch.dtype) -> None:
    model = model_of().to(compiled.device)
    decoder, tokens = compiled.decoder(model), compiled.tokens(model, 5, MAX_LENGTH)
    expected = forced(compiled.decoder(model), tokens)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"), torch.autocast(compiled.device.type, torch.bfloat16):
            actual = forced(decoder, tokens)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(actual, expected)


def test_a_batch_without_rows_has_outputs_without_rows(kind: Kind) -> None:
    decoder = kind.decoder(model_of().to(kind.device))
    empty = torch.zeros(0, 3, dtype=torch.int64, device=kind.device)
    parameters, state = decoder.prefill(empty)
    assert parameters.shape == (0, 7)
    parameters, _ = decoder.step(empty[:, 0], state)
    assert parameters.shape == (0, 7)
