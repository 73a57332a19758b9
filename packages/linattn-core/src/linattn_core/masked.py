"""Masked keys for kernels that know lengths alone.

Such kernels compute what is asked for, bit for bit: of a masked key they see features and a value
that are zero, and its gradients are set to zero after them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall, Gradients

# phi of it is exactly 0 in every dtype, and so is phi': exp(-10,000) is below all numbers.
_NOTHING = {"elu": -1e4, "relu": -1e4, "identity": 0.0}


def without_mask(call: AttentionCall) -> AttentionCall:
    """The same call without `attn_mask`: as lengths where it says no more, or in copied keys.

    Cost: nothing for padding on the right in CPU memory, else a copy of key and value.
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


def erased(gradients: Gradients, mask: Tensor | None) -> Gradients:
    """Zeroes the gradients of masked keys and values, in place."""
    if mask is not None:
        gone = ~mask[:, None, :, None]
        for x in (gradients.key, gradients.value):
            if x is not None:
                x.masked_fill_(gone, 0)
    return gradients


def _as_lengths(call: AttentionCall, mask: Tensor) -> Tensor | None:
    """The lengths that say the same as the mask; None where it is on a GPU or leaves gaps."""
    if mask.device.type != "cpu" or call.cu_seqlens is not None:
        return None
    lengths = mask.sum(1)
    if not torch.equal(mask, torch.arange(mask.shape[1], device="cpu") < lengths[:, None]):
        return None
    return lengths if call.key_lengths is None else torch.minimum(lengths, call.key_lengths.cpu())
