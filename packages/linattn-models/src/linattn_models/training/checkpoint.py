"""A checkpoint on disk: safetensors and JSON, written whole or not at all, checked when read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from linattn_models.files import new_folder, write_file

FORMAT_VERSION = 1
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
RANDOM_FILE = "rng.safetensors"
RECORD_FILE = "training.json"
TENSOR_FILES = (MODEL_FILE, OPTIMIZER_FILE, RANDOM_FILE)


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint folder holds: tensors by file and name, and the JSON record beside them."""

    folder: Path
    tensors: Mapping[str, dict[str, Tensor]]
    record: dict[str, Any]


def write_checkpoint(
    folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], record: Mapping[str, object]
) -> None:
    """Writes `tensors`, one file for each of `TENSOR_FILES`, and `record` as a new folder.

    Everything is written and flushed under a temporary name beside it first; the rename comes last.

    Raises:
        OSError: if the disk refuses; nothing of the checkpoint is left then.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(folder) as temporary:
            files = {name: _write_tensors(temporary / name, tensors[name]) for name in TENSOR_FILES}
            content = {"format_version": FORMAT_VERSION, **record, "files": files}
            write_file(temporary / RECORD_FILE, json.dumps(content, indent=2).encode())
    except OSError as error:
        raise OSError(
            f"the checkpoint {folder} could not be written ({error.strerror or error}): nothing of "
            "it was kept and earlier ones are untouched, so make room and rerun with resume"
        ) from error


def read_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`, every byte of its tensors compared with what was written.

    Raises:
        ValueError: naming the file that is missing, shorter, changed or of another format.
    """
    record = _read_record(folder)
    tensors = {name: _read_tensors(folder, name, record["files"]) for name in TENSOR_FILES}
    return Checkpoint(folder, tensors, record)


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], source: object) -> None:
    """Copies `tensors` into `model`, which must have exactly these names, shapes and dtypes.

    Raises:
        ValueError: naming the first tensor that is missing, unknown, or of another shape or dtype.
    """
    own = model.state_dict()
    for name in sorted(own.keys() ^ tensors.keys()):
        where = "misses" if name in own else "holds"
        ending = "which the model has" if name in own else "which the model has not"
        raise ValueError(f"{source} {where} the tensor {name!r}, {ending}")
    for name, tensor in tensors.items():
        came, expected = _kind(tensor), _kind(own[name])
        if came != expected:
            raise ValueError(f"{source} holds {name!r} as {came}, the model has it as {expected}")
    model.load_state_dict(dict(tensors))


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, object]:
    # Each tensor gets memory of its own: safetensors refuses tied weights, and loading copies into
    # both names anyway.
    owned = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    content = safetensors.torch.save(owned)
    write_file(path, content)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _read_record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD_FILE
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise _damage(folder, f"{path} is missing") from None
    except ValueError as error:
        raise _damage(folder, f"{path} is not whole JSON ({error})") from error
    if not isinstance(record, dict) or not isinstance(record.get("files"), dict):
        raise _damage(folder, f"{path} does not list the files of a checkpoint")
    version = record.get("format_version")
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {version!r}, this release reads version {FORMAT_VERSION}"
        )
    return record


def _read_tensors(folder: Path, name: str, files: Mapping[str, Any]) -> dict[str, Tensor]:
    path = folder / name
    written = files.get(name)
    if not isinstance(written, dict):
        raise _damage(folder, f"{folder / RECORD_FILE} does not list {name}")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise _damage(folder, f"{path} is missing") from None
    if len(content) != written.get("bytes"):
        raise _damage(
            folder, f"{path} has {len(content)} bytes, {written.get('bytes')} were written"
        )
    if hashlib.sha256(content).hexdigest() != written.get("sha256"):
        raise _damage(folder, f"{path} is not what was written (its sha256 differs)")
    return safetensors.torch.load(content)


def _damage(folder: Path, what: str) -> ValueError:
    return ValueError(
        f"the checkpoint {folder} is damaged: {what}; restore the file, or remove that folder to "
        "go back to the checkpoint before it"
    )


def _kind(tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} {tuple(tensor.shape)}"
