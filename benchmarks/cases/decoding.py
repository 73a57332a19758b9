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
from linattn_core.decoding import CannotCompile
from linattn_models import (
    AutoregressiveTransformer,
    CompiledDecoder,
    MixtureOfLogistics,
    TransformerConfig,
    compile_decoder,
    generation_throughput,
)
from linattn_models.state import Cursor, DecodingState

LINEAR = "linear (eager)"
STATEFUL_SOFTMAX = "stateful softmax"
RERUN_SOFTMAX = "softmax rerunning the prefix"
FAST_TRANSFORMERS = peers.FAST_TRANSFORMERS

# How the compiled decoder keeps weights: bytes of each, and what its parameters may differ from
# the float64 oracle's by, as largest error over largest magnitude. Rounded weights are another
# model: the bounds are some five times what this one was found to lose by them.
WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
TOLERANCE = {"float32": 1e-3, "bfloat16": 1e-2, "int8": 2e-2}
# Of the tokens drawn inside the decoder: where two are all but equally near, rounding decides.
MOST_OTHER_DRAWS = 1e-3

CHECKED_BATCH = 2
WARMING_LENGTH = 3


@dataclasses.dataclass(frozen=True)
class Size:
    """The model and its images; the paper's for MNIST by default (table 1).

    Its layers normalize after the residual sum, as the peer's do, so that weights can be shared.
    """

    num_layers: int = 8
    num_heads: int = 8
    head_dim: int = 32
    ffn_dim: int = 1024
    length: int = 784

    def operations_per_token(self) -> float:
        """Two for each weight of a matrix, and 4 D M a head for updating and reading the state."""
        state = 4 * self.num_heads * self.head_dim**2
        return 2 * self.matrix_weights() + self.num_layers * state

    def matrix_weights(self) -> int:
        """The weights of the layers' matrices: what every step has to read."""
        embed_dim = self.num_heads * self.head_dim
        return self.num_layers * (4 * embed_dim**2 + 2 * embed_dim * self.ffn_dim)

    def traffic_of_step(self, batch: int, weights: str = "float32") -> float:
        """Bytes of the weights once, and of every state read and written in float32."""
        state = self.num_layers * self.num_heads * self.head_dim * (self.head_dim + 1)
        return WEIGHT_BYTES[weights] * self.matrix_weights() + 2 * 4 * batch * state


QUICK_SIZE = Size(num_layers=2, num_heads=2, head_dim=8, ffn_dim=32, length=12)


def build_model(
    attention: str, size: Size, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> AutoregressiveTransformer:
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
    return model.eval().requires_grad_(False).to(device, dtype)


def compiled_name(weights: str) -> str:
    """The name of the method that decodes by a compiled decoder with its weights kept so."""
    return f"linear (compiled, {weights})"


def stateful(
    name: str,
    attention: str,
    size: Size,
    batch: int,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    positions: int | None = None,
) -> Method:
    """Generates whole images as an RNN: from sums for linear, from a cache for softmax.

    The model steps itself; its operators are of the fastest backend that is installed.

    Args:
        positions: how many are timed, the others being interpolated; None times whole images.
    """
    model = build_model(attention, size, device, dtype)
    linear = attention == "linear"

    def measure() -> float:
        timed = generation_throughput(model, batch=batch, decoder="eager", steps=positions)
        return batch * timed.seconds_per_sample

    return Method(
        name,
        check=lambda: check_steps(model),
        measure=measure,
        units=batch,
        operations=size.operations_per_token() * size.length * batch if linear else 0,
        traffic=size.traffic_of_step(batch) * size.length if linear else 0,
        estimated=positions is not None,
    )


def compiled(weights: str, size: Size, batch: int, device: str = "cpu") -> Method | Absent:
    """Generates whole images by a compiled decoder, whose packing of the weights is not timed."""
    model = build_model("linear", size, device)
    decoder = _decoder(model, weights)
    if isinstance(decoder, Absent):
        return decoder

    def measure() -> float:
        timed = generation_throughput(model, batch=batch, decoder=decoder)
        return batch * timed.seconds_per_sample

    return Method(
        compiled_name(weights),
        check=lambda: check_compiled(model, decoder, batch),
        measure=measure,
        units=batch,
        operations=size.operations_per_token() * size.length * batch,
        traffic=size.traffic_of_step(batch, weights) * size.length,
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
        traffic=size.traffic_of_step(batch) * size.length,
    )


def eager_step(name: str, attention: str, size: Size, batch: int, position: int) -> Method:
    """One step and one draw at `position`, again and again; the numbers held do not matter."""
    model = build_model(attention, size)
    state = _state_at(position, model.transformer.initial_state(batch, max_length=size.length))
    generator, token = _seeded_token(model, batch)
    linear = attention == "linear"

    @torch.inference_mode()
    def step() -> Tensor:
        parameters, _ = model.step(token, state)
        return model.head.sample(parameters, generator=generator)

    return Method(
        name,
        check=lambda: check_steps(model),
        run=step,
        operations=size.operations_per_token() * batch if linear else 0,
        traffic=size.traffic_of_step(batch) if linear else 0,
    )


def compiled_step(weights: str, size: Size, batch: int) -> Method | Absent:
    """As `eager_step`, in the one call that a compiled decoder makes of the two."""
    model = build_model("linear", size)
    decoder = _decoder(model, weights)
    if isinstance(decoder, Absent):
        return decoder
    state = _state_at(
        size.length // 2, model.transformer.initial_state(batch, max_length=size.length)
    )
    generator, token = _seeded_token(model, batch)
    return Method(
        compiled_name(weights),
        check=lambda: check_compiled(model, decoder, batch),
        run=lambda: decoder.step_and_sample(token, state, generator=generator),
        operations=size.operations_per_token() * batch,
        traffic=size.traffic_of_step(batch, weights),
    )


def peer_step(name: str, size: Size, batch: int, settings: Settings) -> Method | Absent:
    """As `eager_step`, by the peer's recurrent model."""
    try:
        library = peers.fast_transformers(settings)
    except NotMeasured as reason:
        return Absent(name, str(reason))
    decoder = PeerDecoder(library, build_model("linear", size))
    generator, token = _seeded_token(decoder.model, batch)
    with torch.inference_mode():
        _, memory = decoder.begin(batch)

    @torch.inference_mode()
    def step() -> Tensor:
        parameters, _ = decoder.step(token, size.length // 2, memory)
        return decoder.model.head.sample(parameters, generator=generator)

    return Method(
        name,
        check=lambda: check_peer(decoder),
        run=step,
        operations=size.operations_per_token() * batch,
        traffic=size.traffic_of_step(batch),
    )


def reading(name: str, weights: str, size: Size) -> Method:
    """Merely reads as many bytes as the matrices have: no step can be faster from where they lie.

    A maximum over integers is the fastest reading that torch has on all its threads: it was timed
    beside sums and products with a vector.
    """
    count = size.matrix_weights() * WEIGHT_BYTES[weights]
    data = torch.ones(count // 4, dtype=torch.int32)  # written to, so that every page is its own
    return Method(name, check=lambda: None, run=data.amax, traffic=count)


def _decoder(model: AutoregressiveTransformer, weights: str) -> CompiledDecoder | Absent:
    try:
        return compile_decoder(model, weights)
    except CannotCompile as reason:
        return Absent(compiled_name(weights), str(reason))


def _state_at(position: int, state: DecodingState) -> DecodingState:
    return dataclasses.replace(state, cursor=Cursor(position, position))


def _seeded_token(model: AutoregressiveTransformer, batch: int) -> tuple[torch.Generator, Tensor]:
    """A source of randomness and tokens (batch,)."""
    generator = torch.Generator().manual_seed(0)
    return generator, torch.randint(model.head.levels, (batch,), generator=generator)


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
def check_compiled(
    model: AutoregressiveTransformer, decoder: CompiledDecoder, batch: int
) -> str | None:
    """As `check_steps`, with the batch that is timed, and what is drawn from the parameters.

    The rows repeat a few sequences, which keeps the oracle small.
    """
    tokens, exact = _tokens_and_truth(model)
    rows = torch.arange(batch, device=model.device) % len(tokens)
    parameters, state = decoder.prefill(tokens[rows, :0])
    generator, again = (torch.Generator(model.device).manual_seed(3) for _ in range(2))
    stepped, others = [parameters], 0
    for token in tokens[rows, :-1].unbind(1):
        parameters, drawn, state = decoder.step_and_sample(token, state, generator=generator)
        stepped.append(parameters)
        others += int((drawn != model.head.sample(parameters, generator=again)).sum())
    if others > MOST_OTHER_DRAWS * batch * model.max_length:
        return f"{others} of {batch * model.max_length} tokens drawn are not the head's own"
    return oracle.disagreement(
        (torch.stack(stepped, 1),), (exact[rows],), ("decoding by steps",),
        TOLERANCE[decoder.weights],
    )  # fmt: skip


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
    tokens = torch.randint(model.head.levels, shape, generator=generator).to(model.device)
    return tokens, copy.deepcopy(model).double()(tokens)
