"""What the tests of decoders share, whether native code or a recorded graph makes the steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from linattn_models import (
    AutoregressiveTransformer,
    Categorical,
    DecodingState,
    Head,
    MixtureOfLogistics,
)
from tests.models.tiny import tiny_config, tiny_model

HEADS: list[Head] = [Categorical(7), MixtureOfLogistics(2, 1, 17), MixtureOfLogistics(2, 3, 8)]
HEAD_NAMES = ["categorical", "gray", "color"]
LONG = 24  # steps enough for "auto" to compile


def model_of(head: Head | int = 7, **fields: Any) -> AutoregressiveTransformer:
    """A tiny model in float32, spread enough for its outputs to differ."""
    model = tiny_model("linear", head, **fields).float()
    nn.init.normal_(model.output.weight, std=0.5)
    return model


def long_model(head: Head | int = 7) -> AutoregressiveTransformer:
    return AutoregressiveTransformer(tiny_config(), head, LONG).eval()


def sized(size: tuple[int, int, int], **fields: Any) -> dict[str, Any]:
    num_heads, head_dim, ffn_dim = size
    return {"num_heads": num_heads, "head_dim": head_dim, "ffn_dim": ffn_dim, **fields}


def forced(decoder: Any, tokens: Tensor) -> Tensor:
    """Parameters (B, N, P) for every token, step by step."""
    parameters, state = decoder.prefill(tokens[:, :0])
    found = [parameters]
    for token in tokens[:, :-1].unbind(1):
        parameters, state = decoder.step(token, state)
        found.append(parameters)
    return torch.stack(found, 1)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def same_state(found: DecodingState, expected: DecodingState) -> None:
    for ours, theirs in zip(found.layers, expected.layers, strict=True):
        close(ours[0], theirs[0])
        close(ours[1], theirs[1])
    assert torch.equal(torch.as_tensor(found.position), torch.as_tensor(expected.position))
    assert found.max_length == expected.max_length


def worst(found: Tensor, expected: Tensor) -> float:
    """The error over the spread of the right answer."""
    return float((found - expected).abs().max() / expected.std())


class Halves:
    """A head that the project does not know: it samples for itself."""

    kind, levels, channels, num_parameters = "halves", 4, 1, 2

    def sample(self, parameters: Tensor, **how: Any) -> Tensor:
        return (parameters[..., 0] > parameters[..., 1]).long()

    def initial_bias(self) -> Tensor:
        return torch.zeros(2)
