"""The report's abstract: five sentences, whose words are a person's and whose numbers are records'.

tests/replication/test_blocks.py compares the words with the records.
"""

from __future__ import annotations

from linattn_lab.seeds import describe_difference, read_figures
from linattn_lab.tables import figure
from replication.claims import divide
from replication.paper_tables import (
    CACHE,
    RECOGNIZERS,
    SOFTMAX,
    gain,
    generation,
    long_trainings,
    paper_factor,
    paragraph,
)
from replication.records import Evidence, figures_of, on_cpu

FORMS = ("associativity", "causal", "gradients", "rnn")
SPEECH = ("lstm", "linear-conv")
WORDS = """
Every form of linear attention in the paper equals its quadratic definition here (the largest
difference is {difference}), and its time and memory grow linearly with the length; at 65,536
positions, PyTorch's softmax attention takes {longer} times as long on two CPU cores.
With the paper's CIFAR-10 model on a GPU, it generates many images {reruns} times as fast as
softmax attention without a cache (the paper: {paper_reruns}), and {cache} times as fast as softmax
attention with a cache (the paper: {paper_cache}); a single image {one} times as fast as with a
cache, or {compiled} times with compiled steps.
What trained models can do was tested with smaller models and shorter trainings: after an hour on
MNIST, linear attention has {linear} and softmax attention {softmax} bits per dimension
({mnist_noise}).
The strongest contradiction is in speech: on AN4, after 8 minutes of training, the Bi-LSTM makes
{lstm} % phoneme errors and the best transformer {best} % ({short_noise}), while in the paper, on
WSJ, the Bi-LSTM makes the most errors.
Linear attention comes close to the Bi-LSTM only with a convolution before each block and 40
minutes of training: {convolved} % and {lstm_longer} % (means of {seeds} seeds, {noise}).
"""


def abstract(evidence: list[Evidence]) -> str:
    """The five sentences."""
    forms, mnist, short = (figures_of(evidence, x) for x in ("equations", "mnist", "speech"))
    images, times = generation(evidence, "cifar10", "GPU"), figures_of(on_cpu(evidence), "lengths")
    longest = ("softmax SDPA/65536/time", "linear/65536/time")
    rows = {name: row for name, row in long_trainings().items() if name in SPEECH}
    long = read_figures(rows, "phoneme_error_rate", "per", scale=100)
    others = [x for name in RECOGNIZERS if name != "lstm" and (x := f"{name}/per") in short]
    best = min(others, key=lambda name: short[name], default="")
    numbers: dict[str, float | None] = {
        "difference": max((forms[x] for x in FORMS if x in forms), default=None),
        "longer": divide(times, *longest),
        "reruns": gain(images, "linear", SOFTMAX, many=True),
        "paper_reruns": paper_factor("cifar10", SOFTMAX, "GPU", many=True),
        "cache": gain(images, "linear", CACHE, many=True),
        "paper_cache": paper_factor("cifar10", CACHE, "GPU", many=True),
        "one": gain(images, "linear", CACHE, many=False),
        "compiled": gain(images, "linear-compiled", CACHE, many=False),
        "linear": mnist.get("linear/bits-equal-time"),
        "softmax": mnist.get("softmax/bits-equal-time"),
        "lstm": short.get("lstm/per"),
        "best": short.get(best),
        "convolved": long["linear-conv/per"],
        "lstm_longer": long["lstm/per"],
    }
    shown = {name: figure(value) for name, value in numbers.items()}
    in_time = (f"{name}/bits-equal-time" for name in ("linear", "softmax"))
    words = WORDS.format(
        **shown,
        seeds=min(row["seeds"] for row in rows.values()),
        mnist_noise=describe_difference(mnist, *in_time),
        short_noise=describe_difference(short, "lstm/per", best),
        noise=describe_difference(long, "lstm/per", "linear-conv/per"),
    )
    return paragraph(words)
