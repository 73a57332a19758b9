"""Decoders as files: for `load_decoder`, and for programs without Python by liblinattn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch

from linattn_core.decoder_spec import WEIGHTS, CannotCompile, DecoderDescription
from linattn_core.errors import expected, quote
from linattn_models.basics.validation import json_object, one_of
from linattn_models.decoding import CompiledDecoder, CompiledTransformer, compile_decoder
from linattn_models.decoding.compiled import compile_described, read_description
from linattn_models.decoding.decoder_file import file_settings, read_decoder, write_decoder
from linattn_models.heads.tokenizer import ByteTokenizer, CharacterTokenizer, to_utf8
from linattn_models.layers.transformer import Transformer
from linattn_models.saving.models import (
    CLASSES,
    OWN_KEYS,
    build_empty,
    give_tokenizer,
    load_with_weights,
    tokenizer_content,
    with_layers,
)
from linattn_models.tokens.autoregressive import AutoregressiveTransformer
from linattn_models.weights.fingerprint import compute_fingerprint

_SHIPPED = (AutoregressiveTransformer, Transformer)


def export_decoder(
    model: Any, file: str | Path, weights: str = "float32", *, max_length: int | None = None
) -> None:
    """Writes all that a compiled decoder needs into one file, which liblinattn reads.

    With the same seed, liblinattn, `load_decoder(file)` and `compile_decoder(model, weights)` draw
    the same tokens, except where rounding decides between two.

    Args:
        model: as for `compile_decoder`, on any device.
        file: replaced if it exists; if it fails, nothing changes.
        weights: "float32", "bfloat16" or "int8", in which matrices are stored and computed.
        max_length: as for `compile_decoder`.

    Raises:
        CannotCompile (a ValueError): the model has no compiled step.
        ValueError: unknown weights, a model of another class.
        TypeError: not a model.
        OSError: the file cannot be written.
    """
    one_of("weights", weights, WEIGHTS)
    description = read_description(model, max_length)
    if description.device.type == "meta":
        raise CannotCompile(expected("model", "weights on a device", "weights on meta"))
    if type(model) not in _SHIPPED:
        wanted = " or ".join(kind.__name__ for kind in _SHIPPED)
        raise ValueError(expected("model", wanted, f"a {type(model).__name__}"))
    config = {"model": type(model).__name__, **model.to_dict()}
    metadata = {"config": json.dumps(config), **_tokenizer(model)}
    fingerprint = compute_fingerprint(model)
    if fingerprint is not None:
        metadata["fingerprint"] = fingerprint
    write_decoder(Path(file), description, weights, metadata)


def _tokenizer(model: Any) -> dict[str, str]:
    """The tokenizer's file for Python, and the table of characters for liblinattn."""
    content = tokenizer_content(model, None)
    if content is None:
        return {}
    metadata = {"tokenizer_file": content.decode(), "tokenizer": "other"}
    if isinstance(model.tokenizer, ByteTokenizer):
        metadata["tokenizer"] = "bytes"
    if isinstance(model.tokenizer, CharacterTokenizer):
        characters = to_utf8(model.tokenizer.characters, "the tokenizer").decode()
        metadata |= {"tokenizer": "characters", "characters": characters}
    return metadata


def load_decoder(
    folder: str | Path,
    backend: str = "auto",
    max_length: int | None = None,
    device: str | torch.device = "cpu",
    *,
    fuse: bool = False,
) -> CompiledDecoder | CompiledTransformer:
    """The compiled decoder of a saved model, with the weights in which it was written.

        save(model, folder, weights="int8")
        decoder = load_decoder(folder)      # as compile_decoder(model, "int8"), unless tied

    Args:
        folder: of a causal `Transformer` or `AutoregressiveTransformer` with linear attention, or
            a file that `export_decoder` wrote.
        backend, max_length, fuse: as for `compile_decoder`; a file has a length of its own.
        device: "cpu", or a CUDA GPU.

    Raises:
        FileNotFoundError, ValueError: as for `load` and `compile_decoder`; no such device.
        TypeError: a model of another kind.

    Cost: the time to read the files and pack the weights; the model is not kept.
    """
    path, device = Path(folder), _find_device(device)
    if path.is_file():
        if max_length is not None:
            advice = "export it with that length"
            raise ValueError(expected("max_length", "None for a file", max_length, advice))
        return _load_file(path, backend, device, fuse)
    model, weights = load_with_weights(path)
    decoded = cast(AutoregressiveTransformer, model.to(device))
    return compile_decoder(decoded, weights, backend, max_length, fuse=fuse)


def _find_device(device: Any) -> torch.device:
    """The device, if it is there."""
    try:
        return torch.empty(0, device=device).device
    except (AssertionError, RuntimeError, TypeError) as error:
        wanted = "'cpu', or a CUDA GPU that torch finds"
        raise ValueError(expected("device", wanted, quote(device))) from error


def _load_file(
    path: Path, backend: str, device: torch.device, fuse: bool
) -> CompiledDecoder | CompiledTransformer:
    description, weights, metadata = read_decoder(path, device)
    config = json_object(metadata.get("config", "").encode(), f"{path}: config")
    kind = str(config.get("model"))
    one_of(f"{path}: the model", kind, [x.__name__ for x in _SHIPPED])
    most = len(description.layers)
    values = {key: value for key, value in config.items() if key not in OWN_KEYS}
    model: Any = build_empty(path, CLASSES[kind], with_layers(path, values, most, most))
    _check_settings(path, model, description)
    if "tokenizer_file" in metadata and description.tokens is not None:
        give_tokenizer(model, str(path), metadata["tokenizer_file"].encode())
    decoder = compile_described(model, description, weights, backend, fuse=fuse)
    if isinstance(decoder, CompiledDecoder):
        decoder.set_fingerprint(metadata.get("fingerprint"))
    return decoder


def _check_settings(path: Path, model: Any, description: DecoderDescription) -> None:
    """Refuses a configuration of another model than that of the tensors."""
    tokens = description.tokens
    rows = () if tokens is None or tokens.positions is None else (len(tokens.positions),)
    own = file_settings(description)
    for name, wanted in file_settings(model.describe(*rows)).items():
        if own.get(name) != wanted:
            got = own.get(name, "none")
            raise ValueError(expected(f"{path}: {name}", f"{wanted}, as its config says", got))
