"""What the report's sentences say of the measurements: short, and computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path

from benchmarks.report import document, series
from linattn_lab.tables import figure
from replication.claims import BY_NAME, MARGINS, Figures
from replication.collect import RESULTS, Best, Stored, figures_of, with_runs
from replication.cost import MODELS, TRAINING
from replication.experiments import EXPERIMENTS, PresetName
from replication.read import SUMMARY
from replication.report import curve
from replication.report.speedups import (
    COMPILED,
    LENGTHS,
    ON,
    OPERATOR,
    PLAIN,
    SHAPES,
    SPEEDS,
    cases,
    gains,
    gains_in,
    paper_gain,
    paper_speed,
    times,
)
from replication.validation import loaded, number

DAY = 86_400.0  # seconds
PAPER_IMAGES = EXPERIMENTS["mnist"].trains["paper"][1]  # 250 epochs
SPEECH = RESULTS / "speech"
EQUALITIES = ("associativity", "causal", "gradients", "rnn")
RECOGNIZERS = ("softmax", "linear", "lsh-4", "lstm")
PASSES = ("lengths/forward/", "lengths/forward-and-backward/")
FUSED = "softmax SDPA"


@dataclass(frozen=True)
class Phrases:
    """Phrases for the template; a dash stands for what was not measured.

    Args:
        best: what verdicts rest on.
        everything: all that are kept.
    """

    best: Best
    everything: Sequence[Stored]

    @cached_property
    def with_runs(self) -> Best:
        """Whose trained runs are drawn."""
        return with_runs(self.everything)

    def figures(self, name: str) -> Figures:
        """What an experiment measured."""
        return figures_of(self.best, name)

    def machine(self, name: str) -> str:
        """On what an experiment was measured."""
        stored = self.best.get(name)
        return "no machine yet" if stored is None else stored.measurement.machine.hardware

    def host(self, name: str) -> str:
        """The CPU beside the GPU on which an experiment was measured."""
        threads = self.best[name].measurement.machine.threads
        return f"{self.machine(name).partition('; ')[2] or self.machine(name)}, {threads} threads"

    def gain(self, shape: str, rival: str, which: str, device: str = "cpu") -> str:
        """The speed-up by linattn's operator and, in parentheses, in plain PyTorch."""
        gained = gains(self.best, shape, rival, which, device)
        plain = gained[PLAIN]
        return times(gained[OPERATOR]) + ("" if plain is None else f" ({times(plain)})")

    def both(self, *case: str) -> str:
        """The speed-up by linattn's operator and, in parentheses, compiled."""
        gained = gains(self.best, *case)
        return f"{times(gained[OPERATOR])} (compiled {times(gained[COMPILED])})"

    def paper(self, *case: str) -> str:
        """The paper's speed-up."""
        return times(paper_gain(*case))

    def most(self, rival: str) -> str:
        """The largest speed-up by linattn's operator of all that verdicts and tables show."""
        measured = [
            gains(self.best, shape, rival, which, device)[OPERATOR]
            for shape, which, device in product(SHAPES, SPEEDS, ON)
        ]
        grid = [case.eager for case in cases(self.best, rival)]
        return times(max((x for x in [*measured, *grid] if x is not None), default=None))

    def one_image(self, rival: str, way: str) -> str:
        """What one image gains on each device by one of WAYS, MNIST's before CIFAR-10's."""
        words = []
        for device in ON:
            gained = [gains(self.best, shape, rival, "one", device)[way] for shape in SHAPES]
            words.append(f"{' and '.join(map(times, gained))} on the {device.upper()}")
        return ", ".join(words)

    def stale_speeds(self) -> str:
        """Which measurements of images are stale, and by which commit; empty for none."""
        names = {
            on.format(shape): f"{images} on the {device.upper()}"
            for device, on in ON.items()
            for shape, images in SHAPES.items()
        }
        stale = [
            f"{words} (commit `{self.best[name].measurement.machine.commit}`)"
            for name, words in names.items()
            if name in self.best and self.best[name].stale
        ]
        return f"Stale in this table: {', '.join(stale)}." if stale else ""

    def largest_batch(self, shape: str) -> str:
        """The largest batch that the preset laptop tries on a CPU."""
        flags = EXPERIMENTS[ON["cpu"].format(shape)].laptop.split()
        return flags[flags.index("--largest-batch") + 1]

    def between_machines(self, shape: str, rival: str) -> str:
        """The speed-ups at the best batches by all kept measurements on CPUs."""
        kept = [
            gains_in(x.measurement.figures, rival, "best")[OPERATOR]
            for x in self.everything
            if x.measurement.experiment == ON["cpu"].format(shape)
            and x.measurement.preset != "smoke"
        ]
        known = [x for x in kept if x is not None]
        return f"{times(min(known))} to {times(max(known))}" if known else "-"

    def over_counted(self, rival: str) -> str:
        """How measured factors of the grid compare with those by operations and by bytes."""
        grid = [case for case in cases(self.best, rival) if case.traffic]
        if not grid:
            return "-"
        by_work = [case.eager / case.operations for case in grid]
        by_bytes = [case.eager / case.traffic for case in grid if case.traffic]
        first, second = (f"{figure(min(x))} to {figure(max(x))}" for x in (by_work, by_bytes))
        return f"{first} times those by operations, and {second} times those by bytes"

    def step(self, shape: str, way: str, device: str = "gpu") -> str:
        """The mean time of a step for one image."""
        seconds = self.figures(ON[device].format(shape)).get(f"{way}/1/seconds")
        return "-" if seconds is None else f"{figure(1e3 * seconds / LENGTHS[shape])} ms"

    def over_paper(self, shape: str, way: str) -> str:
        """How many times as fast as the paper's best batch ours is on the GPU."""
        speed = self.figures(ON["gpu"].format(shape)).get(f"{way}/best/images-per-second")
        return "-" if speed is None else figure(speed / paper_speed(shape, way))

    def trained(self, name: str, preset: PresetName | None = None) -> str:
        """The model and the samples of a preset; what was measured, if none is given."""
        stored = self.best.get(name)
        known = preset or ("laptop" if stored is None else stored.measurement.preset)
        model, samples, batch = EXPERIMENTS[name].trains[known]
        updates = {v for n, v in self.figures(name).items() if n.endswith("/updates")}
        if preset is None and len(updates) == 1:
            samples = int(updates.pop()) * batch
        shape = MODELS[model]
        return (
            f"{shape.positions:,} positions, {shape.parameters / 1e6:.2f} million parameters in "
            f"the layers, {samples:,} samples"
        )

    def noise(self, kind: str) -> str:
        """The difference that a verdict in direction needs."""
        return f"{100 * (MARGINS[kind][1] - 1):.2g} %"

    def updates(self, name: str) -> str:
        """How many updates each attention of a comparison had."""
        end = "/updates"
        known = {n.removesuffix(end): v for n, v in self.figures(name).items() if n.endswith(end)}
        if len(set(known.values())) == 1:
            return f"{next(iter(known.values())):,.0f} each"
        return ", ".join(f"{x} {count:,.0f}" for x, count in known.items()) or "-"

    def largest_difference(self) -> str:
        """Between the forms of an equation."""
        known = self.figures("equations")
        values = [known[name] for name in EQUALITIES if name in known]
        return f"{max(values):.1e}" if values else "-"

    def losses(self) -> str:
        """Of the copy task: nats per symbol of held-out sequences."""
        end = "/loss"
        known = {n.removesuffix(end): v for n, v in self.figures("copy").items() if n.endswith(end)}
        return ", ".join(f"{name} {figure(loss)}" for name, loss in known.items()) or "-"

    def loss_over_softmax(self) -> str:
        """Of the copy task: linear attention's loss over softmax's."""
        share = self.figures("copy").get("softmax/loss-over-linear")
        return figure(1 / share) if share else "-"

    def bits(self) -> str:
        """Of the longer training on MNIST: bits per dimension."""
        equal = _ranked(self.figures("mnist"), "/bits", "{:.3f}")
        timed = _ranked(self.figures("mnist"), "/bits-equal-time", "{:.3f}")
        return f"{equal} after equal updates" + f", {timed} in equal time" * (timed != "-")

    def errors(self) -> str:
        """Phoneme error rates from the fewest."""
        return _ranked(self.figures("speech"), "/per", "{:.1f} %")

    def paper_errors(self) -> str:
        """The paper's phoneme error rates from the fewest."""
        rates = {f"{x}/per": BY_NAME[f"table3/{x}/per"].rule.number or 0.0 for x in RECOGNIZERS}
        return _ranked(rates, "/per", "{:.1f} %")

    def seeds(self) -> str:
        """Error rates of the models of speech that were trained with two seeds."""
        second = {x.name.removesuffix("-seed1"): x for x in sorted(SPEECH.glob("*-seed1"))}
        words = (
            f"{name} {_dev_errors(SPEECH / name):.1f} and {_dev_errors(other):.1f} %"
            for name, other in second.items()
        )
        return ", ".join(words) or "no model"

    def spread_of_bits(self) -> str:
        """The most by which kept runs of one training differ in bits per dimension."""
        values: dict[tuple[object, ...], list[float]] = {}
        for made in (x.measurement for x in self.everything if x.measurement.preset != "smoke"):
            for name, value in made.figures.items():
                if name.endswith("/bits"):
                    updates = made.figures.get(f"{name.removesuffix('bits')}updates")
                    training = (made.experiment, made.preset, name, updates)
                    values.setdefault(training, []).append(value)
        spreads = [max(x) / min(x) - 1 for x in values.values() if len(x) > 1]
        return f"{100 * max(spreads):.1f} %" if spreads else "-"

    def mnist(self) -> list[curve.Run]:
        """The longer trainings on MNIST that are drawn."""
        stored = self.with_runs.get("mnist")
        return list(curve.runs(stored.trainings if stored else {}))

    def color_images(self) -> str:
        """The images of CIFAR-10 that models were trained and tested on."""
        stored = self.with_runs.get("bits-cifar10")
        for folder in stored.trainings.values() if stored else ():
            with loaded(folder / SUMMARY) as summary, loaded(folder / "config.json") as config:
                tested = summary["metrics"]["test_images"]
                return (
                    f"{config['examples']:,} of the 50,000 training images and {tested} of the "
                    "test images, for bits per dimension"
                )
        return "its images where [bits-cifar10](#bits-cifar10) runs"

    def origin(self, name: str) -> str:
        """Whose trained runs are drawn, where the measurement behind the verdicts kept none."""
        verdicts, stored = self.best.get(name), self.with_runs.get(name)
        if stored is None or stored is verdicts:
            return ""
        made = stored.measurement
        where = made.source or made.machine.hardware
        return f" The run behind the verdicts kept no curves; these are from {where}."

    def gpu_day(self) -> str:
        """How long a GPU computes 250 epochs at its full rate, and at which share in a day."""
        runs = document.read(RESULTS, "lengths", "cuda").runs
        if not runs:
            return "No rate of a GPU is kept."
        latest = runs[0]
        small = MODELS[EXPERIMENTS["mnist"].trains["laptop"][0]]
        work = TRAINING * PAPER_IMAGES * small.forward("linear")
        seconds = work / latest.limits.gemm_float32
        share = f"{seconds / DAY:.1%}".replace("%", " %")
        return (
            f"An {_gpu(latest)} multiplies float32 matrices at "
            f"{latest.limits.gemm_float32 / 1e12:,.0f} TFLOP/s. At this rate, the operations of "
            f"250 epochs of this model take {seconds / 60:,.0f} minutes; at {share} of it, a day."
        )

    def lengths_on_gpu(self) -> str:
        """What was measured of figure 1 on a GPU: LSH, and PyTorch's fused softmax."""
        measured = document.read(RESULTS, "lengths", "cuda")
        if not measured.runs:
            return "No measurement of a GPU is kept."
        passes = [[x for x in measured.results if x.case.name.startswith(y)] for y in PASSES]
        quantities = (("lsh-1", series.held), (FUSED, series.held), (FUSED, series.seconds))
        lsh, memory, time = (
            " and ".join(f"{_over_linear(members, rival, quantity)} times" for members in passes)
            for rival, quantity in quantities
        )
        lengths = [x.case.at for x in measured.results if x.case.at is not None]
        commits = ", ".join(dict.fromkeys(f"`{run.machine.commit}`" for run in measured.runs))
        return (
            f"On an {_gpu(measured.runs[0])} (bfloat16, commits {commits}), from {min(lengths):,} "
            f"to {max(lengths):,} positions, forward alone and with the backward, lsh-1 needs "
            f"{lsh} the memory of linear attention. PyTorch's fused softmax needs {memory} its "
            f"memory, and {time} its time."
        )


def _gpu(run: document.Run) -> str:
    """The GPU's name."""
    return run.machine.hardware.partition(",")[0]


def _over_linear(members: series.Members, rival: str, quantity: series.Read) -> str:
    """A rival's time or memory over linear attention's on a GPU: at the least and most length."""
    ours = dict(series.points(members, "linear (cuda)", quantity))
    theirs = series.points(members, rival, quantity)
    ratios = [value / ours[length] for length, value in theirs if length in ours]
    return f"{figure(ratios[0])} to {figure(ratios[-1])}" if ratios else "-"


def _ranked(figures: Figures, end: str, form: str) -> str:
    known: Mapping[str, float] = {
        name.removesuffix(end): value for name, value in figures.items() if name.endswith(end)
    }
    ranked = sorted(known.items(), key=lambda item: item[1])
    return ", ".join(f"{name} {form.format(value)}" for name, value in ranked) or "-"


def _dev_errors(run: Path) -> float:
    """In percent; greedy, by the last weights."""
    with loaded(run / SUMMARY) as summary:
        return 100 * number(summary, "metrics", "dev_phoneme_error_rate")
