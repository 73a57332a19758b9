"""The generation cases check what decodes before they would time it, the peer included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.cases import find_case, peers, tokens
from benchmarks.cases.decoder_checks import check_compiled, check_steps
from benchmarks.cases.models import WEIGHT_BYTES, Task
from benchmarks.cases.peer_decoder import PeerDecoder
from linattn_lab.timing import NotMeasured
from linattn_models import (
    AutoregressiveTransformer,
    CannotCompile,
    CompiledDecoder,
    compile_decoder,
)
from tests.benchmarks.helpers import QUICK, forget

TASK = Task(2).for_settings(QUICK)
CASES = (  # the last three are those of a GPU, with the CPU in its place
    ("generation/filters/32000-flat/batch-32", "cpu"), ("generation/flat/10000-tokens", "cpu"),
    ("generation/prompts/ragged", "cpu"), ("decoding/steps/one-image", "cpu"),
    ("decoding/compiled-steps/batch-100", "cpu"), ("decoding/options/one-image", "cpu"),
    ("serving/engine", "cpu"), ("serving/reading", "cpu"), ("serving/states", "cpu"),
    ("generation/images/one-image", "cuda"),
    ("generation/images/batch-10000", "cuda"), ("generation/language-model/one-text", "cuda"),
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


def test_a_decoder_of_other_weights_fails_its_check(compiled: Compiled) -> None:
    model, decoder = compiled
    with torch.no_grad():
        model.output.weight.mul_(1.1)
    assert "decoding by steps" in str(check_compiled(model, decoder, 3))


def test_prompts_whose_lengths_are_ignored_fail_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    prefill = AutoregressiveTransformer.prefill

    def ignore(self: AutoregressiveTransformer, tokens: Tensor, lengths: object = None) -> object:
        return prefill(self, tokens)

    method = tokens.read_prompts(tokens.LINEAR, tokens.AT_ONCE, Task(), QUICK)
    monkeypatch.setattr(AutoregressiveTransformer, "prefill", ignore)
    assert "the predictions" in str(method.check())
