"""A model's layers may name the backend that runs them; then the model steps itself."""

from __future__ import annotations

import pytest
import torch

from linattn_core import backends
from linattn_models import AutoregressiveTransformer, CannotCompile, compile_decoder
from linattn_models.attention import LinearMixer
from tests.models.tiny import random_tokens, tiny_model


def name_backend(model: AutoregressiveTransformer, backend: str) -> None:
    for module in model.modules():
        if isinstance(module, LinearMixer):
            module.backend = backend


def test_the_reference_named_gives_what_any_backend_gives() -> None:
    model = tiny_model()
    tokens = random_tokens(model, 2, 6)
    expected = model(tokens)
    parameters, state = model.prefill(tokens[:, :4])
    stepped = model.step(tokens[:, 4], state)[0]
    name_backend(model, "reference")
    torch.testing.assert_close(model(tokens), expected)
    again, state = model.prefill(tokens[:, :4])
    torch.testing.assert_close(again, parameters)
    torch.testing.assert_close(model.step(tokens[:, 4], state)[0], stepped)


def test_a_name_reaches_every_way_of_running() -> None:
    model = tiny_model()
    tokens = random_tokens(model, 2, 6)
    _, state = model.prefill(tokens[:, :4])
    name_backend(model, "none")
    for call in (
        lambda: model(tokens),
        lambda: model.prefill(tokens[:, :4]),
        lambda: model.step(tokens[:, 4], state),
    ):
        with pytest.raises(ValueError, match="none"):
            call()


def test_a_model_that_names_one_is_not_compiled() -> None:
    model = tiny_model().float()
    name_backend(model, "reference")
    with pytest.raises(CannotCompile, match="backend"):
        compile_decoder(model)
    assert "reference" in backends()
    assert model.generate(2).shape == (2, model.max_length)
