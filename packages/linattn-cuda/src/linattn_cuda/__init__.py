"""CUDA kernels for linear attention, found by linattn_core as the backend "cuda".

Nothing has to be called here: `linattn_core.linear_attention` takes this backend by itself for CUDA
tensors where it is the fastest that accepts a call.
"""

from linattn_cuda import _native

__version__ = "0.1.0"

__all__ = ["built_with"]


def built_with() -> str:
    """The compiler and the architectures of the kernels; empty if built without them."""
    return _native.built_with
