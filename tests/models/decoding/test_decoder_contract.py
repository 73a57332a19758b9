"""What every decoder promises: the numbers, states and tokens of the model.

The model itself is the eager decoder. Recorded steps are repeated by calling them, by a tape that
repeats addresses as a CUDA graph does, and where there is a GPU by CUDA graphs.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linattn_models import AutoregressiveTransformer, Head, Transformer, generation_throughput
from tests.models.decoding.decoders import (
    KINDS,
    LONG,
    Halves,
    Kind,
    close,
    forced,
    long_model,
    model_of,
    same_state,
    sized,
)
from tests.models.tiny import HEADS, MAX_LENGTH, heads, tiny_config, tiny_model

# Widths below a vector, between two and of whole panels, of each instruction set.
sizes = pytest.mark.parametrize("size", [(1, 1, 1), (3, 5, 7), (2, 24, 40), (2, 32, 64)], ids=str)


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> Kind:
    """Every decoder."""
    return Kind(request.param)


@pytest.fixture(params=KINDS[1:], scope="module")
def compiled(request: pytest.FixtureRequest) -> Kind:
    """Every decoder with weights of its own."""
    return Kind(request.param)


# The numbers of the model


@heads
@sizes
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@torch.no_grad()
def test_steps_equal_the_whole_sequence(
    kind: Kind, head: Head, size: tuple[int, int, int], norm: str, activation: str
) -> None:
    model = model_of(head, **sized(size, norm=norm, activation=activation)).to(kind.device)
    tokens = kind.tokens(model, 3, MAX_LENGTH)
    close(forced(kind.decoder(model), tokens), model(tokens))


@torch.no_grad()
def test_one_decoder_for_any_number_of_rows(kind: Kind) -> None:
    model = model_of().to(kind.device)
    decoder = kind.decoder(model)
    for batch in (1, 2, 17, 300, 1, 5, 6, 7, 8, 2):
        tokens = kind.tokens(model, batch, MAX_LENGTH)
        close(forced(decoder, tokens), model(tokens))


@pytest.mark.parametrize("feature_map", ["elu", "relu", "identity"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@torch.no_grad()
def test_maps_and_positions(kind: Kind, feature_map: str, positions: str) -> None:
    # With the identity, denominators of either sign come near 0: eps keeps the comparison sane.
    eps = 100.0 if feature_map == "identity" else 1e-6
    model = model_of(positions=positions, feature_map=feature_map, eps=eps).to(kind.device)
    tokens = kind.tokens(model, 3, MAX_LENGTH)
    close(forced(kind.decoder(model), tokens), model(tokens))


@heads
@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4), steps=st.integers(0, 3))
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


def test_outputs_and_states_have_no_gradient(compiled: Kind) -> None:
    model = model_of().to(compiled.device)
    decoder = compiled.decoder(model)
    parameters, state = decoder.prefill(compiled.tokens(model, 2, 3))
    assert not parameters.requires_grad and not state.layers[0].s.requires_grad
    parameters, state = decoder.step(compiled.tokens(model, 2, 1)[:, 0], state)
    assert not parameters.requires_grad and not state.layers[0].s.requires_grad


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


# Drawing


@heads
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("batch", [1, 5])
def test_the_same_seed_draws_the_models_own_tokens(
    compiled: Kind, head: Head, temperature: float, batch: int
) -> None:
    model = long_model(head).to(compiled.device)
    decoder = compiled.decoder(model)
    fields: dict[str, Any] = {"temperature": temperature}
    sources = (
        (model, "eager"),
        (model, decoder),
        (decoder, "auto"),
        (model, decoder),
        (model, "auto"),
    )
    eager, *others = (
        source.generate(batch, generator=compiled.seeded(), decoder=which, **fields)
        for source, which in sources
    )
    assert all(torch.equal(tokens, eager) for tokens in others)
    streamed = torch.stack(list(decoder.stream(batch, generator=compiled.seeded(), **fields)), 1)
    assert torch.equal(streamed, eager)


@heads
def test_forced_prefixes_of_different_lengths(compiled: Kind, head: Head) -> None:
    model = long_model(head).to(compiled.device)
    lengths = torch.tensor([6, 0, 3], device=compiled.device)
    fields: dict[str, Any] = {"prefix": compiled.tokens(model, 3, 6), "prefix_lengths": lengths}
    eager = model.generate(**fields, generator=compiled.seeded(), decoder="eager")
    decoder = compiled.decoder(model)
    drawn = model.generate(**fields, generator=compiled.seeded(), decoder=decoder)
    assert torch.equal(drawn, eager)
    for row, length in enumerate(lengths.tolist()):
        assert torch.equal(eager[row, :length], fields["prefix"][row, :length])


@heads
@torch.no_grad()
def test_a_step_that_samples_is_a_step_and_a_sample_at_any_temperature(
    compiled: Kind, head: Head
) -> None:
    model = model_of(head).to(compiled.device)
    decoder = compiled.decoder(model)
    tokens = compiled.tokens(model, 40, 4)
    _, state = decoder.prefill(tokens[:, :3])
    alone, _ = decoder.step(tokens[:, 3], state.clone())
    for temperature in (1.0, 0.0, 1.3, 0.2, 1e-39, 1.0):
        parameters, drawn, after = decoder.step_and_sample(
            tokens[:, 3], state.clone(), temperature=temperature, generator=compiled.seeded()
        )
        assert torch.equal(parameters, alone)
        expected = model.head.sample(alone, temperature=temperature, generator=compiled.seeded())
        assert torch.equal(drawn, expected) and drawn.dtype == torch.int64
        assert after.position == 5


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


def test_a_head_of_ones_own_samples_for_itself(kind: Kind) -> None:
    model = AutoregressiveTransformer(tiny_config(), Halves(), LONG).eval()  # type: ignore[arg-type]
    model.to(kind.device)
    eager = model.generate(3, decoder="eager")
    assert torch.equal(kind.decoder(model).generate(3), eager)


def test_its_throughput_is_measured(compiled: Kind) -> None:
    model = long_model().to(compiled.device)
    for steps in (None, 3):
        decoder = compiled.decoder(model)
        measured = generation_throughput(model, batch=2, decoder=decoder, steps=steps)
        assert measured.compiled and measured.samples_per_second > 0
        assert measured.state_bytes_per_sample > 0
        assert all(seconds > 0 for _, seconds in measured.seconds_per_step)


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


# Refusals


def test_dropout_in_training_mode_refuses_generation_and_leaves_decoders_alone(
    compiled: Kind,
) -> None:
    model = model_of(dropout=0.5).train().to(compiled.device)
    decoder = compiled.decoder(model)
    with pytest.raises(ValueError, match=re.escape("call model.eval() first")):
        model.generate(decoder=decoder)
    tokens = compiled.tokens(model, 2, 4)
    actual = forced(decoder, tokens)
    close(actual, model.eval()(tokens).detach())


def ints(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.int64)


def of_another_model(**fields: Any) -> Any:
    return tiny_model("linear", **fields).float().prefill(ints(2, 1))[1]


SHAPES_AND_DTYPES: list[Any] = [
    (lambda d, s: d.step(ints(2, 1), s), ValueError, "shape (batch), got (2, 1)"),
    (lambda d, s: d.step(torch.zeros(2), s), TypeError, "int64, got torch.float32"),
    (lambda d, s: d.step(ints(3), s), ValueError, "3"),
    (lambda d, s: d.prefill(ints(2, 9)), ValueError, "length 0 to 8, got 9"),
    (lambda d, s: d.prefill(torch.zeros(2, 3)), TypeError, "int64, got torch.float32"),
    (lambda d, s: d.prefill(ints(2, 3), torch.tensor([0, 4])), ValueError, "0..3"),
    (lambda d, s: d.generate(temperature=-1.0), ValueError, "temperature"),
]
STATES: list[Any] = [
    (lambda d, s: d.step(ints(2), s.to(torch.float64)), ValueError, "float64"),
    (lambda d, s: d.step(ints(2), replace(s, layers=s.layers[:1])), ValueError, "layers"),
    (lambda d, s: d.step(ints(2), of_another_model(num_layers=3)), ValueError, "layers"),
    (lambda d, s: d.step(ints(2), of_another_model(num_heads=3)), ValueError, "(2, 2, 4, 4)"),
    (lambda d, s: d.step(torch.zeros(2, dtype=torch.int64, device="meta"), s), ValueError, "meta"),
    (lambda d, s: d.prefill(ints(2, 0).to("meta")), ValueError, "on cpu, got meta"),
    (lambda d, s: d.step_and_sample(ints(2), s, temperature=-1.0), ValueError, "temperature"),
    (lambda d, s: d.generate(method="rerun"), ValueError, "draws by its own steps"),
    (lambda d, s: d.generate(decoder="eager"), ValueError, "decoder='eager'"),
]


@pytest.mark.parametrize(("call", "error", "said"), SHAPES_AND_DTYPES)
def test_a_decoder_refuses(kind: Kind, call: Any, error: type[Exception], said: str) -> None:
    if kind.device.type != "cpu":
        pytest.skip("the tensors are on the CPU")
    refuses(kind, call, error, said)


@pytest.mark.parametrize(("call", "error", "said"), STATES)
def test_a_compiled_decoder_refuses(
    compiled: Kind, call: Any, error: type[Exception], said: str
) -> None:
    if compiled.device.type != "cpu":
        pytest.skip("the tensors are on the CPU")
    refuses(compiled, call, error, said)


def refuses(kind: Kind, call: Any, error: type[Exception], said: str) -> None:
    decoder = kind.decoder(model_of())
    _, state = decoder.prefill(ints(2, 3))
    before = state.clone()
    with pytest.raises(error, match=re.escape(said)):
        call(decoder, state)
    assert torch.equal(state.layers[0].s, before.layers[0].s)


@pytest.mark.parametrize("name", ["eager", "native"])
@pytest.mark.parametrize(("token", "came"), [([1, 7], "1"), ([-1, 0], "-1")])
@torch.no_grad()
def test_a_step_explains_tokens_out_of_range(name: str, token: list[int], came: str) -> None:
    if name == "native":
        pytest.importorskip("linattn_cpu")
    said = rf"0\.\.6.*{came} to {token[1]}"
    refuses_matching(Kind(name), token, said)


def refuses_matching(kind: Kind, token: list[int], said: str) -> None:
    decoder = kind.decoder(model_of())
    _, state = decoder.prefill(ints(2, 3))
    before = state.clone()
    with pytest.raises(ValueError, match=said):
        decoder.step(torch.tensor(token), state)
    assert torch.equal(state.layers[0].s, before.layers[0].s)


def test_a_full_state_and_a_state_of_another_attention_are_refused(compiled: Kind) -> None:
    model = model_of().to(compiled.device)
    decoder = compiled.decoder(model)
    token = ints(2).to(compiled.device)
    _, full = decoder.prefill(compiled.tokens(model, 2, MAX_LENGTH - 1))
    with pytest.raises(ValueError, match="a position below 9"):
        decoder.step(token, full)
    _, short = decoder.prefill(token[:, None], max_length=2)
    with pytest.raises(ValueError, match="2 positions"):
        decoder.step(token, short)
    cache = tiny_model("softmax").float().to(compiled.device).prefill(token[:, None])[1]
    with pytest.raises(TypeError, match="KeyValueCache"):
        decoder.step(token, cache)


def test_nothing_to_decode(kind: Kind) -> None:
    decoder = kind.decoder(model_of().to(kind.device))
    empty = torch.zeros(0, 3, dtype=torch.int64, device=kind.device)
    parameters, state = decoder.prefill(empty)
    assert parameters.shape == (0, 7)
    parameters, _ = decoder.step(empty[:, 0], state)
    assert parameters.shape == (0, 7)
