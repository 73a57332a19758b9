"""The kernel as a ladder: from the paper's loop to tensor cores, one idea a rung.

    from linattn_cuda.prototypes import LADDER

    print(list(LADDER))  # from the lowest rung
    out = LADDER["chunked"].attention(query, key, value)  # CUDA tensors (B, H, N, D)

Each rung is one file under `kernels/`, to be read in this order, over the same device headers as
the kernels of the backend "cuda", and compiled by CuPy when it is first called. All
are forward, causal and normalized. `linear_attention(..., backend="cupy")` runs the last one.
"""

from linattn_cuda.prototypes.ladder import LADDER, Rung

__all__ = ["LADDER", "Rung"]
