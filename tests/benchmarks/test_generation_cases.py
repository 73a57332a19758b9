"""The generation cases check what decodes before they would time it, the peer included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.cases import decoding
from benchmarks.cases.decoding import (
    QUICK_SIZE,
    Size,
    build_model,
    check_peer,
    check_rerun,
    check_steps,
)
from benchmarks.peer_decoder import PeerDecoder
from benchmarks.registry import Absent, Method, NotMeasured, Settings
from linattn_models import AutoregressiveTransformer, Throughput

SETTINGS = Settings(quick=True, peers=True, threads=1)


@pytest.fixture
def peer_decoder() -> PeerDecoder:
    try:
        library = peers.fast_transformers(SETTINGS)
    except NotMeasured as reason:
        pytest.skip(f"{peers.FAST_TRANSFORMERS}: {reason}")
    return PeerDecoder(library, build_model("linear", QUICK_SIZE))


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_both_attentions_pass_their_checks(attention: str) -> None:
    model = build_model(attention, QUICK_SIZE)
    assert check_steps(model) is None
    assert check_rerun(model) is None


def test_a_decoder_that_forgets_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    step = AutoregressiveTransformer.step

    def forgetful(model: AutoregressiveTransformer, token: Tensor, state: Any) -> Any:
        for layer in state.layers:
            layer.s.zero_()
            layer.z.zero_()
        return step(model, token, state)

    monkeypatch.setattr(AutoregressiveTransformer, "step", forgetful)
    fault = check_steps(build_model("linear", QUICK_SIZE))
    assert fault is not None
    assert "decoding by steps differs" in fault


def test_a_rerun_that_drops_the_first_token_fails_its_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    predict = AutoregressiveTransformer.predict_next
    monkeypatch.setattr(
        AutoregressiveTransformer,
        "predict_next",
        lambda model, tokens: predict(model, tokens[:, 1:]),
    )
    fault = check_rerun(build_model("softmax", QUICK_SIZE))
    assert fault is not None
    assert "rerunning the prefix differs" in fault


def test_the_peer_with_our_weights_decodes_what_we_do(peer_decoder: PeerDecoder) -> None:
    assert check_peer(peer_decoder) is None


def test_the_peer_with_other_weights_fails_its_check(peer_decoder: PeerDecoder) -> None:
    with torch.no_grad():
        peer_decoder.encoder.get_parameter("layers.0.attention.value_projection.weight").mul_(-1)
    assert check_peer(peer_decoder) is not None


def test_the_peer_draws_the_same_images(peer_decoder: PeerDecoder) -> None:
    length = QUICK_SIZE.length
    theirs = peer_decoder.generate(3, length, torch.Generator().manual_seed(5))
    ours = peer_decoder.model.generate(3, generator=torch.Generator().manual_seed(5))
    assert torch.equal(theirs, ours)


def test_a_missing_peer_is_a_row() -> None:
    made = decoding.peer("peer", QUICK_SIZE, 1, Settings(peers=False))
    assert made == Absent("peer", "not asked for (--peers)")


def test_a_call_makes_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(model: AutoregressiveTransformer, **_: object) -> Throughput:
        return Throughput(4.0, 0.25, [], 0, estimated=False)

    monkeypatch.setattr(decoding, "generation_throughput", timed)
    for method in (
        decoding.stateful("linear", "linear", QUICK_SIZE, 8),
        decoding.rerunning("rerun", QUICK_SIZE, 8, 4),
    ):
        assert isinstance(method, Method)
        assert method.measure is not None
        assert method.measure() / method.units == 0.25


def test_rerunning_is_marked_as_estimated() -> None:
    assert decoding.rerunning("rerun", QUICK_SIZE, 1, 4).estimated
    assert not decoding.stateful("linear", "linear", QUICK_SIZE, 1).estimated


def test_least_operations_count_every_matrix_of_the_layers() -> None:
    size = Size(num_layers=3, num_heads=2, head_dim=8, ffn_dim=20, length=5)
    blocks = build_model("linear", size).transformer.blocks
    weights = sum(parameter.numel() for parameter in blocks.parameters() if parameter.ndim == 2)
    state = 3 * 2 * (2 * 8 * 8 + 2 * 8 * 8)
    assert size.operations_per_token() == 2 * weights + state
