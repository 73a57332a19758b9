"""What breaks without each private name of torch that linattn_core uses."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch.autograd import forward_ad
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from linattn_core import LinearAttentionState, linear_attention, linear_attention_step
from linattn_core.torch_private import (
    find_observer,
    outside_every_mode,
    register_dataclass,
    version_of,
)


def test_an_import_leaves_the_compiler_alone() -> None:
    """With torch.compiler.assume_constant_result, it would import it; DTensor takes long, too."""
    program = "import sys, linattn_core; print(*sys.modules)"
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not {"torch._dynamo", "torch.distributed.tensor"} & {*printed.stdout.split()}


@pytest.fixture
def one_rank() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


def test_divided_calls_differ_by_all_arguments(one_rank: DeviceMesh) -> None:
    """Without register_sharding, DTensor would take one call's results for those of another."""
    x = torch.randn(2, 2, 5, 3, requires_grad=True)
    divided = distribute_tensor(x.detach(), one_rank, [Shard(1)]).requires_grad_()
    mask, lengths = torch.arange(5) < torch.tensor([[4], [2]]), torch.tensor([4, 2])
    calls: list[dict[str, Any]] = [
        {}, {"return_state": True}, {"return_normalizer": True}, {"eps": 1.0},
        {"key_lengths": lengths}, {"attn_mask": mask}, {"feature_map": "relu"},
    ]  # fmt: skip
    for options in calls:
        for_all = {
            name: distribute_tensor(value, one_rank) if isinstance(value, torch.Tensor) else value
            for name, value in options.items()
        }
        wanted = pytree.tree_leaves(linear_attention(x, x, x, is_causal=True, **options))
        got = pytree.tree_leaves(
            linear_attention(divided, divided, divided, is_causal=True, **for_all)
        )
        wanted += torch.autograd.grad(wanted[0].sum(), x)
        got += torch.autograd.grad(got[0].sum(), divided)
        for ours, whole in zip(got, wanted, strict=True):
            torch.testing.assert_close(ours.full_tensor(), whole)
    state = LinearAttentionState.zeros(2, 2, 3, 3)
    own = LinearAttentionState(*(distribute_tensor(y, one_rank, [Shard(0)]) for y in state))
    gradients = []
    for y, before in ((x, state), (divided, own)):
        out, _ = linear_attention_step(y[:, :, 0], y[:, :, 1], y[:, :, 2], before)
        gradients += torch.autograd.grad(out.square().sum(), y)
    torch.testing.assert_close(gradients[1].full_tensor(), gradients[0])


def test_divided_calls_compile(one_rank: DeviceMesh) -> None:
    x = distribute_tensor(torch.randn(2, 2, 5, 3), one_rank, [Shard(0)])

    @torch.compile(fullgraph=True, backend="aot_eager")
    def attend(x: torch.Tensor) -> torch.Tensor:
        return linear_attention(x, x, x, is_causal=True)

    torch.testing.assert_close(attend(x).full_tensor(), attend(x.full_tensor()))


def test_an_exported_state_is_saved_under_its_registered_name(tmp_path: Path) -> None:
    """Without register_namedtuple, torch.export.save refuses the program."""

    class Double(torch.nn.Module):
        def forward(self, state: LinearAttentionState) -> LinearAttentionState:
            return LinearAttentionState(2 * state.s, 2 * state.z)

    state = LinearAttentionState(torch.ones(1, 1, 2, 3), torch.ones(1, 1, 2))
    torch.export.save(torch.export.export(Double(), (state,)), tmp_path / "double.pt2")
    loaded = torch.export.load(tmp_path / "double.pt2").module()(state)
    assert torch.equal(loaded.s, 2 * state.s)


def test_a_field_may_be_left_out_of_a_pytree() -> None:
    """Without register_dataclass, it would be an input of every exported program."""

    @dataclass(frozen=True)
    class Labeled:
        x: torch.Tensor
        label: str | None = None

    register_dataclass(Labeled, "tests.Labeled", without=["label"])
    leaves, tree = pytree.tree_flatten(Labeled(torch.ones(2), "a"))
    assert len(leaves) == 1 and pytree.tree_unflatten(leaves, tree).label is None


def test_forward_mode_is_noticed() -> None:
    """Without it, a jvp would pass through the operators as zeros."""
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.ones(1, 1, 2, 3), torch.ones(1, 1, 2, 3))
        assert find_observer([torch.ones(2), x]) == "forward mode"
        assert find_observer([torch.ones(2)]) == "nobody"
        with pytest.raises(NotImplementedError, match="reverse mode"):
            linear_attention(x, x, x)
    assert find_observer([x]) == "nobody"


def test_a_value_made_outside_every_mode_outlives_them() -> None:
    """Without it, a tensor made under inference mode can never be saved for a backward pass."""
    with torch.inference_mode(), torch.device("meta"):
        x = outside_every_mode(lambda: torch.ones(2))
    assert not x.is_inference()
    assert x.device.type == "cpu"


@contextmanager
def profiling() -> Iterator[None]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        yield


OBSERVERS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "a default device": lambda: torch.device("cpu"),
    "a mode": lambda: FlopCounterMode(display=False),
    "a profiler": profiling,
}


@pytest.mark.parametrize("name", OBSERVERS)
def test_what_observes_every_call_is_noticed(name: str) -> None:
    """Without it, kernels would be called past what has to see the operator."""
    x = [torch.ones(2), None, torch.nn.Parameter(torch.ones(2))]
    assert find_observer(x) == "nobody"
    with torch.inference_mode(), torch.autocast("cpu"):  # kernels run without it
        assert find_observer(x) == "nobody"
    with OBSERVERS[name]():
        assert find_observer(x) == "dispatcher"
    assert find_observer(x) == "nobody"


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated")
def test_what_transforms_a_function_is_noticed() -> None:
    seen = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(find_observer([torch.ones(2)]))
        return x.sum()

    torch.func.vmap(function)(torch.ones(2, 2))
    torch.func.grad(function)(torch.ones(2))
    torch.jit.trace(function, torch.ones(2), check_trace=False)
    make_fx(function)(torch.ones(2))
    assert seen == ["func", "func", "dispatcher", "dispatcher"]


def test_a_mapped_tensor_is_noticed() -> None:
    """Without it, a step in place under vmap would fail in the dispatcher's words."""
    seen = []
    constant = torch.ones(2)

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append((find_observer([None, x]), find_observer([constant])))
        return x.sum()

    torch.func.vmap(function)(torch.ones(2, 2))
    torch.func.grad(function)(torch.ones(2))
    assert seen == [("vmap", "func"), ("func", "func")]


def test_a_write_in_place_is_noticed() -> None:
    """Without version_of, a decoder packed before a training step would keep the old weights.

    A sum, which also decides, can stay the same: two elements that change places.
    """
    x = torch.tensor([1.0, 2.0])
    before, total = version_of(x), x.sum()
    x.copy_(x.flip(0))
    assert torch.equal(x.sum(), total)
    assert version_of(x) != before
    with torch.inference_mode():
        assert version_of(torch.ones(2)) is None


class Subclass(torch.Tensor):
    """As a user would write one that overrides functions of torch."""


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(2).as_subclass(Subclass),
        torch.ones(2, device="meta"),
        torch.ones(2, dtype=torch.complex64).conj().imag,  # negated when it is read
        torch.ones(2).to_sparse(),
    ],
    ids=["subclass", "meta", "negated", "sparse"],
)
def test_a_tensor_that_is_more_than_its_memory_is_noticed(x: torch.Tensor) -> None:
    assert find_observer([torch.ones(2), x]) == "dispatcher"


def test_a_call_below_autograd_records_no_graph() -> None:
    """As in a kernel of another operator, whose own autograd is in charge."""
    q = torch.ones(1, 1, 2, 3, requires_grad=True)
    with torch._C._AutoDispatchBelowAutograd():
        assert not linear_attention(q, q, q).requires_grad
    assert linear_attention(q, q, q).requires_grad


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_profiler_sees_the_operator(requires_grad: bool) -> None:
    q = torch.ones(1, 1, 2, 3, requires_grad=requires_grad)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        linear_attention(q, q, q)
    name = "linattn::attention" if requires_grad else "linattn::attention_forward"
    assert name in {event.key for event in profile.key_averages()}


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("return_state", [True, False])
def test_observed_and_unobserved_calls_give_the_same(is_causal: bool, return_state: bool) -> None:
    leaves = [torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3)]
    options = {"is_causal": is_causal, "key_lengths": torch.tensor([5, 2])}

    def evaluate() -> list[torch.Tensor]:
        result = linear_attention(*leaves, return_state=return_state, **options)
        out = result[0] if return_state else result
        used = [out, *(result[1] if return_state else ())]
        return [*used, *torch.autograd.grad(sum(x.square().sum() for x in used), leaves)]

    unobserved = evaluate()
    with torch.device("cpu"):
        observed = evaluate()
    assert all(torch.equal(a, b) for a, b in zip(unobserved, observed, strict=True))


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_checkpoint_may_repeat_an_unobserved_call_observed(is_causal: bool) -> None:
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
    gradients = []
    for observer in (contextlib.nullcontext(), torch.device("cpu")):
        x = q.clone().requires_grad_()
        out = checkpoint(
            lambda x: linear_attention(x, k, v, is_causal=is_causal), x, use_reentrant=False
        )
        with observer:
            out.square().sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)
