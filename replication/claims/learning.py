"""Figures 1, 2 and 5, and what was learned in tables 1 to 3."""

from __future__ import annotations

from replication.claims.claim import Claim, Rule, at_least, ratio

GTX, P40 = "GTX 1080 Ti, 11 GB", "one GPU (P40, 24 GB, for CIFAR-10)"
ATTENTIONS = ("softmax", "lsh-1", "lsh-4", "linear")
LSH = ("lsh-1", "lsh-4", "lsh-8")  # of figure 1
BITS = {
    "mnist": dict(zip(ATTENTIONS, (0.621, 0.745, 0.676, 0.644), strict=True)),
    "cifar10": dict(zip(ATTENTIONS, (3.47, 3.39, 3.51, 3.40), strict=True)),
}
# Table 3: phoneme error rate of the validation set in percent, seconds an epoch.
SPEECH = {
    "lstm": (10.94, 1_047),
    "softmax": (5.12, 2_711),
    "lsh-4": (9.33, 2_250),
    "linear": (8.08, 824),
}
PAPER_ONLY = ("paper",)


def other(method: str) -> str:
    """What a method is compared with: linear attention, and linear attention with softmax."""
    return "softmax" if method == "linear" else "linear"


def _figure1(rival: str, what: str) -> Claim:
    return Claim(
        f"figure1/{rival}/{what}",
        "figure 1, section 4.1.2",
        f"Linear attention needs less {what} than {rival} at every length.",
        "lengths",
        Rule(f"{rival}/least-{what}-over-linear", low=1.0),
        unit=f"least ratio of {what} over N",
        paper="more than 1",
        hardware=GTX,
        gpu=True,
    )


def _bits(shape: str, method: str, table: int) -> Claim:
    paper, rival = BITS[shape], other(method)
    return Claim(
        f"table{table}/{method}/bits-per-dim",
        f"table {table}" + (", figure 5a" if shape == "mnist" else ", figure 5b"),
        f"{method}: {paper[method]} bits/dim ({rival}: {paper[rival]}).",
        "mnist" if shape == "mnist" and method in ("linear", "softmax") else f"bits-{shape}",
        ratio(f"{method}/bits", f"{rival}/bits", paper[method], paper[rival], 1.02, 1.005),
        unit="bits/dim",
        paper=f"{paper[method]}",
        hardware=P40,
        same_scale=PAPER_ONLY,
    )


def _speech(method: str, column: int) -> Claim:
    what, unit = (("per", "% phoneme errors"), ("seconds-an-epoch", "s an epoch"))[column]
    rival, margins = other(method), ((1.1, 1.02), (1.25, 1.05))[column]
    paper, over = SPEECH[method][column], SPEECH[rival][column]
    return Claim(
        f"table3/{method}/{what}",
        "table 3" + (", figure 5c" if not column else ""),
        f"{method}: {paper:,} {unit} ({rival}: {over:,}).",
        ("speech", "speech-epochs")[column],
        ratio(f"{method}/{what}", f"{rival}/{what}", paper, over, *margins),
        unit=unit,
        paper=f"{paper:,}",
        hardware="GPU, WSJ",
        same_scale=PAPER_ONLY if not column else ("laptop", "paper"),
        gpu=bool(column),
    )


COPY = "figure 2, section 4.1.1"
CLAIMS = (
    *(_figure1(rival, what) for what in ("time", "memory") for rival in ("softmax, N x N", *LSH)),
    *(
        Claim(
            f"figure1/{rival}/linear-growth",
            "figure 1, section 4.1.2",
            f"{rival} grows linearly in practice, although it is O(N log N).",
            "lengths",
            Rule(f"{rival}/exponent", 0.8, 1.2),
            unit="exponent of N",
            paper="about 1",
            hardware=GTX,
            gpu=True,
        )
        for rival in LSH
    ),
    Claim(
        "figure2/softmax",
        COPY,
        "Linear attention reaches the loss of softmax attention.",
        "copy",
        Rule("linear/loss-above-softmax", high=0.01),
        unit="nats a symbol above softmax",
        paper="about 0",
        same_scale=PAPER_ONLY,
    ),
    *(
        Claim(
            f"figure2/{rival}",
            COPY,
            f"Linear attention reaches a lower loss than {rival}, whose hashing adds noise.",
            "copy",
            Rule(f"{rival}/loss-over-linear", low=1.05),
            unit="times linear attention's loss",
            paper="more than 1",
            same_scale=PAPER_ONLY,
        )
        for rival in ("lsh-1", "lsh-4")
    ),
    *(_bits("mnist", method, 1) for method in ATTENTIONS),
    *(_bits("cifar10", method, 2) for method in ATTENTIONS),
    *(_speech(method, column) for method in SPEECH for column in (0, 1)),
    Claim(
        "section4.3/three-times",
        "section 4.3, supplement B",
        "An epoch of linear attention takes less than a third of softmax attention's.",
        "speech-epochs",
        at_least("softmax/seconds-an-epoch", "linear/seconds-an-epoch", 3.0),
        unit="s an epoch of softmax",
        paper="more than 3",
        hardware="GPU, WSJ",
        gpu=True,
    ),
)
