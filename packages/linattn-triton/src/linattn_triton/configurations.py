"""How kernels are cut and compiled, in one table; nothing is tuned when a program runs."""

from __future__ import annotations

from typing import NamedTuple

WIDEST = 256
"""The most features or values that a program keeps."""
NARROWEST = 16
"""The fewest rows or columns of a matrix product."""
MANY = 256
"""Programs from which on a GPU is full, so that columns are not split further."""
LONG = 2**16
"""The most positions that a program sums without compensating what each addition rounds."""


class Configuration(NamedTuple):
    """How one kernel is cut and compiled.

    Attributes:
        chunk: positions that a program takes at once.
        block: columns that a program computes, at most.
        num_warps, num_stages: as Triton names them.
    """

    chunk: int
    block: int
    num_warps: int
    num_stages: int


# By the width that is summed over, rounded up to a power of two, and whether operands have 16 bits.
# Those of 16 bits have chunks of 32: with 64 positions, triton 3.6 computes wrong numbers on
# compute capability 9.0.
TABLE = {
    (32, True): Configuration(32, 32, 4, 3),
    (64, True): Configuration(32, 64, 4, 3),
    (128, True): Configuration(32, 64, 4, 2),
    (256, True): Configuration(32, 64, 8, 1),
    (32, False): Configuration(32, 32, 4, 2),
    (64, False): Configuration(32, 64, 4, 2),
    (128, False): Configuration(32, 32, 4, 1),
    (256, False): Configuration(16, 16, 4, 1),
}

# Warps of causal kernels without decay, from twice MANY heads on. 512 heads of 64 dims and 2,048
# positions in bfloat16 take 0.30 ms on an H200, with gradients 1.46; 4 warps take 0.44 and 1.78.
FEW_WARPS = {(64, True): 2}


def power_of_two(width: int) -> int:
    """The size of a tile that holds the width, as Triton wants it."""
    return max(NARROWEST, 1 << max(0, width - 1).bit_length())


def choose(
    summed: int, columns: int, heads: int, *, half: bool, light: bool = False, heavy: bool = False
) -> Configuration:
    """The configuration of a kernel.

    Args:
        summed: the width of the rows that are multiplied.
        columns: those of the result.
        heads: that walk side by side; where they are few, more programs share the columns.
        half: whether operands are rounded to 16 bits.
        light: whether the kernel is causal, without decay.
        heavy: whether the kernel also computes the gradient of decay, for which half of the columns
            leave registers.
    """
    row = max(32, power_of_two(summed)), half
    chosen = TABLE[row]
    if light and heads >= 2 * MANY:
        chosen = chosen._replace(num_warps=FEW_WARPS.get(row, chosen.num_warps))
    block = min(chosen.block, power_of_two(columns))
    if heavy:
        block = max(NARROWEST, block // 2)
    while block > NARROWEST and heads * -(-columns // block) < MANY:
        block //= 2
    return chosen._replace(block=block)
