"""The digest of a model's weights, by which a saved state is compared with a model."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from linattn_core.errors import expected
from linattn_core.torch_private import version_of
from linattn_models.model_files import compute_digest


@dataclass(frozen=True)
class _Record:
    """A fingerprint and what it was computed from."""

    fingerprint: str
    versions: list[tuple[int, int | None]]
    checksums: Tensor

    def is_of(self, versions: list[tuple[int, int | None]], checksums: Tensor) -> bool:
        """Whether it was computed from these weights."""
        return self.versions == versions and torch.equal(self.checksums, checksums)


# Not an attribute of the models, so that copies, pickles and state dicts do not contain it.
_records: weakref.WeakKeyDictionary[nn.Module, _Record] = weakref.WeakKeyDictionary()


def compute_fingerprint(model: nn.Module) -> str | None:
    """The SHA-256 of the weights, that which `save` writes for them.

    None where they are not plain tensors: divided among ranks, or quantized.

    Cost: the weights are read once, which takes about as long as a step; once more, on the CPU, if
    they have changed since the last call.
    """
    tensors = model.state_dict()
    if any(type(x) is not Tensor or x.is_quantized for x in tensors.values()):
        return None
    versions = [(x.data_ptr(), version_of(x)) for x in tensors.values()]
    checksums = compute_checksums(tensors.values())
    record = _records.get(model)
    if record is None or not record.is_of(versions, checksums):
        record = _records[model] = _Record(compute_digest(tensors), versions, checksums)
    return record.fingerprint


def check_weights(fingerprint: str | None, model: nn.Module) -> str | None:
    """The fingerprint of a state, which must be the model's; None for a state without one.

    Cost: that of `compute_fingerprint`, but nothing for a string that this function has returned
    and the model still has.
    """
    if fingerprint is None:
        return None
    record = _records.get(model)
    if record is not None and fingerprint is record.fingerprint:
        return fingerprint
    own = compute_fingerprint(model)
    refuse_others(fingerprint, own)
    return fingerprint if own is None else own


def refuse_others(fingerprint: str | None, own: str | None) -> None:
    """Refuses the fingerprint of other weights; one that is not known passes."""
    if fingerprint is not None and own is not None and fingerprint != own:
        wanted = f"one that the model's weights made, of fingerprint {own[:12]}"
        got = f"one of {fingerprint[:12]}"
        raise ValueError(expected("state", wanted, got, "load the weights that it was made with"))


@torch.no_grad()
def compute_checksums(tensors: Iterable[Tensor]) -> Tensor:
    """A number for each row of each tensor, in which every place has a factor of its own.

    Writes through `.data` or into a NumPy view do not change a tensor's version, and an exchange of
    rows or columns does not change its sum. As bits, NaN equals NaN.
    """
    sums = [
        x.reshape(-1, x.shape[-1]).float() @ _factors(x.shape[-1], x.device)
        for x in map(torch.atleast_1d, tensors)
        if x.numel()
    ]
    return torch.cat(sums).view(torch.int32)


@lru_cache(maxsize=64)
def _factors(width: int, device: torch.device) -> Tensor:
    """(width,) numbers in [0.5, 1.5): fractional parts of the multiples of an irrational number."""
    places = torch.arange(1, width + 1, dtype=torch.float64, device=device)
    return (places * (math.sqrt(5) / 2)).frac().float() + 0.5
