"""The cases; importing this package registers them all, theme by theme."""

from benchmarks.cases import operator, memory, ladder, lengths, crossover  # noqa: F401, I001
from benchmarks.cases import lsh_layer, decoding, generation, training  # noqa: F401
