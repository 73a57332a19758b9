"""The heads and the weights of each layer over many ranks, which exchange its outputs."""

from __future__ import annotations

import functools
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from linattn_core.errors import expected
from linattn_core.feature_maps import Hedgehog
from linattn_models.attention import LinearAttention, LinearMixer, Mixer, SoftmaxMixer
from linattn_models.layers.block import Block
from linattn_models.parallel.agreement import require_divisible
from linattn_models.weights.sharded import PARTS

Layer = LinearMixer | SoftmaxMixer | LinearAttention


class TensorParallel(ParallelStyle):
    """Divides heads and feed-forward networks among the ranks of a mesh with one dimension.

    It may be applied to a model of this package, or to a module that holds `LinearAttention`s.
    Every rank passes the same inputs and gets the same outputs; a state has the rank's own heads.
    `generate` works, called on every rank with the same arguments; compiled decoders do not.

    Of each layer, `qkv` is divided by its outputs, so that a rank has whole heads, and `out` by its
    inputs; `expand` and `gate` by outputs, `contract` by inputs. They become DTensors, which
    optimizers, `fully_shard` on another dimension of the mesh and `save` (called on every rank)
    take. All other weights stay whole on every rank, with the same gradients on each. Weights must
    be those that are trained: freeze them before.

    Raises:
        ValueError: on all ranks of the mesh, for key/value heads or a feed-forward width that the
            number of ranks does not divide, attention that is neither linear nor softmax, a
            feature map with weights for each head, or a module without such layers.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        parts = list(module.modules())
        layers = [x for x in parts if isinstance(x, Layer)]
        require_divisible(module, device_mesh, lambda: _check(parts, device_mesh.size()))
        for layer in layers:
            _divide_heads(layer, device_mesh)
        for block in parts:
            if isinstance(block, Block):
                plan = {"expand": ColwiseParallel(), "contract": RowwiseParallel()}
                plan |= {} if block.gate is None else {"gate": ColwiseParallel()}
                parallelize_module(block, device_mesh, plan)
        return module


class Projections(nn.Module):
    """A linear layer to queries, keys and values, of which each rank has its own heads.

    They are three weights, because each is divided among all ranks.
    """

    def __init__(self, whole: nn.Linear, sizes: list[int], mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh, self.in_features = mesh, whole.in_features
        for name, size in zip(PARTS, sizes, strict=True):
            self.add_module(name, nn.Linear(whole.in_features, size, bias=False, device="meta"))
        for kind, x in whole.named_parameters():
            for name, part in zip(PARTS, x.detach().split(sizes), strict=True):
                own = distribute_tensor(part, mesh, [Shard(0)])
                setattr(self.get_submodule(name), kind, nn.Parameter(own, x.requires_grad))

    def forward(self, x: Tensor) -> Tensor:
        """The rank's own queries, keys and values, concatenated."""
        whole = DTensor.from_local(x, self.mesh, [Replicate()], run_check=False)
        return torch.cat([part(whole).to_local() for part in self.children()], -1)


def _divide_heads(layer: Layer, mesh: DeviceMesh) -> None:
    """Makes a layer that of the rank's own heads."""
    sizes = [heads * layer.head_dim for heads in layer.heads]
    whole = [x for name, x in layer.named_parameters() if not name.startswith(("qkv.", "out."))]
    layer.qkv = cast(Any, Projections(layer.qkv, sizes, mesh))
    parallelize_module(layer, mesh, {"out": RowwiseParallel()})
    ranks, rank = mesh.size(), mesh.get_local_rank()
    layer.heads = tuple(heads // ranks for heads in layer.heads)
    layer.num_heads //= ranks
    layer.num_kv_heads //= ranks
    for x in whole:
        if x.requires_grad:
            x.register_hook(functools.partial(_add_up, mesh))
    if isinstance(layer, LinearMixer):
        layer.own_heads = slice(rank * layer.num_heads, (rank + 1) * layer.num_heads)
    if not isinstance(layer, SoftmaxMixer) and layer.decay is not None:
        own = slice(rank * layer.num_kv_heads, (rank + 1) * layer.num_kv_heads)
        layer.decay.register_forward_pre_hook(
            lambda _, inputs: tuple(_read_by_all(x, mesh) for x in inputs)
        )
        layer.decay.register_forward_hook(lambda _, inputs, log_decay: log_decay[..., own])


def _read_by_all(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """The same tensor, whose gradient is the sum over the ranks."""
    shared = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    return shared.to_local(grad_placements=[Partial()])


def _add_up(mesh: DeviceMesh, gradient: Tensor) -> Tensor:
    total = gradient.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=mesh.get_group())
    return total


def _check(parts: list[nn.Module], ranks: int) -> None:
    """Refuses what the ranks cannot divide."""
    found = False
    for part in parts:
        name = type(part).__name__
        if isinstance(part, Mixer) and not isinstance(part, Layer):
            raise ValueError(expected("TensorParallel", "linear or softmax attention", name))
        if isinstance(part, Layer):
            found = True
            _require_multiple(f"num_kv_heads of a {name}", part.num_kv_heads, ranks)
        if isinstance(part, Hedgehog) and part.query_weight.ndim == 3:
            wanted, got = "a feature map that all heads share", "one with weights for each head"
            raise ValueError(expected("TensorParallel", wanted, got))
        if isinstance(part, Block):
            _require_multiple("ffn_dim", part.expand.out_features, ranks)
    if not found:
        kinds = ", ".join(sorted({type(x).__name__ for x in parts}))
        raise ValueError(expected("TensorParallel", "a module with attention of linattn", kinds))


def _require_multiple(name: str, size: int, ranks: int) -> None:
    if size % ranks:
        raise ValueError(expected(name, f"a multiple of the {ranks} ranks", size))
