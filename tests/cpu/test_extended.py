"""Masks, groups, decay, states and bare sums in native code: threads, builds, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.testing import assert_close

from linattn_core import LinearAttentionState, linear_attention, linear_attention_step
from tests.contract.agreement import assert_within_budget
from tests.contract.cases import Case, evaluate, in_two_dtypes

from .calls import torch_threads

LONG = Case(batch=1, heads=1, queries=1_500, head_dim=9, value_dim=7)
CUT = [
    LONG,
    LONG.with_(is_causal=False),
    LONG.with_(queries=2_100, key_lengths=(1_700,)),
    LONG.with_(queries=2_100, key_lengths=(1_700,), is_causal=False),
    LONG.with_(queries=1_900, cu_seqlens=(0, 0, 1_800, 1_801, 1_900)),
    LONG.with_(queries=1_900, cu_seqlens=(0, 0, 1_800, 1_801, 1_900), is_causal=False),
    LONG.with_(heads=3, kv_heads=1, initial_state=True),
    LONG.with_(heads=3, kv_heads=1, is_causal=False, initial_state=True),
    LONG.with_(heads=8, kv_heads=1, queries=200, log_decay="positions"),  # short, with much to do
    LONG.with_(log_decay="positions", initial_state=True),
    LONG.with_(log_decay="heads", heads=2, kv_heads=1, mask="gaps"),
    LONG.with_(log_decay="resets", normalize=False),
    LONG.with_(mask="gaps", is_causal=False, return_normalizer=True),
    LONG.with_(log_decay="positions", cu_seqlens=(0, 64, 65, 1_000, 1_000, 1_500)),
    LONG.with_(log_decay="positions", cu_seqlens=(0, 512, 1_500)),
    LONG.with_(log_decay="positions", heads=2),
]
OTHERS = (torch.float64, torch.bfloat16, torch.float16)
# Wide heads, whose gradients are computed in chunks anyway, and chunks that are not full.
BUILT = [
    Case(heads=4, kv_heads=2, queries=75, head_dim=40, value_dim=33, mask="left"),
    Case(log_decay="positions", queries=75, head_dim=17, value_dim=64, initial_state=True),
    Case(is_causal=False, queries=75, mask="gaps", normalize=False, return_normalizer=True),
    Case(queries=75, head_dim=64, value_dim=64, mask="gaps"),
    *(
        Case(queries=75, head_dim=dim, value_dim=value_dim, key_lengths=(75, 31), is_causal=causal)
        for dim, value_dim in ((1, 1), (8, 8), (17, 33), (64, 64), (40, 130))
        for causal in (True, False)
    ),
]


@pytest.fixture(params=[2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Numbers of torch's threads: a sequence is cut into as many parts."""
    with torch_threads(request.param):
        yield request.param


@pytest.mark.parametrize("case", CUT, ids=str)
def test_a_sequence_cut_among_threads(case: Case, threads: int) -> None:
    case = case.with_(dtype=torch.float64)
    tensors, options = case.inputs(), case.options()
    ours = evaluate(linear_attention, tensors, {**options, "backend": "cpu"})
    theirs = evaluate(linear_attention, tensors, {**options, "backend": "reference"})
    for name, x in theirs.items():
        assert_close(ours[name], x, rtol=1e-9, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
@pytest.mark.parametrize("kind", ["causal", "decaying", "noncausal"])
def test_wanted_gradients_are_what_they_are_among_all(kind: str, wide: bool) -> None:
    case = Case(
        batch=1, heads=4, kv_heads=2, queries=37, head_dim=33 if wide else 4,
        is_causal=kind != "noncausal", initial_state=True, dtype=torch.float64,
        log_decay="positions" if kind == "decaying" else None,
    )  # fmt: skip
    tensors, options = case.inputs(), {**case.options(), "backend": "cpu"}
    every = evaluate(linear_attention, tensors, options)
    for names in (*((x,) for x in tensors), ("query", "value"), ("key", "z"), ("key", "value")):
        leaves = {n: x.detach().requires_grad_(n in names) for n, x in tensors.items()}
        some = evaluate(linear_attention, leaves, options)
        assert {n for n in some if n.startswith("grad_")} == {f"grad_{n}" for n in names}
        for name, x in some.items():
            # The gradient of decay is computed in chunks, and the others with it; that of a state
            # alone needs no chunks.
            chunks = "log_decay" in tensors and "log_decay" not in names
            chunks |= kind == "causal" and set(names) <= {"s", "z"}
            assert_close(x, every[name], rtol=0, atol=1e-12 if chunks else 0, msg=name)


@pytest.mark.parametrize("case", in_two_dtypes(BUILT, OTHERS), ids=str)
def test_every_build(case: Case, instruction_set: str) -> None:
    assert_within_budget(case, "cpu")


@pytest.mark.parametrize("length", [1, 20, 70])
def test_a_key_that_outweighs_the_state_leaves_the_gradient_to_the_decay_exact(length: int) -> None:
    """The part that passes through a chunk is not computed as a difference of large sums."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    query, key, value = draw(1, 1, length, 4), draw(1, 1, length, 4), draw(1, 1, length, 3) * 1e6
    state = LinearAttentionState(draw(1, 1, 4, 3), draw(1, 1, 4).abs())
    gradient = torch.zeros(1, 1, length, 3)
    gradient_of_s = draw(1, 1, 4, 3)

    def decay_gradient(dtype: torch.dtype, backend: str) -> Tensor:
        decay = torch.full((1, 1, length), -0.01, dtype=dtype, requires_grad=True)
        out, last = linear_attention(
            query.to(dtype), key.to(dtype), value.to(dtype), is_causal=True, normalize=False,
            initial_state=state.to(dtype), log_decay=decay, return_state=True, backend=backend,
        )  # fmt: skip
        outputs, upstream = (out, last.s), (gradient.to(dtype), gradient_of_s.to(dtype))
        return torch.autograd.grad(outputs, decay, upstream)[0][0, 0, 0]

    exact = decay_gradient(torch.float64, "reference")  # of the state alone, which decays first
    passing = decay_gradient(torch.float32, "cpu")
    assert_close(passing.double(), exact, rtol=1e-5, atol=1e-6)


def test_a_slow_decay_does_not_drift() -> None:
    """The rounding of one factor, the same at every chunk, would add up over the length."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, 1, 8_192, 8, generator=generator) for _ in range(3)]
    decay = torch.full((1,), -(2.0**-12))

    def outputs(dtype: torch.dtype, backend: str) -> Tensor:
        out = linear_attention(
            *(x.to(dtype) for x in tensors), is_causal=True, log_decay=decay.to(dtype),
            normalize=False, backend=backend,
        )  # fmt: skip
        return out.double()

    exact = outputs(torch.float64, "reference")
    error = {x: (outputs(torch.float32, x) - exact).abs().max() for x in ("cpu", "reference")}
    assert error["cpu"] <= error["reference"]


@pytest.mark.parametrize("rate", [0.0, 1e-3, 0.1])
def test_the_gradient_to_a_mild_decay_stays_exact(rate: float) -> None:
    """Over 8,000 positions it errs no more than the reference."""
    case = Case(batch=1, heads=2, queries=8_000)
    tensors = case.inputs()
    tensors["log_decay"] = (-rate * torch.rand(1, 2, 8_000)).requires_grad_()
    exact = evaluate(
        linear_attention,
        {name: x.detach().double().requires_grad_() for name, x in tensors.items()},
        {"is_causal": True, "backend": "reference"},
    )
    errors = {}
    for backend in ("cpu", "reference"):
        got = evaluate(linear_attention, tensors, {"is_causal": True, "backend": backend})
        difference = got["grad_log_decay"].double() - exact["grad_log_decay"]
        errors[backend] = difference.abs().max().item()
    slack = 16 * torch.finfo(torch.float32).eps * exact["grad_log_decay"].abs().max().item()
    assert errors["cpu"] <= 2 * errors["reference"] + slack


def count_allocated(call: Callable[[], object]) -> int:
    """Bytes that torch allocates during the call, including those that it frees again."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        call()
    sizes = [x.cpu_memory_usage for x in watched.events() if x.name == "[memory]"]
    assert sizes
    return sum(x for x in sizes if x > 0)


def nbytes(*tensors: Tensor) -> int:
    return sum(x.nbytes for x in tensors)


@pytest.mark.parametrize("is_causal", [True, False])
def test_groups_are_not_expanded(is_causal: bool) -> None:
    """Eight query heads read one: what is allocated has the size of the results."""
    case = Case(batch=1, heads=8, kv_heads=1, queries=512, head_dim=32, value_dim=32)
    leaves = [case.inputs()[x] for x in ("query", "key", "value")]
    query, key, value = leaves
    options = {"is_causal": is_causal, "enable_gqa": True, "backend": "cpu"}
    out = linear_attention(*leaves, **options)
    gradient = torch.ones_like(out)
    results = nbytes(out, query, key, value) + 2 * out[..., 0].nbytes

    took = count_allocated(
        lambda: torch.autograd.grad(linear_attention(*leaves, **options), leaves, gradient)
    )

    assert took < results + nbytes(key, value)


@pytest.mark.parametrize("is_causal", [True, False])
def test_masked_keys_are_not_copied(is_causal: bool) -> None:
    case = Case(batch=1, queries=2_000, head_dim=32, value_dim=8, mask="gaps", is_causal=is_causal)
    query, key, value = (case.inputs()[x].detach() for x in ("query", "key", "value"))

    took = count_allocated(
        lambda: linear_attention(query, key, value, backend="cpu", **case.options())
    )

    assert took < nbytes(value) + key.nbytes // 2


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 3, 2)], ids=str)
def test_a_step_on_slots_of_any_strides(order: tuple[int, ...], instruction_set: str) -> None:
    query, key, value = torch.randn(3, 6, 21), torch.randn(3, 2, 21), torch.randn(3, 2, 19)
    options = {
        "state_indices": torch.tensor([4, -1, 0]), "log_decay": -torch.rand(3, 2), "inplace": True,
        "enable_gqa": True,
    }  # fmt: skip
    s, z = torch.rand(5, 2, 21, 19), torch.rand(5, 2, 21)
    back = [order.index(i) for i in range(4)]
    ours = LinearAttentionState(s.permute(order).contiguous().permute(back), z.clone())
    theirs = LinearAttentionState(s.clone(), z.clone())

    out, _ = linear_attention_step(query, key, value, ours, backend="cpu", **options)
    expected, _ = linear_attention_step(query, key, value, theirs, backend="reference", **options)

    for a, b in zip((out, *ours), (expected, *theirs), strict=True):
        assert_close(a, b, rtol=1e-5, atol=1e-5)
