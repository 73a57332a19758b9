"""A batch in parts, and activations that are computed again, give the same updates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linattn_models import AutoregressiveTransformer, TransformerConfig
from linattn_models.training import TensorData, Updater, make_accelerator
from tests.training.toy import ToyData, toy_config, toy_loss, toy_model, weighted_loss


def make_updater(model: nn.Module, data: Any, loss: Any, **settings: Any) -> Updater:
    config = toy_config(**settings)
    return Updater(make_accelerator(config), model, data, loss, config)


@pytest.mark.parametrize("loss", [toy_loss, weighted_loss])
def test_a_batch_in_parts_gives_the_updates_of_the_whole(loss: Any) -> None:
    whole, parts = (
        make_updater(
            toy_model(dropout=0.0, dtype=torch.float64),
            ToyData(dtype=torch.float64),
            loss,
            gradient_accumulation_steps=steps,
        )
        for steps in (1, 4)
    )
    for step in range(3):
        torch.testing.assert_close(parts.update(step), whole.update(step), rtol=1e-12, atol=0)
    for ours, theirs in zip(parts.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_activations_are_computed_again_and_the_model_is_left_as_it_is() -> None:
    data = TensorData(torch.randint(5, (8, 6), generator=torch.Generator().manual_seed(0)))
    updaters = []
    for again in (False, True):
        torch.manual_seed(0)
        model = AutoregressiveTransformer(TransformerConfig(2, 1, 4, 8), 5, 6)
        updaters.append(make_updater(model, data, mean_nats, activation_checkpointing=again))
    kept, computed = updaters
    calls: list[nn.Module] = []
    for updater in updaters:
        norm = updater.trained.transformer.blocks[0].norm1
        norm.register_forward_hook(lambda module, *_: calls.append(module))
        updater.update(0)
    assert len(calls) == 3
    for ours, theirs in zip(kept.model.parameters(), computed.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert "forward" not in vars(computed.model.transformer.blocks[0])


def mean_nats(model: AutoregressiveTransformer, tokens: Tensor) -> Tensor:
    return model.loss(tokens)


@pytest.mark.parametrize(
    "settings", [{"activation_checkpointing": True}, {"context_parallel": 2}, {"parallel": "none"}]
)
def test_what_cannot_be_divided_is_refused(settings: dict[str, Any]) -> None:
    [name] = settings
    with pytest.raises(ValueError, match=name):
        make_updater(toy_model(), ToyData(), toy_loss, **settings)
