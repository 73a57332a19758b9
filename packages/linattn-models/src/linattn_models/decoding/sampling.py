"""How tokens are drawn from a model's outputs: settings, randomness, and the check for NaN."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_models.decoding.philox import AHEAD, Streams
from linattn_models.decoding.prompts import Prompt
from linattn_models.decoding.row_sampling import Repetitions, RowSampling
from linattn_models.heads import Categorical, Head
from linattn_models.heads.base import Drawn, at_least_single, check_generator, resolve_temperature
from linattn_models.heads.filters import Filters
from linattn_models.heads.settings import REPETITION_PENALTY, TEMPERATURE, spread
from linattn_models.validation import as_int, as_ints

# After so many steps on an accelerator their outputs are checked, because a stream may be endless.
_MOST_UNREAD = 4096
# Seeds are keys of 64 bits, in signed integers: from -_SEEDS on, and below _SEEDS.
_SEEDS = 1 << 63


@dataclass(frozen=True, eq=False)
class Sampling:
    """The settings of draws, as for `generate`.

    Args:
        temperature: of all rows, or of each. Values below 1e-30 count as 0.
        generator: source of randomness, on the model's device; torch's default one by default.
        filters: the tokens that may be drawn.
        repetition_penalty: of all rows, or of each.
        seeds: of all rows, or of each.
    """

    temperature: Any = 1.0
    generator: torch.Generator | None = None
    filters: Filters = field(default_factory=Filters)
    repetition_penalty: Any = 1.0
    seeds: Any = None

    def __post_init__(self) -> None:
        check_generator(self.generator)
        temperature = TEMPERATURE.read(self.temperature)
        if not isinstance(temperature, Tensor):
            temperature = resolve_temperature(temperature)
        object.__setattr__(self, "temperature", temperature)
        penalty = REPETITION_PENALTY.read(self.repetition_penalty)
        object.__setattr__(self, "repetition_penalty", penalty)
        if self.seeds is not None:
            if self.generator is not None:
                raise ValueError(expected("generator", "None beside seeds", "one", "pass either"))
            object.__setattr__(self, "seeds", _read_seeds(self.seeds))

    @property
    def is_plain(self) -> bool:
        """Whether all rows have the same settings, and draw from one generator."""
        differ = isinstance(self.temperature, Tensor) or self.filters.differ
        return self.seeds is None and not differ and not self._penalizes

    @property
    def _penalizes(self) -> bool:
        return isinstance(self.repetition_penalty, Tensor) or self.repetition_penalty != 1

    def check(self, head: Head, device: torch.device) -> None:
        """Refuses a generator of another kind of device, and settings that need another head."""
        if self.generator is not None and self.generator.device.type != device.type:
            wanted = f"one on the model's {device}"
            advice = f"make it by torch.Generator('{device}')"
            raise ValueError(expected("generator", wanted, self.generator.device, advice))
        got = f"a {type(head).__name__}"
        if (self.filters or self._penalizes) and not isinstance(head, Categorical):
            advice = "leave out top_k, top_p, min_p and repetition_penalty"
            raise ValueError(expected("the head", "a Categorical to filter", got, advice))
        if not self.is_plain and not isinstance(head, Drawn):
            advice = "leave out seeds, and pass one number for all rows"
            raise ValueError(expected("the head", "one that draws by a seed", got, advice))

    def of_rows(self, head: Head, prompt: Prompt, samples: int = 1, ahead: int = AHEAD) -> Draws:
        """The draws of `samples` sequences from each prompt; the same for all rows if it is plain.

        Args:
            ahead: how many positions of each row are drawn at once.
        """
        if self.is_plain:
            return self
        batch, device = prompt.batch, prompt.tokens.device
        lengths = prompt.row_lengths.repeat_interleave(samples)
        positions = lengths + prompt.tokens_before.to(device).repeat_interleave(samples)
        repetitions = None
        if self._penalizes:
            tokens = prompt.tokens.repeat_interleave(samples, 0)
            penalty = self._column("repetition_penalty", batch, samples, device)
            repetitions = Repetitions(penalty, tokens, lengths, head.levels)
        return RowSampling(
            self._column("temperature", batch, samples, device),
            self.filters.spread(batch, samples, device),
            Streams(*self._keys(batch, samples, device), positions, ahead),
            repetitions,
        )

    def draw(self, head: Head, parameters: Tensor) -> Tensor:
        """Tokens (B,) or (B, 3) from parameters (B, P), where the settings are plain."""
        if self.filters:
            parameters = self.filters(at_least_single(parameters), self.temperature)
        return head.sample(parameters, temperature=self.temperature, generator=self.generator)

    def select_rows(self, rows: Tensor) -> None:
        """Nothing: all rows have the same settings."""

    def _column(self, name: str, rows: int, samples: int, device: torch.device) -> Tensor:
        """A setting of each sequence, (rows * samples,) float64."""
        value = spread(name, getattr(self, name), rows, samples)
        numbers = torch.as_tensor(value, dtype=torch.float64, device=device)
        return numbers.expand(rows * samples)

    def _keys(self, rows: int, samples: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """The seed of each sequence, and its number among the sequences of that seed."""
        count = rows * samples
        numbers = torch.arange(count, device=device)
        if self.seeds is None:
            seeds = torch.randint(
                1 << 62, (count,), generator=self.generator, device=device, dtype=torch.int64
            )
            return seeds, torch.zeros_like(seeds)
        if not isinstance(self.seeds, Tensor):
            return torch.full_like(numbers, self.seeds), numbers
        seeds = torch.as_tensor(spread("seeds", self.seeds, rows, samples), device=device)
        is_shared = len(self.seeds) < count
        return seeds, numbers % samples if is_shared else torch.zeros_like(numbers)


# How tokens are drawn: in the same way for all rows, or with settings and seeds of each row.
Draws = Sampling | RowSampling


def _read_seeds(seeds: object) -> int | Tensor:
    """One seed, or (rows,) int64."""
    several = as_ints("seeds", seeds.tolist() if isinstance(seeds, Tensor) else seeds)
    for seed in several:
        if not -_SEEDS <= seed < _SEEDS:
            raise ValueError(expected("seeds", "integers of 64 bits, with a sign", seed))
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
        """Takes the parameters (B, P) of the next step."""
        largest = parameters.amax()  # NaN if any parameter is
        if not parameters.is_cpu:
            self._largest.append(largest)
        elif math.isnan(largest):
            _refuse(self._steps)
        self._steps += 1
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
