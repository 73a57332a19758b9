"""Whether a model's weights are still the same, and their SHA-256.

One rule for fingerprints and packed decoders. A step compares the identity, place and version of
each tensor, and sees writes of optimizers and of `load_state_dict`. A call (`generate`, `stream`,
`prefill`, `compile_decoder`) also compares a checksum of the bits of all weights, and sees writes
that torch does not count: those through `.data` and into NumPy views.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linattn_core.errors import expected
from linattn_core.torch_private import version_of
from linattn_models.weights.model_files import compute_digest

# A block's sum is below 2^53 (2^31 a word, 2^12 a factor, 2^9 words), so float64 holds it exactly.
_BLOCK, _FACTORS = 512, 4096
_BYTES = 4 * _BLOCK
_SMALL = 1 << 16  # tensors of fewer bytes are summed as one
# Words that are converted at once: a CPU keeps so many in its caches.
_WORDS = {"cpu": 1 << 17}
_MOST_WORDS = 1 << 24


class WeightsRecord:
    """The modules, hooks and tensors of a module, and a checksum of the tensors' bits.

    It keeps them alive, so that no new tensor can get the same address and look unchanged. Settings
    of modules, such as an eps, are not compared.

    Attributes:
        fingerprint: the SHA-256 of the weights; "" until it is computed.
    """

    def __init__(self, module: nn.Module) -> None:
        self.fingerprint = ""
        modules = list(module.modules())
        self._hooks = [x for own in modules for x in (own._forward_hooks, own._forward_pre_hooks)]
        self._attributes = [own.__dict__ for own in modules]
        self._members = [
            members for own in modules for members in (own._modules, own._parameters, own._buffers)
        ]
        held = [x for members in self._members for x in members.values() if x is not None]
        self._held = list({id(x): x for x in held}.values())
        self._tensors = [x for x in self._held if isinstance(x, Tensor)]
        self._before = self._read()
        self._layouts, self._sums = self._read_layouts(), sum_bits(self._tensors)

    def holds(self) -> bool:
        """Whether nothing has changed, as far as torch counts writes; no weight is read."""
        return self._read() == self._before

    def holds_every_bit(self) -> bool:
        """Whether nothing has changed, at the cost of one read of the weights."""
        if not self.holds() or self._read_layouts() != self._layouts:
            return False
        return all(map(torch.equal, sum_bits(self._tensors), self._sums))

    def _read(self) -> tuple[object, ...]:
        """What changes with the members of modules, their hooks, and the versions of tensors."""
        members = [[*map(id, held.values())] for held in self._members]
        hooks = [list(held) for held in self._hooks if held]
        replaced = ["forward" in own for own in self._attributes]
        return members, hooks, replaced, [(x.data_ptr(), version_of(x)) for x in self._tensors]

    def _read_layouts(self) -> list[tuple[object, ...]]:
        return [(x.shape, x.stride(), x.dtype) for x in self._tensors]


# Not an attribute of the models, so that copies, pickles and state dicts do not contain it.
_records: weakref.WeakKeyDictionary[nn.Module, WeightsRecord] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def record_weights(model: nn.Module) -> WeightsRecord:
    """The record of the weights as they are: that of the last call if they are still the same.

    Cost: one read of the weights, about as long as a step.
    """
    with _lock:
        record = _records.get(model)
        if record is None or not record.holds_every_bit():
            record = _records[model] = WeightsRecord(model)
        return record


def compute_fingerprint(model: nn.Module) -> str | None:
    """The SHA-256 of the weights, that which `save` writes for them.

    None where they are not plain tensors: divided among ranks, or quantized.

    Cost: that of `record_weights`; where they have changed since the last call, SHA-256 of them.
    """
    tensors = model.state_dict()
    if any(type(x) is not Tensor or x.is_quantized for x in tensors.values()):
        return None
    record = record_weights(model)
    if not record.fingerprint:
        record.fingerprint = compute_digest(tensors)
    return record.fingerprint


def check_weights(fingerprint: str | None, model: nn.Module, *, step: bool = False) -> str | None:
    """The fingerprint of a state, which must be the model's; None for a state without one.

    Args:
        step: compares as a step does, if the string is one that this function has returned.
    """
    if fingerprint is None:
        return None
    record = _records.get(model) if step else None
    if record is not None and fingerprint is record.fingerprint and record.holds():
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
def sum_bits(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Float64 numbers, one for each 512 words of 32 bits: the sum of words times factors of places.

    The sums are exact, so one changed word always changes them, and so do two that are exchanged.
    """
    return [
        _sum_bytes([_bytes_of(x) for x in tensors if x.device == device])
        for device in dict.fromkeys(x.device for x in tensors)
    ]


def _sum_bytes(contents: Sequence[Tensor]) -> Tensor:
    """The sums of tensors of one device, one after the other."""
    device = contents[0].device
    parts: list[Tensor] = []
    small = []
    most = _WORDS.get(device.type, _MOST_WORDS)
    for content in contents:
        aligned = len(content) >= _SMALL and content.storage_offset() % 4 == 0
        whole = len(content) // _BYTES * _BYTES if aligned else 0
        parts += content[:whole].view(torch.int32).split(most) if whole else ()
        small.append(content[whole:])
    rest = torch.cat(small)
    parts += F.pad(rest, (0, -len(rest) % _BYTES)).view(torch.int32).split(most)
    buffer = torch.empty(max(map(len, parts)), dtype=torch.float64, device=device)
    factors = _factors(device)
    return torch.cat([buffer[: len(x)].copy_(x).view(-1, _BLOCK) @ factors for x in parts])


def _bytes_of(tensor: Tensor) -> Tensor:
    """The bytes of its numbers, in their order."""
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return whole.flatten().view(torch.uint8)


@lru_cache(maxsize=8)
def _factors(device: torch.device) -> Tensor:
    """(512,) whole numbers in 1..4096, all different."""
    generator = torch.Generator().manual_seed(0)
    shuffled = torch.randperm(_FACTORS, generator=generator, device="cpu")[:_BLOCK] + 1
    return shuffled.to(device, torch.float64)
