"""How a token is drawn from a model's outputs, and the check for NaN."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_models.decoding.filters import Filters
from linattn_models.decoding.model import Drawable
from linattn_models.heads import Categorical, Head
from linattn_models.heads.base import at_least_single, checked_temperature

# After so many steps on an accelerator their outputs are checked, because a stream may be endless.
_MOST_UNREAD = 4096


@dataclass(frozen=True)
class Sampling:
    """The settings of a draw.

    Args:
        temperature: as for `generate`. Values below 1e-30 count as 0.
        generator: source of randomness, on the model's device; torch's default one by default.
        filters: the tokens that may be drawn.

    Raises:
        ValueError: a negative temperature.
    """

    temperature: float = 1.0
    generator: torch.Generator | None = None
    filters: Filters = field(default_factory=Filters)

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", checked_temperature(self.temperature))

    def check(self, source: Drawable) -> None:
        """Refuses settings that do not fit the source of tokens.

        Raises:
            ValueError: a generator of another kind of device, or filters for a head that gives no
                probability for each token.
        """
        if self.generator is not None and self.generator.device.type != source.device.type:
            wanted = f"one on the model's {source.device}"
            advice = f"make it by torch.Generator('{source.device}')"
            raise ValueError(expected("generator", wanted, self.generator.device, advice))
        if self.filters and not isinstance(source.head, Categorical):
            got = f"a {type(source.head).__name__}"
            advice = "leave out top_k, top_p and min_p"
            raise ValueError(expected("the head", "a Categorical to filter", got, advice))

    def draw(self, head: Head, parameters: Tensor) -> Tensor:
        """Tokens (B,) or (B, 3) from parameters (B, P)."""
        if self.filters:
            parameters = self.filters(at_least_single(parameters), self.temperature)
        return head.sample(parameters, temperature=self.temperature, generator=self.generator)


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
