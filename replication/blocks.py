"""The numbers in README, report and guides: tables between markers, written from records.

    <!-- numbers: NAME, by `python -m nox -s report` -->
    <!-- end of numbers -->

What is between the markers is replaced; the words around it are a person's.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.document import Results
from benchmarks.results import CaseResult
from benchmarks.series import by_series
from linattn_core.errors import expected, near, quote
from linattn_lab.store import latest_results, read_records, record_file
from linattn_lab.tables import figure, literal, markdown_table
from linattn_models.basics.files import replace_file
from replication.claims import CLAIMS, VERDICTS, divide
from replication.experiments import ROOT
from replication.plots import paper_gain
from replication.readers import BEST
from replication.records import Evidence, find_evidence, judge_claim

RESULTS = ROOT / "docs" / "results"
DOCUMENTS = (
    "README.md", "docs/images.md", "docs/replication/report.md", "packages/linattn-cuda/README.md",
    "docs/results/attentions/README.md", "docs/results/copy_task/README.md",
    "docs/results/conversion/README.md", "docs/text.md",
)  # fmt: skip
BLOCK = re.compile(r"(<!-- numbers: ([\w-]+), by [^>]*-->\n).*?(<!-- end of numbers -->)", re.S)
IMAGES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
SOFTMAX, CACHE = "softmax", "stateful-softmax"
ATTENTIONS = {"linear": "linear", SOFTMAX: "softmax", "lsh-1": "lsh-1", "lsh-4": "lsh-4"}
PAPER = {claim.name: claim.paper for claim in CLAIMS}
# The GPUs whose tables are shown, the one that has run today's kernels first.
GPUS = ("h200", "h100")
SPEEDS = tomllib.loads((ROOT / "replication" / "speeds.toml").read_text("utf-8"))["row"]


def write_blocks(evidence: list[Evidence]) -> list[Path]:
    """Fills the blocks of every document; returns the documents."""
    documents = [ROOT / name for name in DOCUMENTS]
    for document in documents:
        replace_file(document, fill_blocks(document.read_text("utf-8"), evidence).encode())
    return documents


def fill_blocks(text: str, evidence: list[Evidence]) -> str:
    """Returns a document with its blocks written anew."""

    def fill(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        if name not in BLOCKS:
            raise ValueError(expected("numbers", "a block's name", quote(name), near(name, BLOCKS)))
        return f"{begin}{BLOCKS[name](evidence).strip()}\n{end}"

    return BLOCK.sub(fill, text)


def verdicts(evidence: list[Evidence]) -> str:
    """How many claims have which verdict, and when they were measured."""
    judged = [judge_claim(claim, find_evidence(claim, evidence)) for claim in CLAIMS]
    counts = [f"{judged.count(verdict)} {verdict}" for verdict in VERDICTS]
    dates = sorted(each.record.date for each in evidence)
    when = f", measured from {dates[0]} to {dates[-1]}" if dates else ""
    return f"{len(CLAIMS)} claims: {', '.join(counts)}{when}."


def speedups(evidence: list[Evidence]) -> str:
    """Tables 4 and 5: how many times as fast linear attention generates images."""
    header = ["images", "reruns: the paper", "here", "a cache: the paper", "here", "compiled"]
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
    return markdown_table(header, rows)


def generation(evidence: list[Evidence], shape: str, device: str) -> Mapping[str, float]:
    """The figures of generating images on a device."""
    return figures_of(evidence, f"generation-{shape}{'-cuda' * (device == 'GPU')}")


def gain(figures: Mapping[str, float], ours: str, rival: str, many: bool) -> float | None:
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


def paper_number(claim: str) -> float:
    """The number of the paper that a claim is about."""
    return float(PAPER[claim].replace(",", ""))


def bits(evidence: list[Evidence]) -> str:
    """Tables 1 and 2: bits per dimension, of the longest training there is."""
    header = ["attention", "MNIST: the paper", "here", "in equal time", "updates"]
    header += ["CIFAR-10: the paper", "here", "updates"]
    hour, short, cifar10 = (
        figures_of(evidence, name) for name in ("mnist", "bits-mnist", "bits-cifar10")
    )
    rows = []
    for name, words in ATTENTIONS.items():
        mnist = hour if f"{name}/bits" in hour else short
        row = [words, PAPER[f"table1/{name}/bits-per-dim"]]
        row += [figure(mnist.get(f"{name}/bits")), figure(mnist.get(f"{name}/bits-equal-time"))]
        row += [count(mnist.get(f"{name}/updates")), PAPER[f"table2/{name}/bits-per-dim"]]
        row += [figure(cifar10.get(f"{name}/bits")), count(cifar10.get(f"{name}/updates"))]
        rows.append(row)
    return markdown_table(header, rows)


def count(value: float | None) -> str:
    """A whole number; "-" for None."""
    return "-" if value is None else f"{value:,.0f}"


def speech(evidence: list[Evidence]) -> str:
    """Table 3: errors, and the time of an epoch over that of linear attention."""
    header = ["model", "% phoneme errors: the paper, WSJ", "here, AN4"]
    header += ["time of an epoch / linear: the paper", "here"]
    errors, epochs = (figures_of(evidence, name) for name in ("speech", "speech-epochs"))
    end = "seconds-per-epoch"
    rows = []
    for name, words in {"lstm": "Bi-LSTM", **ATTENTIONS}.items():
        if (claim := f"table3/{name}/per") not in PAPER:
            continue
        factor = paper_number(f"table3/{name}/{end}") / paper_number(f"table3/linear/{end}")
        here = divide(epochs, f"{name}/{end}", f"linear/{end}")
        rows.append(
            [words, PAPER[claim], figure(errors.get(f"{name}/per")), figure(factor), figure(here)]
        )
    return markdown_table(header, rows)


def copy(evidence: list[Evidence]) -> str:
    """Figure 2: the loss on held-out sequences."""
    figures = figures_of(evidence, "copy")
    rows = [[words, figure(figures.get(f"{x}/loss"))] for x, words in ATTENTIONS.items()]
    return markdown_table(["attention", "nats per symbol, held out"], rows)


def lengths(evidence: list[Evidence]) -> str:
    """Figure 1 on a CPU: time and memory of each rival over those of linear attention."""
    figures = figures_of(evidence, "lengths")
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
    header = ["attention", "time / linear's, shortest", "longest"]
    header += ["memory / linear's, shortest", "longest", "longest length"]
    return markdown_table(header, rows)


def gpu(evidence: list[Evidence]) -> str:
    """How many times as fast the CUDA kernels are as others, by length; the latest GPU first."""
    return "\n\n".join(map(gpu_table, GPUS))


def gpu_table(place: str) -> str:
    """The results of one GPU, without columns of what was not measured there."""
    results, where = read_theme("lengths", place)
    series = sorted(by_series(results).values(), key=lambda cases: "backward" in cases[0].shows)
    lengths = sorted({case.at for each in series for case in each if case.at is not None})
    columns = [["positions", *(f"{n:,}" for n in lengths)]]
    for rival, cases in itertools.product(("softmax SDPA", "flash-linear-attention"), series):
        by_length = {case.at: times_as_fast(case, rival, "linear (cuda)") for case in cases}
        passes = "with gradients" if "backward" in cases[0].shows else "forward"
        values = [by_length.get(n, "-") for n in lengths]
        if set(values) != {"-"}:
            columns.append([f"{rival}, {passes}", *values])
    header, *rows = zip(*columns, strict=True)
    return f"{markdown_table(header, rows)}\n{where}"


def speed(evidence: list[Evidence]) -> str:
    """The README's rows: linear attention beside others."""
    rows, places = [], []
    for row in SPEEDS:
        theme = row["case"].partition("/")[0]
        results, where = read_theme(theme, row["place"])
        factor = times_as_fast(results.get(row["case"]), row["rival"], row["ours"])
        page = record_file(RESULTS, theme, row["place"]).with_suffix(".md").relative_to(ROOT)
        rows.append(f"| {row['words']} | {factor} | [{theme}]({page.as_posix()}) |")
        places.append(where)
    table = "\n".join(["| beside | times as fast | all results |", "|---|---:|---|", *rows])
    return f"{table}\n\n{' '.join(dict.fromkeys(places))}"


def published(folder: str) -> Callable[[list[Evidence]], str]:
    """A block that is the table which a comparison of an application has published."""
    return lambda evidence: (RESULTS / folder / "table.md").read_text("utf-8")


def times_as_fast(case: CaseResult | None, rival: str, ours: str) -> str:
    """The median ratio of a rival's time to ours in a round, or that of their medians.

    The latter if the case does not compare the two; "-" where they were not measured.
    """
    if case is None:
        return "-"
    if ratio := case.ratio(rival, ours):
        return figure(ratio.median)
    theirs, own = (case.method(name).seconds for name in (rival, ours))
    return figure(theirs / own) if theirs and own else "-"


def read_theme(theme: str, place: str) -> tuple[dict[str, CaseResult], str]:
    """The latest results of a theme, and a sentence on when and where they were measured."""
    records = read_records(record_file(RESULTS, theme, place), Results)
    newest = max(records, key=lambda record: record.date)
    hardware = literal(re.split(r" \(|,", newest.machine.hardware)[0])
    threads = f", {newest.machine.threads} threads" * (place == "cpu")
    return latest_results(records), f"Measured on {newest.date}: {hardware}{threads}."


def figures_of(evidence: list[Evidence], experiment: str) -> Mapping[str, float]:
    """The figures of an experiment; none where it was not run."""
    return next((each.figures for each in evidence if each.experiment == experiment), {})


BLOCKS: dict[str, Callable[[list[Evidence]], str]] = {
    **{x.__name__: x for x in (bits, copy, gpu, lengths, speech, speed, speedups, verdicts)},
    "demo": published("demo"),
    "compared-on-copies": published("copy_task"),
    "compared-on-digits": published("attentions/digits"),
    "compared-on-mnist": published("attentions/mnist"),
    "compared-on-text": published("text_generation"),
    "converted-characters": published("conversion/characters"),
    "converted-sentences": published("conversion/sentences"),
}
