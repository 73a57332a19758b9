"""What is trained: the model, or a copy of it that is divided among processes.

A copy has the parameters of the model, except that `fully_shard` gives it parts of them.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.utils.checkpoint import checkpoint

from linattn_core.errors import expected
from linattn_models.layers.block import Block
from linattn_models.parallel import ContextParallel
from linattn_models.tokens.autoregressive import AutoregressiveTransformer
from linattn_models.training.config import TrainingConfig


def copy_for_training(
    model: nn.Module, config: TrainingConfig, processes: int, device: torch.device
) -> nn.Module:
    """The module to train: the model itself, unless the configuration changes its layers."""
    divides = config.context_parallel > 1
    if not (divides or config.activation_checkpointing or config.shards(processes)):
        return model
    trained = copy.deepcopy(model, {id(x): x for x in _tensors(model)})
    if config.activation_checkpointing:
        _recompute_blocks(trained)
    if divides:
        _require_divisible(trained)
        sizes = (processes // config.context_parallel, config.context_parallel)
        mesh = init_device_mesh(device.type, sizes, mesh_dim_names=("data", "context"))
        parallelize_module(trained, mesh["context"], ContextParallel())
    return trained


def shard_weights(root: nn.Module, processes: int, device: torch.device) -> None:
    """Divides the weights of each block, and all others together, among the processes."""
    mesh = init_device_mesh(device.type, (processes,), mesh_dim_names=("shard",))
    for block in _blocks(root):
        fully_shard(block, mesh=mesh)
    fully_shard(root, mesh=mesh)


def gather_weights(trained: nn.Module, model: nn.Module) -> None:
    """Copies what is trained into the model; all processes must call it."""
    with torch.no_grad():
        for part, whole in zip(_tensors(trained), _tensors(model), strict=True):
            if part is not whole:
                whole.copy_(gather(part))


def scatter_weights(model: nn.Module, trained: nn.Module) -> None:
    """Copies the model, as it is on the first process, into what is trained."""
    with torch.no_grad():
        for whole, part in zip(_tensors(model), _tensors(trained), strict=True):
            if part is not whole:
                part.copy_(scatter(whole, part))


def gather(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be divided; all processes must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def scatter(whole: Tensor, like: Tensor) -> Tensor:
    """The tensor, divided as `like` is; all processes must call it."""
    whole = whole.to(like.device)
    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole, like.device_mesh, like.placements)


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    return itertools.chain(module.parameters(), module.buffers())


def _blocks(module: nn.Module) -> list[Block]:
    return [x for x in module.modules() if isinstance(x, Block)]


def _recompute_blocks(module: nn.Module) -> None:
    """Makes the backward pass compute the activations within each block again."""
    blocks = _blocks(module)
    if not blocks:
        wanted, got = "a model with blocks of a transformer", type(module).__name__
        raise ValueError(expected("activation_checkpointing", wanted, got))
    for block in blocks:
        block.forward = functools.partial(  # type: ignore[method-assign]
            checkpoint, block.forward, use_reentrant=False
        )


def _require_divisible(module: nn.Module) -> None:
    if not any(isinstance(x, AutoregressiveTransformer) for x in module.modules()):
        wanted, got = "1, or an AutoregressiveTransformer", type(module).__name__
        raise ValueError(expected("context_parallel", wanted, got))
