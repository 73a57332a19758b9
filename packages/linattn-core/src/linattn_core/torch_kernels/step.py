"""One decoding step in torch operations (equations 18 to 20)."""

from __future__ import annotations

from torch import Tensor

from linattn_core import pointwise


def step_(
    query: Tensor, key: Tensor, value: Tensor, s: Tensor, z: Tensor, phi: str, eps: float
) -> Tensor:
    """Adds one key to the state in place and reads it: (B, H, D) -> (B, H, M).

        s += phi(k) v^T,   z += phi(k),   out = phi(q)^T s / (phi(q)^T z + eps)

    Cost: O(F M) a head, whatever was seen before.
    """
    q = pointwise.apply(phi, query.to(s.dtype))
    k = pointwise.apply(phi, key.to(s.dtype))
    s.addcmul_(k.unsqueeze(-1), value.to(s.dtype).unsqueeze(-2))
    z.add_(k)
    q = q.unsqueeze(-2)  # (B, H, 1, F)
    numerator = (q @ s).squeeze(-2)
    normaliser = (q @ z.unsqueeze(-1)).squeeze(-1).add_(eps)
    return numerator.div_(normaliser).to(value.dtype)
