"""Masked keys for kernels that know lengths alone.

Such kernels get a masked key with features and value of zero, which changes no sum, and its
gradients are set to zero after them. So their results are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall, Gradients

# Keys x with phi(x) = 0 and phi'(x) = 0 exactly, in every dtype: exp(-10,000) underflows to 0.
_NOTHING = {"elu": -1e4, "relu": -1e4, "identity": 0.0}


def remove_mask(call: AttentionCall) -> AttentionCall:
    """The same call without `attn_mask`: as `key_lengths` if it is one, else in copied keys.

    Cost: O(B L) time for padding on the right in CPU memory, else also a copy of key and value.
    """
    mask = call.attn_mask
    if mask is None:
        return call
    lengths = _as_lengths(call, mask)
    if lengths is not None:
        return call._replace(attn_mask=None, key_lengths=lengths)
    gone = ~mask[:, None, :, None]
    key = call.key.masked_fill(gone, _NOTHING[call.feature_map])
    return call._replace(attn_mask=None, key=key, value=call.value.masked_fill(gone, 0))


def erase_masked(gradients: Gradients, mask: Tensor | None) -> Gradients:
    """Zeroes the gradients of masked keys and values, in place."""
    if mask is not None:
        gone = ~mask[:, None, :, None]
        for x in (gradients.key, gradients.value):
            if x is not None:
                x.masked_fill_(gone, 0)
    return gradients


def _as_lengths(call: AttentionCall, mask: Tensor) -> Tensor | None:
    """The lengths that mean the same as the mask; None if it is on a GPU, packed or has gaps."""
    if mask.device.type != "cpu" or call.cu_seqlens is not None:
        return None
    lengths = mask.sum(1)
    if not torch.equal(mask, torch.arange(mask.shape[1], device="cpu") < lengths[:, None]):
        return None
    return lengths if call.key_lengths is None else torch.minimum(lengths, call.key_lengths.cpu())
