"""The digest of a model's weights, by which a saved state is compared with a model."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor, nn

from linattn_core.errors import expected
from linattn_core.torch_private import version_of
from linattn_models.model_files import compute_digest
from linattn_models.snapshot import Source

Places = list[tuple[int, int | None]]


class _Record(NamedTuple):
    fingerprint: str
    source: Source
    weights: list[weakref.ref[Tensor]]
    places: Places

    def holds(self, model: nn.Module) -> bool:
        """Whether the model has the same tensors, not written since; reads no weight."""
        own = _tensors(model)
        places = _places(own)
        return (
            len(own) == len(self.weights)
            and all(x() is y for x, y in zip(self.weights, own, strict=True))
            and places == self.places
            and all(version is not None for _, version in places)  # of inference mode: unknown
        )


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
    own, record = _tensors(model), _records.get(model)
    places = _places(own)
    source = Source(tensors.values(), places)
    if record is None or record.source != source:
        fingerprint = compute_digest(tensors)
    else:
        fingerprint = record.fingerprint
    _records[model] = _Record(fingerprint, source, [weakref.ref(x) for x in own], places)
    return fingerprint


def check_weights(fingerprint: str | None, model: nn.Module) -> str | None:
    """The fingerprint of a state, which must be the model's; None for a state without one.

    Cost: that of `compute_fingerprint`, but some tens of microseconds for a string that this
    function has returned, where the weights have not been written since.
    """
    if fingerprint is None:
        return None
    record = _records.get(model)
    if record is not None and fingerprint is record.fingerprint and record.holds(model):
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


def _tensors(model: nn.Module) -> list[Tensor]:
    """The tensors of the model themselves, in their order."""
    return [*model.parameters(), *model.buffers()]


def _places(tensors: Iterable[Tensor]) -> Places:
    """Where tensors are, and how often they were written; not through `.data` or NumPy."""
    return [(x.data_ptr(), version_of(x)) for x in tensors]
