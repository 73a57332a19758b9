"""The cases; importing this package registers them all, theme by theme."""

from benchmarks.cases import (
    crossover,
    cuda_generation,
    cuda_ladder,
    cuda_operator,
    decoding,
    generation,
    lengths,
    lsh_layer,
    memory,
    operator,
)

__all__ = [
    "crossover",
    "cuda_generation",
    "cuda_ladder",
    "cuda_operator",
    "decoding",
    "generation",
    "lengths",
    "lsh_layer",
    "memory",
    "operator",
]
