"""The device of a backend and the widest dtype that it takes, by its own answers."""

from __future__ import annotations

import torch

from linattn_core import backends
from linattn_core.calls import AttentionCall
from linattn_core.registry import find_backend


def _refusal(
    backend: str, device: str, dtype: torch.dtype = torch.float32, *, requires_grad: bool = False
) -> str | None:
    """The backend's answer to a plain call."""
    if device == "cuda" and not torch.cuda.is_available():
        return "there is no GPU."
    x = torch.zeros(1, 1, 1, 4, dtype=dtype, device=device)
    return find_backend(backend).refuses(AttentionCall(x, x, x, True, requires_grad=requires_grad))


def device_of(backend: str) -> str | None:
    """The kind of device that a live backend takes tensors on; None if it takes none here."""
    for device in ("cpu", "cuda"):
        if _refusal(backend, device) is None:
            return device
    return None


def usable_backends() -> list[str]:
    """The live backends that run something on this machine."""
    return [name for name in backends() if device_of(name) is not None]


def widest(backend: str) -> torch.dtype:
    """float64 where the backend takes it, so that rounding hides nothing; else float32."""
    refused = _refusal(backend, device_of(backend) or "cpu", torch.float64)
    return torch.float64 if refused is None else torch.float32


def differentiates(backend: str) -> bool:
    """Whether it computes gradients; one that does not is held to the rest of the contract."""
    return _refusal(backend, device_of(backend) or "cpu", requires_grad=True) is None
