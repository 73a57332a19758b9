"""Recorded steps: what a CUDA graph requires of them, and their slots.

What they share with other decoders is in test_decoder_contract.py, _draws.py and _refusals.py.
"""

from __future__ import annotations

import copy
import gc
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from linattn_core import LinearAttentionState
from linattn_core.calls import StepCall
from linattn_core.decoder_spec import CannotCompile, DecoderDescription
from linattn_core.reference_backend.step import step as step_in_torch
from linattn_lab.throughput import generation_throughput
from linattn_models import (
    CompiledDecoder,
    Head,
    MixtureOfLogistics,
    compile_decoder,
)
from linattn_models.decoding import compiled, torch_step
from linattn_models.decoding.graph import CudaGraphRecorder, EagerRecorder, GraphDecoder
from linattn_models.decoding.prompts import Prompt
from linattn_models.decoding.rows import Rows, read_prompt_rows
from linattn_models.decoding.sampling import SamplingParams, start_draws
from linattn_models.state import zero_states
from tests.models.decoding.decoders import (
    KINDS,
    LONG,
    Kind,
    close,
    forced,
    long_model,
    model_of,
    needs_gpu,
    recorded,
    sized,
    worst,
)
from tests.models.decoding.tape import Tape, TapeRecorder
from tests.models.tiny import MAX_LENGTH, heads, random_tokens


@pytest.fixture(params=KINDS[2:], scope="module")
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(request.param)


@pytest.mark.parametrize(("batch", "size"), [(1, (3, 5, 7)), (40, (2, 32, 64))], ids=str)
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


@torch.no_grad()
def test_states_of_any_strides(kind: Kind) -> None:
    model = model_of().to(kind.device)
    decoder = kind.decoder(model)
    tokens = kind.tokens(model, 2, 4)
    _, state = decoder.prefill(tokens[:, :3])
    strided = tuple(
        LinearAttentionState(layer.s.mT.contiguous().mT, layer.z) for layer in state.layers
    )
    actual, _ = decoder.step(tokens[:, 3], replace(state.clone(), layers=strided))
    close(actual, model.predict_next(tokens))


@pytest.mark.parametrize(
    "fields", [{"decay": "gated"}, {"window_size": 3}, {"feature_map": "hedgehog"}], ids=str
)
def test_weights_of_heads_stay_in_float32(fields: dict[str, Any]) -> None:
    """A decay near 1 would be 1 in bfloat16."""
    layer = torch_step.TorchStep(model_of(**fields).describe(), "bfloat16", "auto").model.layers[0]
    weights = layer.decay_logits, layer.decay_weight, layer.log_gamma, layer.query_map
    assert {x.dtype for x in weights if x is not None} == {torch.float32}
    assert layer.qkv.weight.dtype == torch.bfloat16


# What a graph needs


@heads
@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("fields", [{}, {"decay": "gated"}, {"feature_map": "hedgehog"}], ids=str)
@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_a_step_reads_no_number_and_stays_on_its_device(
    head: Any, window: int, fields: Any, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On meta tensors, where reading a number fails, and so does a tensor of another device."""

    copy = torch_step._copy

    def copy_to_meta(part: Any, dtype: torch.dtype) -> Any:
        result = copy(part, dtype)
        return result.to("meta") if isinstance(result, Tensor) else result

    monkeypatch.setattr(torch_step, "_copy", copy_to_meta)
    model = model_of(head, window_size=window, **fields)
    step = torch_step.TorchStep(model.describe(), weights, "auto")
    shape = (2,) if head.channels == 1 else (2, 3)
    tokens = torch.zeros(shape, dtype=torch.int64, device="meta")
    position = torch.zeros(2, dtype=torch.int64, device="meta")
    shapes = step.model.state_shapes(2)
    states = {device: zero_states(2, shapes, torch.device(device)) for device in ("meta", "cpu")}
    parameters = step.step(tokens, position, states["meta"])
    uniform = torch.zeros(2, 4, dtype=torch.float64, device="meta")
    drawn = head.invert(parameters, uniform, uniform[:, 0])
    assert parameters.is_meta and parameters.dtype == torch.float32
    assert drawn.is_meta and drawn.shape == shape
    with pytest.raises((ValueError, RuntimeError), match="meta"):
        step.step(tokens, position, states["cpu"])


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
    decoder = recorded(model, recorder=recorder)
    assert isinstance(decoder, CompiledDecoder)
    model.generate(3, decoder=decoder)
    before = [_addresses(tape) for tape in recorder.tapes]
    tokens = random_tokens(model, 3, 4)
    forced(decoder, tokens)
    model.generate(3, decoder=decoder, temperature=0.7)
    model.generate(3, decoder=decoder, temperature=0.0)
    model.generate(2, decoder=decoder)
    assert [_addresses(tape) for tape in recorder.tapes[: len(before)]] == before
    # One that draws, one of parameters, and one of two rows.
    assert len(recorder.tapes) == 3


def _addresses(tape: Tape) -> list[int]:
    return [
        x.data_ptr() for _, args, _, results in tape.calls for x in (*args, *results)
        if isinstance(x, Tensor)
    ]  # fmt: skip


@torch.no_grad()
def test_all_that_a_run_reads_outlives_an_evicted_slot() -> None:
    """Its memory may be reused on another stream while the last run still reads it."""

    class Releasing(TapeRecorder):
        def __init__(self) -> None:
            super().__init__()
            self.released: set[int] = set()

        def release(self, tensors: Sequence[Tensor]) -> None:
            self.released |= {x.data_ptr() for x in tensors}

    recorder = Releasing()
    decoder = recorded(model_of(MixtureOfLogistics(2, 1, 17)), recorder=recorder)
    for batch in (1, 2, 4, 8, 16, 32):
        decoder.generate(batch, length=2)
        slot = decoder.native._slots[0]
        if batch == 8:
            inputs = slot._inputs, slot._position, *slot._draw[:5]
            read = {x.data_ptr() for x in (*inputs, *slot.states[0])}
            assert recorder.released == set()

    assert read <= recorder.released


def test_slots_are_freed_with_their_owners_and_four_are_kept() -> None:
    model = long_model()
    decoder = recorded(model, recorder=EagerRecorder())
    slots = decoder.native._slots
    streams = [decoder.stream(3) for _ in range(6)]
    for stream in streams:
        next(stream)
    assert len(slots) == 6 and all(slot.reserved for slot in slots)
    del streams, stream
    gc.collect()
    assert not any(slot.reserved for slot in slots)
    for batch in (1, 2, 5, 10, 20):
        decoder.generate(batch, length=3)
    assert [slot.size for slot in slots] == [2, 8, 16, 32]


def test_few_sizes_are_recorded() -> None:
    """A batch takes the first rows of a slot that is less than twice as large."""
    recorder = TapeRecorder()
    decoder = recorded(long_model(), recorder=recorder)
    for batch in range(5, 9):
        decoder.generate(batch, length=3)
    assert len(recorder.tapes) == 1
    for batch in (100, 90, 51, 50):
        decoder.generate(batch, length=3)
    assert [slot.size for slot in decoder.native._slots] == [8, 100, 64]


@torch.no_grad()
def test_selected_rows_stay_in_the_memory_of_recorded_steps() -> None:
    """Rows that end and rows that fork: no step copies states in and out."""
    model = long_model()
    decoder = recorded(model, recorder=TapeRecorder())
    assert isinstance(decoder, CompiledDecoder)
    prompt = Prompt(random_tokens(model, 6, 2), None, LONG, LONG - 2)
    both = []
    for source in (model, decoder):
        parameters, state = read_prompt_rows(source, prompt, 1)
        draws = start_draws(SamplingParams(0.0), 6, model.head, model.device)
        both.append(Rows(source, state, draws.draw(model.head, parameters), draws))
    eager, ours = both
    ours.hold()
    for rows in ([0, 1, 2, 3, 4], [4, 2, 2, 0], [1, 1, 1, 0, 2, 3], [5], [0]):
        for each in both:
            each.select_rows(torch.tensor(rows))
            each.advance(1)
        assert torch.equal(ours.tokens, eager.tokens)
        assert ours.state.batch == len(rows)
        assert decoder.native._slot_of(ours.state.layers) is not None
    assert sum(slot.reserved for slot in decoder.native._slots) == 1


# Refusals


def test_the_decoder_of_a_model_on_a_gpu_is_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu(DecoderDescription):
        device = torch.device("cuda")  # type: ignore[assignment]

    model = model_of()
    description = model.describe()
    fields = {name: getattr(description, name) for name in description.__dataclass_fields__}
    monkeypatch.setattr(compiled, "CudaGraphRecorder", lambda device, fuses: EagerRecorder())
    decoder = compiled.compile_described(model, OnGpu(**fields), "float32", "auto")
    assert isinstance(decoder.native, GraphDecoder) and "unrecorded" in repr(decoder)
    with pytest.raises(TypeError, match=r"call load_decoder\(folder\)"):
        copy.deepcopy(decoder)


def test_layers_on_several_devices_are_refused() -> None:
    description = model_of().describe()
    norm = replace(description.norm, weight=description.norm.weight.to("meta"))
    with pytest.raises(CannotCompile, match="one device, got meta, cpu; move the whole"):
        _ = replace(description, norm=norm).device


@pytest.mark.parametrize(
    ("make", "weights", "backend", "said"),
    [
        (model_of, "int8", "auto", "one of 'float32', 'bfloat16'"),
        (model_of, "float32", "gpu", "'gpu'"),
    ],
)
def test_refuses_what_it_cannot_compile(make: Any, weights: str, backend: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        recorded(make(), weights, EagerRecorder(), backend)


def test_a_recorder_needs_a_gpu() -> None:
    with pytest.raises(CannotCompile, match="a CUDA GPU, got cpu; move the model"):
        CudaGraphRecorder(torch.device("cpu"))
    if not torch.cuda.is_available():
        with pytest.raises(CannotCompile, match="finds no CUDA GPU"):
            CudaGraphRecorder(torch.device("cuda"))


def test_fusing_needs_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(CannotCompile, match="expected Triton, got no module triton"):
        CudaGraphRecorder(torch.device("cuda"), fuses=True)


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
def test_fused_graphs_draw_the_tokens_of_the_model() -> None:
    model = model_of(window_size=3, decay="gated").cuda()
    decoder = compile_decoder(model, fuse=True)
    assert "fused" in repr(decoder)
    for batch in (1, 3):
        assert torch.equal(decoder.generate(batch, seeds=5), model.generate(batch, seeds=5))


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
