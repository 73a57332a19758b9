"""A problem for an attention operator: sizes, passes, dtype, device."""

from __future__ import annotations

import dataclasses

import torch

from benchmarks.case import Settings
from linattn_lab.machine import Device

QUICK = {"length": 64, "batch": 2, "heads": 2, "width": 8}  # the largest sizes of a quick run
POSITIONS, HEADS = 65_536, 64  # of the problems for a GPU


@dataclasses.dataclass(frozen=True)
class Problem:
    """The sizes, passes, dtype and device of a call.

    Args:
        width: of queries, keys and values.
        backward: whether the backward pass is measured too.
        bare: linear attention without feature map and normalizer: the numerator alone.
    """

    length: int
    batch: int = 1
    heads: int = 8
    width: int = 64
    causal: bool = True
    backward: bool = False
    dtype: torch.dtype = torch.float32
    device: Device = "cpu"
    bare: bool = False

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"N={self.length:,} (B={self.batch}, H={self.heads}, D=M={self.width}, {dtype})"

    @property
    def passes(self) -> str:
        """Either "forward" or "forward and backward"."""
        return "forward and backward" if self.backward else "forward"

    @property
    def slug(self) -> str:
        """The passes in a case's name."""
        return self.passes.replace(" ", "-")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, N, D)."""
        return self.batch, self.heads, self.length, self.width

    @property
    def numbers(self) -> int:
        """The elements of one tensor."""
        return self.batch * self.heads * self.length * self.width

    @property
    def operations(self) -> float:
        """The least that linear attention needs: 4 N D M per head, 10 with the backward pass."""
        return (10 if self.backward else 4) * self.numbers * self.width

    @property
    def traffic(self) -> float:
        """The least bytes: queries, keys, values read and outputs written once per pass.

        The backward pass reads the gradient too, and writes three.
        """
        return (12 if self.backward else 4) * self.numbers * self.dtype.itemsize

    def for_settings(self, settings: Settings) -> Problem:
        """The problem on the device of the run, and tiny in a quick one."""
        smaller = {name: min(getattr(self, name), most) for name, most in QUICK.items()}
        return dataclasses.replace(
            self, device=settings.device, **(smaller if settings.quick else {})
        )


def many_heads(length: int, heads: int = HEADS, *, backward: bool = False) -> Problem:
    """A problem for a GPU with the same number of positions, B N, at every length."""
    batch, dtype = POSITIONS // length, torch.bfloat16
    return Problem(length, batch, heads, backward=backward, dtype=dtype)


def passes(problem: Problem) -> tuple[Problem, Problem]:
    """The problem forward, and with the backward pass."""
    return dataclasses.replace(problem, backward=False), dataclasses.replace(problem, backward=True)
