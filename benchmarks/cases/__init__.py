"""The cases; importing this package registers them all, theme by theme."""

from benchmarks.cases import operator, ladder, lengths, lsh_layer, decoding, generation  # noqa: F401, I001
from benchmarks.cases import training  # noqa: F401
