"""A step is one graph, and states are pytrees: a step can be compiled, exported and saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from linattn_models import DecodingState
from tests.models.decoding.decoders import same_state
from tests.models.tiny import MAX_LENGTH, random_tokens, tiny_model


class Step(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        return self.model.step(token, state)


@pytest.mark.parametrize(
    ("attention", "positions", "lengths"),
    [
        ("linear", "learned", [3, 1]),
        ("linear", "sinusoidal", None),
        ("linear", "rotary", [3, 1]),
        ("softmax", "learned", None),
        ("softmax", "rotary", [3, 1]),
        ("windowed", "none", [3, 1]),
    ],
)
@torch.no_grad()
def test_an_exported_step_makes_the_models_steps(
    attention: str, positions: str, lengths: list[int] | None, tmp_path: Path
) -> None:
    model = tiny_model(attention, positions=positions)
    tokens = random_tokens(model, 2, MAX_LENGTH)
    _, state = model.prefill(tokens[:, :3], None if lengths is None else torch.tensor(lengths))
    _, later = model.step(tokens[:, 3], state.clone())
    inputs = torch.export.AdditionalInputs()
    inputs.add((tokens[:, 3], later))
    program = torch.export.export(Step(model), (tokens[:, 3], state), dynamic_shapes=inputs)
    torch.export.save(program, tmp_path / "step.pt2")
    step = torch.export.load(tmp_path / "step.pt2").module()
    own = state.clone()
    # The last position of a cache is another graph: torch sees whether a slice is all of it.
    for token in tokens[:, 3:-2].unbind(1):
        expected, own = model.step(token, own)
        actual, state = step(token, state)
        torch.testing.assert_close(actual, expected)
    same_state(state, own)


@torch.no_grad()
def test_a_step_is_one_graph(attention: str) -> None:
    model = tiny_model(attention)
    tokens = random_tokens(model, 2, MAX_LENGTH)
    compiled = torch.compile(model.step, fullgraph=True, backend="eager")
    _, state = model.prefill(tokens[:, :3])
    actual, _ = compiled(tokens[:, 3], state.clone())
    torch.testing.assert_close(actual, model.step(tokens[:, 3], state)[0])


def test_a_state_is_a_pytree(attention: str) -> None:
    model = tiny_model(attention)
    _, state = model.prefill(random_tokens(model, 2, 3), torch.tensor([3, 1]))
    leaves, tree = pytree.tree_flatten(state)
    # A program that was exported from a state without a fingerprint takes one with it too.
    assert pytree.tree_structure(replace(state, fingerprint="0")) == tree
    same_state(pytree.tree_unflatten(leaves, tree), state)
