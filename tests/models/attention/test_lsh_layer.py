"""Models with LSH attention train and rerun; they refuse to step, with the reason."""

from __future__ import annotations

import pytest
import torch

from linattn_lab.throughput import generation_throughput
from linattn_models import AutoregressiveTransformer, CannotCompile, Lsh, compile_decoder
from tests.models.tiny import random_tokens, tiny_model, tiny_transformer

LSH = Lsh(rounds=2, buckets=4, chunk=3)


def lsh_model() -> AutoregressiveTransformer:
    return tiny_model(LSH)


def test_nothing_later_is_read() -> None:
    """The gradient of an output by later inputs is zero in any chunks."""
    model = tiny_transformer(LSH)
    x = torch.randn(1, 9, 8, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad((model(x)[0, 4] * torch.randn(8)).sum(), x)
    assert (gradient[0, 5:] == 0).all() and (gradient[0, :5].abs().sum(-1) > 0).any()


def test_training_draws_new_hashes_and_evaluation_does_not() -> None:
    model = tiny_transformer(LSH)
    x = torch.randn(1, 12, 8, dtype=torch.float64)
    assert torch.equal(model(x), model(x))
    model.train()
    torch.manual_seed(0)
    first = model(x)
    assert not torch.equal(first, model(x))
    torch.manual_seed(0)
    assert torch.equal(first, model(x))


def test_it_refuses_to_step_with_the_reason() -> None:
    model = lsh_model()
    tokens = random_tokens(model, 2, 3)
    linear_state = tiny_model("linear").prefill(tokens)[1]
    for call in (
        lambda: model.transformer.initial_state(2),
        lambda: model.prefill(tokens),
        lambda: model.step(tokens[:, 0], linear_state),
        lambda: model.generate(2, method="stateful"),
        lambda: generation_throughput(model, batch=1, steps=2, method="stateful"),
    ):
        with pytest.raises(ValueError, match="LSH"):
            call()
    with pytest.raises(CannotCompile, match="linear attention"):
        compile_decoder(model)
