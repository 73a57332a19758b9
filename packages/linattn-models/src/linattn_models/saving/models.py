"""Models on disk: one folder with `config.json` and `model.safetensors`; nothing is unpickled.

A model of text has a third file, `tokenizer.json`. A checkpoint of a training run is such a folder,
too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, distributed, nn

from linattn_core.errors import expected, near, quote
from linattn_models.basics.validation import instance, one_of
from linattn_models.ctc import CTCBiLSTM, CTCTransformer
from linattn_models.decoding import CompiledDecoder, CompiledTransformer
from linattn_models.heads.tokenizer import check_tokenizer, read_tokenizer, write_tokenizer
from linattn_models.layers.transformer import Transformer
from linattn_models.tokens.autoregressive import AutoregressiveTransformer
from linattn_models.tokens.seq2seq import Seq2SeqTransformer
from linattn_models.tokens.token_transformer import TokenTransformer
from linattn_models.weights.fewer_bits import FEWER_BITS, reduce_bits, restore_bits
from linattn_models.weights.model_files import (
    CONFIG_FILE,
    DIGEST,
    TOKENIZER_DIGEST,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    describe_weights,
    find_model,
    read_model_config,
    read_model_files,
    require_tensors,
    write_model_files,
)
from linattn_models.weights.sharded import are_sharded, gather_tensors, own_class

Model = Transformer | AutoregressiveTransformer | Seq2SeqTransformer | CTCBiLSTM | CTCTransformer

# What `save` adds to a model's `to_dict`.
OWN_KEYS = ("format_version", DIGEST, TOKENIZER_DIGEST, "model", "weights", "extra")
CLASSES: dict[str, type[Model]] = {cls.__name__: cls for cls in get_args(Model)}
_OTHER = "was it saved from another configuration?"


def save(
    model: Model,
    folder: str | Path,
    extra: Mapping[str, Any] | None = None,
    weights: str | None = None,
    tokenizer: Any = None,
) -> None:
    """Writes the model's configuration and weights into `folder`; if it fails, nothing changes.

    A process that is killed while it saves leaves a folder that loads the old or the new model.

    Args:
        model: a transformer of this package's classes, or a recognizer, on any device. After
            `fully_shard` all ranks must call this: rank 0 writes the whole weights.
        folder: created if it does not exist. A model saved there before is replaced, file by file,
            and its tokenizer removed where this one has none; other files stay.
        extra: JSON values to store beside the configuration, such as the data's name;
            `read_config(folder)["extra"]` returns them.
        weights: "bfloat16" or "int8" writes the matrices of linear layers in a half or a quarter of
            the bytes, rounded as `compile_decoder` rounds them on the CPU; None as they are.
        tokenizer: written to `tokenizer.json`; by default the model's own `tokenizer`, if any.

    Raises:
        ValueError: a model of another class, other weights, `extra` that is not JSON, a tokenizer
            of another vocabulary, or a folder whose `config.json` is not that of a saved model.
        TypeError: a model that is quantized, weights in fewer bits of one that is not in float32,
            or not a tokenizer.
        OSError: the disk is full or cannot be written.
    """
    kind = own_class(model).__name__
    if isinstance(model, (CompiledDecoder, CompiledTransformer)):
        advice = f"save its model with weights={model.weights!r} and read that with load_decoder"
        if model.weights == "float32":
            advice = "save its model and read that with load_decoder"
        raise ValueError(expected("model", "a model", f"a {kind}", advice))
    one_of("the class of the model", kind, CLASSES)
    if not isinstance(model, CLASSES[kind]):
        raise TypeError(expected("model", f"linattn_models.{kind}", f"another class {kind}"))
    if weights is not None:
        one_of("weights", weights, FEWER_BITS)
    if extra is not None:
        instance("extra", extra, Mapping)
    config = {
        "model": kind,
        **model.to_dict(),
        **({} if weights is None else {"weights": weights}),
        "extra": dict(extra or {}),
    }
    try:
        json.dumps(config, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(expected("extra", "JSON values only", error)) from None
    text = tokenizer_content(model, tokenizer)
    tensors: Mapping[str, Tensor] = model.state_dict()
    require_tensors(tensors)
    if not are_sharded(tensors.values()):
        _write(model, Path(folder), config, tensors, weights, text)
        return
    tensors = gather_tensors(model)
    try:
        if distributed.get_rank() == 0:
            _write(model, Path(folder), config, tensors, weights, text)
    finally:
        distributed.barrier()  # every rank may load now


def describe_model(model: nn.Module) -> dict[str, bytes]:
    """The files that `load` needs beside the weights; none for a model of another class."""
    kind = own_class(model).__name__
    if kind not in CLASSES or not isinstance(model, CLASSES[kind]):
        return {}
    config = {"model": kind, **model.to_dict(), "extra": {}}
    return describe_weights(config, model.state_dict(), tokenizer_content(model, None))


def tokenizer_content(model: Model, tokenizer: Any) -> bytes | None:
    """The file of a model's tokenizer."""
    own = model.tokenizer if isinstance(model, TokenTransformer) else None
    tokenizer = own if tokenizer is None else tokenizer
    if tokenizer is None:
        return None
    if not isinstance(model, TokenTransformer):
        wanted, got = f"None for a {own_class(model).__name__}", f"a {type(tokenizer).__name__}"
        raise ValueError(expected("tokenizer", wanted, got))
    check_tokenizer("tokenizer", tokenizer, model.head)
    return write_tokenizer(tokenizer)


def _write(
    model: Model,
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    weights: str | None,
    tokenizer: bytes | None,
) -> None:
    if weights is not None:
        tensors = reduce_bits(model, tensors, weights)
    write_model_files(folder, config, tensors, tokenizer)


def load(folder: str | Path) -> Model:
    """The model that `save` wrote, on the CPU, in evaluation mode, in the dtype it was saved in.

    Of the folder of a training run, the model of its newest checkpoint. Weights in fewer bits
    become float32. A tokenizer that was saved is the model's `tokenizer`.

    Raises:
        FileNotFoundError: no such folder, or one of its two files is absent.
        ValueError: a run without a checkpoint; a configuration that is not JSON, has an unknown or
            missing key or another version; weights that are damaged, do not fit the configuration,
            or are others than those of its "sha256" (weights of another program need none); a
            tokenizer that is damaged, absent or of another vocabulary.
        ModuleNotFoundError: a tokenizer of the library `tokenizers`, which is not installed.
    """
    return load_with_weights(Path(folder))[0]


def load_with_weights(folder: Path) -> tuple[Model, str]:
    """The model, and the weights with which it was saved, by their name."""
    folder = find_model(folder)
    config, tensors, tokenizer = read_model_files(folder)
    path, weights = folder / CONFIG_FILE, folder / WEIGHTS_FILE
    _require_known_model(path, config)
    if config.get("weights") is not None:
        tensors = _restore_bits(weights, tensors)
    cls = CLASSES[config["model"]]
    description = {key: value for key, value in config.items() if key not in OWN_KEYS}
    model = _build(path, weights, cls, description, tensors)
    if tokenizer is not None and isinstance(model, TokenTransformer):
        give_tokenizer(model, str(folder / TOKENIZER_FILE), tokenizer)
    return model.eval(), config.get("weights") or "float32"


def give_tokenizer(model: TokenTransformer, name: str, content: bytes) -> None:
    """Sets the model's tokenizer to that of a file, whose name errors give."""
    tokenizer = read_tokenizer(name, content)
    check_tokenizer(name, tokenizer, model.head)
    model.tokenizer = tokenizer


def read_config(folder: str | Path) -> dict[str, Any]:
    """The content of `config.json` in a saved model's folder.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not JSON, another version of the format, or an unknown kind of model.
    """
    path = find_model(Path(folder)) / CONFIG_FILE
    config = read_model_config(path)
    _require_known_model(path, config)
    return config


def _require_known_model(path: Path, config: Mapping[str, Any]) -> None:
    one_of(f"{path}: the model", config.get("model"), CLASSES)


def _restore_bits(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    try:
        return restore_bits(tensors)
    except (LookupError, RuntimeError) as error:
        wanted = "int8 matrices with the largest weight of each output"
        raise ValueError(expected(str(path), wanted, error)) from None


def _build(
    path: Path,
    weights: Path,
    cls: type[Model],
    description: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> Model:
    """The described model with these weights, after names and shapes are compared.

    It is built on the meta device, where nothing is drawn or allocated; first with few layers, so
    that the time does not depend on a number of layers that the weights do not have.
    """
    most = len(tensors)
    two, three = (
        build_empty(path, cls, with_layers(path, description, count, most)).state_dict()
        for count in (2, 3)
    )
    _check_fit(weights, two, tensors, only=True)
    third = Counter(name.partition("2")[0] for name in three.keys() - two.keys())
    with_layers(path, description, 3, most // min(third.values(), default=1))
    model = build_empty(path, cls, description)
    _check_fit(weights, model.state_dict(), tensors)
    if _has_other_tensors(model):
        # What is drawn is replaced at once: keep the caller's random state.
        with torch.random.fork_rng(devices=[]):
            model = cls.from_dict(description)
    model.load_state_dict(tensors, assign=True)
    return model


def with_layers(path: Path, values: Mapping[str, Any], count: int, most: int) -> dict[str, Any]:
    """The description of the model with `count` layers; refuses one of more layers than `most`."""
    changed = dict(values)
    for name, value in values.items():
        if isinstance(value, Mapping):
            changed[name] = with_layers(path, value, count, most)
        elif name == "num_layers" and isinstance(value, int):
            if value > most:
                wanted = f"at most {most}, by the tensors of {WEIGHTS_FILE}"
                raise ValueError(expected(f"{path}: {name}", wanted, quote(value), _OTHER))
            changed[name] = min(value, count)
    return changed


def build_empty(path: Path, cls: type[Model], description: Mapping[str, Any]) -> Model:
    """The described model on the meta device."""
    try:
        with torch.device("meta"):
            return cls.from_dict(description)
    except ValueError as error:
        raise ValueError(f"{path} describes no model: {error}") from None
    except (TypeError, RuntimeError, OverflowError) as error:
        wanted = "sizes and options of layers"
        raise ValueError(expected(f"{path} describes no model", wanted, error)) from None


def _has_other_tensors(model: nn.Module) -> bool:
    """Whether tensors are not in the state dict, which feature maps of others may have."""
    buffers = len(list(model.buffers())) + len(list(model.parameters()))
    own = [x for module in model.modules() for x in vars(module).values()]
    return buffers != len(model.state_dict()) or any(isinstance(x, Tensor) for x in own)


def _check_fit(
    path: Path, model: Mapping[str, Tensor], tensors: Mapping[str, Tensor], only: bool = False
) -> None:
    """Refuses tensors that are missing, unknown, or of another shape or kind of dtype.

    Args:
        only: compares those of `model` alone; others may be there.
    """
    missing = sorted(model.keys() - tensors.keys())
    unknown = [] if only else sorted(tensors.keys() - model.keys())
    if missing or unknown:
        wanted = f"the {len(model)} tensors of the configured model"
        first = quote((missing or unknown)[0])
        got = f"{len(missing)} missing and {len(unknown)} unknown, the first {first}"
        advice = near(missing[0], unknown) if missing and 0 < len(unknown) < 9 else _OTHER
        raise ValueError(expected(str(path), wanted, got, advice))
    for name, tensor in model.items():
        own = tensors[name]
        numbers = own.is_floating_point() == tensor.is_floating_point()
        if own.shape != tensor.shape or not numbers:
            wanted, got = (f"shape {tuple(x.shape)} of {x.dtype}" for x in (tensor, own))
            raise ValueError(expected(f"{path}: {name!r}", wanted, got, _OTHER))
