"""What each rank does in the tests of attention over a sequence of which it holds a part."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing import assert_close

from linattn_core import LinearAttentionState, linear_attention
from linattn_core.distributed import context_parallel_attention
from linattn_core.feature_maps import FeatureMap

largest: dict[torch.dtype, float] = {}  # the largest error so far
LOCAL = ("query", "key", "value")


def draw_case(seed: int, ranks: int, dtype: torch.dtype) -> tuple[dict[str, Any], list[int]]:
    """Tensors and settings of a whole call, and where it is cut."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    length, causal = draw.choice((0, 1, 7, 40, 130)), draw.random() < 0.7
    batch, kv_heads, groups = 2, 2, draw.choice((1, 2))
    dim, width = draw.choice((1, 5, 8)), draw.choice((1, 4, 9))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    call: dict[str, Any] = {
        "query": normal(batch, kv_heads * groups, length, dim),
        "key": normal(batch, kv_heads, length, dim),
        "value": normal(batch, kv_heads, length, width),
        "is_causal": causal,
        "enable_gqa": groups > 1,
        "feature_map": draw.choice(("elu", "relu", "polynomial")),
        "return_state": draw.random() < 0.6,
        "eps": 0.1,
    }
    cuts = sorted(draw.randint(0, length) for _ in range(ranks - 1))
    if draw.random() < 0.4:
        call["key_lengths"] = torch.tensor([draw.randint(0, length) for _ in range(batch)])
    if draw.random() < 0.3:
        call["attn_mask"] = torch.rand(batch, length, generator=generator) < 0.7
    if causal and draw.random() < 0.6:
        decay = -normal(batch, kv_heads, length).abs()
        if draw.random() < 0.4:
            decay[:, :, ::5] = -torch.inf
        call["log_decay"] = decay
    if draw.random() < 0.5:
        features = dim * (dim + 1) // 2 if call["feature_map"] == "polynomial" else dim
        call["initial_state"] = (batch, kv_heads, features, width)
    if call["feature_map"] != "polynomial" and draw.random() < 0.3:
        call["normalize"] = draw.random() < 0.5
        call["return_normalizer"] = True
    return call, [0, *cuts, length]


def complete(call: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The call with an initial state: that of other keys, as by a call before."""
    shape = call.get("initial_state")
    if shape is None:
        return call
    sequences, _, _, _ = shape
    key = torch.randn(
        sequences, *call["key"].shape[1:2], 6, call["key"].shape[3], dtype=torch.float64
    )
    value = torch.randn(*key.shape[:3], call["value"].shape[3], dtype=torch.float64)
    _, state = linear_attention(key, key, value, feature_map=call["feature_map"], return_state=True)
    return {**call, "initial_state": state.to(dtype)}


def leaves_of(call: dict[str, Any]) -> dict[str, Tensor]:
    leaves = {x: call[x] for x in (*LOCAL, "log_decay") if call.get(x) is not None}
    state = call.get("initial_state")
    return leaves if state is None else {**leaves, "s": state.s, "z": state.z}


def with_gradients(call: dict[str, Any]) -> dict[str, Any]:
    """The call with tensors that require gradients."""
    new = {k: x.detach().clone().requires_grad_() for k, x in leaves_of(call).items()}
    state = (
        {"initial_state": LinearAttentionState(new.pop("s"), new.pop("z"))} if "s" in new else {}
    )
    return {**call, **new, **state}


def gradients_of(loss: Tensor, call: dict[str, Any]) -> dict[str, Tensor]:
    leaves = leaves_of(call)
    gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, gradients, strict=True))


def cut(call: dict[str, Any], low: int, high: int) -> dict[str, Any]:
    """The part of a call from position low to high."""
    part = dict(call)
    for name in (*LOCAL, "log_decay"):
        if call.get(name) is not None:
            part[name] = call[name][:, :, low:high]
    if call.get("attn_mask") is not None:
        part["attn_mask"] = call["attn_mask"][:, low:high]
    return part


def results_of(returned: Any, call: dict[str, Any]) -> dict[str, Tensor]:
    values = list(returned) if isinstance(returned, tuple) else [returned]
    results = {"out": values.pop(0)}
    if call.get("return_normalizer"):
        results["normalizer"] = values.pop(0)
    if call["return_state"]:
        results |= {f"final_{k}": x for k, x in values.pop(0)._asdict().items()}
    assert not values
    return results


def weights_of(results: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        k: torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype)
        for k, x in results.items()
    }


def check_case(rank: int, ranks: int, seed: int, dtype: torch.dtype, mesh: DeviceMesh) -> None:
    """Outputs, states and gradients of the parts are those of the whole, with one loss a rank."""
    torch.manual_seed(seed)
    call, bounds = draw_case(seed, ranks, dtype)
    call = complete(call, dtype)
    low, high = bounds[rank], bounds[rank + 1]
    tolerance = 1e-13 if dtype == torch.float64 else 1e-5

    whole = with_gradients(call)
    wanted = results_of(linear_attention(**whole, backend="reference"), call)
    # The loss of each rank: a functional of its outputs, and of its copy of the final state.
    weights = weights_of(wanted, seed)
    total = sum(
        (wanted[k] * weights[k]).sum() * (ranks * (ranks + 1) / 2 if "final" in k else 1)
        for k in wanted
    )
    expected = gradients_of(total, whole)

    part = with_gradients(cut(call, low, high))
    ours = results_of(context_parallel_attention(**part, mesh=mesh), call)
    for name, x in ours.items():
        target = wanted[name] if "final" in name else wanted[name][:, :, low:high]
        assert_near(x, target, tolerance, f"seed {seed}, {name}")
    loss = sum(
        (x * (weights[k] * (rank + 1) if "final" in k else weights[k][:, :, low:high])).sum()
        for k, x in ours.items()
    )
    for name, gradient in gradients_of(loss, part).items():
        target = expected[name]
        if name in ("s", "z"):
            dist.all_reduce(gradient)
        else:
            target = target[:, :, low:high]
        assert_near(gradient, target, tolerance, f"seed {seed}, gradient of {name}")


def assert_near(x: Tensor, target: Tensor, tolerance: float, what: str) -> None:
    """The largest error is small beside the largest number, or 1 if that is larger."""
    assert x.shape == target.shape and x.dtype == target.dtype, what
    if x.numel():
        x, target = x.detach(), target.detach()
        error = float((x - target).abs().max()) / max(1.0, float(target.abs().max()))
        assert error < tolerance, f"{what}: {error}"
        largest[x.dtype] = max(largest.get(x.dtype, 0.0), error)


def check_compiled(rank: int, ranks: int, mesh: DeviceMesh) -> None:
    """One graph, forwards and backwards, with the results of the eager call."""
    torch.manual_seed(rank)
    leaves = [torch.randn(1, 2, 5 + rank, 4, dtype=torch.float64) for _ in range(3)]

    def loss(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out, state = context_parallel_attention(
            query, key, value, mesh=mesh, is_causal=True, return_state=True
        )
        return out.square().sum() + state.s.sum()

    results = []
    for call in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        tensors = [x.clone().requires_grad_() for x in leaves]
        value = call(*tensors)
        results.append((value, torch.autograd.grad(value, tensors)))
    assert_close(results[0], results[1])


def check_losses_of_one_rank(rank: int, ranks: int, mesh: DeviceMesh) -> None:
    """A rank whose loss reads the state alone, one without positions, and two layers."""
    length = 0 if rank == ranks - 1 else 4
    x = torch.randn(1, 2, length, 4, requires_grad=True)
    hidden, state = context_parallel_attention(
        x, x, x, mesh=mesh, is_causal=True, return_state=True
    )
    out = context_parallel_attention(hidden, hidden, hidden, mesh=mesh)
    loss = state.s.sum() + 0 * out.sum() if rank == 0 else out.square().sum()
    loss.backward()
    assert x.grad is not None and x.grad.isfinite().all()


class FailingMap(FeatureMap):
    """exp, or an error."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.fails = fails

    def queries(self, x: Tensor) -> Tensor:
        if self.fails:
            raise KeyError("direction")
        return x.exp()

    def feature_dim(self, head_dim: int) -> int:
        return head_dim


def check_refusals(rank: int, ranks: int, mesh: DeviceMesh) -> None:
    """What is wrong on one rank is the same error on all, and the next call works."""
    x = torch.randn(1, 2, 4, 4)
    last = rank == ranks - 1
    decay = torch.full((1, 2, 4), 0.5 if last else -0.5)
    wrong: list[tuple[type[Exception], str, tuple[Tensor, ...], dict[str, Any]]] = [
        (ValueError, "is_causal", (x, x, x), {"is_causal": last}),
        (ValueError, "requires_grad", (x.clone().requires_grad_(last), x, x), {}),
        (ValueError, "log_decay", (x, x, x), {"log_decay": decay, "is_causal": True}),
        (TypeError, "query and value", (x, x, x.double() if last else x), {}),
        (ValueError, "key_lengths", (x, x, x), {"key_lengths": torch.tensor([4 * ranks + 1])}),
        (ValueError, "backend", (x, x, x), {"backend": "none"}),
        (RuntimeError, "KeyError", (x, x, x), {"feature_map": FailingMap(last)}),
    ]
    for kind, name, tensors, options in wrong:
        with pytest.raises(kind, match=name) as error:
            context_parallel_attention(*tensors, mesh=mesh, **options)
        told: list[Any] = [None] * ranks
        dist.all_gather_object(told, str(error.value))
        assert set(told) == {told[0]}
    context_parallel_attention(x, x, x, mesh=mesh)


def check_operator(rank: int, ranks: int, seeds: range) -> None:
    """All checks of this module."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("context",))
    for seed in seeds:
        check_case(rank, ranks, seed, torch.float64, mesh)
        check_case(rank, ranks, 1000 + seed, torch.float32, mesh)
    check_losses_of_one_rank(rank, ranks, mesh)
    check_refusals(rank, ranks, mesh)
    check_compiled(rank, ranks, mesh)
