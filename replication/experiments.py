"""The experiments by name: the tables of experiments.toml, which says what their fields are."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Literal, get_args

import torch
from pydantic import BaseModel, ConfigDict

from linattn_lab.machine import Device, default_device

ROOT = Path(__file__).parent.parent
Preset = Literal["smoke", "laptop", "paper"]
PRESETS: tuple[Preset, ...] = get_args(Preset)


class Experiment(BaseModel):
    """A way to measure some claims."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    shows: str
    command: str = ""
    measures: str = ""
    flags: dict[Preset, str]
    draw: dict[Preset, str] = {}
    attentions: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    on_cpu: tuple[Preset, ...] = ()
    needs: dict[Preset, str] = {}
    missing: str = ""
    seconds: dict[Preset, float]
    by_name: bool = False

    def commands(self, preset: Preset) -> list[str]:
        """What follows `python`: "{out}" is the run's folder, "{data}" that of data sets."""
        cases = f"-m benchmarks --threads {torch.get_num_threads()} --only {self.measures}"
        first = f"{self.command or cases} {self.flags[preset]} --out {{out}}"
        draw = self.draw.get(preset)
        drawn = [draw.replace("{attention}", name) for name in self.attentions] if draw else []
        return [first, *drawn]

    @property
    def is_benchmark(self) -> bool:
        """Whether it is published with the results of benchmarks, and not beside another run."""
        return bool(self.measures) and not self.beside

    def device(self, preset: Preset) -> Device:
        """Where it is measured on this machine."""
        return "cpu" if preset in self.on_cpu else default_device()

    def lacks(self, preset: Preset) -> str:
        """Why it cannot run here, and what to do; empty where it can."""
        if preset not in self.flags:
            return f"has no preset {preset}"
        need = self.needs.get(preset)
        if need is None:
            return ""
        there = torch.cuda.is_available() if need == "cuda" else (data_folder() / need).is_dir()
        what = "an NVIDIA GPU" if need == "cuda" else f"the data set {need}"
        return "" if there else f"needs {what}: {self.missing}"


def data_folder() -> Path:
    """Where data sets are: LINATTN_DATA, or shared/data beside the checkout."""
    return Path(os.environ.get("LINATTN_DATA", ROOT.parent / "shared" / "data"))


def read_experiments(file: Path) -> dict[str, Experiment]:
    """The experiments of a TOML file, in its order."""
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    return {name: Experiment(name=name, **table) for name, table in tables.items()}


EXPERIMENTS = read_experiments(Path(__file__).with_suffix(".toml"))
