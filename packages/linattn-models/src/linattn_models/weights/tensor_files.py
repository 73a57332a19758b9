"""Safetensors files: written whole, and read after checks; nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from linattn_core.errors import expected
from linattn_models.basics.files import replace_file
from linattn_models.basics.memory import available_memory

# Smaller files are not compared with the free memory, which takes some milliseconds to find.
LARGE = 1 << 28


def write_tensors(file: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Writes one file; if it fails, an older file stays."""
    write_content(file, encode_tensors(tensors, metadata))


def encode_tensors(tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> bytes:
    """The content of a file."""
    return save(separate(tensors), metadata)


def write_content(file: Path, content: bytes) -> None:
    """Writes the content of a file; if it fails, an older file stays."""
    if file.is_dir():
        advice = "pass the name of a file in it"
        raise IsADirectoryError(expected(str(file), "a file to write", "a directory", advice))
    if file.exists() and not file.is_file():  # a file would replace what all programs share
        raise OSError(expected(str(file), "a file to write", "a device, a pipe or a socket"))
    replace_file(file, content)


def read_tensors(
    file: Path, wanted: str, advice: str = "", *, file_format: str | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file, by name, and its metadata.

    Args:
        wanted, advice: what errors say of the file.
        file_format: the `format` that its metadata must name; None for any.
    """
    if file.is_dir():
        inside = "pass the file inside it; a folder of a model is read by linattn_models.load"
        raise IsADirectoryError(expected(str(file), wanted, "a directory", inside))
    if not file.is_file():
        raise FileNotFoundError(expected(str(file), wanted, "no such file", advice))
    size = file.stat().st_size
    if size > LARGE and size > available_memory(torch.device("cpu")):
        raise ValueError(expected(str(file), wanted, f"{size:,} bytes, more than the free memory"))
    try:
        with safe_open(file, framework="pt") as content:
            metadata: dict[str, str] = content.metadata() or {}
            # Copied to memory that torch has aligned, so that products round as before saving.
            tensors = {name: content.get_tensor(name).clone() for name in content.keys()}  # noqa: SIM118
    except SafetensorError as error:
        got = f"another file, or a part of one ({error})"
        raise ValueError(expected(str(file), wanted, got, advice)) from None
    if file_format not in (None, metadata.get("format")):
        raise ValueError(expected(str(file), wanted, "another kind of file"))
    return tensors, metadata


def decode_tensors(
    name: str, content: bytes, wanted: str, file_format: str
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """As `read_tensors`, from the content of a file; errors have its `name`."""
    try:
        tensors = {key: x.clone() for key, x in load(content).items()}
    except (SafetensorError, KeyError) as error:  # KeyError: an unknown dtype
        raise ValueError(expected(name, wanted, error)) from None
    # Its header is whole, or it would not have been read.
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    metadata = json.loads(header).get("__metadata__") or {}
    if metadata.get("format") != file_format:
        raise ValueError(expected(name, wanted, "another kind of file"))
    return tensors, metadata


def separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors contiguous and in memory of their own, as safetensors takes them."""
    own: dict[str, Tensor] = {}
    seen: set[tuple[torch.device, int]] = set()
    for name, x in tensors.items():
        memory = x.device, x.untyped_storage().data_ptr()
        dense = x.detach().contiguous()
        own[name] = dense.clone() if memory in seen else dense
        seen.add(memory)
    return own
