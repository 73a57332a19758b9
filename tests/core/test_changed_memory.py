"""Memory that changes between the passes, where autograd does not see it, corrupts nothing."""

from __future__ import annotations

from itertools import cycle

import pytest
import torch
from torch import Tensor

from linattn_core import (
    LinearAttentionState,
    backends,
    linear_attention,
    linear_attention_step,
)
from linattn_core.calls import AttentionCall, StepCall
from linattn_core.checks import prepare_attention, prepare_step

BACKENDS = [name for name in ("cpu", "reference") if name in backends()]


def make_inputs(batch: int = 1) -> list[Tensor]:
    return [torch.rand(batch, 2, 64, 8, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("is_causal", "left"), [(True, 0), (False, 1000)])
@pytest.mark.parametrize("name", ["query", "key", "value", "s", "z", "attn_mask", "out"])
def test_memory_that_was_freed_is_not_read(
    name: str, left: int, is_causal: bool, backend: str
) -> None:
    inputs = dict(zip(("query", "key", "value"), make_inputs(), strict=True))
    inputs["key"] = torch.rand(1, 64, 2, 8).transpose(1, 2)  # its last number is far from the first
    state = LinearAttentionState(torch.rand(1, 2, 8, 8), torch.rand(1, 2, 8))
    # Only with a mask by the operator.
    mask = torch.ones(1, 64, dtype=torch.bool) if name == "attn_mask" else None
    out = linear_attention(
        **inputs, is_causal=is_causal, attn_mask=mask, initial_state=state, backend=backend
    )
    freed = {**inputs, **state._asdict(), "attn_mask": mask, "out": out}[name]
    freed.untyped_storage().resize_(min(left, freed.nbytes - 1))
    named = "initial_state" if name in ("s", "z") else name
    with pytest.raises(ValueError, match=rf"^{named}: .*freed"):
        torch.autograd.grad(out, inputs["query"], torch.ones(1, 2, 64, 8))


@pytest.mark.skipif("cpu" not in backends(), reason="no native backend is installed")
@pytest.mark.parametrize("left", [0, 16])
@pytest.mark.parametrize("name", ["query", "key", "value", "s", "z"])
def test_a_call_refuses_memory_that_was_freed(name: str, left: int) -> None:
    inputs = {x: torch.rand(1, 64, 2, 8).transpose(1, 2) for x in ("query", "key", "value")}
    state = LinearAttentionState(torch.rand(1, 2, 8, 8), torch.rand(1, 2, 8))
    last = [x[:, :, -1] for x in inputs.values()]
    {**inputs, **state._asdict()}[name].untyped_storage().resize_(left)
    named = "initial_state" if name in ("s", "z") else name
    with pytest.raises(ValueError, match=rf"^{named}: .*freed"):
        linear_attention(**inputs, is_causal=True, initial_state=state, backend="cpu")
    named = "state" if name in ("s", "z") else name
    with pytest.raises(ValueError, match=rf"^{named}: .*freed"):
        linear_attention_step(*last, state, inplace=True, backend="cpu")


def test_numbers_that_native_code_reads_are_copies() -> None:
    """A thread that changes them after the check changes nothing; they have any strides."""
    x = torch.rand(1, 2, 64, 8)
    for name, numbers in (("key_lengths", [20]), ("cu_seqlens", [0, 20, 64])):
        theirs = torch.tensor(numbers, dtype=torch.int32).repeat_interleave(2)[::2]
        call = AttentionCall(x, x, x, True)._replace(**{name: theirs})
        ours = getattr(prepare_attention(call, "elu", "auto", enable_gqa=False), name)
        assert ours.data_ptr() != theirs.data_ptr() and ours.tolist() == numbers
        assert ours.is_contiguous() and ours.dtype == torch.int64
    slots = torch.tensor([0])
    state = LinearAttentionState.zeros(1, 2, 8, 8)
    step = StepCall(*3 * (x[:, :, 0],), state, state_indices=slots)
    ours = prepare_step(step, "elu", "auto", inplace=True, enable_gqa=False).state_indices
    assert ours is not None and ours.data_ptr() != slots.data_ptr()


def test_empty_tensors_need_no_memory() -> None:
    x = torch.rand(1, 2, 0, 8, requires_grad=True)
    linear_attention(x, x, x).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("name", ["query", "key", "value", "log_decay", "s", "z"])
def test_inputs_of_another_shape_are_refused(name: str, is_causal: bool, backend: str) -> None:
    if name == "log_decay" and not is_causal:
        pytest.skip("only causal calls decay")
    inputs = dict(zip(("query", "key", "value"), make_inputs(), strict=True))
    s, z = torch.rand(1, 2, 8, 8, requires_grad=True), torch.rand(1, 2, 8, requires_grad=True)
    decay = -torch.rand(1, 2, 64)
    options = {"initial_state": LinearAttentionState(s, z), "log_decay": decay.requires_grad_()}
    if not is_causal:
        del options["log_decay"]
    out = linear_attention(**inputs, is_causal=is_causal, backend=backend, **options)
    changed = {**inputs, "s": s, "z": z, "log_decay": decay}[name]
    changed.data = changed.new_zeros(1, 2, 4, 16)[..., : changed.shape[-1]]
    named = "initial_state" if name in ("s", "z") else name
    with pytest.raises(ValueError, match=rf"^[a-z_ ]*\b{named}\b[a-z_ ]*:"):
        out.sum().backward()


class Kept:
    """Saves floating-point tensors in another dtype, as hooks that save memory do."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, x: Tensor) -> Tensor:
        return x.to(self.dtype) if x.is_floating_point() else x

    def __enter__(self) -> None:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self, lambda x: x)
        self._hooks.__enter__()

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)


OPTIONS = {
    "plain": {},
    "mask": {"attn_mask": torch.rand(1, 64) < 0.7},
    "lengths": {"key_lengths": torch.tensor([50])},
    "packed": {"cu_seqlens": torch.tensor([0, 20, 64])},
    "decay": {"log_decay": torch.tensor([-0.1, -0.01])},
    "state": {"initial_state": LinearAttentionState(torch.rand(1, 2, 8, 8), torch.rand(1, 2, 8))},
}
ROUNDING = {torch.float16: 5e-3, torch.bfloat16: 5e-2, torch.float64: 1e-6}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(
    ("options", "dtype", "compiled"),
    [
        *((name, dtype, False) for name, dtype in zip(OPTIONS, cycle(ROUNDING), strict=False)),
        ("packed", torch.float16, True),
        ("state", torch.float64, True),
    ],
)
def test_what_hooks_save_in_another_dtype_is_cast_back(
    dtype: torch.dtype, options: str, is_causal: bool, backend: str, compiled: bool
) -> None:
    if options == "decay" and not is_causal:
        pytest.skip("only causal calls decay")
    inputs = make_inputs()
    weights = torch.rand(1, 2, 64, 8)

    def attend(*inputs: Tensor) -> Tensor:
        return linear_attention(*inputs, is_causal=is_causal, backend=backend, **OPTIONS[options])

    run = torch.compile(attend, backend="aot_eager") if compiled else attend
    with Kept(dtype):
        out = run(*inputs)
    gradients = torch.autograd.grad(out, inputs, weights)
    exact = torch.autograd.grad(attend(*inputs), inputs, weights)
    scale = max(x.abs().max() for x in exact)  # those of queries are differences of large numbers
    for rounded, x in zip(gradients, exact, strict=True):
        assert rounded.dtype == x.dtype
        assert (rounded - x).abs().max() <= ROUNDING[dtype] * scale


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("name", "numbers"), [("cu_seqlens", [0, 9, 64]), ("key_lengths", [64])])
def test_lengths_that_hooks_round_are_refused_where_they_leave_the_tensors(
    name: str, numbers: list[int], is_causal: bool, backend: str
) -> None:
    inputs, lengths = make_inputs(), {name: torch.tensor(numbers)}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: x if x.is_floating_point() else x + 1, lambda x: x
    ):
        out = linear_attention(*inputs, is_causal=is_causal, backend=backend, **lengths)
    with pytest.raises(ValueError, match=rf"^{name}:"):
        out.sum().backward()
