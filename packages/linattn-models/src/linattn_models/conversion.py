"""Conversion of saved models of format 1: their configurations and their weights."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

# Fields of the attention's configuration, which format 1 stored beside the attention's name.
_FIELDS = {
    "linear": {name: name for name in ("feature_map", "feature_map_options", "eps")},
    "lsh": {f"lsh_{name}": name for name in ("rounds", "buckets", "chunk")},
}
# Matrices that format 1 has as (inputs, outputs), the transpose of torch's layout.
_QKV, _EXPAND = "mixer.qkv.weight", "expand.weight"


def config_from_format_1(values: object) -> object:
    """The fields of a `TransformerConfig`; those of the current format are returned unchanged.

    Format 1 had fields for all kinds of attention; those of other kinds are dropped.
    """
    moved = {name for names in _FIELDS.values() for name in names}
    if not isinstance(values, Mapping) or not moved & values.keys():
        return values
    kind = values.get("attention", "linear")
    names = _FIELDS.get(kind, {}) if isinstance(kind, str) else {}
    attention = {name: values[old] for old, name in names.items() if old in values}
    others = {name: value for name, value in values.items() if name not in moved}
    return {**others, "attention": {"kind": kind, **attention}}


def weights_from_format_1(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights with every matrix as (outputs, inputs); current ones are returned unchanged.

    `qkv` has more outputs than inputs, so its shape shows which format a block has.
    """
    blocks = [
        name.removesuffix(_QKV)
        for name, x in tensors.items()
        if name.endswith(_QKV) and x.ndim == 2 and x.shape[0] < x.shape[1]
    ]
    transposed = {block + matrix for block in blocks for matrix in (_QKV, _EXPAND)}
    return {
        name: x.t().contiguous() if name in transposed and x.ndim == 2 else x
        for name, x in tensors.items()
    }
