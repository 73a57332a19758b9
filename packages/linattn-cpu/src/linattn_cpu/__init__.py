"""Native CPU kernels for linear attention, found by linattn_core as the backend "cpu".

You need not call anything here: `linattn_core.linear_attention` uses this backend automatically if
it is the fastest that accepts a call.
"""

# torch is imported first, so that both share one OpenMP library and its threads.
import torch  # noqa: F401

from linattn_core.errors import expected
from linattn_cpu import _native

__version__ = "0.1.0"

__all__ = ["instruction_set", "instruction_sets", "use_instruction_set"]


def instruction_sets() -> list[str]:
    """The builds of the kernels (instruction sets) that this machine can run, the fastest first."""
    return _native.instruction_sets()


def instruction_set() -> str:
    """The build that is in use."""
    return _native.instruction_set()


def use_instruction_set(name: str) -> None:
    """Selects another build, for tests and measurements.

    Calls that have started, and decoders that were compiled before, keep their build.

    Args:
        name: one of `instruction_sets()`.

    Raises:
        ValueError: a name that is unknown, or that this machine cannot run.
        TypeError: not a str.
    """
    if not isinstance(name, str):
        raise TypeError(expected("name", "a str", type(name).__name__))
    _native.use_instruction_set(name)
