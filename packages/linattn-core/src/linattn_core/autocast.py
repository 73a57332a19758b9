"""Autocast, as the operator and the models ask for it: torch refuses to say for meta tensors."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def autocast_dtype(kind: str) -> torch.dtype | None:
    """The dtype to which autocast casts on this kind of device; None where it is off."""
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def without_autocast(kind: str) -> AbstractContextManager[object]:
    """Off inside, where sums must stay in the dtype that they have."""
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)
