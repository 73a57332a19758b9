"""What each rank does in the tests of models whose sequences are divided among ranks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from linattn_models import (
    AutoregressiveTransformer,
    Linear,
    LinearAttention,
    MixtureOfLogistics,
    Softmax,
    TransformerConfig,
)
from linattn_models.ctc import CTCTransformer, CTCTransformerConfig
from linattn_models.parallel import ContextParallel, sum_gradients
from tests.models.tiny import Loss

MODELS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"attention": Linear()}, {"positions": "learned"}),
    ({"attention": Linear(decay="learned"), "num_kv_heads": 1}, {"positions": "sinusoidal"}),
    ({"attention": Linear(decay="gated")}, {}),
    ({"attention": Linear(), "rotary": True, "tie_embeddings": True}, {}),
    ({"attention": Linear(feature_map="favor")}, {"head": MixtureOfLogistics(2, 3, 8)}),
]


def build(config: dict[str, Any], model: dict[str, Any]) -> AutoregressiveTransformer:
    torch.manual_seed(0)
    sizes = {"num_layers": 2, "num_heads": 2, "head_dim": 4, "ffn_dim": 12}
    settings = {"head": 7, "max_length": 9, **model}
    return AutoregressiveTransformer(TransformerConfig(**sizes, **config), **settings).double()


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    found = {name: x.grad for name, x in model.named_parameters()}
    return {name: x for name, x in found.items() if x is not None}


def check_models(rank: int, ranks: int, mesh: DeviceMesh) -> None:
    for config, settings in MODELS:
        whole = build(config, settings)
        part = parallelize_module(copy.deepcopy(whole), mesh, ContextParallel())
        for length in (1, 9):
            shape = (3, length, *([3] if whole.head.channels == 3 else []))
            tokens = torch.randint(7, shape, generator=torch.Generator().manual_seed(length))
            for lengths in (None, torch.tensor([length, length // 2, 1])):
                check_loss(whole, part, tokens, lengths, mesh)
        own = part.own_positions(9)
        assert_close(part(tokens), whole(tokens)[:, own], rtol=1e-12, atol=1e-12)


def check_loss(
    whole: AutoregressiveTransformer,
    part: AutoregressiveTransformer,
    tokens: Tensor,
    lengths: Tensor | None,
    mesh: DeviceMesh,
) -> None:
    losses = [model.loss(tokens, lengths) for model in (whole, part)]
    for model, loss in zip((whole, part), losses, strict=True):
        model.zero_grad()
        loss.backward()
    sum_gradients(part, mesh)
    total = losses[1].detach().clone()
    dist.all_reduce(total)
    assert_close(total, losses[0].detach(), rtol=1e-12, atol=1e-12)
    ours, wanted = gradients(part), gradients(whole)
    for name, gradient in wanted.items():
        assert_close(ours[name], gradient, rtol=1e-11, atol=1e-12)


def check_updates(mesh: DeviceMesh, parallel: str) -> None:
    """Five updates of divided batches and sequences are those of one process.

    The mesh has dimensions "data" and "context".
    """
    whole = build(*MODELS[1])
    part = parallelize_module(copy.deepcopy(whole), mesh["context"], ContextParallel())
    run: torch.nn.Module = Loss(part)
    if parallel == "ddp":
        run = DistributedDataParallel(run)
    else:
        for block in part.transformer.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(part, mesh=mesh)
    optimizers = [torch.optim.Adam(x.parameters(), lr=0.01) for x in (whole, part)]
    generator, data = torch.Generator().manual_seed(0), mesh["data"]
    for _ in range(5):
        tokens = torch.randint(7, (4, 9), generator=generator)
        own = tokens.chunk(data.size())[data.get_local_rank()]
        whole.loss(tokens).backward()
        (run(own) * mesh["context"].size()).backward()  # means over ranks are taken
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for a, b in zip(whole.parameters(), part.parameters(), strict=True):
        b = b.full_tensor() if isinstance(b, DTensor) else b
        assert_close(b, a, rtol=1e-10, atol=1e-10)


def check_layer(rank: int, ranks: int, mesh: DeviceMesh) -> None:
    """A layer in a model of the user's own: every rank passes its own vectors."""
    torch.manual_seed(0)
    whole = LinearAttention(8, 2, decay="fixed").double()
    part = copy.deepcopy(whole)
    parallelize_module(torch.nn.ModuleDict({"attn": part}), mesh, {"attn": ContextParallel()})
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    own = torch.arange(7).tensor_split(ranks)[rank]
    assert_close(part(x[:, own], is_causal=True), whole(x, is_causal=True)[:, own])


def check_unused(rank: int, ranks: int, mesh: DeviceMesh) -> None:
    """A parameter that no rank uses has no gradient, as on one process."""
    model = torch.nn.ParameterDict({name: torch.ones(2) for name in ("all", "last", "none")})
    used = model["all"].sum() + (model["last"].sum() if rank == ranks - 1 else 0)
    used.backward()
    sum_gradients(model, mesh)
    assert model["none"].grad is None
    assert_close(model["all"].grad, torch.full((2,), float(ranks)))
    assert_close(model["last"].grad, torch.ones(2))


def check_refusals(rank: int, ranks: int, mesh: DeviceMesh) -> None:
    """What one rank refuses, all refuse in the same words."""
    linear = build(*MODELS[0])
    layers = TransformerConfig(1, 2, 4, 8, is_causal=False)
    wrong: list[tuple[str, torch.nn.Module]] = [
        ("linear attention", build({"attention": Softmax()}, {})),
        ("linear attention", build({"attention": Linear(window_size=3)}, {})),
        ("linear attention", build({"attention": Softmax()}, {}) if rank else linear),
        ("linear attention", torch.nn.Linear(2, 2)),
        ("whole utterances", CTCTransformer(CTCTransformerConfig(3, layers))),
        ("same on every rank", build({"attention": Linear()}, {"head": 7 + rank})),
    ]
    for named, model in wrong:
        with pytest.raises(ValueError, match=named) as error:
            parallelize_module(model, mesh, ContextParallel())
        told: list[Any] = [None] * ranks
        dist.all_gather_object(told, str(error.value))
        assert set(told) == {told[0]}


def check_parts(rank: int, ranks: int) -> None:
    """All checks of this module."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("context",))
    check_models(rank, ranks, mesh)
    check_layer(rank, ranks, mesh)
    for data in {1, ranks // 2}:
        if ranks % data == 0:
            both = init_device_mesh(
                "cpu", (data, ranks // data), mesh_dim_names=("data", "context")
            )
            check_updates(both, "ddp")
            check_updates(both, "fsdp")
    check_unused(rank, ranks, mesh)
    check_refusals(rank, ranks, mesh)
