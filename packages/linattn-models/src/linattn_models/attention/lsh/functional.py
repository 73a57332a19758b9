"""`lsh_attention`, and the rotations that it hashes by."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from linattn_core.state import accumulation_dtype
from linattn_models.attention.lsh.operators import lsh_attention_operator
from linattn_models.validation import (
    at_least,
    hash_buckets,
    lengths_within_unless_compiling,
)

_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def lsh_attention(
    query: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    rounds: int = 4,
    buckets: int = 64,
    chunk: int = 32,
    key_lengths: Tensor | None = None,
    rotations: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Softmax attention over the keys that hash near each query: Reformer's.

        out_i = sum_j exp(q_i . k_j) v_j / sum_j exp(q_i . k_j),    k_j = q_j / |q_j|,

    over the positions j that i sees. Each round puts every position into the bucket
    argmax [q R; -q R], sorts positions by bucket and then by position, and cuts them into chunks; i
    sees its own chunk and the one before it, of any round, each key once. A position sees itself
    only where it sees nothing else, and its value is then its output. The rounds' softmaxes are
    combined by the logarithms of their denominators. (Kitaev et al. 2020, equations 2 to 6; the
    rivals "lsh-X", with X rounds, 64 buckets and chunks of 32, of "Transformers are RNNs",
    section 4.) Two calls hash differently, unless `rotations` or a seeded `generator` is given.

    There is no key: the keys are the queries, at length 1, which stands for softmax attention's
    factor of 1 / sqrt(D).

    Args:
        query: (B, H, N, D) float, the keys as well.
        value: (B, H, N, M), of the same dtype and device.
        is_causal: whether position i sees only positions before it. Keys and values behind i weigh
            nothing; where they sort to decides all the same which of those before i share its
            chunk.
        rounds: of hashing; with more of them the result approaches attention over all keys.
        buckets: in each round, an even number, or 1.
        chunk: positions in a chunk, at most N; N need not be a multiple.
        key_lengths: (B,) int in 1..N; positions at or past a row's length do not exist, and their
            outputs are 0. A padded sequence gives what it gives alone.
        rotations: (rounds, H, D, buckets / 2) as `draw_rotations` gives them, for hashing that can
            be repeated; rounds and buckets are then theirs. Drawn anew by default.
        generator: what draws them otherwise; torch's own by default.

    Returns:
        (B, H, N, M), the dtype of `value`.

    Raises:
        ValueError, TypeError: arguments that cannot be right. A second derivative raises
            RuntimeError, a forward-mode derivative NotImplementedError.

    A NaN or an infinity spreads to whatever is sorted into the same windows or beside them, of
    other heads and sequences too, for a weight of 0 does not silence it; in padding it is not
    looked at.

    Cost: for each head O(rounds (N log N + N chunk (D + M) + rounds N chunk)) time; beside inputs
    and outputs O(rounds N) memory for the orders and O(N (D + M + buckets)) for one round at a
    time.
    """
    _check(query, value, chunk)
    _refuse_tangents(query, value)
    if not isinstance(is_causal, bool):
        raise TypeError(f"is_causal must be True or False and is {is_causal!r}.")
    if rotations is None:
        _, heads, _, head_dim = query.shape
        rotations = draw_rotations(
            rounds, heads, head_dim, buckets, generator=generator, device=query.device
        )
    else:
        _check_rotations(rotations, query)
    if key_lengths is not None:
        batch, _, length, _ = query.shape
        lengths_within_unless_compiling("key_lengths", key_lengths, batch, length, shortest=1)
        key_lengths = key_lengths.to(query.device)
    rotations = rotations.to(accumulation_dtype(query.dtype))
    out: Tensor = lsh_attention_operator(query, value, rotations, key_lengths, chunk, is_causal)[0]
    return out


def draw_rotations(
    rounds: int,
    heads: int,
    head_dim: int,
    buckets: int,
    *,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Directions to hash by: each round and head has its own.

    Args:
        generator: what draws them, on `device`; torch's own by default.

    Returns:
        (rounds, heads, head_dim, buckets // 2) float32, of a normal distribution.

    Raises:
        ValueError: no rounds, or an odd number of buckets other than 1.
    """
    at_least("rounds", rounds, 1)
    hash_buckets("buckets", buckets)
    shape = (rounds, heads, head_dim, buckets // 2)
    return torch.randn(shape, generator=generator, device=device)


def _check(query: Tensor, value: Tensor, chunk: int) -> None:
    for name, x in (("query", query), ("value", value)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor and is {type(x).__name__}.")
        if x.ndim != 4 or x.shape[3] == 0:
            raise ValueError(
                f"{name} must have shape (batch, heads, length, dim), with a dim of at least 1, "
                f"and has {tuple(x.shape)}."
            )
        if x.dtype not in _FLOATS:
            raise TypeError(f"{name} must be of a floating dtype and is {x.dtype}; convert it.")
    if query.shape[:3] != value.shape[:3]:
        raise ValueError(
            "query and value must have the same batch, heads and length, since queries are the "
            f"keys too, and have shapes {tuple(query.shape)} and {tuple(value.shape)}."
        )
    if query.dtype != value.dtype or query.device != value.device:
        raise ValueError(
            "query and value must have one dtype and device and are "
            f"{query.dtype} on {query.device} and {value.dtype} on {value.device}."
        )
    length = query.shape[2]
    if length == 0:
        raise ValueError("The sequence must have a position at least and has none.")
    at_least("chunk", chunk, 1)
    if chunk > length:
        raise ValueError(
            f"chunk must be at most the length of the sequence, {length}, and is {chunk}; with "
            f"chunk={length} nothing is overlooked."
        )


def _refuse_tangents(*tensors: Tensor) -> None:
    """Forward-mode differentiation would pass through the operator as zeros."""
    if forward_ad._current_level < 0:
        return
    if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError(
            "lsh_attention was asked for a forward-mode derivative (a jvp) and has reverse mode "
            "only; use torch.autograd.grad."
        )


def _check_rotations(rotations: Tensor, query: Tensor) -> None:
    if not isinstance(rotations, Tensor) or not rotations.is_floating_point():
        kind = rotations.dtype if isinstance(rotations, Tensor) else type(rotations).__name__
        raise TypeError(f"rotations must be a tensor of a floating dtype and are {kind}.")
    heads, head_dim = query.shape[1], query.shape[3]
    right = rotations.ndim == 4 and rotations.shape[1:3] == (heads, head_dim)
    if not right or rotations.shape[0] == 0:
        raise ValueError(
            f"rotations must have shape (rounds, {heads}, {head_dim}, buckets / 2) and have "
            f"{tuple(rotations.shape)}."
        )
    if rotations.device != query.device:
        raise ValueError(
            f"rotations are on {rotations.device} and queries on {query.device}; move one."
        )
