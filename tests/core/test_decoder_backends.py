"""Which backend compiles a decoder: the named one, or the first that accepts, with all reasons."""

from __future__ import annotations

import pytest
import torch

from linattn_core import registry
from linattn_core.decoder_spec import CannotCompile, DecoderDescription, Norm
from linattn_core.reference_backend.backend import ReferenceBackend
from linattn_core.registry import Installed, compile_decoder


class Compiling(ReferenceBackend):
    """A backend that compiles decoders with weights of its own kinds, into their description."""

    def __init__(self, name: str, *weights: str) -> None:
        self.name = name
        self.weights = weights

    def refuses_decoder(self, description: DecoderDescription, weights: str) -> str | None:
        return None if weights in self.weights else f"it keeps no {weights} weights."

    def compile_decoder(self, description: DecoderDescription, weights: str) -> object:
        return self.name, description, weights


@pytest.fixture
def description() -> DecoderDescription:
    norm = Norm(torch.ones(4), torch.zeros(4), 1e-5)
    return DecoderDescription((), norm, 2, 2, 2, "elu", 1e-6, "gelu", True, None, None)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        Installed("broken", "a test", None, "OSError: no such library"),
        Installed("narrow", "a test", Compiling("narrow", "int8"), None),
        Installed("wide", "a test", Compiling("wide", "int8", "float32"), None),
        Installed("reference", "linattn-core", ReferenceBackend(), None),
    ]
    monkeypatch.setattr(registry, "installed_backends", lambda: found)


def test_auto_takes_the_first_that_accepts(description: DecoderDescription) -> None:
    assert compile_decoder("auto", description, "int8") == ("narrow", description, "int8")
    assert compile_decoder("auto", description, "float32") == ("wide", description, "float32")


def test_the_named_one_compiles(description: DecoderDescription) -> None:
    assert compile_decoder("wide", description, "int8") == ("wide", description, "int8")


def test_refusals_carry_every_reason(description: DecoderDescription) -> None:
    with pytest.raises(CannotCompile, match="narrow"):
        compile_decoder("narrow", description, "float32")
    with pytest.raises(CannotCompile) as refused:
        compile_decoder("auto", description, "bfloat16")
    assert all(name in str(refused.value) for name in ("narrow", "wide", "reference"))


def test_backends_that_are_unknown_or_not_live(description: DecoderDescription) -> None:
    with pytest.raises(ValueError, match="narow"):
        compile_decoder("narow", description, "int8")
    with pytest.raises(ValueError, match="got 5"):
        compile_decoder(5, description, "int8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no such library"):
        compile_decoder("broken", description, "int8")


def test_half_of_the_methods_is_a_fault() -> None:
    backend = Compiling("half", "int8")
    backend.refuses_decoder = None  # type: ignore[method-assign,assignment]
    with pytest.raises(TypeError, match="refuses_decoder"):
        registry._check_backend(backend)
