"""Our LSH layer beside the one of Hugging Face's Reformer, with the same weights and hashes."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks import oracle
from benchmarks.case import Case, Make, Method, Settings
from benchmarks.cases import peers
from benchmarks.cases.operators import BUCKETS, CHUNK, STRAY_ROWS
from benchmarks.cases.problem import Problem
from linattn_models.attention import Lsh, LshMixer

REFORMER = "transformers.models.reformer.modeling_reformer"
OURS, PEER = "lsh-1 layer", "transformers' Reformer layer"
TOLERANCE = 1e-4  # over the largest output

Layer = Callable[[Tensor], Tensor]


def setup(settings: Settings) -> dict[str, Make]:
    """Our layer and the peer's, with the same weights."""
    problem = Problem(16_384).for_settings(settings)
    ours, x = our_layer(problem), inputs(problem)

    def make_peer() -> Method:
        peer = peer_layer(peers.load(REFORMER, settings), ours)
        return _method(peer, x, partial(difference, ours, peer, x))

    return {OURS: lambda: _method(ours, x, partial(fault, ours, x)), PEER: make_peer}


def inputs(problem: Problem) -> Tensor:
    """One sequence of vectors, (1, N, E), multiples of 1/2."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(1, problem.length, problem.heads * problem.width, generator=generator)
    return (2 * drawn).round() / 2


def our_layer(problem: Problem) -> LshMixer:
    """Projections, LSH attention in one round, projection; without biases, as the peer has it."""
    attention = Lsh(rounds=1, buckets=BUCKETS, chunk=CHUNK)
    layer = LshMixer(attention, problem.heads, problem.width, is_causal=True)
    nn.init.zeros_(layer.qkv.bias)
    nn.init.zeros_(layer.out.bias)
    return layer


def peer_layer(library: types.ModuleType, ours: LshMixer) -> Layer:
    """The peer's layer with our weights."""
    _, heads, width, _ = ours.rotations.shape
    config = library.ReformerConfig(
        attention_head_size=width, num_attention_heads=heads,
        hidden_size=heads * width, attn_layers=["lsh"], num_hashes=1, num_buckets=BUCKETS,
        lsh_attn_chunk_length=CHUNK, lsh_num_chunks_before=1, lsh_num_chunks_after=0,
        lsh_attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0, is_decoder=True,
    )  # fmt: skip
    attention, output = library.LSHSelfAttention(config), library.ReformerSelfOutput(config)
    theirs = (attention.query_key, attention.value, output.dense)
    weights = (*ours.qkv.weight.chunk(2), ours.out.weight)
    with torch.no_grad():
        for module, weight in zip(theirs, weights, strict=True):
            module.weight.copy_(weight)

    def layer(x: Tensor) -> Tensor:
        out: Tensor = output(attention(x).hidden_states)
        return out

    return layer


@torch.no_grad()
def fault(layer: LshMixer, x: Tensor) -> str | None:
    """Compares a copy of our layer with itself in float64.

    Its weights are rounded to multiples of 1/32 and its rotations to multiples of 1/16, so that
    float32 holds the projections of `inputs` exactly and both hash alike.
    """
    ours = copy.deepcopy(layer).eval()
    ours.qkv.weight.copy_((32 * ours.qkv.weight).round() / 32)
    ours.rotations.copy_((16 * ours.rotations).round() / 16)
    exact = copy.deepcopy(ours).double()
    return oracle.find_disagreement("the output", ours(x), exact(x.double()), stray=STRAY_ROWS)


def difference(ours: LshMixer, peer: Layer, x: Tensor) -> str | None:
    """Says where the peer's outputs are not ours, when both hash by the same rotations.

    They may differ in one thing: the peer's first chunk sees the last one too.
    """
    same = copy.deepcopy(ours).eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        wanted = peer(x)
        torch.manual_seed(0)  # what the peer draws first, in its own layout
        _, heads, width, planes = same.rotations.shape
        same.rotations.copy_(torch.randn(heads, width, 1, planes).permute(2, 0, 1, 3))
        actual = same(x)
    far = (actual - wanted).abs().amax(-1) > TOLERANCE * wanted.abs().max()
    share, allowed = far.double().mean().item(), heads * CHUNK / x.shape[1] + STRAY_ROWS
    if share <= allowed:
        return None
    return f"{share:.1%} of the rows differ from ours; its first chunk explains {allowed:.1%}"


def _method(layer: Layer, x: Tensor, check: Callable[[], str | None]) -> Method:
    leaf, upstream = x.clone().requires_grad_(), torch.ones_like(x)
    return Method(check, run=lambda: torch.autograd.grad(layer(leaf), leaf, upstream))


CASES = (
    Case(
        "lsh/layer",
        "A layer with LSH attention, forward and backward: N=16,384, 8 heads of 64, one round, 64 "
        "buckets, chunks of 32, causal, float32.",
        setup=setup,
        ratios=((PEER, OURS),),
    ),
)
