"""What generating costs: the abstract, tables 1, 2, 4 and 5, sections 4.2 and C.

The tables' numbers were compared with two independent transcriptions of the paper's third version.
"""

from __future__ import annotations

from replication.claims.claim import ABOVE_ZERO, Claim, Every, Rule, at_least, ratio, shown
from replication.claims.learning import P40

TABLE, SHAPES = {"mnist": 1, "cifar10": 2}, ("mnist", "cifar10")
# Images per second at the batch that fills the GPU: tables 1, 2 and 4.
THROUGHPUT = {
    "mnist": {"softmax": 0.45, "stateful-softmax": 7.56, "lsh-1": 0.68, "lsh-4": 0.27,
              "linear": 142.8},
    "cifar10": {"softmax": 0.004, "stateful-softmax": 0.32, "lsh-1": 0.015, "lsh-4": 0.005,
                "linear": 17.85},
}  # fmt: skip
# Seconds for one image alone, on the CPU and on the GPU: table 5.
ALONE = {
    "mnist": {"softmax": (72.6, 10.2), "stateful-softmax": (7.4, 10.4), "lsh-1": (46.0, 19.2),
              "lsh-4": (112.0, 55.8), "linear": (5.5, 7.3)},
    "cifar10": {"softmax": (8651.4, 300.1), "stateful-softmax": (71.9, 70.4),
                "lsh-1": (2318.9, 221.6), "lsh-4": (5263.7, 683.9), "linear": (45.1, 61.3)},
}  # fmt: skip
BEST, ONE = "best/images-per-second", "1/seconds"


def _throughput(shape: str, method: str, table: int) -> Claim:
    paper = THROUGHPUT[shape]
    rival = "linear" if method == "softmax" else "softmax"
    gain = paper[method] / paper["softmax"]
    return Claim(
        f"table{table}/{shape}/{method}/images-per-second" if table == 4
        else f"table{table}/{method}/images-per-second",
        f"table {table}, {shape}",
        f"{method}: {paper[method]:g} images/s ({rival}: {paper[rival]:g}).",
        f"generation-{shape}",
        ratio(f"{method}/{BEST}", f"{rival}/{BEST}", paper[method], paper[rival]),
        unit="images/s",
        paper=f"{paper[method]:g} ({shown(gain)}x)",
        hardware=P40,
        gpu=True,
        on_gpu=f"generation-{shape}-cuda",
    )  # fmt: skip


def _alone(shape: str, method: str, device: int) -> Claim:
    paper, where = ALONE[shape], ("CPU", "GPU")[device]
    rival = "softmax" if method == "linear" else "linear"
    ours, over = paper[method][device], paper[rival][device]
    return Claim(
        f"table5/{shape}/{method}/{where.lower()}",
        f"table 5, {shape}, {where}",
        f"{method}: {ours:g} s for one image ({rival}: {over:g}).",
        f"generation-{shape}" + "-cuda" * device,
        ratio(f"{method}/{ONE}", f"{rival}/{ONE}", ours, over),
        unit="s",
        paper=f"{ours:,g}",
        hardware=("a CPU, not named", P40)[device],
        gpu=bool(device),
    )


def _gain(name: str, where: str, says: str, shape: str, rival: str, least: float) -> Claim:
    return Claim(
        name, where, says, f"generation-{shape}",
        at_least(f"linear/{BEST}", f"{rival}/{BEST}", least),
        unit="images/s", paper=f"{least:,g}x", hardware=P40, gpu=True,
        on_gpu=f"generation-{shape}-cuda",
    )  # fmt: skip


LARGEST = "largest-cpu-over-gpu"
# Name, place, statement, images, rival, factor.
GAINS = (
    ("abstract/4000x", "abstract", "Linear transformers are up to 4,000 times faster on "
     "autoregressive prediction of very long sequences.", "cifar10", "softmax", 4_000),
    ("section4.2/1000x", "section 4.2",
     "Images are generated more than 1,000 times faster than by softmax attention.",
     "cifar10", "softmax", 1_000),
    ("section4.2/300x", "section 4.2.1", "MNIST is generated more than 300 times faster.",
     "mnist", "softmax", 300),
    ("supplementC/50x", "supplement C.1",
     "Linear attention is more than 50 times faster than softmax with a cache on CIFAR-10.",
     "cifar10", "stateful-softmax", 50),
)  # fmt: skip
CLAIMS = (
    *(_gain(*row) for row in GAINS),
    Claim(
        "section4.2/10000-images",
        "section 4.2.1",
        "A single GPU generates 10,000 MNIST images at once.",
        "generation-mnist-cuda",
        Rule("linear/best/batch", low=10_000),
        unit="images at once",
        paper="10,000",
        hardware=P40,
        gpu=True,
    ),
    *(_throughput(s, m, TABLE[s]) for s in SHAPES for m in ("softmax", "lsh-1", "lsh-4", "linear")),
    *(_throughput(shape, method, 4) for shape in SHAPES for method in THROUGHPUT[shape]),
    *(_alone(s, m, device) for s in SHAPES for m in ALONE[s] for device in (0, 1)),
    Claim(
        "supplementC/6.6x",
        "supplement C.2",
        "One CIFAR-10 image is generated almost 6.6 times faster than by softmax attention.",
        "generation-cifar10-cuda",
        ratio("softmax/1/seconds", "linear/1/seconds-cpu", 300.1, 45.1),
        unit="s",
        paper="6.6x",
        hardware=P40,
        gpu=True,
        note="300.1 s / 45.1 s: softmax on the GPU over linear on the CPU; on the GPU alone table "
        "5 gives 4.9x, on the CPU 192x",
    ),
    Claim(
        "supplementC/faster-on-cpu",
        "supplement C.2, table 5",
        "Linear attention is the only method that generates one image faster on the CPU than on "
        "the GPU in every case.",
        "generation-cifar10-cuda",
        Every(
            (
                Rule(f"linear/{LARGEST}", ABOVE_ZERO, 1.0),
                *(Rule(f"{x}/{LARGEST}", low=1.0) for x in ALONE["mnist"] if x != "linear"),
            ),
            "linear below 1, each other above 1",
        ),
        unit="seconds on the CPU over those on the GPU, the largest of linear",
        paper="0.75",
        hardware=P40,
        gpu=True,
        note="of MNIST and CIFAR-10, the larger ratio of each method; stateful softmax is faster "
        "on the CPU on MNIST only",
    ),
)
