"""What the paper measured (arXiv 2006.16236): its tables 1 and 2, and tables 4 and 5 of its
supplement. Images per second are of one GPU, at the largest batch that fitted it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperRow:
    """One method in the paper; None where it gives no number.

    Attributes:
        method: "softmax" reruns the prefix, "stateful-softmax" keeps keys and values.
        bits_per_dim: tables 1 and 2.
        images_per_second: tables 1, 2 and 4, GPU.
        seconds_cpu, seconds_gpu: for one image alone, table 5.
    """

    method: str
    bits_per_dim: float | None = None
    images_per_second: float | None = None
    seconds_cpu: float | None = None
    seconds_gpu: float | None = None


PAPER: dict[str, tuple[PaperRow, ...]] = {
    "mnist": (
        PaperRow("softmax", 0.621, 0.45, 72.6, 10.2),
        PaperRow("stateful-softmax", None, 7.56, 7.4, 10.4),
        PaperRow("lsh-1", 0.745, 0.68),
        PaperRow("lsh-4", 0.676, 0.27),
        PaperRow("linear", 0.644, 142.8, 5.5, 7.3),
    ),
    "cifar10": (
        PaperRow("softmax", 3.47, 0.004, 8651.4, 300.1),
        PaperRow("stateful-softmax", None, 0.32, 71.9, 70.4),
        PaperRow("lsh-1", 3.39, 0.015),
        PaperRow("lsh-4", 3.51, 0.005),
        PaperRow("linear", 3.40, 17.85, 45.1, 61.3),
    ),
}
