"""`lsh_attention`, and the random rotations that it hashes with."""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_core.state import FLOATS, accumulation_dtype
from linattn_core.torch_private import find_observer
from linattn_models.attention.lsh.operators import lsh_attention_operator
from linattn_models.basics.validation import (
    at_least,
    boolean,
    hash_buckets,
    instance,
    lengths_within,
)

# What observes a call that cannot be differentiated.
_TRANSFORMS: dict[str, str] = {
    "forward mode": "a forward-mode derivative (a jvp)",
    "func": "a derivative of torch.func",
}


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
    """Reformer's attention: softmax over the keys that hash into the same region as the query.

        out_i = sum_j exp(q_i . k_j) v_j / sum_j exp(q_i . k_j),    k_j = q_j / |q_j|,

    over the positions j that i sees. Each round puts every position into the bucket
    argmax [q R; -q R], sorts positions by bucket and then by position, and cuts them into chunks.
    Position i sees its own chunk and the one before it in every round, each key once. It sees
    itself only where it sees nothing else; its output is then its own value. The softmaxes of the
    rounds are combined by the logarithms of their denominators. (Kitaev et al. 2020, equations 2
    to 6; "lsh-X" in "Transformers are RNNs", section 4, with X rounds, 64 buckets and chunks of
    32.) Two calls hash differently, unless `rotations` or a seeded `generator` is passed.

    There is no key argument: the keys are the queries, normalized to length 1. This normalization
    replaces the factor 1 / sqrt(D) of softmax attention.

    Args:
        query: (B, H, N, D) float, the keys as well.
        value: (B, H, N, M), of the same dtype and device.
        is_causal: whether position i sees only positions before it. Keys and values after i have
            no weight, but their order still decides which positions before i share its chunk.
        rounds: rounds of hashing; with more rounds the result approaches attention over all keys.
        buckets: buckets in each round, 1 or an even number.
        chunk: positions in a chunk, at most N; N need not be a multiple of it.
        key_lengths: (B,) int in 1..N; positions at or past a row's length do not exist, and their
            outputs are 0. Padding does not change the result of a sequence.
        rotations: (rounds, H, D, buckets / 2) from `draw_rotations`, for repeatable hashing; they
            replace `rounds` and `buckets`. By default each call draws new ones.
        generator: for drawing the rotations; torch's default generator by default.

    Returns:
        (B, H, N, M), the dtype of `value`.

    Raises:
        ValueError, TypeError: another shape, dtype or device, or a number out of range. A second
            derivative raises RuntimeError; a forward-mode derivative and those of torch.func
            raise NotImplementedError.

    A NaN or infinity spreads to its windows and the neighboring ones, also of other heads and
    sequences, because 0 times NaN is NaN. Padding may hold NaN: it is not read.

    Cost: for each head O(rounds (N log N + N chunk (D + M) + rounds N chunk)) time; beside inputs
    and outputs O(rounds N) memory for the orders and O(N (D + M + buckets)) for one round at a
    time.
    """
    chunk = at_least("chunk", chunk, 1)
    _check(query, value, chunk)
    _refuse_transforms(query, value)
    boolean("is_causal", is_causal)
    if rotations is None:
        _, heads, _, head_dim = query.shape
        rotations = draw_rotations(
            rounds, heads, head_dim, buckets, generator=generator, device=query.device
        )
    else:
        _check_rotations(rotations, query)
    if key_lengths is not None:
        batch, _, length, _ = query.shape
        lengths_within("key_lengths", key_lengths, batch, length, shortest=1)
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
    """Random directions for hashing, separate for each round and head.

    Args:
        generator: for the draw, on `device`; torch's default generator by default.

    Returns:
        (rounds, heads, head_dim, buckets // 2) float32, normally distributed.
    """
    rounds = at_least("rounds", rounds, 1)
    buckets = hash_buckets(buckets)
    shape = (rounds, heads, head_dim, buckets // 2)
    return torch.randn(shape, generator=generator, device=device)


def _check(query: Tensor, value: Tensor, chunk: int) -> None:
    for name, x in (("query", query), ("value", value)):
        instance(name, x, Tensor)
        if x.ndim != 4 or 0 in x.shape[2:]:
            wanted = "shape (batch, heads, length, dim) with a length and dim of at least 1"
            raise ValueError(expected(name, wanted, tuple(x.shape)))
        if x.dtype not in FLOATS:
            raise TypeError(expected(name, "a floating dtype", x.dtype, "convert it"))
    own, other = ((tuple(x.shape[:3]), x.dtype, x.device) for x in (query, value))
    if own != other:
        wanted = f"the batch, heads and length, dtype and device of query, {own}"
        raise ValueError(expected("value", wanted, other))
    length = query.shape[2]
    if chunk > length:
        advice = f"with chunk={length} every position sees all keys"
        raise ValueError(expected("chunk", f"at most the length {length}", chunk, advice))


def _refuse_transforms(*tensors: Tensor) -> None:
    """Refuses what the operator has no rule for, and tangents, which it would drop silently."""
    if torch.compiler.is_compiling():
        return
    got = _TRANSFORMS.get(find_observer(tensors))
    if got is not None:
        advice = "use torch.autograd.grad"
        raise NotImplementedError(expected("lsh_attention", "reverse mode", got, advice))


def _check_rotations(rotations: Tensor, query: Tensor) -> None:
    instance("rotations", rotations, Tensor)
    heads, head_dim = query.shape[1], query.shape[3]
    fit = rotations.ndim == 4 and rotations.shape[1:3] == (heads, head_dim) and len(rotations) > 0
    if not (fit and rotations.is_floating_point() and rotations.device == query.device):
        wanted = f"(rounds, {heads}, {head_dim}, buckets / 2) of a floating dtype on {query.device}"
        got = f"{tuple(rotations.shape)} of {rotations.dtype} on {rotations.device}"
        raise ValueError(expected("rotations", wanted, got))
