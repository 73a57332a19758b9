"""Tokens through transformers are timed only if they are the most probable ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.case import Method, Settings, registry
from benchmarks.cases import hugging_face
from linattn_lab.timing import NotMeasured
from linattn_models import AutoregressiveTransformer

NAMES = [
    f"{name}, {part}"
    for name in (hugging_face.OURS, hugging_face.LINEAR, hugging_face.GPT2)
    for part in (hugging_face.FIRST, hugging_face.LAST)
]


def made(name: str, *, peers: bool = True) -> Method:
    case = registry.find("generation/hugging-face/4000-tokens")
    return case.setup(Settings(quick=True, peers=peers, threads=1))[name]()


@pytest.mark.parametrize("name", NAMES)
def test_tokens_pass_their_check_however_often_they_are_generated(name: str) -> None:
    if not name.startswith(hugging_face.LINEAR):
        pytest.importorskip("transformers", reason="needs the extra [transformers]")
    method = made(name)

    assert method.measure is not None
    assert method.units == 5
    for _ in range(3):  # a cache that one call leaves behind would have no room for the others
        assert method.check() is None
        assert method.measure() > 0


def test_without_peers_our_own_generation_is_measured_alone() -> None:
    for name in NAMES:
        if name.startswith(hugging_face.LINEAR):
            assert made(name, peers=False).check() is None
        else:
            with pytest.raises(NotMeasured, match="--peers"):
                made(name, peers=False)


@pytest.mark.parametrize("name", NAMES[:4])
def test_a_model_that_forgets_fails_its_check(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not name.startswith(hugging_face.LINEAR):
        pytest.importorskip("transformers", reason="needs the extra [transformers]")
    step = AutoregressiveTransformer.step

    def forgetful(model: AutoregressiveTransformer, token: torch.Tensor, state: Any) -> Any:
        for layer in state.layers:
            layer.s.zero_()
            layer.z.zero_()
        return step(model, token, state)

    monkeypatch.setattr(AutoregressiveTransformer, "step", forgetful)

    assert "of 5 tokens are not the most probable ones" in str(made(name).check())
