"""The four pictures of the report."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from linattn_lab.plots import Panel, Points, plot_panels, points
from linattn_lab.seeds import average_curves
from replication.claims import CLAIMS, FEW_UPDATES, divide, paper_number
from replication.fits import PAPER_UPDATES, WARM, fit_before_decay
from replication.readers import BEST
from replication.records import Evidence, latest, on_cpu

RIVALS = {"softmax": "softmax that reruns", "stateful-softmax": "softmax with a cache"}
LINEAR_TIME = re.compile(r"linear/(\d+)/(\d+)/seconds")
TOKENS = {"mnist": 784, "cifar10": 3_072}
METHODS = ("linear", "lsh-1", "lsh-4", "lsh-8", "softmax, N x N", "softmax SDPA")
ORDER = ("linear", "softmax", "lsh-1", "lsh-4", "lstm")


def draw_plots(evidence: list[Evidence], folder: Path) -> list[Path]:
    """Draws what was measured; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    known = latest(evidence)
    errors, bits = "phoneme_error_rate", "bits_per_dim"
    pictures = {
        "speedup": [speedup_panel(known, rival) for rival in RIVALS],
        "lengths": length_panels(latest(on_cpu(evidence))),
        "mnist": [
            learning_panel(known, "mnist", "eval", bits, "smaller models: bits/dim"),
            extrapolated_panel(known, "the paper's model: bits/dim"),
        ],
        "learning": [
            learning_panel(known, "copy", "train", "loss", "copy task: nats per symbol"),
            learning_panel(known, "speech", "eval", errors, "AN4, dev set: % phoneme errors", 100),
        ],
    }
    files = []
    for name, panels in pictures.items():
        more: dict[str, Any] = {"log_x": name != "learning"}
        if name == "speedup":
            more |= {"level": 1.0, "kind": lambda way: way.split()[0]}
        known_panels = [panel for panel in panels if panel.curves] or panels[:1]
        files.append(plot_panels(folder / f"{name}.png", known_panels, log_scale=True, **more))
    return files


def speedup_panel(known: dict[str, Evidence], rival: str) -> Panel:
    """How many times as fast linear attention generates: by batch, over the length."""
    curves: dict[str, Points] = {}
    grid = known["speedup"].figures if "speedup" in known else {}
    for name, ours in grid.items():
        if (parts := LINEAR_TIME.fullmatch(name)) and ours > 0:
            length, batch = parts.groups()
            if theirs := grid.get(f"{rival}/{length}/{batch}/seconds"):
                curves.setdefault(f"batch {batch}", []).append((int(length), theirs / ours))
    for device, end in (("CPU", ""), ("GPU", "-cuda")):
        images = {n: known.get(f"generation-{x}{end}") for x, n in TOKENS.items()}
        curves[f"best batches, {device}"] = [
            (tokens, gain)
            for tokens, each in images.items()
            if each and (gain := divide(each.figures, f"linear/{BEST}", f"{rival}/{BEST}"))
        ]
    paper: Points = [(tokens, paper_gain(shape, rival)) for shape, tokens in TOKENS.items()]
    shown = {name: sorted(curve) for name, curve in curves.items()} | {"the paper, GPU": paper}
    return Panel("tokens", keep_drawable(shown), f"times as fast as {RIVALS[rival]}")


def paper_gain(shape: str, rival: str) -> float:
    """The same by the paper's table 4, whose speeds are claimed over those of rerunning."""
    over_reruns = {
        claim.name.split("/")[2]: claim.rules[0].paper or 1.0
        for claim in CLAIMS
        if claim.name.startswith(f"table4/{shape}/") and claim.rules[0].over.startswith("softmax/")
    }
    return over_reruns["linear"] / over_reruns.get(rival, 1.0)


def length_panels(known: dict[str, Evidence]) -> list[Panel]:
    """Figure 1: what a sample costs over its length."""
    figures = known["lengths"].figures if "lengths" in known else {}
    panels = []
    for what, scale, title in (("time", 1e3, "ms per sample"), ("memory", 2**-20, "peak MiB")):
        curves = {
            method: [
                (int(parts[1]) / 1_000, scale * value)
                for name, value in figures.items()
                if (parts := name.split("/"))[0] == method and parts[2:] == [what]
            ]
            for method in METHODS
        }
        panels.append(Panel("N, thousands", keep_drawable(curves), title))
    return panels


def learning_panel(
    known: dict[str, Evidence], name: str, split: str, quantity: str, title: str, scale: float = 1.0
) -> Panel:
    """A curve for each training of an experiment, the mean of its seeds with their noise."""
    trained = known[name].measurement.curves if name in known else {}
    runs = {
        run: [(x, scale * y) for x, y in points(lines, quantity, split=split)]
        for run, lines in trained.items()
    }
    means, errors = average_curves(keep_drawable(runs))
    ordered = sorted(means, key=lambda x: (ORDER.index(x) if x in ORDER else len(ORDER), x))
    return Panel("updates", {x: means[x] for x in ordered}, title, errors)


def extrapolated_panel(known: dict[str, Evidence], title: str) -> Panel:
    """The curve of the paper's MNIST model, the power law through it, and where the paper ended."""
    curves: dict[str, Points] = {}
    each = known.get("mnist-shape")
    if each and each.figures["updates"] >= FEW_UPDATES:
        curve = points(each.measurement.curves["mnist-shape"], "bits_per_dim", split="eval")
        last, law = max(x for x, _ in curve), fit_before_decay(curve)
        to_come = [(x, law(x)) for x in np.geomspace(WARM * last, PAPER_UPDATES, 40)]
        ended = paper_number("table1/linear/bits-per-dim")
        curves = {"linear": curve, "a power law": to_come, "the paper": [(PAPER_UPDATES, ended)]}
    return Panel("updates", keep_drawable(curves), title)


def keep_drawable(curves: Mapping[str, Points]) -> dict[str, Points]:
    """What an axis of powers can show: curves with points above zero."""
    shown = {n: [(x, y) for x, y in each if 0 < y < math.inf] for n, each in curves.items()}
    return {name: curve for name, curve in shown.items() if curve}
