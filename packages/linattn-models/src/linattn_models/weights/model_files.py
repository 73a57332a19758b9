"""The files of a saved model: written together, and read as they were written together."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from linattn_core.errors import expected, quote
from linattn_models.basics.files import leftovers, replace_files
from linattn_models.basics.validation import instance, json_object
from linattn_models.weights.tensor_files import read_tensors, separate

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
TOKENIZER_FILE = "tokenizer.json"
CHECKPOINTS = "checkpoints"
FORMAT_VERSION = 2
# Replaced in this order: the configuration, with the digests of the others, completes a save.
_FILES = (WEIGHTS_FILE, TOKENIZER_FILE, CONFIG_FILE)
# The keys of the digests in the configuration: of the weights, and of the tokenizer's file.
DIGEST = "sha256"
TOKENIZER_DIGEST = "tokenizer_sha256"


class ModelFiles(NamedTuple):
    """The content of a saved model's files."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    tokenizer: bytes | None


def write_model_files(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    tokenizer: bytes | None = None,
) -> None:
    """Replaces the files in `folder`; if it fails, nothing changes.

    Args:
        config: JSON values; format and digests are added.
        tokenizer: the content of the tokenizer's file; without, that of a model saved before is
            removed.
    """
    own_memory = separate(tensors)
    files = describe_weights(config, own_memory, tokenizer)
    before = {} if tokenizer is not None else _config_if_any(folder)
    with _folder_for_model(folder), replace_files(folder, *_FILES) as fresh:
        try:
            save_file(own_memory, fresh / WEIGHTS_FILE)
        except SafetensorError as error:
            wanted = "a folder in which the weights can be written"
            raise OSError(expected(str(folder), wanted, error)) from None
        for name, content in files.items():
            (fresh / name).write_bytes(content)
        shutil.copymode(fresh / CONFIG_FILE, fresh / WEIGHTS_FILE)  # safetensors makes it private
    if _find_tokenizer(folder, before) is not None:
        (folder / TOKENIZER_FILE).unlink(missing_ok=True)


def describe_weights(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], tokenizer: bytes | None
) -> dict[str, bytes]:
    """The files of a model beside its weights, by name, with format and digests."""
    described = {"format_version": FORMAT_VERSION, DIGEST: compute_digest(tensors)}
    files = {} if tokenizer is None else {TOKENIZER_FILE: tokenizer}
    if tokenizer is not None:
        described[TOKENIZER_DIGEST] = hashlib.sha256(tokenizer).hexdigest()
    text = json.dumps(described | dict(config), indent=2) + "\n"
    return files | {CONFIG_FILE: text.encode()}


def find_model(folder: Path) -> Path:
    """The folder of a model's files: that of a training run has them in its newest checkpoint."""
    if not (folder / CHECKPOINTS).is_dir() or is_saved_model(folder):
        return folder
    checkpoints = list_checkpoints(folder)
    if not checkpoints:
        raise ValueError(expected(str(folder), "a checkpoint", "none", "train there first"))
    return checkpoints[-1]


def list_checkpoints(run: Path) -> list[Path]:
    """The checkpoint folders of a training run, oldest first; temporary ones do not count."""
    folders = (run / CHECKPOINTS).iterdir() if (run / CHECKPOINTS).is_dir() else ()
    named = [folder for folder in folders if re.fullmatch(r"step-\d+", folder.name)]
    return sorted(named, key=checkpoint_step)


def checkpoint_step(folder: Path) -> int:
    """The step in the name of a checkpoint's folder."""
    return int(folder.name.removeprefix("step-"))


def read_model_files(folder: Path) -> ModelFiles:
    """The configuration, the weights and the tokenizer that were saved together.

    After a process was killed between two renames, the weights are new where the configuration is
    not: that of the weights is still in its temporary folder.

    Cost: reads the weights and computes their SHA-256.
    """
    path, weights = folder / CONFIG_FILE, folder / WEIGHTS_FILE
    config, tensors = read_model_config(path), read_weights(weights)
    digest = compute_digest(tensors)
    for saved in (config, *_pending_configs(folder)):
        tokenizer = _find_tokenizer(folder, saved)
        if saved.get(DIGEST) == digest and (tokenizer or TOKENIZER_DIGEST not in saved):
            return ModelFiles(saved, tensors, tokenizer)
    advice = "save the model again"
    if config.get(DIGEST, digest) != digest:  # absent if another program or a person wrote it
        wanted = f"the weights that {CONFIG_FILE} names by {DIGEST}"
        raise ValueError(expected(str(weights), wanted, "others", advice))
    tokenizer = _find_tokenizer(folder, config)
    if tokenizer is None and TOKENIZER_DIGEST in config:
        wanted = f"the tokenizer that {CONFIG_FILE} names by {TOKENIZER_DIGEST}"
        raise ValueError(expected(str(folder / TOKENIZER_FILE), wanted, "another or none", advice))
    return ModelFiles(config, tensors, tokenizer)


def _pending_configs(folder: Path) -> list[dict[str, Any]]:
    """The configurations of saves that are not completed."""
    return [_config_if_any(pending) for pending in leftovers(folder, *_FILES)]


def _config_if_any(folder: Path) -> dict[str, Any]:
    with suppress(ValueError, FileNotFoundError):
        return read_model_config(folder / CONFIG_FILE)
    return {}


def _find_tokenizer(folder: Path, config: Mapping[str, Any]) -> bytes | None:
    """The tokenizer's file that a configuration names by its digest."""
    for place in (folder, *leftovers(folder, *_FILES)):
        with suppress(OSError):
            content = (place / TOKENIZER_FILE).read_bytes()
            if hashlib.sha256(content).hexdigest() == config.get(TOKENIZER_DIGEST):
                return content
    return None


def read_model_config(path: Path) -> dict[str, Any]:
    """The content of a configuration of this version of the format."""
    if not path.is_file():
        wanted = "the configuration of a model"
        advice = "name a folder that `save` wrote; load_decoder reads files of export_decoder"
        got = "no file" if path.parent.is_dir() else f"no folder {path.parent}"
        raise FileNotFoundError(expected(str(path), wanted, got, advice))
    config = json_object(path.read_bytes(), str(path))
    version = config.get("format_version")
    if version != FORMAT_VERSION:
        wanted = f"format_version {FORMAT_VERSION}"
        raise ValueError(expected(str(path), wanted, quote(version), "update linattn-models"))
    return config


def require_tensors(tensors: Mapping[str, Any]) -> None:
    """Refuses a state dict with values that no file holds, such as those of quantized modules."""
    advice = "keep other values outside of get_extra_state, and save a model before it is quantized"
    for name, x in tensors.items():
        instance(f"{quote(name)} of the model", x, Tensor, advice=advice)


@contextmanager
def _folder_for_model(folder: Path) -> Iterator[None]:
    """Creates a folder that may be written; removes it again if the body raises."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(expected(str(folder), "a folder", "a file", "choose another name"))
    path = folder / CONFIG_FILE
    if path.exists() and not is_saved_model(folder):
        wanted = "the configuration of a saved model, to replace it"
        raise ValueError(expected(str(path), wanted, "another file", "choose another folder"))
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise


def is_saved_model(folder: Path) -> bool:
    """Whether a folder has the configuration of a model that was saved there, and not of a run."""
    path = folder / CONFIG_FILE
    try:
        return path.exists() and "format_version" in json_object(path.read_bytes(), str(path))
    except ValueError:
        return False


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by name."""
    advice = "restore the file, or save the model again"
    return read_tensors(path, "the weights of a model", advice)[0]


def compute_digest(tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of names, dtypes, shapes and values."""
    digest = hashlib.sha256()
    for name, x in sorted(tensors.items()):
        digest.update(f"{name} {x.dtype} {tuple(x.shape)}\n".encode())
        digest.update(x.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
