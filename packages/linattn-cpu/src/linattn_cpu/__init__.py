"""Native CPU kernels for linear attention, found by linattn_core as the backend "cpu".

Nothing has to be called here: `linattn_core.linear_attention` takes this backend by itself where it
is the fastest that accepts a call.
"""

# torch is imported first, so that both share one OpenMP library and its threads.
import torch  # noqa: F401

from linattn_cpu._native import instruction_set, instruction_sets, use_instruction_set

__version__ = "0.1.0"

__all__ = ["instruction_set", "instruction_sets", "use_instruction_set"]
