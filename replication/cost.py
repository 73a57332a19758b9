"""What an experiment should cost, computed before it runs from operations and bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from benchmarks.measure.machine import Limits

FLOAT = 4  # bytes
PROCESS = 0.4e9  # bytes of a process that has imported torch
TRAINING = 3  # forward, and twice as much backward
GRADIENTS = 10 / 4  # linear attention: operations of both passes over those of the forward


@dataclass(frozen=True)
class Cost:
    """The least that an experiment needs.

    Args:
        operations: a multiply and an add are two.
        traffic: bytes read and written.
        memory: bytes at the highest.
    """

    operations: float = 0.0
    traffic: float = 0.0
    memory: float = PROCESS

    def __add__(self, other: Cost) -> Cost:
        operations, traffic = self.operations + other.operations, self.traffic + other.traffic
        return Cost(operations, traffic, max(self.memory, other.memory))

    def seconds(self, limits: Limits) -> float:
        """At the machine's own rates: products at its GEMM rate, bytes at its bandwidth."""
        return self.operations / limits.gemm_float32 + self.traffic / limits.copy_bandwidth


@dataclass(frozen=True)
class Model:
    """The shape of a transformer, and what it costs.

    Args:
        positions: tokens of a sample.
        causal: whether softmax sees half of the pairs.
    """

    layers: int
    heads: int
    head_dim: int
    ffn: int
    positions: int
    causal: bool = True

    @property
    def width(self) -> int:
        """The embedding's."""
        return self.heads * self.head_dim

    @property
    def parameters(self) -> int:
        """Of the layers' four projections and two feed-forward products."""
        return self.layers * (4 * self.width**2 + 2 * self.width * self.ffn)

    def forward(self, attention: str, positions: int | None = None) -> float:
        """Operations of one sample. Per head and position, attention takes 4 D M (linear), 4 N D
        (softmax; half if causal), or 4 D times two chunks of 32 keys for each round (LSH)."""
        n = self.positions if positions is None else positions
        seen = {"linear": self.head_dim, "softmax": n / 2 if self.causal else n}
        keys = seen.get(attention, 64.0 * int(attention[4:] or 1) if attention[:3] == "lsh" else 0)
        return n * (2 * self.parameters + 4 * keys * self.width * self.layers)

    def training(self, attention: str, samples: float, batch: int) -> Cost:
        """Updates that see so many samples in all."""
        activations = 16 * batch * self.positions * (self.width + self.ffn / 4) * self.layers
        return Cost(
            TRAINING * samples * self.forward(attention),
            # Weights, gradients and two moments are read, and all but gradients are written.
            samples / batch * 7 * FLOAT * self.parameters,
            PROCESS + 4 * FLOAT * self.parameters + FLOAT * activations,
        )

    def generating(self, method: str, batch: int, steps: int | None = None) -> Cost:
        """Images side by side: all positions, or `steps` of them spread over the image."""
        n, share = self.positions, 1.0 if steps is None else steps / self.positions
        state, weights = self.state(method), FLOAT * self.parameters
        if state:
            # For each position, S and z are read and written; of a cache, half is read on average.
            moved = 2 * state if method == "linear" else state / 2
            once = self.forward(method.removeprefix("stateful-"))
            traffic = n * (weights + batch * moved)
            return Cost(share * batch * once, share * traffic, PROCESS + weights + batch * state)
        reruns = sum(self.forward(method, i + 1) for i in range(n))
        hidden = FLOAT * batch * n * 4 * (self.width + self.ffn)
        return Cost(share * batch * reruns, share * n * weights, PROCESS + weights + hidden)

    def state(self, method: str) -> float:
        """Bytes that an image carries from pixel to pixel: S and z, or keys and values."""
        if method == "linear":
            return FLOAT * self.layers * self.heads * self.head_dim * (self.head_dim + 1)
        if method == "stateful-softmax":
            return FLOAT * self.layers * 2 * self.positions * self.width
        return 0.0


MNIST, CIFAR10 = Model(8, 8, 32, 1_024, 784), Model(16, 8, 32, 1_024, 3_072)
MODELS = {
    "tiny": Model(2, 2, 8, 32, 64),
    "mnist": MNIST,
    "small-mnist": Model(4, 4, 32, 512, 784),
    "cifar10": CIFAR10,
    "small-cifar10": Model(4, 4, 32, 512, 3_072),
    "copy": Model(4, 8, 32, 1_024, 128),
    "small-copy": Model(3, 8, 16, 256, 48),
    "speech": Model(9, 6, 32, 768, 800, causal=False),
    "short-speech": Model(9, 6, 32, 768, 200, causal=False),
}
WAYS = ("linear", "stateful-softmax", "softmax", "lsh-1", "lsh-4")
LENGTHS = tuple(2**n for n in range(9, 17))
GRID_LENGTHS, GRID_BATCHES = (64, 256, 784, 1_568, 3_072), (1, 8, 64, 256)
RERUN_POSITIONS = 32  # that --whole times of an image where the prefix runs again
# The largest batches that a GPU of 80 GB generates within a second a pixel, by the search of
# apps/pixel_generation/benchmark.py, which doubles them up to 10,000.
GPU_BATCHES: Mapping[str, Mapping[str, int]] = {
    "mnist": {
        "linear": 10_000, "stateful-softmax": 4_096, "softmax": 512, "lsh-1": 1_024, "lsh-4": 512
    },
    "cifar10": {
        "linear": 10_000, "stateful-softmax": 512, "softmax": 128, "lsh-1": 256, "lsh-4": 64
    },
}  # fmt: skip
GRID_SECONDS = 120.0  # of the longest case that is tried, in which two cores make 1e13 operations


def generation(model: Model, largest: int, positions: int, *, whole: bool = False) -> Cost:
    """Two images' worth of positions for each method, alone and at the batches of the search.

    Args:
        largest: the batch of linear attention; others have a 64th of it.
        positions: that are timed; all of those of a method that keeps a state if `whole`.
    """
    total = Cost()
    for way in WAYS:
        steps = timed(way, positions, whole=whole)
        batch = largest if way == "linear" else max(1, largest // 64)
        total += model.generating(way, 1, steps) + model.generating(way, 2 * batch, steps)
    return total


def on_gpu(model: Model, largest: Mapping[str, int], positions: int, *, whole: bool) -> Cost:
    """On a GPU: three positions of each batch that the search tries, then the best one and a single
    image. The memory is the host's, like that of a run's record.
    """
    total = Cost()
    for way, batch in largest.items():
        tried = (model.generating(way, 2**power, 3) for power in range(batch.bit_length()))
        chosen = (model.generating(way, x, timed(way, positions, whole=whole)) for x in (batch, 1))
        total = sum((*tried, *chosen), total)
    return replace(total, memory=PROCESS + FLOAT * model.parameters)


def timed(way: str, positions: int, *, whole: bool) -> int | None:
    """How many positions are timed; None for all, as of a `whole` image where a state is kept."""
    return None if whole and way in ("linear", "stateful-softmax") else positions


def over_length_and_batch(
    model: Model, positions: int, most: float, *, whole: bool = False
) -> Cost:
    """Every way, length and batch, but cases of more than `most` operations; twice each: warm."""
    total = Cost()
    for length in GRID_LENGTHS:
        at = replace(model, positions=length)
        for way in ("linear", "linear", "stateful-softmax", "softmax"):
            steps = timed(way, positions, whole=whole)
            cases = (at.generating(way, batch, steps) for batch in GRID_BATCHES)
            total = sum((x + x for x in cases if x.operations <= most), total)
    return total


def attention_curves(lengths: tuple[int, ...], heads: int = 8, dim: int = 32) -> Cost:
    """Figure 1: forward and backward at each length, a warm-up and one round, SDPA beside.

    Softmax holds N x N weights for each head, forward and backward.
    """
    head, total = heads * dim, Cost()
    for n in lengths:
        linear, lsh = GRADIENTS * 4 * n * dim * head, GRADIENTS * 4 * n * 64 * 13 * head
        softmax = GRADIENTS * 4 * n * n / 2 * head
        squares = 3 * FLOAT * heads * n * n
        fits = squares < 20e9
        operations = 2 * (2 * linear + lsh + softmax * (1 + 2 * fits))
        total += Cost(operations, 2 * fits * 2 * squares, PROCESS + squares * fits)
    return total


def _shape(shape: str, largest: int, positions: int) -> Callable[[str], Cost]:
    """Of a benchmark of images of this shape on a CPU, by preset."""
    by_preset = {
        "smoke": lambda: generation(MODELS["tiny"], 1, 2),
        "laptop": lambda: generation(MODELS[shape], largest, positions),
        "paper": lambda: generation(MODELS[shape], 1_024, RERUN_POSITIONS, whole=True),
    }
    return lambda preset: by_preset[preset]()


def _shape_on_gpu(shape: str) -> Callable[[str], Cost]:
    """Of the same on a GPU; a smoke run is that of the CPU."""
    model, largest = MODELS[shape], GPU_BATCHES[shape]
    by_preset = {
        "smoke": lambda: generation(MODELS["tiny"], 1, 2),
        "laptop": lambda: on_gpu(model, largest, 9, whole=False),
        "paper": lambda: on_gpu(model, largest, RERUN_POSITIONS, whole=True),
    }
    return lambda preset: by_preset[preset]()


COSTS: Mapping[str, Callable[[str], Cost]] = {
    "equations": lambda preset: MNIST.generating("linear", 1),
    "lengths": lambda preset: attention_curves((64, 128) if preset == "smoke" else LENGTHS),
    "decoding": lambda preset: MNIST.generating("linear", 1, 60),
    "mnist": _shape("mnist", 512, 9),
    "mnist-cuda": _shape_on_gpu("mnist"),
    "cifar10": _shape("cifar10", 64, 5),
    "cifar10-cuda": _shape_on_gpu("cifar10"),
    "speedup": lambda preset: over_length_and_batch(
        MNIST, 5, 1e8 if preset == "smoke" else 1e13, whole=preset == "paper"
    ),
}
"""By preset, of the experiments that train nothing."""
