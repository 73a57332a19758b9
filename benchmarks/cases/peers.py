"""Other people's libraries, where they can be imported; a missing one is a row, not an error."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable

import torch

from benchmarks.measure.cases import NotMeasured, Settings

FAST_TRANSFORMERS = "fast-transformers"
FLASH_LINEAR_ATTENTION = "flash-linear-attention"


def fast_transformers(settings: Settings) -> types.SimpleNamespace:
    """Returns the names of pytorch-fast-transformers that the cases use.

    Raises:
        NotMeasured: when peers were not asked for, or when it does not import here; as below.
    """
    attention, builders, masking = (
        _import(f"fast_transformers.{name}", settings)
        for name in ("attention", "builders", "masking")
    )
    return types.SimpleNamespace(
        CausalLinearAttention=attention.CausalLinearAttention,
        LinearAttention=attention.LinearAttention,
        RecurrentEncoderBuilder=builders.RecurrentEncoderBuilder,
        TriangularCausalMask=masking.TriangularCausalMask,
        FullMask=masking.FullMask,
        LengthMask=masking.LengthMask,
    )


def flash_linear_attention(settings: Settings) -> Callable[..., tuple[torch.Tensor, object]]:
    """Returns flash-linear-attention's `chunk_linear_attn`, in the layout (B, N, H, D)."""
    module = _import("fla.ops.linear_attn", settings)
    found: Callable[..., tuple[torch.Tensor, object]] = module.chunk_linear_attn
    return found


def reformer(settings: Settings) -> types.ModuleType:
    """Returns Hugging Face transformers' module of the Reformer."""
    return _import("transformers.models.reformer.modeling_reformer", settings)


def _import(name: str, settings: Settings) -> types.ModuleType:
    if not settings.peers:
        raise NotMeasured("not asked for (--peers)")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise NotMeasured("not installed") from error
    except ImportError as error:
        raise NotMeasured(f"does not import here: {error}".splitlines()[0]) from error
