"""Trainings that torchrun divides among two processes are those of one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.apps.app_scripts import command
from tests.apps.ctc_speech.conftest import smoke_flags, write_data_folder

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
WITHOUT_DRAWS = ["--dropout", "0", "--no-spec-augment"]
MODELS = {"text_generation": ["--attention", "fixed-decay"]}
CASES: dict[str, list[str]] = {
    "copy_task": ["--parallel", "fsdp", "--context-parallel", "2"],
    "text_generation": ["--context-parallel", "2", "--gradient-accumulation-steps", "2"],
    "pixel_generation": ["--parallel", "fsdp", "--activation-checkpointing"],
    "ctc_speech": ["--parallel", "fsdp"],
}


def start(app: str, *arguments: object, processes: int = 1) -> subprocess.CompletedProcess[str]:
    interpreter, *script = command(app, "train", *arguments)
    return subprocess.run(
        [interpreter, *(TORCHRUN if processes > 1 else ()), *script],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def losses(out: Path) -> list[float]:
    """The losses and the results of evaluations."""
    lines = [json.loads(x) for x in (out / "metrics.jsonl").read_text().splitlines()]
    names = ("loss", "bits_per_dim", "phoneme_error_rate")
    return [line[name] for line in lines for name in names if name in line]


@pytest.mark.slow
@pytest.mark.parametrize("app", CASES)
def test_two_processes_train_as_one_and_refuse_with_one_sentence(app: str, tmp_path: Path) -> None:
    outs = one, two = tmp_path / "one", tmp_path / "two"
    flags = [["--preset", "smoke", *MODELS.get(app, []), "--out", out] for out in outs]
    if app == "ctc_speech":
        write_data_folder(tmp_path / "tones" / "train", speakers=3, each=4, seed=0)
        write_data_folder(tmp_path / "tones" / "test", speakers=1, each=3, seed=1)
        flags = [[*smoke_flags(tmp_path / "tones", out), *WITHOUT_DRAWS] for out in outs]
    short = ["--steps", 4, "--log-every", 1, "--eval-every", 4]
    for process in (
        start(app, *flags[0], *short),
        start(app, *flags[1], *short, *CASES[app], processes=2),
    ):
        assert process.returncode == 0, process.stderr
    assert losses(two) == pytest.approx(losses(one), rel=1e-3)

    refused = start(app, *flags[1], *short, processes=2)
    assert refused.returncode != 0
    assert refused.stderr.count("already holds a run") == 1
