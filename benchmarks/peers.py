"""Other people's libraries, where they can be imported; a missing one is a row, not an error."""

from __future__ import annotations

import functools
import importlib
import types

from benchmarks.registry import NotMeasured, Settings

FAST_TRANSFORMERS = "fast-transformers"


def fast_transformers(settings: Settings) -> types.SimpleNamespace:
    """Returns the names of pytorch-fast-transformers that the cases use.

    Raises:
        NotMeasured: when peers were not asked for, or when it does not import here.
    """
    if not settings.peers:
        raise NotMeasured("not asked for (--peers)")
    return _import_fast_transformers()


@functools.cache
def _import_fast_transformers() -> types.SimpleNamespace:
    try:
        attention = importlib.import_module("fast_transformers.attention")
        builders = importlib.import_module("fast_transformers.builders")
        masking = importlib.import_module("fast_transformers.masking")
        product = importlib.import_module("fast_transformers.causal_product")
    except ModuleNotFoundError as error:
        raise NotMeasured("not installed") from error
    except ImportError as error:
        raise NotMeasured(f"does not import here: {error}".splitlines()[0]) from error
    return types.SimpleNamespace(
        CausalLinearAttention=attention.CausalLinearAttention,
        LinearAttention=attention.LinearAttention,
        RecurrentEncoderBuilder=builders.RecurrentEncoderBuilder,
        TriangularCausalMask=masking.TriangularCausalMask,
        FullMask=masking.FullMask,
        LengthMask=masking.LengthMask,
        causal_dot_product=product.causal_dot_product,
    )
