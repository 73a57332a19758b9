"""Linear attention under one name: all public names of linattn_core and linattn_models.

Rooms of their own have the rest: `linattn_models.training`, `linattn_models.huggingface`,
`linattn_models.serving`, `linattn_models.parallel`. Each call takes the fastest of the installed
kernels that accepts it: those of `linattn_cpu`, `linattn_cuda` or `linattn_triton`; without any, it
runs in plain PyTorch.
"""

import linattn_core
import linattn_models
from linattn_core import *  # noqa: F403
from linattn_models import *  # noqa: F403

__version__ = "0.1.0"

__all__ = []
__all__ += linattn_core.__all__
__all__ += linattn_models.__all__
