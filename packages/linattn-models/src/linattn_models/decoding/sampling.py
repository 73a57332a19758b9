"""How tokens are drawn from a model's outputs: settings, randomness, and the check for NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from linattn_core.decoder_spec import Draw
from linattn_core.errors import expected
from linattn_models.basics.packing import past_lengths
from linattn_models.basics.validation import as_int, as_ints, at_least
from linattn_models.decoding.philox import AHEAD, Streams
from linattn_models.heads import Categorical, Head
from linattn_models.heads.base import (
    GREEDY,
    LEAST_TEMPERATURE,
    at_least_single,
    check_generator,
)
from linattn_models.heads.filters import Filters, keep_likely
from linattn_models.heads.settings import REPETITION_PENALTY, TEMPERATURE, PerRow, spread

# After so many steps on an accelerator their outputs are checked, because a stream may be endless.
_MOST_UNREAD = 4096
# Seeds are keys of 64 bits, in signed integers: from -_SEEDS on, and below _SEEDS.
_SEEDS = 1 << 63


@dataclass(frozen=True, eq=False)
class SamplingParams:
    """How tokens are drawn; see `generate`. Each setting is a number, or for `generate` one a row.

    Args:
        temperature: 1 draws from the model's distribution, 0 takes the likeliest token.
        top_k, top_p, min_p: filters; None switches one off.
        seed: the source of randomness, an integer of 64 bits; None draws one from torch's default
            generator. With a seed, the tokens are those of `generate(seeds=seed, num_samples=n)`,
            except where rounding decides between two.
        n: sequences that are drawn from the prompt, which is read once.
        repetition_penalty: makes tokens less likely that the sequence has.
    """

    temperature: PerRow = 1.0
    top_k: int | Sequence[int | None] | Tensor | None = None
    top_p: PerRow | None = None
    min_p: PerRow | None = None
    seed: int | Sequence[int] | Tensor | None = None
    n: int = 1
    repetition_penalty: PerRow = 1.0


class Settings:
    """Checked `SamplingParams`.

    Args:
        params: the settings.
        head, device: of the model.
        generator: makes the seeds that are not set; by default torch's default one.
        names: of the arguments `seed` and `n` in errors.

    Attributes:
        samples: sequences drawn from each prompt.
    """

    def __init__(
        self,
        params: SamplingParams,
        head: Head,
        device: torch.device,
        generator: torch.Generator | None = None,
        names: tuple[str, str] = ("seed", "n"),
    ) -> None:
        check_generator(generator)
        self._temperature = TEMPERATURE.read(params.temperature)
        self._filters = Filters(params.top_k, params.top_p, params.min_p)
        self._penalty = REPETITION_PENALTY.read(params.repetition_penalty)
        self._seeds = None if params.seed is None else _read_seeds(names[0], params.seed)
        self._generator = generator
        self._head, self._device = head, device
        if self._seeds is not None and generator is not None:
            raise ValueError(expected("generator", "None beside seeds", "one", "pass either"))
        if generator is not None and generator.device.type != device.type:
            wanted = f"one on the model's {device}"
            advice = f"make it by torch.Generator('{device}')"
            raise ValueError(expected("generator", wanted, generator.device, advice))
        if (self._filters or self._penalizes) and not isinstance(head, Categorical):
            got = f"a {type(head).__name__}"
            advice = "leave out top_k, top_p, min_p and repetition_penalty"
            raise ValueError(expected("the head", "a Categorical to filter", got, advice))
        self.samples = at_least(names[1], params.n, 1)

    @property
    def differ(self) -> list[str]:
        """The names of the settings of which there is one a row."""
        values = {"temperature": self._temperature, **vars(self._filters), "seed": self._seeds}
        values["repetition_penalty"] = self._penalty
        return [name for name, value in values.items() if isinstance(value, Tensor)]

    @property
    def _penalizes(self) -> bool:
        return isinstance(self._penalty, Tensor) or self._penalty != 1

    def draws(
        self, tokens: Tensor, lengths: Tensor, positions: Tensor, ahead: int = AHEAD
    ) -> Draws:
        """The draws of all samples of each row.

        Args:
            tokens: (B, N), those that the rows have, for a repetition penalty.
            lengths: (B,) int64, how many of them count.
            positions: (B,) int64, of the first token that is drawn.
            ahead: how many positions of each row are drawn at once.
        """
        rows, samples, device = len(positions), self.samples, self._device
        column = torch.zeros(rows * samples, dtype=torch.float64, device=device)
        temperature = column + _on(device, spread("temperature", self._temperature, rows, samples))
        is_greedy = temperature < LEAST_TEMPERATURE
        penalty = spread("repetition_penalty", self._penalty, rows, samples)
        repetitions = None
        if self._penalizes:
            repetitions = Repetitions(
                column + _on(device, penalty),
                tokens.repeat_interleave(samples, 0),
                lengths.repeat_interleave(samples),
                self._head.levels,
            )
        positions = positions.to(device).repeat_interleave(samples)
        return Draws(
            temperature.masked_fill(is_greedy, GREEDY),
            self._filters.spread(rows, samples, device),
            Streams(*self._keys(rows), positions, is_greedy, ahead),
            repetitions,
        )

    def _keys(self, rows: int) -> tuple[Tensor, Tensor]:
        """The seed of each sequence, and its number among the sequences of that seed."""
        samples, device = self.samples, self._device
        count = rows * samples
        numbers = torch.arange(count, device=device)
        if self._seeds is None:
            options: Any = {"generator": self._generator, "device": device, "dtype": torch.int64}
            seeds = torch.randint(1 << 62, (count,), **options)
            return seeds, torch.zeros_like(seeds)
        if not isinstance(self._seeds, Tensor):
            return torch.full_like(numbers, self._seeds), numbers
        seeds = torch.as_tensor(spread("seeds", self._seeds, rows, samples), device=device)
        is_shared = len(self._seeds) < count
        return seeds, numbers % samples if is_shared else torch.zeros_like(numbers)


class Draws:
    """Draws the tokens of rows one position after the other.

    Args:
        temperature: (B,) float64, above 0; `GREEDY` takes the likeliest token.
        filters: of B rows.
        streams: of B rows; those of greedy rows are still.
        repetitions: the tokens of each row so far; None where they change nothing.
    """

    def __init__(
        self,
        temperature: Tensor,
        filters: Filters,
        streams: Streams,
        repetitions: Repetitions | None = None,
    ) -> None:
        self._temperature = temperature
        self._filters = filters
        self._streams = streams
        self._repetitions = repetitions
        self._limits: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def has_filters(self) -> bool:
        """Whether some tokens may not be drawn."""
        return bool(self._filters)

    @property
    def reads_tokens(self) -> bool:
        """Whether a draw depends on the tokens before, and not on the parameters alone."""
        return self._repetitions is not None

    def draw(self, head: Head, parameters: Tensor) -> Tensor:
        """Tokens (B,) or (B, 3) from parameters (B, P), at the next position of each row."""
        parameters = at_least_single(parameters)
        if self._repetitions is not None:
            parameters = self._repetitions.penalize(parameters)
        if self._filters:
            parameters = keep_likely(parameters, self._temperature, *self._row_limits())
        tokens = head.invert(parameters, self._streams.take()[0], self._temperature)
        if self._repetitions is not None:
            self._repetitions.add(tokens)
        return tokens

    def numbers(self, count: int = 1) -> Draw:
        """The settings, and the random numbers of the next `count` positions (count, B, 4)."""
        uniform = self._streams.take(count)
        settings = self._temperature, uniform if count > 1 else uniform[0], *self._row_limits()
        return Draw(*settings, is_filtered=self.has_filters)

    def _row_limits(self) -> tuple[Tensor, Tensor, Tensor]:
        if self._limits is None:
            self._limits = self._filters.limits(self._temperature)
        return self._limits

    def select_rows(self, rows: Tensor) -> None:
        """Continues with these rows."""
        self._temperature = self._temperature[rows]
        self._filters = self._filters.select_rows(rows)
        self._streams.select_rows(rows)
        self._limits = None
        if self._repetitions is not None:
            self._repetitions.select_rows(rows)

    def put(self, places: Tensor, other: Draws) -> None:
        """Continues with the rows of `other` in these places."""
        rows = len(self._temperature)
        self._temperature = self._temperature.index_copy(0, places, other._temperature)
        self._filters = self._filters.put(places, other._filters, rows)
        self._streams.put(places, other._streams)
        self._limits = None
        if self._repetitions is None and other._repetitions is not None:
            self._repetitions = other._repetitions.for_none(rows)
        if self._repetitions is not None:
            self._repetitions.put(places, other._repetitions)
            if not self._repetitions.penalizes:
                self._repetitions = None  # as for filters, a step may draw inside again


def start_draws(
    params: SamplingParams,
    rows: int,
    head: Head,
    device: torch.device,
    generator: torch.Generator | None = None,
) -> Draws:
    """The draws of `rows` rows without tokens so far, from position 0 on."""
    zeros = torch.zeros(rows, dtype=torch.int64, device=device)
    return Settings(params, head, device, generator).draws(zeros.unsqueeze(1), zeros, zeros)


class Repetitions:
    """The tokens of each row so far, which a penalty makes less likely.

    Args:
        penalty: (B,): logits above 0 of such tokens are divided by it, the others multiplied.
        tokens: (B, N) int64.
        lengths: (B,) int64, tokens of each row.
        levels: V, the size of the vocabulary.
    """

    def __init__(self, penalty: Tensor, tokens: Tensor, lengths: Tensor, levels: int) -> None:
        beyond = past_lengths(lengths, tokens.shape[1])
        seen = torch.zeros(len(tokens), levels + 1, dtype=torch.bool, device=tokens.device)
        self._seen = seen.scatter_(1, tokens.masked_fill(beyond, levels), True)[:, :levels]
        self._penalty = penalty.unsqueeze(1)

    @property
    def penalizes(self) -> bool:
        """Whether the penalty of some row changes anything."""
        return bool((self._penalty != 1).any())

    def penalize(self, logits: Tensor) -> Tensor:
        """The logits (B, V) after the penalty."""
        penalty = self._penalty.to(logits.dtype)
        penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
        return torch.where(self._seen, penalized, logits)

    def add(self, tokens: Tensor) -> None:
        """Adds a token (B,) of each row."""
        self._seen.scatter_(1, tokens.unsqueeze(1), True)

    def select_rows(self, rows: Tensor) -> None:
        """Continues with these rows."""
        self._seen, self._penalty = self._seen[rows], self._penalty[rows]

    def for_none(self, rows: int) -> Repetitions:
        """That of `rows` rows without a penalty."""
        none = copy(self)
        none._penalty = self._penalty.new_ones(rows, 1)
        none._seen = self._seen.new_zeros(rows, self._seen.shape[1])
        return none

    def put(self, places: Tensor, other: Repetitions | None) -> None:
        """Continues with the rows of `other` in these places; None: without a penalty."""
        self._penalty[places] = 1.0 if other is None else other._penalty
        self._seen[places] = False if other is None else other._seen


def _on(device: torch.device, value: float | Tensor) -> float | Tensor:
    return value.to(device) if isinstance(value, Tensor) else value


def _read_seeds(name: str, seeds: object) -> int | Tensor:
    """One seed, or (rows,) int64."""
    several = as_ints(name, seeds.tolist() if isinstance(seeds, Tensor) else seeds)
    for seed in several:
        if not -_SEEDS <= seed < _SEEDS:
            raise ValueError(expected(name, "integers of 64 bits, with a sign", seed))
    return several[0] if as_int(seeds) is not None else torch.tensor(several, dtype=torch.int64)


class NanCheck:
    """Raises ValueError for parameters that are NaN, and names the first such step.

    On the CPU at once. On an accelerator only after many steps or at the end, because reading a
    number at each step would wait for the device each time.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._largest: list[Tensor] = []  # of the last steps

    def add(self, parameters: Tensor) -> None:
        """Takes the parameters (steps, B, P) of the next steps; on an accelerator, of one."""
        largest = parameters.amax()  # NaN if any parameter is
        if not parameters.is_cpu:
            self._largest.append(largest)
        elif math.isnan(largest):
            _refuse(self._steps + int(parameters.flatten(1).isnan().any(1).int().argmax()))
        self._steps += len(parameters)
        if len(self._largest) == _MOST_UNREAD:
            self.finish()

    def finish(self) -> None:
        """Checks the steps that are not checked yet."""
        if self._largest:
            first = self._steps - len(self._largest)
            for step, largest in enumerate(torch.stack(self._largest).tolist(), first):
                if math.isnan(largest):
                    _refuse(step)
            self._largest.clear()


def _refuse(step: int) -> None:
    advice = "look for NaN in the model's weights"
    raise ValueError(expected(f"the model's outputs at step {step}", "numbers", "NaN", advice))
