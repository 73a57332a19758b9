"""A recorded step is the model's: the same numbers, states and tokens, whoever repeats it.

Steps are repeated by calling them, by a tape that repeats addresses as a CUDA graph does, and
where there is a GPU by CUDA graphs.
"""

from __future__ import annotations

import copy
import gc
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from linattn_core import LinearAttentionState
from linattn_core.calls import StepCall
from linattn_core.decoding import CannotCompile
from linattn_core.torch_kernels.step import step as step_in_torch
from linattn_models import (
    AutoregressiveTransformer,
    CompiledDecoder,
    Head,
    MixtureOfLogistics,
    Transformer,
    arithmetic,
    compile_decoder,
    compiling,
    generation_throughput,
)
from linattn_models.arithmetic import device_of
from linattn_models.graphed import GraphedDecoder
from linattn_models.recording import CudaGraphRecorder, EagerRecorder, Recorder
from tests.models.decoders import (
    HEAD_NAMES,
    HEADS,
    LONG,
    Halves,
    close,
    forced,
    long_model,
    model_of,
    same_state,
    sized,
    worst,
)
from tests.models.tape import Tape, TapeRecorder
from tests.models.tiny import MAX_LENGTH, random_tokens, tiny_config, tiny_model

heads = pytest.mark.parametrize("head", HEADS, ids=HEAD_NAMES)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Kind:
    """Where models are and what repeats their steps."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.device = torch.device("cuda", 0) if name == "graph" else torch.device("cpu")

    def decoder(self, model: Any, weights: str = "float32") -> Any:
        recorders: dict[str, Recorder] = {"eager": EagerRecorder(), "tape": TapeRecorder()}
        return compiling.graph_decoder(model, weights, recorder=recorders.get(self.name))

    def tokens(self, model: AutoregressiveTransformer, batch: int, length: int) -> Tensor:
        return random_tokens(model, batch, length).to(self.device)

    def seeded(self, seed: int = 0) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)


@pytest.fixture(
    params=["eager", "tape", pytest.param("graph", marks=[pytest.mark.gpu, needs_gpu])],
    scope="module",
)
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(request.param)


# The numbers of the model


@heads
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("size", [(1, 1, 1), (3, 5, 7), (2, 32, 64)], ids=str)
@torch.no_grad()
def test_steps_equal_the_whole_sequence(
    kind: Kind, head: Head, norm: str, activation: str, size: tuple[int, int, int]
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
    kind: Kind, head: Head, lengths: list[int], steps: int
) -> None:
    model = model_of(head).to(kind.device)
    decoder = kind.decoder(model)
    tokens = kind.tokens(model, len(lengths), 5)
    own = torch.tensor(lengths, dtype=torch.int32, device=kind.device)
    found, ours = decoder.prefill(tokens, own)
    expected, theirs = model.prefill(tokens, own)
    for _ in range(steps):
        close(found, expected)
        token = kind.tokens(model, len(lengths), 1)[:, 0]
        found, ours = decoder.step(token, ours)
        expected, theirs = model.step(token, theirs)
    close(found, expected)
    same_state(ours, theirs)


@pytest.mark.parametrize("lengths", [None, [4, 0, 2]])
@torch.no_grad()
def test_a_bare_transformer(kind: Kind, lengths: list[int] | None) -> None:
    model = Transformer(tiny_config(**sized((3, 5, 7)))).eval().to(kind.device)
    decoder = kind.decoder(model)
    own = None if lengths is None else torch.tensor(lengths, device=kind.device)
    x = torch.randn(3, 6, 15, device=kind.device)
    given_x = x.clone()
    found, ours = decoder.prefill(x[:, :4], own)
    expected, theirs = model.prefill(x[:, :4], own)
    for row in range(3):
        real = 4 if lengths is None else lengths[row]
        close(found[row, :real], expected[row, :real])
    for position in (4, 5):
        found, ours = decoder.step(x[:, position], ours)
        expected, theirs = model.step(x[:, position], theirs)
        close(found, expected)
    same_state(ours, theirs)
    close(decoder.step(x[:, 0], decoder.initial_state(3))[0], model(x[:, :1])[:, 0])
    assert torch.equal(x, given_x)


@pytest.mark.parametrize("batch", [1, 40])
@pytest.mark.parametrize("size", [(3, 5, 7), (2, 24, 40), (2, 32, 64)], ids=str)
@torch.no_grad()
def test_bfloat16_weights_stay_near(kind: Kind, batch: int, size: tuple[int, int, int]) -> None:
    model = model_of(**sized(size)).to(kind.device)
    tokens = kind.tokens(model, batch, MAX_LENGTH)
    expected = model(tokens)
    exact = worst(forced(kind.decoder(model), tokens), expected)
    decoder = kind.decoder(model, "bfloat16")
    assert exact < worst(forced(decoder, tokens), expected) < 0.05
    parameters, state = decoder.prefill(tokens[:, :3])
    assert parameters.dtype == state.layers[0].s.dtype == torch.float32


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
    kept, shared = state.clone(), state.detach()
    token = kind.tokens(model, 2, 1)[:, 0]
    first, after = decoder.step(token, state)
    remembered = first.clone()
    assert after.layers[0].s is state.layers[0].s
    assert torch.equal(shared.layers[1].s, state.layers[1].s)
    assert not torch.equal(state.layers[0].s, kept.layers[0].s)
    again, resumed = decoder.step(token, kept)
    assert torch.equal(first, again)
    same_state(resumed, after)
    decoder.step(token, after)
    assert torch.equal(first, remembered)  # what came out is not what the next step writes


@torch.no_grad()
def test_sequences_side_by_side_do_not_touch_one_another(kind: Kind) -> None:
    model = model_of().to(kind.device)
    decoder = kind.decoder(model)
    given_tokens = [kind.tokens(model, batch, MAX_LENGTH) for batch in (2, 2, 5, 2)]
    states = [decoder.prefill(tokens[:, :1])[1] for tokens in given_tokens]
    for position in range(1, MAX_LENGTH - 1):
        for i, tokens in enumerate(given_tokens):
            parameters, states[i] = decoder.step(tokens[:, position], states[i])
            close(parameters, model(tokens)[:, position + 1])


@torch.no_grad()
def test_states_of_any_strides(kind: Kind) -> None:
    model = model_of().to(kind.device)
    decoder = kind.decoder(model)
    tokens = kind.tokens(model, 2, 4)
    _, state = decoder.prefill(tokens[:, :3])
    strided = tuple(
        LinearAttentionState(layer.s.mT.contiguous().mT, layer.z) for layer in state.layers
    )
    found, _ = decoder.step(tokens[:, 3], replace(state.clone(), layers=strided))
    close(found, model.predict_next(tokens))


def test_weights_changed_later_do_not_reach_the_decoder(kind: Kind) -> None:
    model = model_of().to(kind.device)
    decoder = kind.decoder(model)
    tokens = kind.tokens(model, 2, 5)
    before = forced(decoder, tokens)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert torch.equal(forced(decoder, tokens), before)
    assert not before.requires_grad


def test_autograd_notices_that_a_step_updated_the_state(kind: Kind) -> None:
    model = model_of().to(kind.device)
    tokens = kind.tokens(model, 2, MAX_LENGTH)
    parameters, state = model.prefill(tokens[:, :1])
    parameters, state = model.step(tokens[:, 1], state)
    found, _ = kind.decoder(model).step(tokens[:, 2], state.detach())
    assert not found.requires_grad
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        parameters.sum().backward()


def test_inference_mode_comes_and_goes(kind: Kind) -> None:
    model = model_of().to(kind.device)
    decoder = kind.decoder(model)
    tokens = kind.tokens(model, 2, MAX_LENGTH)
    with torch.no_grad():
        expected = model(tokens)
    for first in (True, False):
        for inside in (first, not first):
            with torch.inference_mode(inside):
                found = forced(decoder, tokens)
            close(found, expected)
            assert found.is_inference() == inside
        decoder = kind.decoder(model)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_defaults_of_torch_and_autocast_change_nothing(kind: Kind, dtype: torch.dtype) -> None:
    model = model_of().to(kind.device)
    decoder, tokens = kind.decoder(model), kind.tokens(model, 5, MAX_LENGTH)
    expected = forced(kind.decoder(model), tokens)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"), torch.autocast(kind.device.type, torch.bfloat16):
            found = forced(decoder, tokens)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(found, expected)


# Drawing


@heads
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("batch", [1, 5])
def test_the_same_seed_draws_the_models_own_tokens(
    kind: Kind, head: Head, temperature: float, batch: int
) -> None:
    model = long_model(head).to(kind.device)
    decoder = kind.decoder(model)
    fields: dict[str, Any] = {"temperature": temperature}
    eager, graphed, own, again = (
        source.generate(batch, generator=kind.seeded(), decoder=which, **fields)
        for source, which in (
            (model, "eager"),
            (model, decoder),
            (decoder, "auto"),
            (model, decoder),
        )
    )
    assert torch.equal(graphed, eager) and torch.equal(own, eager) and torch.equal(again, eager)
    streamed = torch.stack(list(decoder.stream(batch, generator=kind.seeded(), **fields)), 1)
    assert torch.equal(streamed, eager)


@heads
def test_forced_prefixes_of_different_lengths(kind: Kind, head: Head) -> None:
    model = long_model(head).to(kind.device)
    lengths = torch.tensor([6, 0, 3], device=kind.device)
    fields: dict[str, Any] = {"prefix": kind.tokens(model, 3, 6), "prefix_lengths": lengths}
    eager = model.generate(**fields, generator=kind.seeded(), decoder="eager")
    found = model.generate(**fields, generator=kind.seeded(), decoder=kind.decoder(model))
    assert torch.equal(found, eager)


@heads
@torch.no_grad()
def test_a_step_that_samples_is_a_step_and_a_sample_at_any_temperature(
    kind: Kind, head: Head
) -> None:
    model = model_of(head).to(kind.device)
    decoder = kind.decoder(model)
    tokens = kind.tokens(model, 40, 4)
    _, state = decoder.prefill(tokens[:, :3])
    alone, _ = decoder.step(tokens[:, 3], state.clone())
    for temperature in (1.0, 0.0, 1.3, 0.2, 1.0):
        parameters, drawn, after = decoder.step_and_sample(
            tokens[:, 3], state.clone(), temperature=temperature, generator=kind.seeded()
        )
        assert torch.equal(parameters, alone)
        expected = model.head.sample(alone, temperature=temperature, generator=kind.seeded())
        assert torch.equal(drawn, expected) and drawn.dtype == torch.int64
        assert after.position == 5


def test_streams_side_by_side_and_steps_between_them(kind: Kind) -> None:
    model = long_model(MixtureOfLogistics(2, 3, 8)).to(kind.device)
    decoder = kind.decoder(model)
    expected = [model.generate(2, generator=kind.seeded(seed), decoder="eager") for seed in (1, 2)]
    streams = [decoder.stream(2, generator=kind.seeded(seed)) for seed in (1, 2)]
    found: list[list[Tensor]] = [[], []]
    _, state = decoder.prefill(expected[0][:, :1])
    for position in range(LONG):
        for stream, tokens in zip(streams, found, strict=True):
            tokens.append(next(stream))
        if position > 1:
            parameters, state = decoder.step(expected[0][:, position - 1], state)
    for tokens, right in zip(found, expected, strict=True):
        assert torch.equal(torch.stack(tokens, 1), right)
    close(parameters, model(expected[0])[:, -1].detach())


def test_a_head_of_ones_own_samples_for_itself(kind: Kind) -> None:
    model = AutoregressiveTransformer(tiny_config(), Halves(), LONG).eval()  # type: ignore[arg-type]
    model.to(kind.device)
    eager = model.generate(3, decoder="eager")
    assert torch.equal(model.generate(3, decoder=kind.decoder(model)), eager)


def test_throughput(kind: Kind) -> None:
    model = long_model().to(kind.device)
    for steps in (None, 3):
        found = generation_throughput(model, batch=2, decoder=kind.decoder(model), steps=steps)
        assert found.compiled and found.samples_per_second > 0
        assert all(seconds > 0 for _, seconds in found.seconds_per_step)


def test_two_threads_at_once(kind: Kind) -> None:
    model = model_of().to(kind.device)
    decoder = kind.decoder(model)
    given_tokens = [kind.tokens(model, batch, MAX_LENGTH) for batch in (1, 5, 1, 5)]
    with torch.no_grad():
        expected = [model(tokens) for tokens in given_tokens]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda tokens: [forced(decoder, tokens) for _ in range(5)], given_tokens)
        for ours, right in zip(found, expected, strict=True):
            for one in ours:
                close(one, right)


# What a graph needs


@heads
@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_a_step_asks_its_device_for_nothing_and_never_leaves_it(
    head: Any, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On tensors without numbers: asking for one fails, and so does another device among them."""

    def moved(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        return x.detach().to("meta", dtype)

    monkeypatch.setattr(arithmetic, "_own", moved)
    made = arithmetic.Arithmetic(model_of(head).describe(), weights, "auto")
    shape = (2,) if head.channels == 1 else (2, 3)
    tokens = torch.zeros(shape, dtype=torch.int64, device="meta")
    position = torch.zeros(2, dtype=torch.int64, device="meta")
    states = [LinearAttentionState.zeros(2, 2, 4, 4, device="meta") for _ in range(2)]
    parameters = made.step(tokens, position, states)
    draw = head.noise((2,), 1.0, None, like=parameters)
    drawn = head.choose(parameters, draw._replace(temperature=torch.ones((), device="meta")))
    assert parameters.is_meta and parameters.dtype == torch.float32
    assert drawn.is_meta and drawn.shape == shape
    with pytest.raises(ValueError, match="expected tensors on meta, got cpu"):
        made.step(tokens, position, made.zeros(2))


@pytest.mark.parametrize("phi", ["elu", "relu", "identity"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_step_of_the_reference_can_be_recorded(phi: str, dtype: torch.dtype) -> None:
    query, key, value = torch.randn(3, 2, 3, 4, dtype=dtype).unbind(0)
    state = LinearAttentionState.zeros(2, 3, 4, 4)
    with Tape() as tape:
        out = step_in_torch(StepCall(query, key, value, state, phi))
    first = out.clone()
    state.s.zero_()
    state.z.zero_()
    tape.repeat()
    close(out.float(), first.float())


@heads
@torch.no_grad()
def test_what_a_recording_reads_and_writes_stays_where_it_is(head: Head) -> None:
    model = long_model(head)
    recorder = TapeRecorder()
    decoder = compiling.graph_decoder(model, recorder=recorder)
    assert isinstance(decoder, CompiledDecoder)
    model.generate(3, decoder=decoder)
    before = [_addresses(tape) for tape in recorder.tapes]
    tokens = random_tokens(model, 3, 4)
    forced(decoder, tokens)
    model.generate(3, decoder=decoder, temperature=0.7)
    model.generate(3, decoder=decoder, temperature=0.0)
    model.generate(2, decoder=decoder)
    assert [_addresses(tape) for tape in recorder.tapes[: len(before)]] == before
    # One that draws, one of parameters, one of the likeliest, and one of two rows.
    assert len(recorder.tapes) == 4


def _addresses(tape: Tape) -> list[int]:
    return [
        x.data_ptr() for _, args, _, results in tape.calls for x in (*args, *results)
        if isinstance(x, Tensor)
    ]  # fmt: skip


def test_places_are_given_back_and_not_kept_for_ever() -> None:
    model = long_model()
    decoder = compiling.graph_decoder(model, recorder=EagerRecorder())
    places = decoder.native._places  # type: ignore[attr-defined]
    streams = [decoder.stream(3) for _ in range(6)]  # type: ignore[union-attr]
    for stream in streams:
        next(stream)
    assert len(places) == 6 and all(place.held for place in places)
    del streams, stream
    gc.collect()
    assert not any(place.held for place in places)
    for batch in range(1, 10):
        decoder.generate(batch, length=3)  # type: ignore[union-attr]
    assert [place.batch for place in places] == [6, 7, 8, 9]


# Refusals


def test_the_decoder_of_a_model_on_a_gpu_is_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "device_of", lambda description: torch.device("cuda"))
    monkeypatch.setattr(compiling, "CudaGraphRecorder", lambda device: EagerRecorder())
    decoder = compile_decoder(model_of())
    assert isinstance(decoder.native, GraphedDecoder) and "unrecorded" in repr(decoder)
    with pytest.raises(TypeError, match="compile it where it is used"):
        copy.deepcopy(decoder)


def test_a_model_that_is_not_on_a_gpu_is_refused() -> None:
    with pytest.raises(CannotCompile, match=re.escape("the weights are on cpu; move the model")):
        compiling.graph_decoder(model_of())


@pytest.mark.skipif(torch.cuda.is_available(), reason="refused only where there is no GPU")
def test_no_gpu_is_said() -> None:
    with pytest.raises(CannotCompile, match="finds no CUDA GPU"):
        CudaGraphRecorder(torch.device("cuda"))


def test_layers_on_several_devices_are_refused() -> None:
    description = model_of().describe()
    norm = replace(description.norm, weight=description.norm.weight.to("meta"))
    with pytest.raises(CannotCompile, match="on one device and are on meta, cpu; move the whole"):
        device_of(replace(description, norm=norm))


@pytest.mark.parametrize(
    ("make", "weights", "backend", "said"),
    [
        (model_of, "int8", "auto", "pass one of 'float32', 'bfloat16'"),
        (model_of, "int4", "auto", "did you mean 'int8'"),
        (model_of, "float32", "gpu", "got 'gpu'"),
        (lambda: tiny_model("softmax").float(), "float32", "auto", "only causal linear attention"),
        (lambda: model_of().bfloat16(), "float32", "auto", "is torch.bfloat16 on cpu"),
    ],
)
def test_refuses_what_it_cannot_compile(make: Any, weights: str, backend: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        compiling.graph_decoder(make(), weights, backend, EagerRecorder())


def test_dropout_in_training_mode_refuses_generation(kind: Kind) -> None:
    model = model_of(dropout=0.5).train().to(kind.device)
    decoder = kind.decoder(model)
    with pytest.raises(ValueError, match=re.escape("call model.eval() first")):
        model.generate(decoder=decoder)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda d, s: d.step(torch.zeros(2), s), TypeError, "int64 and are torch.float32"),
        (lambda d, s: d.step(torch.zeros(3, dtype=torch.int64), s), ValueError, "inputs for 3"),
        (lambda d, s: d.step(torch.tensor([0, 0]), s.to(torch.float64)), ValueError, "float64"),
        (
            lambda d, s: d.step(torch.zeros(2, dtype=torch.int64, device="meta"), s),
            ValueError,
            "tokens on the CPU and got some on meta",
        ),
        (
            lambda d, s: d.step(torch.tensor([0, 0]), replace(s, layers=s.layers[:1])),
            ValueError,
            "has 1 layers and the decoder 2",
        ),
        (
            lambda d, s: d.step(
                torch.tensor([0, 0]),
                Kind("eager")
                .decoder(model_of(num_heads=3))
                .prefill(torch.zeros(2, 1, dtype=torch.int64))[1],
            ),
            ValueError,
            "expected to have s (2, 2, 4, 4)",
        ),
        (
            lambda d, s: d.native.step(torch.tensor([0, 0]), torch.tensor([1]), s.layers, None),
            ValueError,
            "2 integers and have shape (1,)",
        ),
    ],
)
def test_a_decoder_refuses(call: Any, error: type[Exception], said: str) -> None:
    decoder = Kind("eager").decoder(model_of())
    _, state = decoder.prefill(torch.zeros(2, 3, dtype=torch.int64))
    before = state.clone()
    with pytest.raises(error, match=re.escape(said)):
        call(decoder, state)
    assert torch.equal(state.layers[0].s, before.layers[0].s)


def test_nothing_to_decode(kind: Kind) -> None:
    decoder = kind.decoder(model_of().to(kind.device))
    empty = torch.zeros(0, 3, dtype=torch.int64, device=kind.device)
    parameters, state = decoder.prefill(empty)
    assert parameters.shape == (0, 7)
    parameters, _ = decoder.step(empty[:, 0], state)
    assert parameters.shape == (0, 7)


# On a GPU


@pytest.mark.gpu
@needs_gpu
def test_auto_takes_graphs_on_a_gpu() -> None:
    model = long_model().cuda()
    decoder = compile_decoder(model)
    assert "CUDA graphs on" in repr(decoder)
    assert generation_throughput(model, batch=1).compiled
    generator = torch.Generator("cuda")
    auto, eager = (
        model.generate(3, generator=generator.manual_seed(0), decoder=which)
        for which in ("auto", "eager")
    )
    assert torch.equal(auto, eager)


@pytest.mark.gpu
@needs_gpu
@torch.no_grad()
def test_from_one_stream_to_another() -> None:
    model = model_of().cuda()
    decoder = compile_decoder(model)
    tokens = Kind("graph").tokens(model, 64, MAX_LENGTH)
    expected = model(tokens)
    _, state = decoder.prefill(tokens[:, :1])
    for position in range(1, MAX_LENGTH - 1):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            parameters, state = decoder.step(tokens[:, position], state)
        torch.cuda.current_stream().wait_stream(stream)
        close(parameters, expected[:, position + 1])


@pytest.mark.gpu
@needs_gpu
def test_ten_thousand_images_at_once() -> None:
    model = long_model(MixtureOfLogistics(10)).cuda()
    for weights in ("float32", "bfloat16"):
        tokens = compile_decoder(model, weights).generate(10_000)
        assert tokens.shape == (10_000, LONG) and tokens.min() >= 0 and tokens.max() < 256
