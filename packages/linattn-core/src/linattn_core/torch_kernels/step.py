"""One decoding step in torch operations (equations 18 to 20)."""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_core import pointwise
from linattn_core.calls import StepCall

# torch shares elementwise work among threads from this many elements on. Below it, products and
# their sum cost less than a matrix product, which wakes the threads however small it is.
_SERIAL = 32_768


def step(call: StepCall) -> Tensor:
    """Adds one key to the state in place and reads it: (B, H, D) -> (B, H, M).

        s += phi(k) v^T,   z += phi(k),   out = phi(q)^T s / (phi(q)^T z + eps)

    Cost: O(F M) a head, whatever was seen before.
    """
    value, (s, z) = call.value, call.state
    dtype = value.dtype
    if dtype != s.dtype:
        value = value.to(s.dtype)
    q, k = _features(call.query, call.key, call.feature_map, s.dtype)
    s.addcmul_(k.unsqueeze(-1), value.unsqueeze(-2))
    z.add_(k)
    if s.numel() < _SERIAL:
        numerator = (q.unsqueeze(-1) * s).sum(-2)  # (B, H, M)
    else:
        numerator = (q.unsqueeze(-2) @ s).squeeze(-2)
    normalizer = (q * z).sum(-1, keepdim=True).add_(call.eps)
    out = numerator.div_(normalizer)
    return out if dtype == out.dtype else out.to(dtype)


def _features(query: Tensor, key: Tensor, phi: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """phi of both at once, which halves the operations, in the accumulation dtype."""
    if phi == "identity":
        return query.to(dtype), key.to(dtype)
    both = torch.stack((query, key)).to(dtype)
    q, k = pointwise.apply_into(phi, both, torch.empty_like(both), scratch=both).unbind(0)
    return q, k
