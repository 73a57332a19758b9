"""A checkpoint is complete or absent; a damaged one is an error that names it."""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from linattn_models.basics.files import (
    replace_file,
    temporary_prefix,
)
from linattn_models.training import RunFolder, Updater, average_weights, make_accelerator
from linattn_models.training import checkpoint as checkpoint_module
from linattn_models.training.checkpoint import read_checkpoint, require_like, write_checkpoint
from linattn_models.training.progress import Progress, restore_progress, save_progress
from tests.training.toy import ToyData, logged, toy_config, toy_loss, toy_model, toy_run

FILES = ("model.safetensors", "state.pt", "SHA256SUMS")
OFTEN = {"checkpoint_every": 4, "eval_every": 3}


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)


@pytest.fixture
def run(unbroken: Path, tmp_path: Path) -> Path:
    """A copy of a run of 12 steps with checkpoints at 8 and 12."""
    return Path(shutil.copytree(unbroken, tmp_path / "copy"))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [truncate, Path.unlink, flip_a_bit])
def test_a_damaged_checkpoint_is_named(
    run: Path, name: str, damage: Callable[[Path], object]
) -> None:
    folder = run / "checkpoints" / "step-12"
    damage(folder / name)
    for read in (
        lambda: toy_run(run, steps=20, resume=True, **OFTEN),
        lambda: RunFolder(run).load_model(lambda _: toy_model()),
        lambda: average_weights([folder]),
    ):
        with pytest.raises(ValueError, match="step-12 is damaged") as refusal:
            read()
        assert name in str(refusal.value)


def test_a_checkpoint_under_the_name_of_another_step_is_refused(run: Path) -> None:
    older, newer = RunFolder(run).checkpoints()[-2:]
    shutil.rmtree(newer)
    shutil.copytree(older, newer)
    with pytest.raises(ValueError, match=newer.name):
        RunFolder(run).load_model(lambda _: toy_model())
    with pytest.raises(ValueError, match=newer.name):
        toy_run(run, resume=True)


# States that no run writes; the first one would run code.
OTHERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "an object": lambda state: {**state, "progress": io.BytesIO()},
    "a list": lambda state: [state],
    "a step as text": lambda state: {**state, "progress": {**state["progress"], "step": "12"}},
    "no moments": lambda state: {**state, "optimizer": dict.fromkeys(state["optimizer"], 1)},
}


@pytest.mark.parametrize("change", [*OTHERS, *FILES[:2]])
def test_content_that_no_run_writes_is_named(run: Path, change: str) -> None:
    folder = run / "checkpoints" / "step-12"
    if change in OTHERS:
        weights, state = read_checkpoint(folder)
        shutil.rmtree(folder)
        write_checkpoint(folder, weights, OTHERS[change](state))
    else:  # a file of other bytes, with their checksum
        (folder / change).write_bytes(b"\x80\x05}.")
        sums = [checkpoint_module._checksum(x, (folder / x).read_bytes()) for x in FILES[:2]]
        (folder / FILES[2]).write_bytes(b"\n".join(sums))
    name = "state.pt" if change in OTHERS else change
    with pytest.raises(ValueError, match=f"step-12 is damaged: {name}") as refusal:
        toy_run(run, steps=20, resume=True, **OFTEN)
    assert "\n" not in str(refusal.value)


def test_what_a_killed_writer_left_is_not_a_checkpoint(run: Path, unbroken: Path) -> None:
    shutil.rmtree(run / "checkpoints" / "step-12")
    half = run / "checkpoints" / f"{temporary_prefix('step-12')}half"
    shutil.copytree(run / "checkpoints" / "step-8", half)
    truncate(half / "model.safetensors")
    (run / f"{temporary_prefix('metrics.jsonl')}half").write_bytes(b"{")
    assert [path.name for path in RunFolder(run).checkpoints()] == ["step-8"]
    toy_run(run, resume=True, **OFTEN)
    assert logged(run) == logged(unbroken)
    assert not list(run.rglob(".tmp-*"))


@pytest.mark.parametrize("name", FILES)
def test_a_full_disk_leaves_earlier_checkpoints_and_a_run_to_resume(
    out: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_file = checkpoint_module.write_file

    def full(path: Path, content: bytes) -> None:
        if (out / "checkpoints" / "step-4").exists() and path.name == name:
            path.write_bytes(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_file(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_module, "write_file", full)
        with pytest.raises(OSError, match="step-8"):
            toy_run(out, keep_checkpoints=1, **OFTEN)  # the old one goes after the new one is there
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-4"]
    toy_run(out, resume=True, **OFTEN)
    assert logged(out) == logged(unbroken)


def test_checkpoints_are_ordered_by_number(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        (tmp_path / "checkpoints" / f"step-{step}").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-99-copy").mkdir()
    folder = RunFolder(tmp_path)
    assert [path.name for path in folder.checkpoints()] == ["step-2", "step-9", "step-10"]
    assert folder.latest_checkpoint() == folder.checkpoint_folder(10)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: {},
        lambda x: {"0.weight": x, "extra": x},
        lambda x: {"0.weight": x.t()},
        lambda x: {"0.weight": x.double()},
    ],
)
def test_weights_that_do_not_fit_are_refused(
    change: Callable[[torch.Tensor], dict[str, torch.Tensor]],
) -> None:
    model = {"0.weight": torch.zeros(8, 4)}
    with pytest.raises(ValueError, match="there, tensor"):
        require_like(change(model["0.weight"]), model, "there")


def test_a_failed_replacement_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="full"):
        replace_file(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_the_loss_scale_of_fp16_comes_back(tmp_path: Path) -> None:
    """On a CPU accelerate has no scaler, so the test sets one."""
    config = toy_config()
    accelerator = make_accelerator(config)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    accelerator.scaler.scale(torch.ones(()))  # the scale is made when first used
    updater = Updater(accelerator, toy_model(), ToyData(), toy_loss, config)
    folder = RunFolder(tmp_path)
    save_progress(folder, updater, Progress(step=3), "print")
    accelerator.scaler.update(new_scale=2.0)
    assert restore_progress(folder.checkpoint_folder(3), updater, "print").step == 3
    assert accelerator.scaler.get_scale() == 64.0
