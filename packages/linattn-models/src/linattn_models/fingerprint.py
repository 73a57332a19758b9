"""The digest of a model's weights, by which a saved state is compared with a model."""

from __future__ import annotations

import weakref
from typing import NamedTuple

from torch import Tensor, nn

from linattn_core.errors import expected
from linattn_core.torch_private import version_of
from linattn_models.model_files import compute_digest
from linattn_models.snapshot import Snapshot, Source


class _Record(NamedTuple):
    fingerprint: str
    source: Source
    snapshot: Snapshot


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
    source, record = Source(tensors.values(), versions), _records.get(model)
    if record is None or record.source != source:
        fingerprint = compute_digest(tensors)
    else:
        fingerprint = record.fingerprint
    _records[model] = _Record(fingerprint, source, Snapshot(model))
    return fingerprint


def check_weights(fingerprint: str | None, model: nn.Module) -> str | None:
    """The fingerprint of a state, which must be the model's; None for a state without one.

    Cost: that of `compute_fingerprint`, but that of a `Snapshot` for a string that this function
    has returned, where the model has not changed since.
    """
    if fingerprint is None:
        return None
    record = _records.get(model)
    if record is not None and fingerprint is record.fingerprint and record.snapshot.holds():
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
