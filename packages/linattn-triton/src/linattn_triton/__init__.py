"""Triton kernels for linear attention, found by linattn_core as the backend "triton".

Nothing has to be called here: `linattn_core.linear_attention` takes this backend by itself for
tensors on a GPU where it is the fastest that accepts a call. Without triton the package can be
imported, and its backend says that it cannot run.
"""

__version__ = "0.1.0"
