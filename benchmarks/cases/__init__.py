"""The cases; importing this package registers them all."""

from benchmarks.cases import crossover, generation, memory, operator

__all__ = ["crossover", "generation", "memory", "operator"]
