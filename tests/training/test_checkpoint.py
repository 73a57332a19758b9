"""A checkpoint is complete or absent; a damaged one is an error that names it."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from linattn_models.files import new_folder, remove_folder, replace_file
from linattn_models.training import RunFolder, Updater, make_accelerator
from linattn_models.training import checkpoint as checkpoint_module
from linattn_models.training.checkpoint import load_weights, read_checkpoint
from linattn_models.training.snapshot import Progress, Snapshots
from tests.training.toy import (
    ToyData,
    change_record,
    change_tensors,
    logged,
    toy_config,
    toy_loss,
    toy_model,
    toy_run,
)

FILES = ("model.safetensors", "optimizer.safetensors", "rng.safetensors", "training.json")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


@pytest.fixture
def run(unbroken: Path, tmp_path: Path) -> Path:
    """A copy of a run of 12 steps with checkpoints at 8 and 12."""
    return Path(shutil.copytree(unbroken, tmp_path / "copy"))


def test_it_holds_four_files_and_no_pickle(unbroken: Path) -> None:
    for step in (8, 12):
        folder = unbroken / "checkpoints" / f"step-{step}"
        assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
        checkpoint = read_checkpoint(folder)
        assert checkpoint.record["step"] == step
        weights = checkpoint.tensors["model.safetensors"]
        assert weights.keys() == toy_model().state_dict().keys()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [truncate, Path.unlink, flip_a_bit])
def test_a_damaged_file_is_named(run: Path, name: str, damage: Callable[[Path], object]) -> None:
    path = run / "checkpoints" / "step-12" / name
    damage(path)
    with pytest.raises(ValueError, match="step-12 is damaged") as refusal:
        toy_run(run, steps=20, checkpoint_every=4, eval_every=3, resume=True)
    assert str(path) in str(refusal.value)
    with pytest.raises(ValueError, match="is damaged"):
        RunFolder(run).load_weights(toy_model())


def test_removing_the_damaged_checkpoint_goes_back_to_the_one_before(
    run: Path, unbroken: Path
) -> None:
    shutil.rmtree(run / "checkpoints" / "step-12")
    toy_run(run, checkpoint_every=4, eval_every=3, resume=True)
    assert logged(run) == logged(unbroken)


def test_a_flipped_bit_of_a_record_is_noticed(run: Path) -> None:
    """One bit in each byte; what is still read has the same values, as 1E-3 for 1e-3."""
    folder = run / "checkpoints" / "step-12"
    path = folder / "training.json"
    content, record = path.read_bytes(), read_checkpoint(folder).record
    for position, byte in enumerate(content):
        flipped = bytes([byte ^ 1 << position % 8])
        path.write_bytes(content[:position] + flipped + content[position + 1 :])
        with suppress(ValueError):
            assert read_checkpoint(folder).record == record


@pytest.mark.parametrize("lost", ["fingerprint", "evaluated_at", "grad_scaler", "step"])
def test_a_record_without_a_field_is_refused(run: Path, lost: str) -> None:
    change_record(run / "checkpoints" / "step-12", remove=lost)
    with pytest.raises(ValueError, match=f"step-12 is damaged: {lost} in .* got 'none'"):
        toy_run(run, steps=20, checkpoint_every=4, eval_every=3, resume=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("step", -1), ("step", 8), ("step", "12"), ("metrics_lines", -3), ("steps", 0)),
        *(("train_seconds", -0.5), ("train_seconds", "1"), ("evaluated_at", 1.5)),
        *(("unlogged_losses", ["x"]), ("unlogged_losses", 0.5), ("metrics", {"error": "low"})),
        *(("processes", 0), ("device", 1), ("grad_scaler", "x"), ("fingerprint", 7)),
    ],
)
def test_a_record_out_of_range_is_refused(run: Path, name: str, value: object) -> None:
    change_record(run / "checkpoints" / "step-12", **{name: value})
    with pytest.raises(ValueError, match=f"is damaged: {name} in .*: expected") as refusal:
        toy_run(run, steps=20, checkpoint_every=4, eval_every=3, resume=True)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("file", FILES[:3])
@pytest.mark.parametrize("kind", ["missing", "unknown", "dtype", "shape"])
def test_tensors_that_do_not_fit_the_run_are_refused(run: Path, file: str, kind: str) -> None:
    folder = run / "checkpoints" / "step-12"
    for name, tensor in read_checkpoint(folder).tensors[file].items():
        copy = Path(shutil.copytree(run, run.with_name(f"copy-{name.replace('/', '-')}")))
        other = {
            "missing": {name: None},
            "unknown": {f"{name}-2": tensor},
            "dtype": {name: tensor.to(torch.float16)},
            "shape": {name: tensor[None]},
        }[kind]
        change_tensors(copy / "checkpoints" / "step-12", file, **other)
        with pytest.raises(ValueError, match=rf"{file}, tensor '{name}.*: expected .*, got"):
            toy_run(copy, steps=20, checkpoint_every=4, eval_every=3, resume=True)


def test_another_format_version_is_refused(run: Path) -> None:
    change_record(run / "checkpoints" / "step-12", format_version=99)
    with pytest.raises(ValueError, match="expected format version 2, got 99"):
        RunFolder(run).load_weights(toy_model())


def test_what_a_killed_writer_left_is_not_a_checkpoint(run: Path, unbroken: Path) -> None:
    shutil.rmtree(run / "checkpoints" / "step-12")
    half = run / "checkpoints" / ".tmp-step-12"
    shutil.copytree(run / "checkpoints" / "step-8", half)
    truncate(half / "model.safetensors")
    (run / ".tmp-metrics.jsonl").write_bytes(b"{")
    assert [path.name for path in RunFolder(run).checkpoints()] == ["step-8"]
    toy_run(run, checkpoint_every=4, eval_every=3, resume=True)
    assert logged(run) == logged(unbroken)
    assert not list(run.rglob(".tmp-*"))


@pytest.mark.parametrize("name", FILES)
def test_a_full_disk_leaves_earlier_checkpoints_and_a_run_to_resume(
    out: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_file = checkpoint_module.write_file

    def full(path: Path, content: bytes) -> None:
        if path.parent.name.startswith(".tmp-step-8") and path.name == name:
            path.write_bytes(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_file(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_module, "write_file", full)
        with pytest.raises(OSError, match="No space left on device") as failure:
            toy_run(out, checkpoint_every=4, eval_every=3)
    assert "step-8 could not be written" in str(failure.value)
    assert "\n" not in str(failure.value)
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-4"]
    toy_run(out, checkpoint_every=4, eval_every=3, resume=True)
    assert logged(out) == logged(unbroken)


def test_a_limit_of_the_system_is_met_like_a_full_disk(run: Path) -> None:
    """The kernel itself refuses here: no file may grow beyond 2 kB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    folder = run / "checkpoints" / "step-16"
    tensors = {name: {"x": torch.zeros(4096)} for name in checkpoint_module.TENSOR_FILES}
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
    try:
        with pytest.raises(OSError, match="could not be written"):
            checkpoint_module.write_checkpoint(folder, tensors, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert names == {"step-8", "step-12"}


def test_the_old_checkpoint_goes_only_when_the_new_one_is_there(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    present: list[set[str]] = []

    def watched(path: Path) -> None:
        present.append({folder.name for folder in RunFolder(out).checkpoints()})
        remove_folder(path)

    monkeypatch.setattr("linattn_models.training.snapshot.remove_folder", watched)
    toy_run(out, steps=4, checkpoint_every=1, keep_checkpoints=1)
    pairs = [{f"step-{step}", f"step-{step + 1}"} for step in (1, 2, 3)]
    assert present == pairs
    assert [folder.name for folder in RunFolder(out).checkpoints()] == ["step-4"]


def test_checkpoints_are_ordered_by_number(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        (tmp_path / "checkpoints" / f"step-{step}").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-99-copy").mkdir()
    folder = RunFolder(tmp_path)
    assert [path.name for path in folder.checkpoints()] == ["step-2", "step-9", "step-10"]
    assert folder.latest_checkpoint() == folder.checkpoint_folder(10)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t.pop("0.weight"), "there, tensor '0.weight': expected .*, got none"),
        (
            lambda t: t.update(extra=torch.zeros(1)),
            "tensor 'extra': expected none, got float32",
        ),
        (
            lambda t: t.update({"0.weight": torch.zeros(4, 8)}),
            r"'0.weight': expected float32 \(8, 4\), got float32 \(4, 8\)",
        ),
        (
            lambda t: t.update({"0.weight": torch.zeros(8, 4, dtype=torch.float64)}),
            r"'0.weight': expected float32 \(8, 4\), got float64 \(8, 4\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    change: Callable[[dict[str, torch.Tensor]], object], sentence: str
) -> None:
    tensors = dict(toy_model().state_dict())
    change(tensors)
    with pytest.raises(ValueError, match=sentence):
        load_weights(toy_model(), tensors, "there")


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


def test_a_folder_appears_only_when_its_body_ended(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with new_folder(target) as temporary:
        (temporary / "file").write_text("x")
        assert not target.exists()
    assert (target / "file").read_text() == "x"
    with pytest.raises(KeyError), new_folder(tmp_path / "other"):
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_the_loss_scale_of_fp16_comes_back(tmp_path: Path) -> None:
    """On a CPU accelerate has no scaler, so the test sets one."""
    config = toy_config()
    accelerator = make_accelerator(config)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    accelerator.scaler.scale(torch.ones(()))  # the scale is made when first used
    model = toy_model()
    updater = Updater(accelerator, model, ToyData(), toy_loss, config)
    folder = RunFolder(tmp_path)
    snapshots = Snapshots(updater, folder, "print")
    snapshots.save(Progress(step=3))
    accelerator.scaler.update(new_scale=2.0)
    snapshots.restore(read_checkpoint(folder.checkpoint_folder(3)))
    assert accelerator.scaler.get_scale() == 64.0
