"""One sequence over many ranks: each holds a part of the length, and states pass between them."""

from linattn_core.distributed.functional import context_parallel_attention

__all__ = ["context_parallel_attention"]
