"""Helpers of the tests of decoders: the model itself, native code, and graphs."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linattn_core.decoder_spec import Sampler
from linattn_models import (
    AutoregressiveTransformer,
    ContinuousBatch,
    DecodingState,
    Head,
    Output,
    Request,
    compile_decoder,
)
from linattn_models.decoding import Draws, SamplingParams, start_draws
from linattn_models.decoding.compiled import compile_described
from linattn_models.decoding.graph import Recorder
from tests.models.decoding.tape import TapeRecorder
from tests.models.tiny import random_tokens, tiny_config, tiny_model

LONG = 24  # steps enough for "auto" to compile

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
needs_cpu_backend = pytest.mark.skipif(
    importlib.util.find_spec("linattn_cpu") is None, reason="linattn-cpu is not installed"
)
# The model itself first, then those that are compiled.
KINDS = [
    "eager",
    pytest.param("native", marks=needs_cpu_backend),
    "tape",
    pytest.param("graph", marks=[pytest.mark.gpu, needs_gpu]),
]


class Kind:
    """Where models are and what makes their steps."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.device = torch.device("cuda", 0) if name == "graph" else torch.device("cpu")

    def decoder(self, model: Any, weights: str = "float32") -> Any:
        if self.name == "eager":
            return model
        if self.name == "native":
            return compile_decoder(model, weights, "cpu")
        return recorded(model, weights, TapeRecorder() if self.name == "tape" else None)

    def options(self, model: Any) -> dict[str, Any]:
        """What a model's `generate` takes to step by this decoder."""
        return {"decoder": "eager" if self.name == "eager" else self.decoder(model)}

    def tokens(self, model: AutoregressiveTransformer, batch: int, length: int) -> Tensor:
        return random_tokens(model, batch, length).to(self.device)

    def seeded(self, seed: int = 0) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)


def recorded(
    model: Any,
    weights: str = "float32",
    recorder: Recorder | None = None,
    backend: str = "auto",
) -> Any:
    return compile_described(model, model.describe(), weights, backend, recorder)


def model_of(head: Head | int = 7, **fields: Any) -> AutoregressiveTransformer:
    """A tiny model in float32, spread enough for its outputs to differ."""
    model = tiny_model("linear", head, **fields).float()
    nn.init.normal_(model.output.weight, std=0.5)
    return model


def trained(model: AutoregressiveTransformer) -> AutoregressiveTransformer:
    """The model with vectors and maps of heads away from their start, so that none is neutral."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim in (1, 3):
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def long_model(head: Head | int = 7) -> AutoregressiveTransformer:
    return AutoregressiveTransformer(tiny_config(), head, LONG).eval()


def sized(size: tuple[int, int, int], **fields: Any) -> dict[str, Any]:
    num_heads, head_dim, ffn_dim = size
    return {"num_heads": num_heads, "head_dim": head_dim, "ffn_dim": ffn_dim, **fields}


def forced(decoder: Any, tokens: Tensor) -> Tensor:
    """Parameters (B, N, P) for every token, step by step."""
    parameters, state = decoder.prefill(tokens[:, :0])
    outputs = [parameters]
    for token in tokens[:, :-1].unbind(1):
        parameters, state = decoder.step(token, state)
        outputs.append(parameters)
    return torch.stack(outputs, 1)


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def same_state(actual: DecodingState, expected: DecodingState) -> None:
    close(actual.layers, expected.layers)
    assert torch.equal(torch.as_tensor(actual.position), torch.as_tensor(expected.position))
    assert actual.max_length == expected.max_length


def worst(actual: Tensor, expected: Tensor) -> float:
    """The largest error over the standard deviation of the expected values."""
    return float((actual - expected).abs().max() / expected.std())


def draw_alike(head: Head, rows: int, **settings: Any) -> list[Draws]:
    """Two draws of the same tokens, on the CPU."""
    params = SamplingParams(**settings)
    return [start_draws(params, rows, head, torch.device("cpu")) for _ in range(2)]


class Halves(Head):
    """A head that the project does not know: it draws for itself."""

    kind = "halves"
    levels, channels, num_parameters = 4, 1, 2

    def negative_log_likelihood(self, parameters: Tensor, tokens: Tensor) -> Tensor:
        raise NotImplementedError

    def invert(self, parameters: Tensor, uniform: Tensor, temperature: Tensor) -> Tensor:
        return (parameters[..., 0] > parameters[..., 1]).long()

    def sampler(self) -> Sampler:
        raise NotImplementedError

    def initial_bias(self) -> Tensor:
        return torch.zeros(2)


class Answers:
    """What came out of a batch, by request and index."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[int, int], list[Any]] = {}
        self.ends: dict[tuple[int, int], str] = {}
        self.states: dict[tuple[int, int], DecodingState] = {}

    def add(self, outputs: list[Output]) -> None:
        for output in outputs:
            key = output.request, output.index
            assert key not in self.ends, "an output after the end"
            self.tokens.setdefault(key, []).extend(output.tokens)
            if output.finish_reason is not None:
                self.ends[key] = output.finish_reason
            if output.state is not None:
                self.states[key] = output.state


def run_batch(batch: ContinuousBatch, *requests: Request) -> Answers:
    """The answers to all requests that a batch has, and to these."""
    answers = Answers()
    for request in requests:
        batch.add(request)
    while batch.has_work:
        answers.add(batch.step())
    return answers
