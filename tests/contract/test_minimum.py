"""The named minimum of a backend without gradients cannot be skipped."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

from . import conftest
from .cases import Case
from .minimum import COMPLETE, FORWARD_ONLY, required


def test_every_name_is_a_test_of_the_suite() -> None:
    sources = (ast.parse(x.read_text("utf-8")) for x in Path(__file__).parent.glob("test_*.py"))
    defined = {x.name for tree in sources for x in tree.body if isinstance(x, ast.FunctionDef)}
    assert defined >= FORWARD_ONLY


def test_plain_causal_calls_are_required_and_others_are_not() -> None:
    for name in FORWARD_ONLY:
        assert required(name, {}) and required(name, {"case": Case(queries=65)})
        assert not required(name, {"is_causal": False})
        assert not required(name, {"case": Case(key_lengths=(37, 20))})
    assert not required("test_gradients", {})


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("test_one_position_is_its_own_value", ValueError),
        ("test_every_output_is_written", pytest.skip.Exception),
    ],
)
def test_a_refusal_of_the_minimum_fails(
    name: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conftest, "differentiates", lambda backend: False)
    refuse("lazy", name, outcome)


@pytest.mark.parametrize("name", [*sorted(COMPLETE), "lazy"])
def test_a_complete_backend_may_refuse_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "differentiates", lambda backend: True)
    outcome = ValueError if name in COMPLETE else pytest.skip.Exception
    refuse(name, "test_shapes_of_a_mask", outcome, "may_refuse")


def refuse(backend: str, test: str, outcome: type[BaseException], *markers: str) -> None:
    """Runs a test whose call the backend refuses; the outcome is a failure or a skip."""
    item = SimpleNamespace(
        funcargs={"backend": backend},
        originalname=test,
        callspec=SimpleNamespace(params={}),
        get_closest_marker=lambda marker: marker if marker in markers else None,
    )
    running = conftest.pytest_runtest_call(item)
    next(running)
    with pytest.raises(outcome, match=f"{backend!r} refuses this call"):
        running.throw(ValueError(f"backend {backend!r} refuses this call: it is tired."))
