"""The generation cases check what decodes before they would time it, the peer included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.cases import decoders, peers
from benchmarks.cases.decoder_checks import check_compiled, check_steps
from benchmarks.cases.models import WEIGHT_BYTES, Task
from benchmarks.cases.peer_decoder import PeerDecoder
from benchmarks.measure.cases import NotMeasured, Settings, registry
from linattn_lab.throughput import Throughput
from linattn_models import (
    AutoregressiveTransformer,
    CannotCompile,
    CompiledDecoder,
    compile_decoder,
)

SETTINGS = Settings(quick=True, peers=True, threads=1)
TASK = Task(2).sized(SETTINGS)


@pytest.fixture
def peer_decoder() -> PeerDecoder:
    try:
        library = peers.load("fast_transformers.builders", SETTINGS)
    except NotMeasured as reason:
        pytest.skip(f"{peers.FAST_TRANSFORMERS}: {reason}")
    return PeerDecoder(library, TASK.model())


@pytest.fixture(params=WEIGHT_BYTES)
def compiled(request: pytest.FixtureRequest) -> tuple[AutoregressiveTransformer, CompiledDecoder]:
    """A model and its compiled decoder, for each way to keep the weights."""
    model = TASK.model()
    try:
        return model, compile_decoder(model, request.param)
    except CannotCompile as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_both_attentions_pass_their_checks(attention: str) -> None:
    model = TASK.model(attention)
    assert check_steps(model) is None


def test_a_decoder_that_forgets_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    step = AutoregressiveTransformer.step

    def forgetful(model: AutoregressiveTransformer, token: Tensor, state: Any) -> Any:
        for layer in state.layers:
            layer.s.zero_()
            layer.z.zero_()
        return step(model, token, state)

    monkeypatch.setattr(AutoregressiveTransformer, "step", forgetful)
    fault = check_steps(TASK.model())
    assert fault is not None
    assert "decoding by steps differ" in fault


@pytest.mark.parametrize("batch", [1, 2, 5, 40])
def test_compiled_decoders_pass_their_check(
    compiled: tuple[AutoregressiveTransformer, CompiledDecoder], batch: int
) -> None:
    assert check_compiled(*compiled, batch) is None


def test_a_decoder_of_other_weights_fails_its_check(
    compiled: tuple[AutoregressiveTransformer, CompiledDecoder],
) -> None:
    model, decoder = compiled
    with torch.no_grad():
        model.output.weight.mul_(1.1)
    fault = check_compiled(model, decoder, 3)
    assert fault is not None
    assert "decoding by steps differ" in fault


def test_a_decoder_that_draws_other_tokens_fails_its_check(
    compiled: tuple[AutoregressiveTransformer, CompiledDecoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = CompiledDecoder.step_and_sample

    def shifted(decoder: CompiledDecoder, *arguments: Any, **given: Any) -> Any:
        parameters, drawn, state = draws(decoder, *arguments, **given)
        return parameters, drawn + 1, state

    monkeypatch.setattr(CompiledDecoder, "step_and_sample", shifted)
    fault = check_compiled(*compiled, 3)
    assert fault == "33 of 36 tokens drawn are not the head's own"


def test_a_decoder_that_ignores_a_filter_fails_its_check(
    compiled: tuple[AutoregressiveTransformer, CompiledDecoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_compiled(*compiled, 3) is None
    draws = CompiledDecoder.step_and_sample

    def unfiltered(decoder: CompiledDecoder, *arguments: Any, top_p: float, **given: Any) -> Any:
        return draws(decoder, *arguments, **given)

    monkeypatch.setattr(CompiledDecoder, "step_and_sample", unfiltered)
    assert "are not the head's own" in str(check_compiled(*compiled, 3, top_p=0.1))


@pytest.mark.parametrize("name", ["filters/32000-flat/batch-32", "flat/10000-tokens"])
def test_tokens_are_generated_by_a_decoder_that_is_right(name: str) -> None:
    for make in registry.named(f"generation/{name}", "cpu").setup(SETTINGS).values():
        try:
            made = make()
        except NotMeasured as reason:
            pytest.skip(str(reason))
        assert made.check() is None
        made.run()


@pytest.mark.parametrize("make", [decoders.compiled, decoders.compiled_step])
def test_a_missing_compiler_is_a_reason(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> object:
        raise CannotCompile("No backend compiles this decoder.")

    monkeypatch.setattr(decoders.linattn_models, "compile_decoder", refuse)
    with pytest.raises(NotMeasured, match=r"No backend compiles this decoder\."):
        make("int8", TASK)


def test_methods_named_eager_decode_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def timed(model: AutoregressiveTransformer, **given: object) -> Throughput:
        asked.append(given["decoder"])
        return Throughput(4.0, 0.25, [], 0, estimated=False, compiled=False)

    monkeypatch.setattr(decoders, "generation_throughput", timed)
    for attention in ("linear", "softmax"):
        method = decoders.stateful(attention, TASK)
        assert method.measure is not None
        method.measure()
    assert asked == ["eager"] * 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: decoders.eager_step("linear", TASK, 5),
        lambda: decoders.eager_step("softmax", TASK, TASK.length - 1),
        lambda: decoders.compiled_step("float32", TASK),
        lambda: decoders.peer_step(TASK, SETTINGS),
    ],
)
def test_steps_that_are_timed_leave_the_cursor_where_it_was(make: Any) -> None:
    try:
        made = make()
    except NotMeasured as reason:
        pytest.skip(str(reason))
    assert made.check() is None
    for _ in range(TASK.length + 1):  # no room for so many, one after the other
        made.run()


@pytest.mark.parametrize("weights", WEIGHT_BYTES)
def test_reading_reads_every_matrix_once(weights: str) -> None:
    method = decoders.reading(weights, TASK)
    read = method.run.__self__  # type: ignore[attr-defined]
    assert read.nbytes == method.traffic == TASK.matrix_weights * WEIGHT_BYTES[weights]


def test_the_peer_with_our_weights_decodes_what_we_do(peer_decoder: PeerDecoder) -> None:
    assert check_steps(peer_decoder) is None


def test_the_peer_with_other_weights_fails_its_check(peer_decoder: PeerDecoder) -> None:
    with torch.no_grad():
        peer_decoder.encoder.get_parameter("layers.0.attention.value_projection.weight").mul_(-1)
    assert check_steps(peer_decoder) is not None


def test_the_peer_draws_the_same_images(peer_decoder: PeerDecoder) -> None:
    theirs = peer_decoder.generate(3, torch.Generator().manual_seed(5))
    ours = peer_decoder.model.generate(3, generator=torch.Generator().manual_seed(5))
    assert torch.equal(theirs, ours)


def test_a_call_makes_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(model: AutoregressiveTransformer, **_: object) -> Throughput:
        return Throughput(4.0, 0.25, [], 0, estimated=False, compiled=False)

    monkeypatch.setattr(decoders, "generation_throughput", timed)
    method = decoders.stateful("linear", TASK)
    assert method.measure is not None
    assert method.measure() / method.units == 0.25


def test_least_operations_count_every_matrix_of_the_layers() -> None:
    task = Task(7, num_layers=3, num_heads=2, head_dim=8, ffn_dim=20, length=5)
    blocks = task.model().transformer.blocks
    weights = sum(parameter.numel() for parameter in blocks.parameters() if parameter.ndim == 2)
    state = 3 * 2 * (2 * 8 * 8 + 2 * 8 * 8)
    assert task.operations == 7 * (2 * weights + state)


def test_least_traffic_is_the_weights_and_the_states_twice() -> None:
    task = Task(7, num_layers=3, num_heads=2, head_dim=8, ffn_dim=20, length=5)
    model = task.model()
    matrices = [p for p in model.transformer.blocks.parameters() if p.ndim == 2]
    weights = sum(p.numel() for p in matrices)
    states = 2 * model.transformer.initial_state(7).nbytes
    assert task.traffic() == 4 * weights + states
    assert task.traffic("int8") == weights + states
