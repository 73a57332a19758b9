"""What an experiment is: a command for each preset, and what it leaves to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from replication.claims.claim import Figures
from replication.experiments.cost import Cost

PresetName = Literal["smoke", "laptop", "paper"]
PRESETS: tuple[PresetName, ...] = ("smoke", "laptop", "paper")
Read = Callable[[Path], Figures]
# What every experiment runs through; a file of them that changes makes its measurements stale.
PACKAGES = (
    "packages/linattn-core/src", "packages/linattn-core/native",
    "packages/linattn-cpu/src", "packages/linattn-cpu/native",
    "packages/linattn-cpu/CMakeLists.txt",
    "packages/linattn-cuda/src", "packages/linattn-cuda/native",
    "packages/linattn-cuda/CMakeLists.txt", "kernels-cuda/include", "kernels-cuda/src",
    "packages/linattn-models/src",
)  # fmt: skip


@dataclass(frozen=True)
class Experiment:
    """A way to measure some claims.

    Args:
        name: that claims refer to.
        shows: what it does, in a phrase.
        commands: what follows `python`, for each preset; "{out}" is the folder of the run, "{data}"
            the folder of data sets.
        read: the figures that a run's folder holds; empty where there is none.
        published: the folder under docs/results that may hold a run of the preset laptop.
        record: the files there that name environments; empty for a document of benchmarks.
        sources: what of this repository the figures depend on.
        cost: what the preset laptop or paper should cost.
        needs: what a machine must have, for each preset: "cuda", or a folder of data.
        missing: how to get what is needed.
        on_cpu: presets that measure the CPU, on machines with a GPU too.
    """

    name: str
    shows: str
    commands: Mapping[PresetName, str]
    read: Read
    sources: tuple[str, ...]
    cost: Callable[[PresetName], Cost]
    published: Path | None = None
    record: str = ""
    needs: Mapping[PresetName, str] = field(default_factory=dict)
    missing: str = ""
    on_cpu: tuple[PresetName, ...] = ()

    def command(self, preset: PresetName) -> str:
        """What a reader types."""
        hidden = "CUDA_VISIBLE_DEVICES= " * (preset in self.on_cpu)
        return f"{hidden}python {self.commands[preset]}"
