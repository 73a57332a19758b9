"""The experiments by name: the tables of experiments.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from replication.claims import Figures
from replication.cost import COSTS, MODELS, Cost
from replication.read import READERS
from replication.sources import ROOT, digest, imported

PresetName = Literal["smoke", "laptop", "paper"]
PRESETS: tuple[PresetName, ...] = get_args(PresetName)
DRAW = "apps/pixel_generation/generate.py --run {{out}}/{}/{} {}"
# The kernels, which no module imports, as patterns of paths, by what a command calls and where.
# Generation from no prompt calls nothing but steps. "attention" leaves out the compiled decoder and
# the list of builds: the machine of a record names the one that ran.
_CPU = "packages/linattn-cpu"
_CPU_ATTENTION = (
    "calls.hpp", "cores.*", "memory.*", "team.*", "instruction_sets.hpp",
    "register_attention.cpp", "kernels/*.hpp", "kernels/entry.cpp",
)  # fmt: skip
_BINDINGS = (
    "packages/linattn-core/native", "packages/linattn-cuda/native",
    "packages/linattn-cuda/CMakeLists.txt", "packages/linattn-cuda/architectures.cmake",
    "kernels-cuda/CMakeLists.txt", "kernels-cuda/driver", "kernels-cuda/include/linattn/host",
    "kernels-cuda/include/linattn/calls.h",
)  # fmt: skip
_LAUNCHING = "packages/linattn-cuda/src/linattn_cuda"
_DEVICE = "kernels-cuda/include/linattn/device"
KERNELS = {
    ("attention", "cpu"): (
        "packages/linattn-core/native", f"{_CPU}/src/linattn_cpu/backend.py",
        *(f"{_CPU}/native/{name}" for name in _CPU_ATTENTION),
    ),
    ("steps", "cpu"): (
        "packages/linattn-core/native", f"{_CPU}/src", f"{_CPU}/native", f"{_CPU}/CMakeLists.txt",
    ),
    ("attention", "cuda"): (*_BINDINGS, _LAUNCHING, _DEVICE, "kernels-cuda/src"),
    ("steps", "cuda"): (
        *_BINDINGS,
        *(f"{_LAUNCHING}/{x}.py"
          for x in ("backend", "compiling", "device", "kernel_backend", "nvrtc")),
        *(f"{_DEVICE}/{x}.cuh" for x in ("step", "feature_map", "numbers", "platform")),
        "kernels-cuda/src/step.cu",
    ),
}  # fmt: skip
_MODELS = "packages/linattn-models/src/linattn_models"
# What commands import without a use for it: training and whole sequences decode nothing that is
# measured, and generation trains nothing.
_UNUSED = {
    "attention": (
        "packages/linattn-core/src/linattn_core/decoder_spec.py", f"{_MODELS}/decoding",
        "packages/linattn-lab/src/linattn_lab/throughput.py",
    ),
    "steps": (f"{_MODELS}/training",),
}  # fmt: skip


@dataclass(frozen=True)
class Experiment:
    """A way to measure some claims; experiments.toml says what its fields are."""

    name: str
    shows: str
    command: str
    read: str
    kernels: Literal["attention", "steps"]
    untimed: tuple[str, ...] = ()
    cpu_too: bool = False
    smoke: str = ""
    laptop: str = ""
    paper: str = ""
    out: str = "{out}"
    cost: str = ""
    attentions: tuple[str, ...] = ()
    trains: Mapping[str, tuple[str, int, int]] = field(default_factory=dict)
    pictures: Mapping[str, str] = field(default_factory=dict)
    pictured: Mapping[str, str] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    same: Mapping[str, str] = field(default_factory=dict)
    on_cpu: tuple[PresetName, ...] = ()
    needs: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""
    published: str = ""
    record: str = ""
    names: str = ""

    def commands(self, preset: PresetName) -> list[str]:
        """What follows `python`: "{out}" is the run's folder, "{data}" that of data sets."""
        flags = {"smoke": self.smoke, "laptop": self.laptop, "paper": self.paper}[preset]
        first = " ".join(filter(None, (self.command, flags, f"--out {self.out}")))
        pictures, place = self.pictures.get(preset), self.pictured.get(preset, "updates")
        drawn = self.attentions if pictures else ()
        return [first, *(DRAW.format(place, name, pictures) for name in drawn)]

    def figures(self, folder: Path, *beside: Path) -> Figures:
        """What a run's folder holds; empty where there is none."""
        return READERS[self.read](folder, *beside)

    def sources(self, device: str, root: Path = ROOT) -> list[Path]:
        """Files and folders of this repository that the figures on "cpu" or "cuda" depend on."""
        first, *more = self.command.split()
        start = more[0] if first == "-m" else root / first
        untimed = [root / place for place in (*_UNUSED[self.kernels], *self.untimed)]
        modules = (
            file
            for file in imported(start, root)
            if not any(file.is_relative_to(place) for place in untimed)
        )
        devices = dict.fromkeys([device, "cpu"] if self.cpu_too else [device])
        places = (place for each in devices for place in KERNELS[self.kernels, each])
        return [*modules, *(file for place in places for file in root.glob(place))]

    def code(self, device: str, preset: PresetName, root: Path = ROOT) -> str:
        """SHA-256 of what the figures depend on: the sources, and the command with its flags."""
        return digest(self.sources(device, root), root, self.commands(preset)[0])

    def expected_cost(self, preset: PresetName) -> Cost:
        """The least that a run should cost."""
        if self.cost:
            return COSTS[self.cost](preset)
        model, samples, batch = self.trains[preset]
        each = (MODELS[model].training(name, samples, batch) for name in self.attentions)
        return sum(each, Cost())


def _registry() -> dict[str, Experiment]:
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {name: Experiment(name, **table) for name, table in tables.items()}


EXPERIMENTS = _registry()
