"""One sequence over many ranks, which exchange states of fixed size."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle

from linattn_core.distributed.functional import check_mesh
from linattn_core.errors import expected
from linattn_models.attention import LinearAttention
from linattn_models.attention.base import Mixer
from linattn_models.attention.linear import LinearMixer
from linattn_models.ctc.recognizer import Recognizer
from linattn_models.layers.transformer import Transformer
from linattn_models.parallel.agreement import require_divisible
from linattn_models.tokens.autoregressive import AutoregressiveTransformer

_ADVICE = "choose linear attention without a window and with causal_block 1"


class ContextParallel(ParallelStyle):
    """Divides the length of a sequence among the ranks of a mesh with one dimension.

    It may be applied to

    - an `AutoregressiveTransformer`: every rank passes the same whole tokens. `forward` returns the
      parameters of the rank's own positions, (B, N_r, P), and `loss` the rank's share of the loss:
      the shares of all ranks add up to the loss, and their gradients to the gradient
      (`sum_gradients`). `own_positions(N)` says which positions are whose. `generate`, `prefill`
      and `step` work on whole sequences, on each rank alone;
    - a `LinearAttention` or `Transformer` (without rotary positions), or a module that holds some:
      every rank passes the vectors of its own positions, (B, N_r, E).

    Recognizers are refused, because CTC's loss aligns whole utterances. What one rank refuses, or
    modules of which ranks hold parameters of other shapes, is the same ValueError on all ranks of
    the mesh.

    Weights stay whole on every rank; `DistributedDataParallel` and `fully_shard` divide work and
    weights by the same mesh or another dimension of it. With these two, multiply the loss by the
    number of ranks, because they take the mean of the gradients.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        parts = list(module.modules())
        layers = [x for x in parts if isinstance(x, LinearMixer | LinearAttention)]
        models = [x for x in parts if isinstance(x, AutoregressiveTransformer)]
        require_divisible(module, device_mesh, lambda: _check_divisible(parts, models, layers))
        for part in (*layers, *models):
            part.mesh = device_mesh
        return module


def _check_divisible(
    parts: list[nn.Module],
    models: list[AutoregressiveTransformer],
    layers: list[LinearMixer | LinearAttention],
) -> None:
    """Refuses attention that needs more of other ranks than a state."""
    for part in parts:
        got, advice = "", _ADVICE
        if isinstance(part, Recognizer):
            got = type(part).__name__
            advice = "the loss aligns whole utterances, so divide the batch instead"
        elif isinstance(part, Mixer) and not _has_sums_alone(part):
            got = type(part).__name__
            if isinstance(part, LinearMixer) and part.window_size:
                got += f" with window_size {part.window_size}"
            if part.causal_block > 1:
                got += f" with causal_block {part.causal_block}"
        elif isinstance(part, Transformer) and part.config.cross_attention:
            got = "cross_attention=True"
        elif isinstance(part, Transformer) and part.config.rotary:
            inside = any(part is model.transformer for model in models)
            got = "" if inside else "rotary=True"
            advice = "apply it to the AutoregressiveTransformer, which knows the positions"
        if got:
            raise ValueError(expected("ContextParallel", "linear attention", got, advice))
    if not layers:
        kinds = ", ".join(sorted({type(x).__name__ for x in parts})) or "none"
        raise ValueError(expected("ContextParallel", "a module with linear attention", kinds))


def _has_sums_alone(mixer: Mixer) -> bool:
    """Whether a position needs of all before it no more than their sums."""
    return isinstance(mixer, LinearMixer) and not mixer.window_size and mixer.causal_block == 1


def sum_gradients(model: nn.Module, mesh: DeviceMesh) -> None:
    """Adds up the gradients of all ranks of `mesh`, in place; every rank calls it.

    A parameter without a gradient counts as 0, and one without a gradient on any rank stays without
    one. Leave it out under `DistributedDataParallel` and `fully_shard`, which add up themselves.
    """
    check_mesh("mesh", mesh)
    parameters = [x for x in model.parameters() if x.requires_grad]
    if not parameters:
        return
    given = [x.grad is not None for x in parameters]
    used = torch.tensor(given, dtype=torch.int32, device=parameters[0].device)
    dist.all_reduce(used, group=mesh.get_group())
    by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
    for x, ranks in zip(parameters, used.tolist(), strict=True):
        if ranks:
            by_dtype.setdefault(x.dtype, []).append(x)
    for same in by_dtype.values():
        gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in same]
        total: Tensor = torch.cat([x.flatten() for x in gradients])
        dist.all_reduce(total, group=mesh.get_group())
        for x, gradient in zip(same, total.split([x.numel() for x in same]), strict=True):
            x.grad = gradient.view_as(x).clone()
