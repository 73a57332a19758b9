"""The report's abstract: five sentences, whose words are a person's and whose numbers are records'.

tests/replication/test_blocks.py compares the words with the records.
"""

from __future__ import annotations

import textwrap
from statistics import mean

from linattn_lab.seeds import describe_difference
from linattn_lab.tables import figure
from replication.claims import divide
from replication.paper_tables import (
    CACHE,
    RECOGNIZERS,
    SOFTMAX,
    gain,
    generation,
    long_errors,
    paper_factor,
)
from replication.records import Evidence, figures_of

FORMS = ("associativity", "causal", "gradients", "rnn")
SPEECH = ("lstm", "linear-conv")
WIDTH = 126
WORDS = """
Every form of linear attention in the paper equals its quadratic definition here (the largest
difference is {difference}), and its time and memory grow linearly with the length; at 65,536
positions, PyTorch's softmax attention takes {longer} times as long on two CPU cores.
With the paper's CIFAR-10 model on a GPU, it generates many images {reruns} times as fast as
softmax attention that runs all earlier tokens again for each new one (the paper: {paper_reruns}),
but only {cache} times as fast as softmax attention with a cache (the paper: {paper_cache}), and a
single image {one} times as fast as that ({compiled} times if its steps are compiled).
What trained models can do was tested with smaller models and shorter trainings: after an hour on
MNIST, linear attention has {linear} and softmax attention {softmax} bits per dimension, with one
seed each, which does not tell them apart.
The strongest contradiction is in speech: on AN4, after 8 minutes of training, the Bi-LSTM makes
{lstm} % phoneme errors and the best transformer {best} %, while in the paper, on WSJ, the Bi-LSTM
makes the most errors.
Linear attention comes close to the Bi-LSTM only with a convolution before each block and 40
minutes of training: {convolved} % beside {lstm_longer} %, means of {seeds} seeds each, {noise}.
"""


def abstract(evidence: list[Evidence]) -> str:
    """The five sentences."""
    forms, mnist, short = (figures_of(evidence, x) for x in ("equations", "mnist", "speech"))
    images, times = generation(evidence, "cifar10", "GPU"), figures_of(evidence, "lengths")
    longest = ("softmax SDPA/65536/time", "linear/65536/time")
    errors = [short.get(f"{name}/per") for name in RECOGNIZERS if name != "lstm"]
    lstm, convolved = (long_errors().get(name, [0.0]) for name in SPEECH)
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
        "best": min((x for x in errors if x is not None), default=None),
        "convolved": mean(convolved),
        "lstm_longer": mean(lstm),
    }
    shown = {name: figure(value) for name, value in numbers.items()}
    seeds = min(len(convolved), len(lstm))
    words = WORDS.format(**shown, seeds=seeds, noise=describe_difference(convolved, lstm))
    return textwrap.fill(" ".join(words.split()), WIDTH, break_on_hyphens=False)
