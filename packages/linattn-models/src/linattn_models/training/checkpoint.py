"""A checkpoint on disk: the model's weights, the rest of a run's state, and their checksums."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from linattn_core.errors import expected, quote
from linattn_models.basics.files import new_folder, write_file

MODEL_FILE = "model.safetensors"
STATE_FILE = "state.pt"
CHECKSUM_FILE = "SHA256SUMS"  # as sha256sum writes and checks it
FILES = (MODEL_FILE, STATE_FILE, CHECKSUM_FILE)


class Checkpoint(NamedTuple):
    """The content of a checkpoint folder: weights by name, and the state of `Updater` and run."""

    weights: dict[str, Tensor]
    state: dict[str, Any]


def write_checkpoint(
    folder: Path,
    weights: Mapping[str, Tensor],
    state: dict[str, Any],
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Writes a new folder under a temporary name, flushes it to disk and renames it.

    Args:
        files: others, by name, such as the model's description.
    """
    # A copy of each tensor, because safetensors refuses tied weights. Loading copies into both.
    copies = {name: x.detach().to("cpu", copy=True).contiguous() for name, x in weights.items()}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    contents = {MODEL_FILE: safetensors.torch.save(copies), STATE_FILE: buffer.getvalue()}
    contents |= files or {}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(folder) as temporary:
            for name, content in contents.items():
                write_file(temporary / name, content)
            lines = [_checksum(*item) + b"\n" for item in contents.items()]
            write_file(temporary / CHECKSUM_FILE, b"".join(lines))
    except OSError as error:
        raise OSError(
            f"the checkpoint {folder} could not be written ({error.strerror or error}): nothing of "
            "it was kept and earlier ones are untouched, so make room and rerun with resume"
        ) from error


def read_checkpoint(folder: Path) -> Checkpoint:
    """Reads a checkpoint whose checksums agree; a damaged one is refused by its name."""
    contents = {name: _read(folder, name) for name in (MODEL_FILE, STATE_FILE)}
    written = _read(folder, CHECKSUM_FILE).splitlines()
    for name, content in contents.items():
        if _checksum(name, content) not in written:
            raise _damage_error(folder, f"{name} has another checksum than in {CHECKSUM_FILE}")
    try:
        weights = safetensors.torch.load(contents[MODEL_FILE])
    except safetensors.SafetensorError as error:
        raise _damage_error(folder, f"{MODEL_FILE} is no safetensors file ({error})") from None
    try:
        state = torch.load(io.BytesIO(contents[STATE_FILE]), map_location="cpu", weights_only=True)
    except Exception as error:  # torch and pickle raise a dozen kinds for other bytes
        raise _damage_error(folder, f"{STATE_FILE} holds more than tensors and numbers") from error
    with refuse_other_content(folder):
        fits = isinstance(state["fingerprint"], str) and isinstance(state["steps"], int)
        if not (fits and isinstance(state["progress"]["step"], int)):
            raise TypeError("fingerprint, steps and progress")
    return Checkpoint(weights, state)


@contextmanager
def refuse_other_content(folder: Path) -> Iterator[None]:
    """Names the checkpoint where its state is not what a run writes."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, RuntimeError) as error:
        got = quote(f"{type(error).__name__}: {error}")
        raise _damage_error(folder, f"{STATE_FILE} is not what a run writes, {got}") from error


def require_like(
    tensors: Mapping[str, Tensor], model: Mapping[str, Tensor], source: object
) -> None:
    """Refuses tensors with other names, shapes or dtypes than those of `model`."""
    for name in sorted(model.keys() | tensors.keys()):
        wanted, got = (_describe(of[name]) if name in of else "none" for of in (model, tensors))
        if wanted != got:
            raise ValueError(expected(f"{source}, tensor {quote(name)}", wanted, got))


def _checksum(name: str, content: bytes) -> bytes:
    return f"{hashlib.sha256(content).hexdigest()}  {name}".encode()


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError:
        raise _damage_error(folder, f"{name} is missing") from None


def _damage_error(folder: Path, what: str) -> ValueError:
    return ValueError(
        f"the checkpoint {folder} is damaged: {what}; restore the file, or remove that folder to "
        "go back to the checkpoint before it"
    )


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
