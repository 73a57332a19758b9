"""A checkpoint on disk: safetensors and JSON, written atomically, checked when read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from linattn_core.errors import expected, quote
from linattn_models.files import new_folder, write_file
from linattn_models.validation import json_object

FORMAT_VERSION = 2
"""The first version had no digest of its record, and other names of the models' tensors."""
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
RANDOM_FILE = "rng.safetensors"
RECORD_FILE = "training.json"
TENSOR_FILES = (MODEL_FILE, OPTIMIZER_FILE, RANDOM_FILE)


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint folder: tensors by file and name, and the JSON record."""

    folder: Path
    tensors: Mapping[str, dict[str, Tensor]]
    record: dict[str, Any]

    @property
    def weights(self) -> dict[str, Tensor]:
        """The model's tensors."""
        return self.tensors[MODEL_FILE]

    def fitting(self, file: str, kinds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of `file`, checked by `require_kinds`."""
        require_kinds(self.tensors[file], kinds, self.folder / file)
        return self.tensors[file]


def write_checkpoint(
    folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], record: Mapping[str, object]
) -> None:
    """Writes `tensors`, one file for each of `TENSOR_FILES`, and `record` as a new folder.

    Everything is first written and flushed under a temporary name beside it, and then renamed.

    Raises:
        OSError: if a file cannot be written; nothing of the checkpoint is left then.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(folder) as temporary:
            files = {name: _write_tensors(temporary / name, tensors[name]) for name in TENSOR_FILES}
            content = {"format_version": FORMAT_VERSION, **record, "files": files}
            write_file(temporary / RECORD_FILE, signed_record(content))
    except OSError as error:
        raise OSError(
            f"the checkpoint {folder} could not be written ({error.strerror or error}): nothing of "
            "it was kept and earlier ones are untouched, so make room and rerun with resume"
        ) from error


def read_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`, after its sizes and digests are verified.

    Raises:
        ValueError: naming the file that is missing, shorter, changed or of another format.
    """
    record = _read_record(folder)
    tensors = {name: _read_tensors(folder, name, record["files"]) for name in TENSOR_FILES}
    return Checkpoint(folder, tensors, record)


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], source: object) -> None:
    """Copies `tensors` into `model`, which must have exactly these names, shapes and dtypes."""
    require_kinds(tensors, model.state_dict(), source)
    model.load_state_dict(dict(tensors))


def require_kinds(
    tensors: Mapping[str, Tensor], kinds: Mapping[str, Tensor], source: object
) -> None:
    """Refuses tensors with other names, shapes or dtypes than those of `kinds`.

    Raises:
        ValueError: naming the first tensor that is missing, unknown, or of another shape or dtype.
    """
    for name in sorted(kinds.keys() | tensors.keys()):
        wanted, got = (_kind(of[name]) if name in of else "none" for of in (kinds, tensors))
        if wanted != got:
            raise ValueError(expected(f"{source}, tensor {quote(name)}", wanted, got))


def signed_record(content: Mapping[str, object]) -> bytes:
    """`content` as JSON, with a digest of itself as "sha256"."""
    return json.dumps({**content, "sha256": _digest(content)}, indent=2, allow_nan=False).encode()


def damaged(folder: Path, what: str) -> ValueError:
    """The error for a checkpoint that differs from what was written."""
    return ValueError(
        f"the checkpoint {folder} is damaged: {what.rstrip('.')}; restore the file, or remove that "
        "folder to go back to the checkpoint before it"
    )


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, object]:
    # A copy of each tensor, because safetensors refuses tied weights. Loading copies into both.
    owned = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    content = safetensors.torch.save(owned)
    write_file(path, content)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _read_record(folder: Path) -> dict[str, Any]:
    path, content = folder / RECORD_FILE, _read(folder, RECORD_FILE)
    try:
        record = json_object(content, str(path))
    except ValueError as error:
        raise damaged(folder, str(error)) from error
    version = record.get("format_version")
    if version != FORMAT_VERSION:
        raise ValueError(expected(str(path), f"format version {FORMAT_VERSION}", quote(version)))
    if record.pop("sha256", None) != _digest(record):
        raise damaged(folder, f"{path} is not what was written (its sha256 differs)")
    return record


def _read_tensors(folder: Path, name: str, files: Mapping[str, Any]) -> dict[str, Tensor]:
    content, written = _read(folder, name), files[name]
    if len(content) != written["bytes"]:
        wanted = f"{written['bytes']} bytes"
        raise damaged(folder, expected(str(folder / name), wanted, len(content)))
    if hashlib.sha256(content).hexdigest() != written["sha256"]:
        raise damaged(folder, f"{folder / name} is not what was written (its sha256 differs)")
    return safetensors.torch.load(content)


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError:
        raise damaged(folder, f"{folder / name} is missing") from None


def _digest(content: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _kind(tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} {tuple(tensor.shape)}"
