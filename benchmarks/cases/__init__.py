"""The cases; importing this package registers them all, theme by theme."""

from benchmarks.cases import operator, memory, lengths, crossover  # noqa: F401, I001
from benchmarks.cases import lsh_layer, decoding, generation  # noqa: F401
from benchmarks.cases import cuda_operator, cuda_ladder, cuda_generation  # noqa: F401
