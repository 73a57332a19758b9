"""A short form of `nox -s fuzz`, and that it finds what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from linattn_core.calls import AttentionCall, Gradients, Output, StepCall
from linattn_core.reference_backend.backend import ReferenceBackend

from .fuzz import Tally, run
from .judging import complaints
from .random_calls import Drawing

CALLS, SMALL = 250, 20_000


def test_random_calls_are_within_their_budget(backend: str) -> None:
    tally = Tally()
    for seed in range(CALLS):
        # Emulated GPUs take seconds for a large call.
        if not backend.startswith("emulated") or size(Drawing(seed)) < SMALL:
            tally.judge(seed, backend)
    assert not tally.failures, tally.failures[0]
    assert tally.accepted[backend, "all"]


def size(drawn: Drawing) -> int:
    """Numbers of the queries, keys and values."""
    positions = drawn.batch * (drawn.length + drawn.groups * drawn.queries) * drawn.kv_heads
    return positions * (drawn.dim + drawn.value_dim)


@pytest.mark.parametrize("seed", [30097, 37291])
def test_rounding_may_exceed_float16_where_terms_cancel(seed: int) -> None:
    """Their gradients are finite, but not those of an output that is rounded to float16."""
    assert not complaints(Drawing(seed).call(), "reference")


def test_the_reference_refuses_nothing() -> None:
    """And every argument is drawn often enough."""
    tally = Tally()
    for seed in range(60):
        tally.accepted.update(("reference", x) for x in Drawing(seed).call().arguments)
    assert min(tally.accepted.values()) >= 2
    drawn = {argument for _, argument in tally.accepted}
    options = {
        "attn_mask", "key_lengths", "cu_seqlens", "initial_state", "log_decay", "enable_gqa",
        "normalize", "return_normalizer", "eps", "is_causal",
    }  # fmt: skip
    assert options <= drawn
    assert not run(40, 0, ["reference"]).refused


def wrong_output(self: ReferenceBackend, call: AttentionCall) -> Output:
    result = correct_attention(self, call)
    return result._replace(out=result.out * 1.001)


def wrong_state(self: ReferenceBackend, call: StepCall) -> torch.Tensor:
    out = correct_step(self, call)
    call.state.z.mul_(1.001)
    return out


def wrong_gradients(self: ReferenceBackend, *arguments: Any) -> Gradients:
    gradients = correct_backward(self, *arguments)
    return gradients._replace(query=gradients.query * 1.001)


correct_attention, correct_step = ReferenceBackend.attention, ReferenceBackend.step
correct_backward = ReferenceBackend.attention_backward


@pytest.mark.parametrize(
    ("method", "wrong"),
    [("attention", wrong_output), ("step", wrong_state), ("attention_backward", wrong_gradients)],
    ids=("call", "step", "gradients"),
)
def test_a_wrong_backend_is_found_and_the_call_printed(
    method: str, wrong: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ReferenceBackend, method, wrong)
    tally = run(60, 0, ["reference"], most=1)
    assert len(tally.failures) == 1
    capsys.readouterr()
    exec(tally.failures[0], {})
    assert "off by" in capsys.readouterr().out


def test_a_refusal_is_counted_with_its_arguments() -> None:
    tally = Tally()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReferenceBackend, "refuses", lambda *_: "not today.")
        tally.judge(0, "reference")
    assert tally.refused["reference", "all"] == 1
    assert not tally.accepted
    assert "0 + 1" in tally.table(["reference"])
    assert "not today" in next(iter(tally.reasons))
