"""Temperature and generator of a draw, and the refusal of NaN."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_models.heads import Head
from linattn_models.heads.base import checked_temperature


@dataclass(frozen=True)
class Sampling:
    """The settings of a draw.

    Args:
        temperature: 1 draws from the model, less sharpens, 0 is greedy. Below 1e-30 it is 0.
        generator: source of randomness, on the model's device; torch's own by default.

    Raises:
        ValueError: a negative temperature.
    """

    temperature: float = 1.0
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", checked_temperature(self.temperature))

    def check_device(self, device: torch.device) -> None:
        """Refuses a generator of another kind of device."""
        if self.generator is not None and self.generator.device.type != device.type:
            wanted = f"one on the model's {device}"
            advice = f"make it by torch.Generator('{device}')"
            raise ValueError(expected("generator", wanted, self.generator.device, advice))

    def draw(self, head: Head, parameters: Tensor) -> Tensor:
        """Tokens (B,) or (B, 3) from parameters (B, P)."""
        return head.sample(parameters, temperature=self.temperature, generator=self.generator)


class NanCheck:
    """Refuses parameters that are NaN and names the first such step.

    On the CPU at once. On an accelerator when all steps are done: reading a number at each step
    would wait for the device each time.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._largest: list[Tensor] = []

    def add(self, parameters: Tensor) -> None:
        """Takes the parameters (B, P) of the next step."""
        largest = parameters.amax()  # NaN if any parameter is
        if not parameters.is_cpu:
            self._largest.append(largest)
        elif math.isnan(largest):
            _refuse(self._steps)
        self._steps += 1

    def finish(self) -> None:
        """Reads what was not read yet."""
        if self._largest:
            for step, largest in enumerate(torch.stack(self._largest).tolist()):
                if math.isnan(largest):
                    _refuse(step)


def _refuse(step: int) -> None:
    advice = "look for NaN in the model's weights"
    raise ValueError(expected(f"the model's outputs at step {step}", "numbers", "NaN", advice))
