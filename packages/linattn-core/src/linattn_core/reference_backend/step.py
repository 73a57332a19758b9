"""One decoding step in torch operations (equations 18 to 20)."""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_core import pointwise
from linattn_core.calls import StepCall

# From this many elements on, torch shares elementwise work among threads. For fewer, a product and
# a sum cost less than a matrix product, which wakes the threads even if it is small.
_SERIAL = 32_768


def step(call: StepCall) -> Tensor:
    """Adds one key to the state in place and reads it: (B, H, D) -> (B, H, M).

        s += phi(k) v^T,   z += phi(k),   out = phi(q)^T s / (phi(q)^T z + eps)

    With `log_decay`, s and z are first multiplied by exp(log_decay).

    Cost: O(F M) per head, however many positions came before.
    """
    if call.state.s.is_inference() and not torch.is_inference_mode_enabled():
        return _on_inference_tensors(call)
    if call.state_indices is not None:
        return _on_slots(call, call.state_indices)
    value, (s, z) = call.value, call.state
    dtype = value.dtype
    if dtype != s.dtype:
        value = value.to(s.dtype)
    q, k = _features(call.query, call.key, call.feature_map, s.dtype)
    if call.log_decay is not None:
        decay = call.log_decay.exp()[..., None]  # (B, H_kv, 1)
        z.mul_(decay)
        s.mul_(decay[..., None])
    s.addcmul_(k.unsqueeze(-1), value.unsqueeze(-2))
    z.add_(k)
    numerator, normalizer = _read(q, s, z)
    out = numerator.div_(normalizer.add_(call.eps)) if call.normalize else numerator
    return out if dtype == out.dtype else out.to(dtype)


def _on_inference_tensors(call: StepCall) -> Tensor:
    """The step on a copy, which is written back where torch allows it: inside inference mode."""
    copy = call.state.clone()
    out = step(call._replace(state=copy))
    with torch.inference_mode():
        for old, new in zip(call.state, copy, strict=True):
            old.copy_(new)
    return out


def _read(q: Tensor, s: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """phi(q)^T s (B, H, M) and phi(q)^T z (B, H, 1)."""
    if q.shape[1] != z.shape[1]:
        grouped = q.unflatten(1, (z.shape[1], -1))  # (B, H_kv, G, F)
        return (grouped @ s).flatten(1, 2), (grouped @ z.unsqueeze(-1)).flatten(1, 2)
    if s.numel() < _SERIAL:
        numerator = (q.unsqueeze(-1) * s).sum(-2)  # (B, H, M)
    else:
        numerator = (q.unsqueeze(-2) @ s).squeeze(-2)
    return numerator, (q * z).sum(-1, keepdim=True)


def _on_slots(call: StepCall, indices: Tensor) -> Tensor:
    """The step on copies of the slots, which are written back.

    It never reads a number from the device, so that a CUDA graph can capture it. An empty row
    repeats the first row that has a slot: both write the same numbers to that slot.
    """
    if not call.batch or not call.state.z.shape[0]:
        return call.value.new_zeros(*call.query.shape[:2], call.value_dim)
    present = indices >= 0
    rows = torch.arange(call.batch, device=indices.device)
    rows = torch.where(present, rows, present.int().argmax())
    slots = indices.index_select(0, rows).long()
    before = call.state.index_select(slots.clamp(min=0))  # clamped for when all rows are empty
    taken = _rows(call, rows)._replace(state=before.clone())
    out = step(taken)
    for pool, new, old in zip(call.state, taken.state, before, strict=True):
        used = (slots >= 0).view(-1, *(1 for _ in new.shape[1:]))
        pool.index_copy_(0, slots.clamp(min=0), torch.where(used, new, old))
    return out.masked_fill(~present[:, None, None], 0)


def _rows(call: StepCall, rows: Tensor) -> StepCall:
    """Some rows of a call that has no slots."""
    query, key, value = (x.index_select(0, rows) for x in call[:3])
    decay = None if call.log_decay is None else call.log_decay.index_select(0, rows)
    return call._replace(query=query, key=key, value=value, log_decay=decay, state_indices=None)


def _features(query: Tensor, key: Tensor, phi: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """phi(q) and phi(k) in the accumulation dtype, computed together to halve the operations."""
    if phi == "identity":
        return query.to(dtype), key.to(dtype)
    if query.shape != key.shape:
        return pointwise.apply(phi, query.to(dtype)), pointwise.apply(phi, key.to(dtype))
    both = torch.stack((query, key)).to(dtype)
    q, k = pointwise.apply_into(phi, both, torch.empty_like(both), scratch=both).unbind(0)
    return q, k
