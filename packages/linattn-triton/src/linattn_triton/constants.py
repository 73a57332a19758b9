"""What kernels are compiled for, by the names that calls have for it."""

from __future__ import annotations

import triton.language as tl

from linattn_triton.tiles import ELU, RELU

MAPS = {"identity": 0, "elu": ELU.value, "relu": RELU.value}
LANGUAGE_DTYPES = {True: tl.bfloat16, False: tl.float32}
