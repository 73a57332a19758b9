"""How fast a model generates, with which batch size it is fastest, and the memory it needs."""

from linattn_models.memory import available_memory, lacks_memory, peak_memory
from linattn_models.throughput.batches import WORTHWHILE, BestBatch, best_batch
from linattn_models.throughput.clocks import Clock, clock
from linattn_models.throughput.generating import Throughput, generation_throughput

__all__ = [
    "WORTHWHILE",
    "BestBatch",
    "Clock",
    "Throughput",
    "available_memory",
    "best_batch",
    "clock",
    "generation_throughput",
    "lacks_memory",
    "peak_memory",
]
