"""The cases; importing this package registers them all, theme by theme."""

from benchmarks.cases import operator, lengths, lsh_layer, decoding, sampling, training  # noqa: F401, I001
