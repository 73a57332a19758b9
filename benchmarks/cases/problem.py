"""What is asked of an attention operator, and the numbers that it is asked it with."""

from __future__ import annotations

import dataclasses

import torch

from benchmarks.measure.cases import Settings

QUICK_LENGTH, QUICK_BATCH, QUICK_HEADS, QUICK_WIDTH = 64, 2, 2, 8
POSITIONS, HEADS, WIDTH = 65_536, 64, 64  # of a GPU's problems


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is asked of an operator: batch, heads, length, the width of queries, keys and values."""

    length: int
    batch: int = 1
    heads: int = 8
    width: int = 64
    causal: bool = True
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    def __str__(self) -> str:
        return (
            f"N={self.length:,} (B={self.batch}, H={self.heads}, D=M={self.width}, "
            f"{dtype_name(self.dtype)})"
        )

    def operations(self, backward: bool) -> float:
        """The least that linear attention needs: 4 N D M a head, 10 with the backward pass."""
        each = 10 if backward else 4
        return each * self.batch * self.heads * self.length * self.width**2

    def traffic(self, backward: bool) -> float:
        """The least bytes: queries, keys, values read and outputs written once a pass.

        The backward pass reads the gradient too, and writes three.
        """
        tensors = 12 if backward else 4
        numbers = self.batch * self.heads * self.length * self.width
        return tensors * numbers * self.dtype.itemsize


def many_heads(
    length: int, *, heads: int = HEADS, width: int = WIDTH, dtype: torch.dtype = torch.bfloat16
) -> Problem:
    """A GPU's problem with as many positions at every length: the batch is what they leave."""
    return Problem(length, POSITIONS // length, heads, width, dtype=dtype)


def sized(problem: Problem, settings: Settings) -> Problem:
    """The problem on the device of the run, and tiny in a quick one."""
    problem = dataclasses.replace(problem, device=settings.device)
    if not settings.quick:
        return problem
    return dataclasses.replace(
        problem,
        length=min(problem.length, QUICK_LENGTH),
        batch=min(problem.batch, QUICK_BATCH),
        heads=min(problem.heads, QUICK_HEADS),
        width=QUICK_WIDTH,
    )


def dtype_name(dtype: torch.dtype) -> str:
    """Such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def inputs(problem: Problem, *, length_first: bool, backward: bool) -> list[torch.Tensor]:
    """Returns query, key and value; the same numbers in either layout."""
    device = problem.device
    generator = torch.Generator(device).manual_seed(0)
    shape = (problem.batch, problem.heads, problem.length, problem.width)
    made = [
        torch.randn(shape, generator=generator, device=device).to(problem.dtype) for _ in range(3)
    ]
    if length_first:
        made = [tensor.transpose(1, 2).contiguous() for tensor in made]
    return [tensor.requires_grad_(backward) for tensor in made]


PASSES = {False: "forward", True: "forward and backward"}


def slug(backward: bool) -> str:
    """The passes in a case's name."""
    return PASSES[backward].replace(" ", "-")
