"""Tables of the report: the paper's numbers beside ours, and when ours were measured."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from linattn_lab.compare import TIMES
from linattn_lab.plots import points
from linattn_lab.runs import read_runs
from linattn_lab.seeds import (
    compare_rows,
    figure_with_noise,
    merge_seeds,
    read_figures,
    with_noise,
)
from linattn_lab.store import read_model
from linattn_lab.tables import figure, markdown_table, memory, name_environments, table_of
from linattn_lab.updates import UpdateTimes
from replication.claims import FEW_UPDATES, PAPER, Figures, divide, paper_number
from replication.fits import PAPER_UPDATES, fit_before_decay
from replication.plots import paper_gain
from replication.published import RESULTS
from replication.readers import BEST
from replication.records import (
    Evidence,
    describe_experiments,
    figures_of,
    latest,
    mark_older,
    on_cpu,
)

SPEECH = RESULTS / "speech"
IMAGES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
SOFTMAX, CACHE = "softmax", "stateful-softmax"
ATTENTIONS = {"linear": "linear", SOFTMAX: "softmax", "lsh-1": "lsh-1", "lsh-4": "lsh-4"}
RECOGNIZERS = {"lstm": "Bi-LSTM", "linear": "linear", SOFTMAX: "softmax", "lsh-4": "lsh-4"}
TRAINED = {"mnist": ("mnist", "bits-mnist"), "cifar10": ("bits-cifar10",)}

WIDTH = 126
SHAPE_WORDS = """
The paper's own model with linear attention has {bits} bits/dim on the test images and {validated}
on the validation images after {updates} updates, {hours} hours of training. The paper made {paper}
updates, which take {days} days at this pace. The power law {law} through the validation curve,
while the learning rate is constant, has {there} bits/dim there.
"""


def speedups(evidence: list[Evidence]) -> str:
    """Tables 4 and 5: how many times as fast linear attention generates images."""
    header = ["images", "over reruns: the paper", "ours", "over a cache: the paper", "ours"]
    header += ["ours, compiled"]
    rows = []
    for shape, words in IMAGES.items():
        for device in ("GPU", "CPU"):
            figures = generation(evidence, shape, device)
            for many in (True, False):
                gains = [
                    (paper_factor(shape, rival, device, many), gain(figures, "linear", rival, many))
                    for rival in (SOFTMAX, CACHE)
                ]
                compiled = gain(figures, "linear-compiled", CACHE, many)
                label = f"{words}, {'many' if many else 'one'}, {device}"
                cells = [number for pair in gains for number in pair]
                rows.append([label, *map(figure, [*cells, compiled])])
    names = [f"generation-{shape}{end}" for end in ("", "-cuda") for shape in IMAGES]
    return f"{markdown_table(header, rows)}\n{describe_experiments(evidence, *names)}"


def generation(evidence: list[Evidence], shape: str, device: str) -> Figures:
    """The figures of generating images on a device."""
    return figures_of(evidence, f"generation-{shape}{'-cuda' * (device == 'GPU')}")


def gain(figures: Figures, ours: str, rival: str, many: bool) -> float | None:
    """How many times as fast our method is: in images per second, or for one image."""
    if many:
        return divide(figures, f"{ours}/{BEST}", f"{rival}/{BEST}")
    return divide(figures, f"{rival}/1/seconds", f"{ours}/1/seconds")


def paper_factor(shape: str, rival: str, device: str, many: bool) -> float | None:
    """The same by the paper's table 4, which is of a GPU, or by its table 5."""
    if many:
        return paper_gain(shape, rival) if device == "GPU" else None
    theirs, ours = (paper_number(f"table5/{shape}/{x}/{device.lower()}") for x in (rival, "linear"))
    return theirs / ours


def bits(evidence: list[Evidence]) -> str:
    """Tables 1 and 2: bits per dimension of the longest trainings; the short ones in a sentence."""
    header = ["images, attention", "the paper", "here, equal updates", "updates", "equal time"]
    rows, used = [], []
    short: dict[str, list[str]] = {}
    for table, (shape, experiments) in enumerate(TRAINED.items(), 1):
        for name, words in ATTENTIONS.items():
            longest = longest_training(evidence, name, experiments)
            figures = figures_of(evidence, longest)
            updates = figures.get(f"{name}/updates", 0.0)
            if updates < FEW_UPDATES:
                short.setdefault(f"{IMAGES[shape]} ({updates:,.0f} updates)", []).append(words)
                continue
            used.append(longest)
            shown = [f"{name}/{x}" for x in ("bits", "bits-equal-time")]
            cells = [figure_with_noise(figures, x) for x in shown]
            cells.insert(1, f"{updates:,.0f}")
            paper = PAPER[f"table{table}/{name}/bits-per-dim"]
            rows.append([f"{IMAGES[shape]}, {words}", paper, *cells])
    listed = "; ".join(f"{images}: {', '.join(names)}" for images, names in short.items())
    ran = f"These trainings only show that the code runs: {listed}." * bool(short)
    when = describe_experiments(evidence, *dict.fromkeys(used))
    return f"{markdown_table(header, rows)}\n{when} {ran}\n{paper_shape(evidence)}"


def paper_shape(evidence: list[Evidence]) -> str:
    """How far the training of the paper's own MNIST model came, and where its curve goes."""
    each = latest(evidence).get("mnist-shape")
    if each is None or each.figures["updates"] < FEW_UPDATES:
        return ""
    curve = points(each.measurement.curves[each.experiment], "bits_per_dim", split="eval")
    updates, hours = each.figures["updates"], each.measurement.seconds / 3_600
    law = fit_before_decay(curve)
    words = SHAPE_WORDS.format(
        bits=figure(each.figures["bits"]),
        validated=figure(curve[-1][1]),
        updates=f"{updates:,.0f}",
        hours=figure(hours),
        paper=f"{PAPER_UPDATES:,}",
        days=f"{PAPER_UPDATES / updates * hours / 24:,.0f}",
        law=f"{figure(law.floor)} + {figure(law.scale)} / updates^{law.power:.2f}",
        there=figure(law(PAPER_UPDATES)),
    )
    return f"\n{paragraph(words)}\n\n{describe_experiments(evidence, each.experiment)}"


def paragraph(words: str) -> str:
    """The words in lines of a document."""
    return textwrap.fill(" ".join(words.split()), WIDTH, break_on_hyphens=False)


def longest_training(evidence: list[Evidence], attention: str, experiments: tuple[str, ...]) -> str:
    """The experiment that trained an attention for the most updates."""
    return max(experiments, key=lambda x: figures_of(evidence, x).get(f"{attention}/updates", 0.0))


def speech(evidence: list[Evidence]) -> str:
    """Table 3: errors by training, and the time of an epoch over linear's."""
    header = ["% phoneme errors, test", "paper, WSJ", "AN4, 8 min of 2 cores", "40 min of 1 core"]
    header += ["with convolutions", "epoch / linear's: paper", "here"]
    short, timed = figures_of(evidence, "speech"), figures_of(evidence, "speech-epochs")
    long = read_figures(long_trainings(), "phoneme_error_rate", "per", scale=100)
    end = "seconds-per-epoch"
    rows = []
    for name, words in RECOGNIZERS.items():
        cells = [PAPER[f"table3/{name}/per"], figure_with_noise(short, f"{name}/per")]
        cells += [figure_with_noise(long, f"{x}/per") for x in (name, f"{name}-conv")]
        paper = paper_number(f"table3/{name}/{end}") / paper_number(f"table3/linear/{end}")
        here = divide(timed, f"{name}/{end}", f"linear/{end}")
        rows.append([words, *cells, figure(paper), figure(here)])
    when = describe_experiments(evidence, "speech", "speech-epochs")
    return f"{markdown_table(header, rows)}\n{when} {describe_long_trainings(evidence)}"


def long_trainings() -> dict[str, dict[str, Any]]:
    """The trainings of 40 minutes on AN4 by model, each the mean of its seeds."""
    return merge_seeds({name: run["summary"] for name, run in read_runs(SPEECH).items()})


def speech_trainings(evidence: list[Evidence]) -> str:
    """The trainings of 40 minutes: errors and cost of each model."""
    times = read_model(SPEECH / TIMES, UpdateTimes)
    sizes: Mapping[str, float] = (times.model_extra or {})["bytes"]

    def percent(name: str) -> Callable[[dict[str, Any]], str]:
        return lambda row: with_noise(row, name, lambda rate: f"{rate:.2%}")

    columns = {
        "seeds": lambda row: f"{row['seeds']}",
        "errors, test": percent("phoneme_error_rate"),
        "errors, dev": percent("dev_phoneme_error_rate"),
        "updates": lambda row: f"{row['steps']:,}",
        "s per update": lambda row: figure(row["seconds_per_update"]),
        "parameters": lambda row: f"{row['parameters']:,}",
        "memory": lambda row: memory(row["memory"]),
    }
    rows = {
        name: {**row, "seconds_per_update": times.seconds[name], "memory": sizes[name]}
        for name, row in long_trainings().items()
    }
    table = table_of(rows, columns, first="model")
    spread = compare_rows(read_figures(rows, "phoneme_error_rate", "per"), "per", "lstm")
    beside = f"Errors on the test set, compared with lstm by two standard errors: {spread}."
    return f"{table}\n{describe_long_trainings(evidence)} {beside}"


def describe_long_trainings(evidence: list[Evidence]) -> str:
    """A sentence on when and where the trainings of 40 minutes were made."""
    environments = [run["summary"]["environment"] for run in read_runs(SPEECH).values()]
    words = f"The trainings of 40 minutes were made {name_environments(environments)}."
    return mark_older(words, evidence)


def copy(evidence: list[Evidence]) -> str:
    """Figure 2: the loss on held-out sequences."""
    figures = figures_of(evidence, "copy")
    rows = [[words, figure_with_noise(figures, f"{x}/loss")] for x, words in ATTENTIONS.items()]
    table = markdown_table(["attention", "nats per symbol, held out"], rows)
    spread = compare_rows(figures, "loss", "linear")
    beside = f" Compared with linear, by two standard errors: {spread}." * bool(spread)
    return f"{table}\n{describe_experiments(evidence, 'copy')}{beside}"


def lengths(evidence: list[Evidence]) -> str:
    """Figure 1 on a CPU: time and memory of each rival over those of linear attention."""
    measured = on_cpu(evidence)
    figures = figures_of(measured, "lengths")
    known: dict[str, list[int]] = {}
    for name in figures:
        method, *rest = name.split("/")
        if len(rest) == 2 and rest[1] == "time":
            known.setdefault(method, []).append(int(rest[0]))
    rows = []
    for method, places in known.items():
        if method == "linear":
            continue
        row = [method]
        for what in ("time", "memory"):
            for length in (min(places), max(places)):
                ours, theirs = (f"{name}/{length}/{what}" for name in ("linear", method))
                row.append(figure(divide(figures, theirs, ours)))
        rows.append([*row, f"{max(places):,}"])
    header = ["attention", "time / linear's, shortest N", "longest N"]
    header += ["memory / linear's, shortest N", "longest N", "longest N is"]
    return f"{markdown_table(header, rows)}\n{describe_experiments(measured, 'lengths')}"
