"""Our LSH layer beside the one of Hugging Face's Reformer, with the same weights and hashes."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable

import torch
from torch import nn

from benchmarks import peers
from benchmarks.cases.lsh import BUCKETS, CHUNK
from benchmarks.registry import Absent, Case, Method, NotMeasured, Settings, Target, registry
from linattn_models.attention import Lsh, LshMixer

OURS, PEER = "lsh-1 layer", "transformers' Reformer layer"
LENGTH, QUICK_LENGTH = 16_384, 2 * CHUNK
TOLERANCE = 1e-4  # of the largest output
STRAY_ROWS = 1e-3  # that rounding may hash otherwise

Layer = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Size:
    """Of the layer and what goes through it, one sequence."""

    length: int = LENGTH
    heads: int = 8
    width: int = 64

    @property
    def embed_dim(self) -> int:
        return self.heads * self.width


def _setup(settings: Settings) -> list[Method | Absent]:
    size = Size(QUICK_LENGTH, 2, 8) if settings.quick else Size()
    ours = our_layer(size)
    x = torch.randn(1, size.length, size.embed_dim, generator=torch.Generator().manual_seed(0))
    made: list[Method | Absent] = [_method(OURS, ours, x, lambda: None)]
    try:
        peer = peer_layer(peers.reformer(settings), ours, size)
    except NotMeasured as reason:
        return [*made, Absent(PEER, str(reason))]
    return [*made, _method(PEER, peer, x, lambda: difference(ours, peer, x, size))]


def our_layer(size: Size) -> LshMixer:
    """Projections, LSH attention in one round, projection; without biases, as the peer has it."""
    attention = Lsh(rounds=1, buckets=BUCKETS, chunk=CHUNK)
    layer = LshMixer(attention, size.heads, size.width, is_causal=True)
    nn.init.zeros_(layer.qkv.bias)
    nn.init.zeros_(layer.out.bias)
    return layer


def peer_layer(library: types.SimpleNamespace, ours: LshMixer, size: Size) -> Layer:
    """The peer's layer with our weights."""
    config = library.ReformerConfig(
        attention_head_size=size.width, num_attention_heads=size.heads,
        hidden_size=size.embed_dim, attn_layers=["lsh"], num_hashes=1, num_buckets=BUCKETS,
        lsh_attn_chunk_length=CHUNK, lsh_num_chunks_before=1, lsh_num_chunks_after=0,
        lsh_attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0, is_decoder=True,
    )  # fmt: skip
    attention, output = library.LSHSelfAttention(config), library.ReformerSelfOutput(config)
    with torch.no_grad():
        query, value = ours.qkv.weight.chunk(2)
        for weight, of_ours in (
            (attention.query_key.weight, query),
            (attention.value.weight, value),
            (output.dense.weight, ours.out.weight),
        ):
            weight.copy_(of_ours)

    def layer(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = output(attention(x).hidden_states)
        return out

    return layer


def difference(ours: LshMixer, peer: Layer, x: torch.Tensor, size: Size) -> str | None:
    """Says where the peer's outputs are not ours, when both hash by the same rotations.

    They may differ in one thing: the peer's first chunk sees the last one too.
    """
    kept = ours.rotations.clone()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        expected = peer(x)
        torch.manual_seed(0)  # what the peer draws first, in its own layout
        drawn = torch.randn(size.heads, size.width, 1, BUCKETS // 2)
        ours.rotations.copy_(drawn.permute(2, 0, 1, 3))
        actual = ours.eval()(x)
        ours.rotations.copy_(kept)
        ours.train()
    far = (actual - expected).abs().amax(-1) > TOLERANCE * expected.abs().max()
    share, allowed = far.double().mean().item(), size.heads * CHUNK / size.length + STRAY_ROWS
    if share <= allowed:
        return None
    return f"{share:.1%} of the rows differ from ours; its first chunk explains {allowed:.1%}"


def _method(name: str, layer: Layer, x: torch.Tensor, check: Callable[[], str | None]) -> Method:
    upstream = torch.ones_like(x)

    def forward_and_backward() -> object:
        return torch.autograd.grad(layer(given), given, upstream)

    given = x.clone().requires_grad_()
    return Method(name, check=check, run=forward_and_backward)


registry.add(
    Case(
        "lsh/layer",
        shows="A layer with LSH attention, forward and backward: N=16,384, 8 heads of 64, one "
        "round, 64 buckets, chunks of 32, causal, float32.",
        setup=_setup,
        targets=(Target.faster(OURS, PEER, 1),),
        seconds=20,
    )
)
