"""Other libraries, where they are installed; a missing one becomes a row with the reason."""

from __future__ import annotations

import importlib
import types

from benchmarks.case import Settings
from linattn_lab.timing import NotMeasured

FAST_TRANSFORMERS = "fast-transformers"
FLASH_LINEAR_ATTENTION = "flash-linear-attention"
FLASH_LINEAR_FUSED = "flash-linear-attention, fused"


def load(name: str, settings: Settings) -> types.ModuleType:
    """Returns a module of a peer's package, or raises NotMeasured with the reason why not."""
    if not settings.peers:
        raise NotMeasured("not asked for (--peers)")
    return find(name)


def find(name: str) -> types.ModuleType:
    """Returns a module, or raises NotMeasured where what it needs is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise NotMeasured("not installed") from error
    except ImportError as error:
        raise NotMeasured(f"does not import here: {error}".splitlines()[0]) from error
