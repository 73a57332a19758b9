"""The decoders that the generation cases compare, each with the check of its outputs."""

from __future__ import annotations

import copy
import dataclasses
import time

import torch
from torch import Tensor

from benchmarks import oracle, peers
from benchmarks.peer_decoder import PeerDecoder
from benchmarks.registry import Absent, Method, NotMeasured, Settings
from linattn_models import (
    AutoregressiveTransformer,
    MixtureOfLogistics,
    TransformerConfig,
    generation_throughput,
)

LINEAR = "linear"
STATEFUL_SOFTMAX = "stateful softmax"
RERUN_SOFTMAX = "softmax rerunning the prefix"
FAST_TRANSFORMERS = peers.FAST_TRANSFORMERS

CHECKED_BATCH = 2
WARMING_LENGTH = 3


@dataclasses.dataclass(frozen=True)
class Size:
    """The model and its images; the paper's for MNIST by default (table 1).

    Its layers normalise after the residual sum, as the peer's do, so that weights can be shared.
    """

    num_layers: int = 8
    num_heads: int = 8
    head_dim: int = 32
    ffn_dim: int = 1024
    length: int = 784

    def operations_per_token(self) -> float:
        """Two for each weight of a matrix, and 4 D M a head for updating and reading the state."""
        embed_dim = self.num_heads * self.head_dim
        weights = 4 * embed_dim**2 + 2 * embed_dim * self.ffn_dim
        state = 4 * self.num_heads * self.head_dim**2
        return self.num_layers * (2 * weights + state)


QUICK_SIZE = Size(num_layers=2, num_heads=2, head_dim=8, ffn_dim=32, length=12)


def build_model(attention: str, size: Size) -> AutoregressiveTransformer:
    """Returns the model with random weights, the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoregressiveTransformer(
            TransformerConfig(
                size.num_layers,
                size.num_heads,
                size.head_dim,
                size.ffn_dim,
                attention=attention,
                norm="post",
            ),
            MixtureOfLogistics(10),
            size.length,
        )
    return model.eval().requires_grad_(False)


def stateful(name: str, attention: str, size: Size, batch: int) -> Method:
    """Generates whole images as an RNN: from sums for linear, from a cache for softmax."""
    model = build_model(attention, size)
    operations = size.operations_per_token() * size.length * batch
    return Method(
        name,
        check=lambda: check_steps(model),
        measure=lambda: batch * generation_throughput(model, batch=batch).seconds_per_sample,
        units=batch,
        operations=operations if attention == "linear" else 0,
    )


def rerunning(name: str, size: Size, batch: int, positions: int) -> Method:
    """Runs the whole prefix for each pixel; timed at some positions and interpolated."""
    model = build_model("softmax", size)

    def measure() -> float:
        timed = generation_throughput(model, batch=batch, method="rerun", steps=positions)
        return batch * timed.seconds_per_sample

    return Method(
        name, check=lambda: check_rerun(model), measure=measure, units=batch, estimated=True
    )


def peer(name: str, size: Size, batch: int, settings: Settings) -> Method | Absent:
    """The peer's recurrent model with the same weights, embedding, head and sampling."""
    try:
        library = peers.fast_transformers(settings)
    except NotMeasured as reason:
        return Absent(name, str(reason))
    decoder = PeerDecoder(library, build_model("linear", size))

    def measure() -> float:
        generator = torch.Generator().manual_seed(0)
        decoder.generate(batch, WARMING_LENGTH, generator)
        started = time.perf_counter()
        decoder.generate(batch, size.length, generator)
        return time.perf_counter() - started

    return Method(
        name,
        check=lambda: check_peer(decoder),
        measure=measure,
        units=batch,
        operations=size.operations_per_token() * size.length * batch,
    )


@torch.no_grad()
def check_steps(model: AutoregressiveTransformer) -> str | None:
    """Compares decoding with known tokens, step by step, with the whole sequence in float64."""
    tokens, exact = _tokens_and_truth(model)
    parameters, state = model.prefill(tokens[:, :0])
    stepped = [parameters]
    for token in tokens[:, :-1].unbind(1):
        parameters, state = model.step(token, state)
        stepped.append(parameters)
    return oracle.disagreement((torch.stack(stepped, 1),), (exact,), ("decoding by steps",))


@torch.no_grad()
def check_rerun(model: AutoregressiveTransformer) -> str | None:
    """Compares what follows a sample of prefixes with the whole sequence in float64."""
    tokens, exact = _tokens_and_truth(model)
    rows = oracle.sampled_rows(model.max_length)
    rerun = torch.stack([model.predict_next(tokens[:, :row]) for row in rows.tolist()], 1)
    return oracle.disagreement((rerun,), (exact[:, rows],), ("rerunning the prefix",))


@torch.no_grad()
def check_peer(decoder: PeerDecoder) -> str | None:
    """As `check_steps`, against our own whole-sequence form in float64 with the same weights."""
    tokens, exact = _tokens_and_truth(decoder.model)
    parameters, memory = decoder.begin(len(tokens))
    stepped = [parameters]
    for position, token in enumerate(tokens[:, :-1].unbind(1), start=1):
        parameters, memory = decoder.step(token, position, memory)
        stepped.append(parameters)
    return oracle.disagreement((torch.stack(stepped, 1),), (exact,), ("decoding by steps",))


def _tokens_and_truth(model: AutoregressiveTransformer) -> tuple[Tensor, Tensor]:
    """Random tokens (B, N) and the parameters (B, N, P) that predict them, in float64."""
    generator = torch.Generator().manual_seed(2)
    shape = (CHECKED_BATCH, model.max_length)
    tokens = torch.randint(model.head.levels, shape, generator=generator)
    return tokens, copy.deepcopy(model).double()(tokens)
