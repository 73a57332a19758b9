"""The cases; importing this package registers them all."""

from benchmarks.cases import crossover, generation, lengths, memory, operator, reformer

__all__ = ["crossover", "generation", "lengths", "memory", "operator", "reformer"]
