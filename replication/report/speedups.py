"""The speed-up of generation over both rivals: measured, counted, and the paper's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from linattn_lab.tables import figure
from replication.claims import BY_NAME, Figures
from replication.collect import Best, figures_of
from replication.cost import MNIST

RIVALS = {"softmax": "softmax that reruns", "stateful-softmax": "softmax with a cache"}
SHAPES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
LENGTHS = {"mnist": 784, "cifar10": 3_072}
SPEEDS = {"one": "1/seconds", "best": "best/images-per-second"}
# What an experiment of images is called on each device.
ON = {"cpu": "generation-{}", "gpu": "generation-{}-cuda"}
PLAIN, OPERATOR, COMPILED = "plain PyTorch", "linattn's operator", "compiled"
# Linear attention steps in three ways. Its rivals step in PyTorch, not compiled.
WAYS = {PLAIN: "linear (eager, reference)", OPERATOR: "linear", COMPILED: "linear-compiled"}


class Case(NamedTuple):
    """Gains over a rival at a length and a batch, which is the same for both.

    eager, compiled: by linattn's operator, and compiled.
    operations, traffic: how many times as much the rival needs for a sequence, by its operations
        and by the bytes that it moves; None where nothing is counted.
    """

    length: int
    batch: int
    eager: float
    compiled: float | None
    operations: float
    traffic: float | None


def cases(best: Best, rival: str) -> Iterator[Case]:
    """What was measured over length and batch, on a CPU."""
    grid = figures_of(best, "speedup")
    for batch, points in by_batch(grid, rival).items():
        for length, eager in points:
            compiled = ratio(grid, "linear-compiled", rival, f"{length}/{batch}/seconds")
            operations, traffic = counted(rival, length), moved(rival, length, batch)
            yield Case(length, batch, eager, compiled, operations, traffic)


def gains(
    best: Best, shape: str, rival: str, which: str, device: str = "cpu"
) -> dict[str, float | None]:
    """Times as fast as a rival, by each of WAYS; of one image, or at the best batch of each."""
    return gains_in(figures_of(best, ON[device].format(shape)), rival, which)


def gains_in(figures: Figures, rival: str, which: str) -> dict[str, float | None]:
    """As `gains`, of one measurement."""
    return {words: ratio(figures, way, rival, SPEEDS[which]) for words, way in WAYS.items()}


def ratio(figures: Figures, way: str, rival: str, name: str) -> float | None:
    """Linear attention's speed over a rival's, by seconds or by images per second."""
    ours, theirs = figures.get(f"{way}/{name}"), figures.get(f"{rival}/{name}")
    if not ours or not theirs:
        return None
    return theirs / ours if name.endswith("seconds") else ours / theirs


def by_batch(grid: Figures, rival: str) -> dict[int, list[tuple[int, float]]]:
    """The speed-up over a rival by linattn's operator: by batch, over the length."""
    known: dict[int, list[tuple[int, float]]] = {}
    for name in grid:
        way, length, batch, what = name.split("/")
        gain = ratio(grid, "linear", rival, f"{length}/{batch}/{what}")
        if way == "linear" and gain is not None:
            known.setdefault(int(batch), []).append((int(length), gain))
    return known


def paper_speed(shape: str, way: str) -> float:
    """The paper's images per second at the best batch (table 4)."""
    number = BY_NAME[f"table4/{shape}/{way}/images-per-second"].rule.number
    assert number
    return number


def paper_gain(shape: str, rival: str, which: str, device: str = "gpu") -> float:
    """The paper's gain: at the best batch (table 4), or of an image on "gpu" or "cpu" (table 5)."""
    if which == "best":
        return paper_speed(shape, "linear") / paper_speed(shape, rival)
    place = f"table5/{shape}/{{}}/{device}"
    ours, theirs = (BY_NAME[place.format(x)].rule.number for x in ("linear", rival))
    assert ours
    assert theirs
    return theirs / ours


def counted(rival: str, length: int) -> float:
    """How many times the operations of linear attention a rival needs for a sequence."""
    at = replace(MNIST, positions=length)
    ours, theirs = (at.generating(way, 1).operations for way in ("linear", rival))
    return theirs / ours


def moved(rival: str, length: int, batch: int) -> float | None:
    """How many times the bytes of linear attention a rival moves; None where it has no state.

    Softmax that reruns moves weights alone, once for a whole prefix: its operations decide.
    """
    at = replace(MNIST, positions=length)
    if not at.state(rival):
        return None
    return at.generating(rival, batch).traffic / at.generating("linear", batch).traffic


def times(gain: float | None) -> str:
    """A factor as "317x"; a dash for none."""
    return "-" if gain is None else f"{figure(gain)}x"
