"""The generation cases check what decodes before they would time it, the peer included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.cases import decoders, find_case, peers, tokens
from benchmarks.cases.decoder_checks import check_compiled, check_steps
from benchmarks.cases.models import WEIGHT_BYTES, Task
from benchmarks.cases.peer_decoder import PeerDecoder
from linattn_lab.throughput import Throughput
from linattn_lab.timing import NotMeasured
from linattn_models import (
    AutoregressiveTransformer,
    CannotCompile,
    CompiledDecoder,
    compile_decoder,
)
from tests.benchmarks.helpers import QUICK, forget

TASK = Task(2).for_settings(QUICK)
CASES = (  # the last two are those of a GPU, with the CPU in its place
    ("generation/filters/32000-flat/batch-32", "cpu"), ("generation/flat/10000-tokens", "cpu"),
    ("generation/prompts/ragged", "cpu"), ("decoding/steps/one-image", "cpu"),
    ("decoding/compiled-steps/batch-100", "cpu"), ("decoding/options/one-image", "cpu"),
    ("serving/engine", "cpu"), ("serving/reading", "cpu"),
    ("generation/images/one-image", "cuda"),
    ("generation/images/batch-10000", "cuda"),
)  # fmt: skip

Compiled = tuple[AutoregressiveTransformer, CompiledDecoder]


@pytest.fixture
def peer_decoder() -> PeerDecoder:
    try:
        library = peers.load("fast_transformers.builders", QUICK)
    except NotMeasured as reason:
        pytest.skip(f"{peers.FAST_TRANSFORMERS}: {reason}")
    return PeerDecoder(library, TASK.model())


@pytest.fixture(params=WEIGHT_BYTES)
def compiled(request: pytest.FixtureRequest) -> Compiled:
    """A model and its compiled decoder, for each way to keep the weights."""
    model = TASK.model()
    try:
        return model, compile_decoder(model, request.param)
    except CannotCompile as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize(("name", "device"), CASES)
def test_every_method_of_a_case_is_right(name: str, device: str) -> None:
    checked = 0
    for title, make in find_case(name, device).setup(QUICK).items():
        try:
            made = make()
        except NotMeasured:
            continue
        assert made.check() is None, title
        for _ in range(TASK.length + 1 if "step" in name else 1):  # steps leave the cursor in place
            made.run()
        checked += 1
    assert checked or device == "cpu"


def test_a_decoder_that_forgets_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)
    assert "decoding by steps" in str(check_steps(TASK.model()))


@pytest.mark.parametrize("batch", [1, 2, 5, 40])
def test_compiled_decoders_pass_their_check(compiled: Compiled, batch: int) -> None:
    assert check_compiled(*compiled, batch) is None


def test_a_decoder_of_other_weights_fails_its_check(compiled: Compiled) -> None:
    model, decoder = compiled
    with torch.no_grad():
        model.output.weight.mul_(1.1)
    assert "decoding by steps" in str(check_compiled(model, decoder, 3))


@pytest.mark.parametrize(("shift", "ignored"), [(1, {}), (0, {"temperature": 0.1})])
def test_a_decoder_that_draws_otherwise_fails_its_check(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch, shift: int, ignored: dict[str, float]
) -> None:
    draw = CompiledDecoder.step_and_sample

    def draw_otherwise(decoder: CompiledDecoder, *arguments: Any, **options: Any) -> Any:
        options = {name: value for name, value in options.items() if name not in ignored}
        parameters, drawn, state = draw(decoder, *arguments, **options)
        return parameters, drawn + shift, state

    monkeypatch.setattr(CompiledDecoder, "step_and_sample", draw_otherwise)
    assert "tokens drawn" in str(check_compiled(*compiled, 3, **ignored))


@pytest.mark.parametrize("make", [decoders.generate_compiled, decoders.step_compiled])
def test_a_missing_compiler_is_a_reason(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> object:
        raise CannotCompile("No backend compiles this decoder.")

    monkeypatch.setattr(decoders.linattn_models, "compile_decoder", refuse)
    with pytest.raises(NotMeasured, match="No backend"):
        make("int8", TASK)


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_methods_named_eager_generate_whole_batches_eagerly(
    attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def answer(model: AutoregressiveTransformer, **options: object) -> Throughput:
        asked.append(options["decoder"])
        return Throughput(4.0, 0.25, [], 0, compiled=False)

    monkeypatch.setattr(decoders, "generation_throughput", answer)
    method = decoders.generate_eagerly(attention, TASK)
    assert method.measure is not None
    assert method.measure() / method.units == 0.25
    assert asked == ["eager"]


def test_prompts_whose_lengths_are_ignored_fail_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    prefill = AutoregressiveTransformer.prefill

    def ignore(self: AutoregressiveTransformer, tokens: Tensor, lengths: object = None) -> object:
        return prefill(self, tokens)

    method = tokens.read_prompts(tokens.LINEAR, tokens.AT_ONCE, Task(), QUICK)
    monkeypatch.setattr(AutoregressiveTransformer, "prefill", ignore)
    assert "the predictions" in str(method.check())


def test_the_peer_with_our_weights_decodes_what_we_do(peer_decoder: PeerDecoder) -> None:
    assert check_steps(peer_decoder) is None
    theirs = peer_decoder.generate(3, torch.Generator().manual_seed(5))
    ours = peer_decoder.model.generate(3, generator=torch.Generator().manual_seed(5))
    assert torch.equal(theirs, ours)


def test_the_peer_with_other_weights_fails_its_check(peer_decoder: PeerDecoder) -> None:
    with torch.no_grad():
        peer_decoder.encoder.get_parameter("layers.0.attention.value_projection.weight").mul_(-1)
    assert check_steps(peer_decoder) is not None


@pytest.mark.parametrize("weights", WEIGHT_BYTES)
def test_reading_reads_every_matrix_once(weights: str) -> None:
    method = decoders.read_weights(weights, TASK)
    read = method.run.__self__  # type: ignore[attr-defined]
    assert read.nbytes == method.traffic == TASK.matrix_weights * WEIGHT_BYTES[weights]


def test_the_least_work_of_a_step_counts_every_matrix_and_the_states_twice() -> None:
    task = Task(7, num_layers=3, num_heads=2, head_dim=8, ffn_dim=20, length=5)
    model = task.model()
    weights = sum(p.numel() for p in model.transformer.blocks.parameters() if p.ndim == 2)
    states = 2 * model.transformer.initial_state(7).nbytes
    assert task.operations == 7 * (2 * weights + 3 * 2 * 4 * 8 * 8)
    assert (task.traffic(), task.traffic("int8")) == (4 * weights + states, weights + states)
