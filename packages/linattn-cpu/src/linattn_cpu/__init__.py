"""Native CPU kernels for linear attention, found by linattn_core as the backend "cpu".

Nothing has to be called here: `linattn_core.linear_attention` takes this backend by itself where it
is the fastest that accepts a call.
"""

# torch is imported first, so that both share one OpenMP library and its threads.
import torch  # noqa: F401

from linattn_core.errors import expected
from linattn_cpu import _native

__version__ = "0.1.0"

__all__ = ["instruction_set", "instruction_sets", "use_instruction_set"]


def instruction_sets() -> list[str]:
    """The builds of the kernels that this machine can run, the fastest first."""
    return _native.instruction_sets()


def instruction_set() -> str:
    """The build that runs."""
    return _native.instruction_set()


def use_instruction_set(name: str) -> None:
    """Makes another build the one that runs, for tests and measurements.

    Calls that have begun, and decoders that were compiled before, stay with theirs.

    Raises:
        ValueError: a build that is unknown or that this machine cannot run, with those that it can.
    """
    if not isinstance(name, str):
        raise TypeError(expected("name", "a str", type(name).__name__))
    _native.use_instruction_set(name)
