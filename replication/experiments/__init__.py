"""The experiments, by name."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from replication.experiments import cost, read
from replication.experiments.cost import CIFAR10, MNIST, SPEECH, Cost, Model
from replication.experiments.experiment import PACKAGES, PRESETS, Experiment, PresetName, Read

RESULTS = Path("docs") / "results"
IMAGES, COPY, SPEECH_APP = "apps/pixel_generation", "apps/copy_task", "apps/ctc_speech"
ATTENTIONS = ("linear", "softmax", "lsh-1", "lsh-4")
SPOKEN_BY = ("linear", "softmax", "lsh-4")
WAYS = ("linear", "stateful-softmax", "softmax", "lsh-1", "lsh-4")
LENGTHS = tuple(2**n for n in range(9, 17))
LARGEST = {"mnist": 512, "cifar10": 64}
# Utterances that a model sees: of an average length in training, and while epochs are timed.
SPOKEN = {"smoke": 80, "laptop": 6_000 * 8, "paper": 100_000 * 32}
TIMED = {"smoke": 8, "laptop": 3 * (4 * 6 + 70), "paper": 5 * (4 * 6 + 70)}
# The model, the images that it sees, and the batch, where linear and softmax are trained longer.
TRAINED = {
    "smoke": (Model(2, 2, 8, 32, 64), 640, 16),
    "laptop": (Model(4, 4, 32, 512, 784), 16_000, 8),
    "paper": (MNIST, 250 * 55_000, 10),
}
IMAGES_MISSING = (
    "give --download to compare.py, or put the published files of {} where LINATTN_DATA points"
)
GPU = "run it on a machine with an NVIDIA GPU and a CUDA build of torch"


def _generation_cost(model: Model, largest: int, positions: int, preset: PresetName) -> Cost:
    """Two images' worth of positions for each method, alone and at the batches of the search."""
    total = Cost()
    for way in WAYS:
        batch = 1 if preset == "smoke" else largest if way == "linear" else max(1, largest // 64)
        total += model.generating(way, 1, positions) + model.generating(way, 2 * batch, positions)
    return total


def _training_cost(
    model: Model, samples: float, batch: int, attentions: tuple[str, ...] = ATTENTIONS
) -> Cost:
    """Each attention's training."""
    return sum((model.training(each, samples, batch) for each in attentions), Cost())


def _commands(
    script: str, smoke: str = "", laptop: str = "", paper: str = "", out: str = "{out}"
) -> dict[PresetName, str]:
    """A script with each preset's flags."""
    each = zip(PRESETS, (smoke, laptop, paper), strict=True)
    return {name: " ".join(filter(None, (script, flags, f"--out {out}"))) for name, flags in each}


def _generation(shape: str, model: Model, positions: int, *, cuda: bool = False) -> Experiment:
    script = f"{IMAGES}/benchmark.py --shape {shape} --out {{out}}"
    largest = LARGEST[shape]
    laptop = script + (f" --positions {positions} --largest-batch {largest}" if not cuda else "")
    slow = " softmax lsh-1 lsh-4" * (not cuda and shape == "mnist")
    quick = f"linear linear-eager stateful-softmax{slow}"
    on_gpu: dict[PresetName, str] = {"laptop": "cuda", "paper": "cuda"}
    name = f"generation-{shape}" + "-cuda" * cuda
    reads = partial(read.beside_cpu, shape=shape) if cuda else read.generation
    return Experiment(
        name,
        f"images of {shape} by every method" + " on a GPU" * cuda,
        {
            "smoke": f"{script} --batch 2 --positions 2 --methods {quick}".replace(
                "--shape mnist", "--shape digits"
            ),
            "laptop": laptop,
            "paper": f"{script} --whole",
        },
        reads,
        (*PACKAGES, IMAGES),
        partial(_generation_cost, model, largest, positions),
        None if cuda else RESULTS / "generation" / shape,
        record="benchmark.json",
        needs=on_gpu if cuda else {},
        missing=GPU if cuda else "",
        on_cpu=("smoke",) if cuda else PRESETS,
    )


def _bits(shape: str, positions: int, updates: int, batch: int, epochs: int, layers: int,
          read_run: Read, published: Path | None) -> Experiment:  # fmt: skip
    small, large = (Model(4, 4, 32, 512, positions), Model(layers, 8, 32, 1_024, positions))

    def costs(preset: PresetName) -> Cost:
        if preset == "paper":
            return _training_cost(large, epochs * {"mnist": 55e3, "cifar10": 45e3}[shape], 10)
        if preset == "smoke":
            return _training_cost(Model(2, 2, 8, 32, 64), 2 * 20 * 16, 16)
        return _training_cost(small, updates * batch, batch)

    data = f"{{data}}/{shape}"
    fewer = " --attentions linear softmax" if shape == "cifar10" else ""
    return Experiment(
        f"bits-{shape}",
        f"every attention trained on {shape}, for equal updates and equal time",
        _commands(
            f"{IMAGES}/compare.py --dataset",
            f"digits --preset smoke --rounds 1{fewer}",
            f"{shape} --data-dir {data} --steps {updates}",
            f"{shape} --data-dir {data} --preset paper",
        ),
        read_run,
        (*PACKAGES, IMAGES),
        costs,
        published,
        record="results.json",
        needs={"laptop": shape, "paper": shape},
        missing=IMAGES_MISSING.format(shape),
    )  # fmt: skip


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "equations",
            "the equalities of sections 3.2 to 3.4 in float64, against the quadratic definition",
            _commands("-m replication.equations"),
            read.flat,
            (*PACKAGES, "replication/equations.py"),
            lambda preset: MNIST.generating("linear", 1),
        ),
        Experiment(
            "lengths",
            "time and memory of attention by length, figure 1",
            _commands(
                "-m benchmarks --only lengths/", "--quick", paper="--device cuda", out="{out}/.."
            ),
            read.lengths,
            (*PACKAGES, "benchmarks"),
            lambda preset: cost.attention_curves((64, 128) if preset == "smoke" else LENGTHS),
            RESULTS / "lengths",
            needs={"paper": "cuda"},
            missing=GPU,
            on_cpu=("smoke", "laptop"),
        ),
        Experiment(
            "decoding",
            "the first and the last step of generation",
            _commands("-m benchmarks --only decoding/steps/", "--quick", out="{out}/.."),
            read.decoding,
            (*PACKAGES, "benchmarks"),
            lambda preset: MNIST.generating("linear", 1, 60) + MNIST.generating("linear", 100, 60),
            RESULTS / "decoding",
            on_cpu=PRESETS,
        ),
        Experiment(
            "copy",
            "every attention learns to copy, figure 2",
            _commands(f"{COPY}/compare.py --resume", *(f"--preset {x}" for x in PRESETS)),
            read.copy_task,
            (*PACKAGES, COPY),
            lambda preset: _training_cost(
                cost.COPY.get(preset, cost.COPY["laptop"]),
                {"smoke": 320, "laptop": 2_300 * 32, "paper": 10_000 * 64}[preset],
                32,
            ),
            RESULTS / "copy_task",
            record="*/summary.json",
        ),
        _generation("mnist", MNIST, 9),
        _generation("cifar10", CIFAR10, 5),
        _generation("mnist", MNIST, 9, cuda=True),
        _generation("cifar10", CIFAR10, 5, cuda=True),
        Experiment(
            "mnist",
            "linear and softmax attention trained longer on MNIST",
            _commands(
                f"{IMAGES}/compare.py --attentions linear softmax",
                "--preset smoke --rounds 1",
                "--dataset mnist --data-dir {data}/mnist --steps 2000",
                "--dataset mnist --data-dir {data}/mnist --preset paper",
            ),
            read.longer,
            (*PACKAGES, IMAGES),
            lambda preset: _training_cost(*TRAINED[preset], ("linear", "softmax")),
            RESULTS / "mnist",
            record="mnist-*/summary.json",
            needs={"laptop": "mnist", "paper": "mnist"},
            missing=IMAGES_MISSING.format("mnist"),
        ),
        _bits("mnist", 784, 120, 8, 250, 8, read.images, RESULTS / "attentions" / "mnist"),
        _bits("cifar10", 3_072, 100, 4, 100, 16, read.images, None),
        Experiment(
            "speech",
            "every model trained on speech for equal time, table 3",
            _commands(
                f"{SPEECH_APP}/compare.py",
                "--preset smoke --rounds 1",
                "--corpus an4 --data-dir {data}/speech/an4",
                "--preset paper --corpus kaldi --data-dir {data}/speech/wsj",
            ),
            read.speech,
            (*PACKAGES, SPEECH_APP),
            lambda preset: _training_cost(cost.SHORT_SPEECH, SPOKEN[preset], 8, SPOKEN_BY),
            RESULTS / "speech",
            record="results.json",
            needs={"laptop": "speech/an4", "paper": "speech/wsj"},
            missing="WSJ needs a license of the LDC; AN4 is free, apps/ctc_speech/README.md says "
            "where it is",
        ),
        Experiment(
            "speech-epochs",
            "seconds an epoch at the paper's shape, on noise as long as WSJ's utterances, table 3",
            _commands(
                f"{SPEECH_APP}/benchmark.py",
                "--preset smoke --rounds 1 --batches 2 --lengths 200 --frames 400",
                paper="--rounds 5",
            ),
            read.speech_epochs,
            (*PACKAGES, SPEECH_APP),
            lambda preset: _training_cost(SPEECH, TIMED[preset], 4, SPOKEN_BY),
            RESULTS / "speech",
            record="benchmark.json",
        ),
        Experiment(
            "speedup",
            "generation by linear attention, softmax with a cache and softmax that reruns, over "
            "length and batch",
            _commands("-m replication.speedup", "--lengths 16 32 --batches 1 2", paper="--whole"),
            read.flat,
            (*PACKAGES, "replication/speedup.py"),
            # In the seconds that a case may take, two cores make some 1e13 operations.
            lambda preset: cost.over_length_and_batch(MNIST, 5, 1e8 if preset == "smoke" else 1e13),
            on_cpu=PRESETS,
        ),
    )
}
