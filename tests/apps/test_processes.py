"""Trainings that two processes divide are those of one."""

from __future__ import annotations

import json
import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from torch.multiprocessing import ProcessExitedException

from tests.apps.app_scripts import command
from tests.apps.ctc_speech.conftest import smoke_flags, write_data_folder
from tests.parallel.ranks import become_rank, start_ranks

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
WITHOUT_DRAWS = ["--dropout", "0", "--no-spec-augment"]
MODELS = {"text_generation": ["--attention", "fixed-decay"]}
CASES: dict[str, list[str]] = {
    "copy_task": ["--parallel", "fsdp", "--context-parallel", "2"],
    "text_generation": ["--context-parallel", "2", "--gradient-accumulation-steps", "2"],
    "pixel_generation": ["--parallel", "fsdp", "--activation-checkpointing"],
    "ctc_speech": ["--parallel", "fsdp"],
}


def train(log: Path, app: str, *arguments: object, ranks: int = 1) -> tuple[int, str]:
    """The exit code of train.py on each of the ranks, and their stderr."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    _, *script = command(app, "train", *arguments)
    context = start_ranks(ranks, _train, ranks, port, log, script)
    try:
        while not context.join():
            pass
    except ProcessExitedException as error:  # the other ranks are ended, as by torchrun
        return error.exit_code, log.read_text()
    return 0, log.read_text()


def _train(rank: int, ranks: int, port: int, log: Path, script: list[str]) -> None:
    become_rank(rank, ranks)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), sys.stderr.fileno())
    sys.argv = script
    runpy.run_path(script[0], run_name="__main__")


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
    code, stderr = train(tmp_path / "log of one", app, *flags[0], *short)
    assert code == 0, stderr
    code, stderr = train(tmp_path / "log of two", app, *flags[1], *short, *CASES[app], ranks=2)
    assert code == 0, stderr
    assert losses(two) == pytest.approx(losses(one), rel=1e-3)

    code, stderr = train(tmp_path / "log of refusals", app, *flags[1], *short, ranks=2)
    assert code != 0
    assert stderr.count("already holds a run") == 1


@pytest.mark.slow
def test_torchrun_trains_and_prints_one_refusal(tmp_path: Path) -> None:
    interpreter, *script = command("copy_task", "train", "--preset", "smoke", "--steps", 4)
    first, refused = (
        subprocess.run(
            [interpreter, *TORCHRUN, *script, "--out", str(tmp_path / "run")],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        for _ in range(2)
    )
    assert first.returncode == 0, first.stderr
    assert refused.returncode != 0
    assert refused.stderr.count("already holds a run") == 1
