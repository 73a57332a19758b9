"""A decoder's description as one safetensors file, which needs no Python to be read.

The tensors have the names of `linattn_core.decoder_spec`, matrices the shape (outputs, inputs), as
`nn.Linear` has them. Settings are metadata.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from linattn_core.decoder_spec import (
    WEIGHTS,
    Affine,
    CannotCompile,
    DecoderDescription,
    DecoderLayer,
    Norm,
    Sampler,
    TokenCoding,
)
from linattn_core.errors import expected
from linattn_models.basics.validation import one_of
from linattn_models.weights.fewer_bits import restore_bits, round_matrix
from linattn_models.weights.tensor_files import read_tensors, write_tensors

FORMAT, VERSION = "linattn decoder", "1"
_WHOLE = "a whole file that export_decoder wrote"
_FREQUENCIES = "rotary_frequencies"
_MATRICES = ("qkv", "out", "expand", "contract")
_OF_HEADS = ("decay_logits", "decay_weight", "log_gamma", "query_map", "key_map")


def write_decoder(
    file: Path, description: DecoderDescription, weights: str, metadata: Mapping[str, str]
) -> None:
    """Writes the description, with its matrices in the dtype `weights`, and more metadata."""
    tensors: dict[str, Tensor] = {}

    def put(name: str, value: Affine | Norm | Tensor | None) -> None:
        if isinstance(value, Affine):
            tensors.update(round_matrix(f"{name}.weight", value.weight.t(), weights))
            put(f"{name}.bias", value.bias)
        elif isinstance(value, Norm):
            tensors[f"{name}.weight"] = value.weight
            put(f"{name}.bias", value.bias)
        elif value is not None:
            tensors[name] = value

    if description.rotary_frequencies is not None:
        tensors[_FREQUENCIES] = torch.tensor(description.rotary_frequencies, dtype=torch.float64)
    put("norm", description.norm)
    for index, layer in enumerate(description.layers):
        for part, value in vars(layer).items():
            put(f"layers.{index}.{part}", value)
    if (tokens := description.tokens) is not None:
        for channel, table in enumerate(tokens.embeddings):
            put(f"tokens.embeddings.{channel}", table)
        for part in ("start", "positions", "output"):
            put(f"tokens.{part}", getattr(tokens, part))
    own = {"format": FORMAT, "version": VERSION, "weights": weights}
    write_tensors(file, tensors, {**own, **file_settings(description), **metadata})


def file_settings(description: DecoderDescription) -> dict[str, str]:
    """The settings as a file has them."""
    settings = description.settings
    turns, norms = settings.pop("rotary_frequencies"), set(settings.pop("norms"))
    if len(norms) > 1:
        wanted, got = "norms of one kind and eps", f"{len(norms)} kinds"
        raise CannotCompile(expected("model", wanted, got, "ship its weights by save"))
    [(eps, centered)] = norms
    kind = "LayerNorm" if centered else "RMSNorm"
    settings |= {"rotary": turns is not None, "norm_kind": kind, "norm_eps": eps}
    return {name: _text(value) for name, value in settings.items()}


def _text(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def read_decoder(
    file: Path, device: torch.device
) -> tuple[DecoderDescription, str, dict[str, str]]:
    """The description in a file, after checks, with its tensors on a device; weights and metadata.

    Raises:
        FileNotFoundError, ValueError: no such file, or one that is damaged or of another kind.
    """
    tensors, metadata = read_tensors(file, _WHOLE, file_format=FORMAT)
    if metadata.get("version") != VERSION:
        got = f"version {metadata.get('version')!r}"
        raise ValueError(expected(str(file), f"version {VERSION}", got, "update linattn-models"))
    weights = metadata.get("weights", "")
    one_of(f"{file}: weights", weights, WEIGHTS)
    tensors = {name: x.to(device) for name, x in tensors.items()}
    try:
        tensors = restore_bits(tensors)
        description = _Reader(tensors, metadata).description()
        for name, value in file_settings(description).items():
            if metadata.get(name) != value:
                raise ValueError(f"{name} {metadata.get(name)!r} beside tensors of {value}")
        if tensors:
            raise ValueError(f"also {min(tensors)!r}")
    except (LookupError, RuntimeError, ValueError) as error:
        raise ValueError(expected(str(file), _WHOLE, error)) from None
    return description, weights, metadata


def _number(text: str, low: float = 0.0) -> float:
    value = float(text)
    if not low <= value < math.inf:
        raise ValueError(f"the number {text}")
    return value


class _Reader:
    """Takes a description's parts out of tensors and metadata; `KeyError` for what is missing."""

    def __init__(self, tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> None:
        self._tensors, self._metadata = tensors, metadata

    def description(self) -> DecoderDescription:
        read = self._metadata
        count = int(read["num_layers"])
        if not 0 < count <= len(self._tensors):
            raise ValueError(f"num_layers {count}")
        turns = self._tensors.pop(_FREQUENCIES) if read["rotary"] == "true" else None
        if turns is not None and (turns.dtype != torch.float64 or turns.ndim != 1):
            raise ValueError(f"{_FREQUENCIES} of {turns.dtype} and shape {tuple(turns.shape)}")
        return DecoderDescription(
            layers=tuple(self._layer(f"layers.{index}.") for index in range(count)),
            norm=self._norm("norm"),
            **{name: int(read[name]) for name in ("num_heads", "num_kv_heads", "head_dim")},
            feature_map=read["feature_map"],
            eps=_number(read["eps"]),
            activation=read["activation"],
            norm_first=read["norm_first"] == "true",
            rotary_frequencies=None if turns is None else tuple(turns.tolist()),
            tokens=self._tokens() if read["tokens"] == "true" else None,
            window_size=int(read["window_size"]),
        )

    def _layer(self, name: str) -> DecoderLayer:
        parts: dict[str, Any] = {part: self._affine(name + part) for part in _MATRICES}
        parts |= {part: self._tensors.pop(name + part, None) for part in _OF_HEADS}
        is_gated = self._metadata["gated"] == "true"
        return DecoderLayer(
            **parts,
            norm1=self._norm(f"{name}norm1"),
            norm2=self._norm(f"{name}norm2"),
            gate=self._affine(f"{name}gate") if is_gated else None,
        )

    def _tokens(self) -> TokenCoding:
        read = self._metadata
        kind, choices = read["head"], int(read["choices"])
        channels = range(int(read["channels"]))
        sampler = None
        if kind != "none":
            sampler = Sampler(cast(Any, kind), choices, _number(read["lowest_log_scale"], -1e30))
        return TokenCoding(
            tuple(self._tensors.pop(f"tokens.embeddings.{channel}") for channel in channels),
            self._tensors.pop("tokens.start", None),
            self._tensors.pop("tokens.positions", None),
            self._affine("tokens.output"),
            sampler,
        )

    def _affine(self, name: str) -> Affine:
        weight = self._tensors.pop(f"{name}.weight").t()
        return Affine(weight, self._tensors.pop(f"{name}.bias", None))

    def _norm(self, name: str) -> Norm:
        weight, bias = self._tensors.pop(f"{name}.weight"), self._tensors.pop(f"{name}.bias", None)
        centered = self._metadata["norm_kind"] == "LayerNorm"
        return Norm(weight, bias, _number(self._metadata["norm_eps"]), centered)
