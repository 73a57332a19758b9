"""The operator cases check outputs and gradients before they would time anything."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from benchmarks import peers
from benchmarks.cases import attention
from benchmarks.cases.attention import Attention, Sizes, method
from benchmarks.registry import Absent, Method, NotMeasured, Settings

SIZES = Sizes(length=40, heads=2, width=8)
SETTINGS = Settings(quick=True, peers=True, threads=1)
NAMES = (
    attention.LINEAR, attention.SDPA, attention.FAST_TRANSFORMERS,
    attention.FAST_TRANSFORMERS_KERNEL,
)  # fmt: skip


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_operator_passes_its_own_check(name: str, backward: bool) -> None:
    made = method(name, SIZES, backward=backward, settings=SETTINGS)
    if isinstance(made, Absent):
        pytest.skip(f"{name}: {made.reason}")
    assert made.check() is None


def _method_of(monkeypatch: pytest.MonkeyPatch, operator: Attention, backward: bool) -> Method:
    monkeypatch.setattr(attention, "attention", lambda *_: operator)
    made = method(operator.name, SIZES, backward=backward, settings=SETTINGS)
    assert isinstance(made, Method)
    return made


def test_the_wrong_attention_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    wrong = Attention("wrong", not_causal, attention.oracle.softmax_rows)
    fault = _method_of(monkeypatch, wrong, backward=False).check()
    assert fault is not None
    assert "the output differs" in fault


def test_a_wrong_gradient_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets_the_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, 2 * k - k.detach(), v, is_causal=True)

    wrong = Attention("wrong", forgets_the_keys, attention.oracle.softmax_rows)
    assert _method_of(monkeypatch, wrong, backward=False).check() is None
    fault = _method_of(monkeypatch, wrong, backward=True).check()
    assert fault is not None
    assert "the key gradient differs" in fault


@pytest.mark.parametrize(("backward", "each"), [(False, 4), (True, 10)])
def test_least_operations_are_those_of_the_algorithm(backward: bool, each: int) -> None:
    assert Sizes(100, batch=2, heads=3, width=8).operations(backward) == each * 2 * 3 * 100 * 8 * 8


def test_a_peer_that_does_not_import_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: Settings) -> object:
        raise NotMeasured("not installed")

    monkeypatch.setattr(peers, "fast_transformers", missing)
    made = method(attention.FAST_TRANSFORMERS, SIZES, backward=False, settings=SETTINGS)
    assert made == Absent(attention.FAST_TRANSFORMERS, "not installed")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModuleNotFoundError("No module named 'fast_transformers'"), "not installed"),
        (ImportError("undefined symbol: x\nmore"), "does not import here: undefined symbol: x"),
    ],
)
def test_an_import_that_fails_becomes_its_reason(
    monkeypatch: pytest.MonkeyPatch, error: ImportError, reason: str
) -> None:
    def fail(name: str) -> object:
        raise error

    monkeypatch.setattr(peers.importlib, "import_module", fail)
    peers._import_fast_transformers.cache_clear()
    with pytest.raises(NotMeasured) as raised:
        peers.fast_transformers(SETTINGS)
    assert str(raised.value) == reason
