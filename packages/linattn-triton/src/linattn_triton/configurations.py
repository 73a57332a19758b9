"""How kernels are cut and compiled, in one table; nothing is tuned when a program runs."""

from __future__ import annotations

from typing import NamedTuple

WIDEST = 256
"""The most features or values that a program keeps."""
NARROWEST = 16
"""The fewest rows or columns of a matrix product."""
SHORTEST = 256
"""The fewest positions of a segment: shorter ones cost more in states than they gain."""
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

# On compute capability 9.0, triton takes `wgmma` for products of 64 rows by four warps. With a left
# operand in registers, the assembler of triton 3.6 and 3.7 compiles that wrongly. So there are two
# warps, which is also faster, or at most 32 columns, which `tiles.dot_positions` makes the rows.
HOPPER = 90
HOPPER_TABLE = {(64, True): Configuration(32, 64, 2, 3)}
HOPPER_BLOCK = 32


def power_of_two(width: int) -> int:
    """The size of a tile that holds the width, as Triton wants it."""
    return max(NARROWEST, 1 << max(0, width - 1).bit_length())


def choose(
    summed: int, columns: int, *, half: bool, decay: bool = False, heavy: bool = False,
    capability: int = 0,
) -> Configuration:  # fmt: skip
    """The configuration of a kernel, which does not depend on how many sequences a call has.

    Args:
        summed: the width of the rows that are multiplied.
        columns: those of the result.
        half: whether operands are rounded to 16 bits.
        decay: whether states decay.
        heavy: whether the kernel also computes the gradient of decay, for which half of the columns
            leave registers.
        capability: of an NVIDIA GPU, as 90; else 0.
    """
    row = max(32, power_of_two(summed)), half
    chosen = TABLE[row]
    if capability == HOPPER:
        narrow = chosen._replace(block=min(chosen.block, HOPPER_BLOCK))
        chosen = narrow if decay else HOPPER_TABLE.get(row, narrow)
    block = min(chosen.block, power_of_two(columns))
    return chosen._replace(block=max(NARROWEST, block // 2) if heavy else block)
