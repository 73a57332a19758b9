"""Sequences drawn token by token: as an RNN, or by running the whole prefix again each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from tqdm import tqdm

from linattn_models.heads import Head
from linattn_models.heads.base import check_temperature, check_tokens, token_shape
from linattn_models.validation import at_least, lengths_within

if TYPE_CHECKING:
    from linattn_models.autoregressive import AutoregressiveTransformer
    from linattn_models.compiled import CompiledDecoder

METHODS = ("stateful", "rerun")
DECODERS = ("auto", "eager", "compiled")


class Predictor(Protocol):
    """Draws the next token of each row, and takes that token once it is known."""

    def draw(self, temperature: float, generator: torch.Generator | None) -> Tensor:
        """Tokens (B,) or (B, 3), not yet taken."""

    def take(self, token: Tensor) -> None:
        """Appends one token to each row."""


class StatefulPredictor:
    """An RNN: each token costs one step from the state."""

    def __init__(self, model: AutoregressiveTransformer, known: Tensor, length: int) -> None:
        self.model = model
        self.parameters, self.state = model.prefill(known, max_length=length)

    def draw(self, temperature: float, generator: torch.Generator | None) -> Tensor:
        """From the parameters after the last token taken."""
        return self.model.head.sample(self.parameters, temperature=temperature, generator=generator)

    def take(self, token: Tensor) -> None:
        """One step."""
        self.parameters, self.state = self.model.step(token, self.state)


class RerunPredictor:
    """No state: each token costs running all tokens so far (the paper's plain "softmax")."""

    def __init__(self, model: AutoregressiveTransformer, known: Tensor) -> None:
        self.model = model
        self.tokens = known

    def draw(self, temperature: float, generator: torch.Generator | None) -> Tensor:
        """One run of the whole prefix."""
        parameters = self.model.predict_next(self.tokens)
        return self.model.head.sample(parameters, temperature=temperature, generator=generator)

    def take(self, token: Tensor) -> None:
        """Appends the token."""
        self.tokens = torch.cat([self.tokens, token.unsqueeze(1)], 1)


# Makes the predictor for tokens that are known, (B, N) or (B, N, 3), and a length in all.
Begin = Callable[[Tensor, int], Predictor]


class Generating:
    """What sequences are drawn from: a model, or a decoder compiled of one.

    Attributes:
        head: the distribution of a token.
        max_length: the most tokens of a sequence.
    """

    head: Head
    max_length: int

    @property
    def device(self) -> torch.device:
        """Where tokens and parameters are."""
        raise NotImplementedError

    def begin(self, method: str, decoder: str | CompiledDecoder, steps: int) -> Begin:
        """How sequences begin that are drawn by this method in so many steps.

        Raises:
            ValueError: a method or decoder that is unknown or not to be had, or a model that is
                not ready to be drawn from.
        """
        raise NotImplementedError

    def generate(
        self,
        batch: int | None = None,
        *,
        prefix: Tensor | None = None,
        prefix_lengths: Tensor | None = None,
        length: int | None = None,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
        progress: bool = False,
        method: str = "stateful",
        decoder: str | CompiledDecoder = "auto",
    ) -> Tensor:
        """Whole sequences, drawn token by token; see `linattn_models.generation.generate`."""
        return generate(
            self,
            batch,
            prefix=prefix,
            prefix_lengths=prefix_lengths,
            length=length,
            temperature=temperature,
            generator=generator,
            progress=progress,
            method=method,
            decoder=decoder,
        )

    def stream(
        self,
        batch: int | None = None,
        *,
        prefix: Tensor | None = None,
        prefix_lengths: Tensor | None = None,
        length: int | None = None,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
        progress: bool = False,
        method: str = "stateful",
        decoder: str | CompiledDecoder = "auto",
    ) -> Iterator[Tensor]:
        """The tokens of each new position as they are drawn; see `generation.stream`."""
        return stream(
            self,
            batch,
            prefix=prefix,
            prefix_lengths=prefix_lengths,
            length=length,
            temperature=temperature,
            generator=generator,
            progress=progress,
            method=method,
            decoder=decoder,
        )


@dataclass(frozen=True)
class _Plan:
    """What is forced and what is drawn: positions before `common` are known in every row."""

    prefix: Tensor  # (B, P) or (B, P, 3)
    prefix_lengths: Tensor | None  # (B,), None when all are P
    common: int
    length: int

    @property
    def steps(self) -> int:
        """Tokens that are drawn for each row."""
        return self.length - self.common

    def forced(self, position: int, drawn: Tensor) -> Tensor:
        """`drawn`, but a row's own prefix where that still reaches `position`."""
        if self.prefix_lengths is None or position >= self.prefix.shape[1]:
            return drawn
        inside = self.prefix_lengths > position  # (B,)
        inside = inside.view(-1, *[1] * (drawn.ndim - 1))
        return torch.where(inside, self.prefix[:, position], drawn)


def generate(
    model: Generating,
    batch: int | None = None,
    *,
    prefix: Tensor | None = None,
    prefix_lengths: Tensor | None = None,
    length: int | None = None,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    progress: bool = False,
    method: str = "stateful",
    decoder: str | CompiledDecoder = "auto",
) -> Tensor:
    """Sequences of `length` tokens that begin with the given prefixes and are drawn beyond them.

    Args:
        model: in evaluation mode, if it has dropout; or a compiled decoder.
        batch: B, sequences drawn side by side; 1 by default, or the prefix's own.
        prefix: (B, P) int64 or (B, P, 3), tokens that are forced: they come out as they went in.
        prefix_lengths: (B,) int in 0..P, when rows have prefixes of different lengths; what lies
            beyond a row's length is not looked at.
        length: tokens in a finished sequence, prefix included; the model's `max_length` by default.
        temperature: 1 draws from the model, less sharpens, 0 is greedy; see the head's `sample`.
        generator: source of randomness, on the model's device; the same seed gives the same tokens.
        progress: show a bar on stderr.
        method: "stateful" steps from a state; "rerun" runs the whole prefix for each token. Both
            draw the same random numbers in the same order.
        decoder: what steps. "eager" is the model itself; "compiled" a decoder compiled of it in
            float32, or the reason why there is none; "auto" that decoder where there is one and
            the sequences are long enough to be worth packing the weights, else the model; or a
            decoder that `compile_decoder` made. In float32 all draw the same tokens from the same
            seed, except where rounding decides between two.

    Returns:
        (B, length) or (B, length, 3) int64.

    Raises:
        ValueError, TypeError: arguments that cannot be right, before anything is drawn.

    Cost: `length` steps; rerun costs O(length^2) positions (O(length^3) time with softmax).
    """
    plan = _plan(model, batch, prefix, prefix_lengths, length, temperature, generator)
    begin = model.begin(method, decoder, plan.steps)
    known = plan.prefix[:, : plan.common]
    steps = _steps(begin, plan, temperature, generator, progress)
    drawn = [token.unsqueeze(1) for token in steps]
    return torch.cat([known, *drawn], 1)


def stream(
    model: Generating,
    batch: int | None = None,
    *,
    prefix: Tensor | None = None,
    prefix_lengths: Tensor | None = None,
    length: int | None = None,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    progress: bool = False,
    method: str = "stateful",
    decoder: str | CompiledDecoder = "auto",
) -> Iterator[Tensor]:
    """The tokens of each new position as soon as they are drawn.

    Rows move in lockstep. The first position that comes out is the end of the shortest prefix;
    where a longer prefix still reaches, its own tokens come out, while shorter rows are drawn.

    Args: as for `generate`.

    Yields:
        (B,) or (B, 3) int64, for positions min(prefix_lengths)..length-1.

    Raises:
        ValueError, TypeError: as for `generate`, at the call and not at the first token.
    """
    plan = _plan(model, batch, prefix, prefix_lengths, length, temperature, generator)
    begin = model.begin(method, decoder, plan.steps)
    steps = _steps(begin, plan, temperature, generator, progress)
    # Cloned where the caller stands: tensors made in inference mode could not be trained on.
    return (token.clone() for token in steps)


@torch.inference_mode()
def _steps(
    begin: Begin,
    plan: _Plan,
    temperature: float,
    generator: torch.Generator | None,
    progress: bool,
) -> Iterator[Tensor]:
    if plan.steps == 0:
        return
    predictor = begin(plan.prefix[:, : plan.common], plan.length)
    positions = range(plan.common, plan.length)
    for position in tqdm(positions, desc="generate", unit="step", disable=not progress):
        token = plan.forced(position, predictor.draw(temperature, generator))
        yield token
        if position + 1 < plan.length:
            predictor.take(token)


def _plan(
    model: Generating,
    batch: int | None,
    prefix: Tensor | None,
    prefix_lengths: Tensor | None,
    length: int | None,
    temperature: float,
    generator: torch.Generator | None,
) -> _Plan:
    check_temperature(temperature)
    _check_generator(model, generator)
    length = model.max_length if length is None else length
    check_length(model, length)
    prefix = _prefix(model, batch, prefix, prefix_lengths, length)
    common = prefix.shape[1]
    if prefix_lengths is not None:
        common, _ = lengths_within("prefix_lengths", prefix_lengths, prefix.shape[0], common)
        prefix_lengths = prefix_lengths.to(prefix.device)
        used = torch.arange(prefix.shape[1], device=prefix.device) < prefix_lengths.unsqueeze(1)
        check_tokens(model.head, prefix[used])
    else:
        check_tokens(model.head, prefix)
    return _Plan(prefix, prefix_lengths, common, length)


def check_length(model: Generating, length: int) -> None:
    """Refuses lengths that the model has no positions for."""
    at_least("length", length, 1)
    if length > model.max_length:
        raise ValueError(
            f"length {length} is more than the {model.max_length} positions of the model."
        )


def _prefix(
    model: Generating,
    batch: int | None,
    prefix: Tensor | None,
    prefix_lengths: Tensor | None,
    length: int,
) -> Tensor:
    """The prefix, checked; without one, a prefix of no tokens."""
    extra = token_shape(model.head)
    device = model.device
    if batch is not None:
        at_least("batch", batch, 1)
    if prefix is None:
        if prefix_lengths is not None:
            raise ValueError("prefix_lengths came without a prefix; pass both or neither.")
        return torch.empty(batch or 1, 0, *extra, dtype=torch.int64, device=device)
    if prefix.ndim != 2 + len(extra) or tuple(prefix.shape[2:]) != extra:
        raise ValueError(
            f"prefix must have shape {('batch', 'length', *extra)} and has {tuple(prefix.shape)}."
        )
    if prefix.device != device:
        raise ValueError(f"prefix is on {prefix.device} and the model on {device}; move one.")
    if prefix.shape[0] < 1 or batch not in (None, prefix.shape[0]):
        raise ValueError(
            f"prefix has {prefix.shape[0]} rows where {batch or 'at least 1'} were expected."
        )
    if prefix.shape[1] > length:
        raise ValueError(
            f"prefix is {prefix.shape[1]} tokens long and the whole sequence only {length}."
        )
    return prefix


def _check_generator(model: Generating, generator: torch.Generator | None) -> None:
    if generator is not None and generator.device.type != model.device.type:
        raise ValueError(
            f"The generator is on {generator.device} and the model on {model.device}; make it by "
            f"torch.Generator({str(model.device)!r})."
        )
