"""The speed-up of generation over both rivals: measured, counted, and the paper's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from linattn_models.training import figure
from replication.claims import BY_NAME, Figures
from replication.collect import Best, figures_of
from replication.cost import MNIST, Model

RIVALS = {"softmax": "softmax that reruns", "stateful-softmax": "softmax with a cache"}
LENGTHS = {"mnist": 784, "cifar10": 3_072}
SPEEDS = {"one": "1/seconds", "best": "best/images-per-second"}
# What an experiment of images is called on each device.
ON = {"cpu": "generation-{}", "gpu": "generation-{}-cuda"}
WAYS = {"in PyTorch": "linear", "compiled": "linear-compiled"}


class Case(NamedTuple):
    """Gains over a rival at a length and a batch; None where a figure is missing.

    eager, compiled: here, on the CPU.
    gpu: here, in PyTorch, on a GPU.
    """

    length: int
    batch: str
    eager: float | None
    compiled: float | None
    gpu: float | None = None
    paper_gpu: float | None = None
    paper_cpu: float | None = None


def cases(best: Best, rival: str) -> Iterator[Case]:
    """What was measured of the paper's images, and over length and batch."""
    for shape, length in LENGTHS.items():
        for which, batch in (("one", "1, an image"), ("best", "the best of each")):
            paper_gpu = paper_gain(shape, rival, which)
            paper_cpu = paper_gain(shape, rival, "one", "cpu") if which == "one" else None
            eager, compiled = gains(best, shape, rival, which)
            gpu, _ = gains(best, shape, rival, which, "gpu")
            yield Case(length, batch, eager, compiled, gpu, paper_gpu, paper_cpu)
    grid = figures_of(best, "speedup")
    for side_by_side, points in by_batch(grid, rival).items():
        for length, eager in points:
            compiled = ratio(grid, "linear-compiled", rival, f"{length}/{side_by_side}/seconds")
            yield Case(length, str(side_by_side), eager, compiled)


def gains(
    best: Best, shape: str, rival: str, which: str, device: str = "cpu"
) -> list[float | None]:
    """Times as fast as a rival, in PyTorch and compiled; one image, or the best batch of each."""
    figures = figures_of(best, ON[device].format(shape))
    return [ratio(figures, way, rival, SPEEDS[which]) for way in WAYS.values()]


def ratio(figures: Figures, way: str, rival: str, name: str) -> float | None:
    """Linear attention's speed over a rival's, by seconds or by images per second."""
    ours, theirs = figures.get(f"{way}/{name}"), figures.get(f"{rival}/{name}")
    if not ours or not theirs:
        return None
    return theirs / ours if name.endswith("seconds") else ours / theirs


def by_batch(grid: Figures, rival: str) -> dict[int, list[tuple[int, float]]]:
    """The speed-up in PyTorch over a rival by batch, over the length."""
    known: dict[int, list[tuple[int, float]]] = {}
    for name in grid:
        way, length, batch, what = name.split("/")
        gain = ratio(grid, "linear", rival, f"{length}/{batch}/{what}")
        if way == "linear" and gain is not None:
            known.setdefault(int(batch), []).append((int(length), gain))
    return known


def paper_gain(shape: str, rival: str, which: str, device: str = "gpu") -> float:
    """The paper's gain: at the best batch (table 4), or of an image on "gpu" or "cpu" (table 5)."""
    one, many = f"table5/{shape}/{{}}/{device}", f"table4/{shape}/{{}}/images-per-second"
    place = {"one": one, "best": many}
    ours, theirs = (BY_NAME[place[which].format(x)].rule.number for x in ("linear", rival))
    assert ours
    assert theirs
    return theirs / ours if which == "one" else ours / theirs


def counted(rival: str, length: int) -> float:
    """How many times the operations of linear attention a rival needs for a sequence."""
    at = Model(MNIST.layers, MNIST.heads, MNIST.head_dim, MNIST.ffn, length)
    ours, theirs = (at.generating(way, 1).operations for way in ("linear", rival))
    return theirs / ours


def times(gain: float | None) -> str:
    """A factor as "317x"; a dash for none."""
    return "-" if gain is None else f"{figure(gain)}x"
