"""The cases of `python -m benchmarks.gpu`, in the order of what they are worth."""

from __future__ import annotations

from benchmarks.gpu import decoding, ladder, operators
from benchmarks.registry import Registry

registry = Registry()
operators.register(registry)
ladder.register(registry)
decoding.register(registry)
