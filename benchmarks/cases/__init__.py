"""The cases; importing this package registers them all, theme by theme."""

from benchmarks.cases import operator, lengths, lsh_layer  # noqa: F401, I001
from benchmarks.cases import decoding, tokens, hugging_face, training  # noqa: F401
