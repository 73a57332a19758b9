"""The kernels' own source on the CPU: every width, dtype, layout, cut; nothing unwritten."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

from linattn_core import (
    LinearAttentionState,
    linear_attention,
    linear_attention_step,
    operators,
)
from linattn_core.calls import AttentionCall, Gradients, Output
from linattn_core.native import Upstream
from linattn_core.registry import find_backend
from linattn_cuda.device import Gpu
from tests.contract.agreement import assert_within_budget
from tests.contract.budgets import budget, error
from tests.contract.cases import Case, by_definition, drawing, in_two_dtypes, on_backend
from tests.cuda.emulated import CUT, H100, NAMES, WALKING, CutBackend, EmulatedBackend
from tests.cuda.layouts import LAYOUTS

pytestmark = pytest.mark.usefixtures("emulation")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HALVES = DTYPES[1:]
ONE = Case(batch=1, heads=2)
WIDTHS = (1, 5, 16, 24, 32, 48, 64, 80, 96, 128, 256)
LAYERS = [ONE.with_(head_dim=24, value_dim=24, dtype=x) for x in DTYPES]
# Those of the lean kernels: forward and backward for 64 dims, forward for 128.
LAYERS += [ONE.with_(head_dim=x, value_dim=x, dtype=torch.bfloat16) for x in (64, 128)]
of_each_kernel = pytest.mark.parametrize("one", LAYERS, ids=str)


WIDE = [ONE.with_(queries=150, head_dim=x, value_dim=x) for x in WIDTHS]


@pytest.mark.parametrize("case", in_two_dtypes(WIDE, HALVES), ids=str)
def test_every_width(case: Case) -> None:
    assert_within_budget(case, WALKING)
    assert_within_budget(case.with_(is_causal=False), CUT)


@pytest.mark.parametrize(("dim", "value_dim"), [(16, 128), (128, 16), (1, 256), (40, 72), (96, 5)])
def test_values_of_another_width(dim: int, value_dim: int) -> None:
    case = ONE.with_(queries=140, head_dim=dim, value_dim=value_dim, dtype=torch.bfloat16)
    assert_within_budget(case, CUT)
    assert_within_budget(case.with_(is_causal=False), WALKING)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 191, 193, 257])
@pytest.mark.parametrize("backend", NAMES)
def test_ragged_lengths(backend: str, length: int) -> None:
    for one in (ONE.with_(head_dim=20, value_dim=20), *LAYERS[3:]):
        case = one.with_(queries=length, initial_state=True)
        assert_within_budget(case, backend)
        assert_within_budget(case.with_(queries=70, keys=length, is_causal=False), backend)


@of_each_kernel
@pytest.mark.parametrize("backend", NAMES)
def test_lengths_packing_and_states(backend: str, one: Case) -> None:
    plain = one.with_(heads=1, initial_state=True)
    padded = plain.with_(batch=4, queries=200, key_lengths=(0, 64, 130, 200))
    packed = plain.with_(queries=270, cu_seqlens=(0, 0, 64, 65, 200, 270))
    for case in (padded, packed):
        assert_within_budget(case, backend)
        assert_within_budget(case.with_(is_causal=False), backend)


@of_each_kernel
@pytest.mark.parametrize("segments", [2, 5, 50])
def test_any_number_of_segments(one: Case, segments: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_backend(CUT), "segments", segments)
    for is_causal in (True, False):
        case = one.with_(queries=500, initial_state=True, is_causal=is_causal)
        assert_within_budget(case, CUT)


def plan_of(call: AttentionCall, *, derivatives: bool = False, gpu: Gpu = H100) -> tuple[int, int]:
    """Segments, and what is whole, that a backend chooses that is free to."""
    backend = EmulatedBackend(gpu)
    backend.segments = None
    if derivatives:
        output = Output(call.value, call.value[..., 0].float(), None)
        upstream = Upstream(call, output, call.value, None, None)
        fields = backend._fields.backward(upstream, Gradients(*call[:3], None, None))
    else:
        fields = backend._fields.forward(call, Output(call.value, call.value[..., 0], None))
    plan = backend._make_plan(call, backend._complete(fields, call), derivatives)
    return plan[:2]


def call_of(
    heads: int, length: int, dim: int, value_dim: int, dtype: torch.dtype = torch.bfloat16,
    batch: int = 1,
) -> AttentionCall:  # fmt: skip
    """Tensors of these sizes in next to no memory, their rows laid out as kernels like them."""
    x, v = (
        torch.zeros(n, dtype=dtype).expand(batch, heads, length, n) for n in (dim, value_dim)
    )  # fmt: skip
    return AttentionCall(x, x, v, True)


def blocks_of_a_head(dtype: torch.dtype, dim: int, value_dim: int) -> int:
    """As the table of kernels-cuda/README.md says: columns of the values that a block computes."""
    columns = 32 if dim == 256 and dtype != torch.float16 else 64
    return -(-value_dim // columns)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("dim", "value_dim"), [(64, 64), (128, 256), (256, 64), (256, 256)])
@pytest.mark.parametrize("derivatives", [False, True])
def test_segments_fill_a_gpu_and_no_more(
    dim: int, value_dim: int, dtype: torch.dtype, derivatives: bool
) -> None:
    """As many blocks as run side by side: the same number for any heads."""
    of_a_head = blocks_of_a_head(dtype, dim, value_dim)
    if derivatives:  # the passes of the gradients of queries and keys
        of_a_head = max(of_a_head, blocks_of_a_head(dtype, value_dim, dim))
    calls = {heads: call_of(heads, 2**20, dim, value_dim, dtype) for heads in (1, 3, 8, 23, 64)}
    side_by_side = of_a_head * plan_of(calls[1], derivatives=derivatives)[0]
    assert any(0 <= n * H100.multiprocessors - side_by_side < of_a_head for n in (1, 2, 3, 4))
    for heads, call in calls.items():
        segments, whole = plan_of(call, derivatives=derivatives)
        assert whole == 0
        assert segments == max(1, side_by_side // (heads * of_a_head))


def test_the_plan_is_of_the_kernel_that_runs() -> None:
    """Three blocks of the lean kernel run side by side, four of the one that takes masks."""
    call = call_of(1, 2**20, 64, 64)
    masked = call._replace(attn_mask=torch.ones(1, dtype=torch.bool).expand(1, 2**20))
    assert plan_of(call) == (3 * 132, 0)
    assert plan_of(masked) == (4 * 132, 0)
    assert plan_of(call, derivatives=True) == (2 * 132, 0)


@pytest.mark.parametrize(("batch", "heads"), [(1, 400), (400, 1), (25, 16)])
def test_the_last_blocks_do_not_run_alone(batch: int, heads: int) -> None:
    """396 blocks run side by side, so four heads of 400 are cut, or one row of 25."""
    segments, whole = plan_of(call_of(heads, 2**16, 64, 64, batch=batch))
    units = max(batch, heads)
    rest = batch * heads * (units - whole) // units
    assert 0 < rest <= 16
    assert segments == 396 // rest
    assert plan_of(call_of(512, 2**16, 64, 64)) == (1, 0)  # the last blocks fill a fourth


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("batch", [1, 5])
def test_some_are_whole_and_others_cut(
    batch: int, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four blocks run side by side for each query head of a group; there are five groups."""
    backend = find_backend(WALKING)
    monkeypatch.setattr(backend, "segments", None)
    monkeypatch.setattr(backend, "on", H100._replace(multiprocessors=heads))
    plans: dict[object, tuple[int, int, int]] = {}
    monkeypatch.setattr(backend, "_plans", plans)
    lengths = None if batch == 1 else (1_030, 0, 64, 700, 900)
    case = Case(
        batch=batch, heads=heads * 5 // batch, kv_heads=5 // batch, queries=1_030, head_dim=24,
        value_dim=20, key_lengths=lengths, initial_state=True, dtype=torch.bfloat16,
    )  # fmt: skip
    for is_causal in (True, False):
        assert_within_budget(case.with_(is_causal=is_causal), WALKING)
    assert {plan[:2] for plan in plans.values()} == {(4, 4)}


def test_short_sequences_are_not_cut() -> None:
    assert plan_of(call_of(1, 64, 64, 64)) == plan_of(call_of(0, 64, 64, 64)) == (1, 0)
    assert plan_of(call_of(1, 1_024, 64, 64)) == (4, 0)


@pytest.mark.parametrize(("shared_limit", "segments"), [(232_448, 5), (101_376, 1)])
def test_segments_depend_on_how_many_blocks_fit(
    shared_limit: int, segments: int, emulation: ModuleType
) -> None:
    """A hundred blocks are a wave of their own where a multiprocessor has room for one alone."""
    call = call_of(100, 65_536, 64, 64, torch.float32)
    gpu = H100._replace(shared_bytes=shared_limit)
    emulation.set_shared_limit(shared_limit)
    try:
        assert plan_of(call, gpu=gpu) == (segments, 0)
    finally:
        emulation.set_shared_limit(232_448)


@pytest.mark.parametrize("backend", NAMES)
def test_a_backend_may_choose_for_itself(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_backend(backend), "segments", None)
    assert_within_budget(ONE.with_(queries=600), backend)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_features_may_be_wider_than_values(dtype: torch.dtype) -> None:
    """A map that computes in float32 returns float32 features, beside half-precision values."""
    tensors = ONE.with_(queries=100, head_dim=16, value_dim=16).inputs()
    mixed = [tensors["query"], tensors["key"], tensors["value"].to(dtype)]
    grad_out = drawing(1)(*mixed[2].shape, dtype=dtype)

    def attend(tensors: list[Tensor], backend: str) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in tensors]
        out = operators.attention(AttentionCall(*leaves, True, requires_grad=True), backend)[0]
        return [out, *torch.autograd.grad(out, leaves, grad_out.to(out.dtype))]

    exact = attend([x.double() for x in mixed], "reference")
    own, ours = attend(mixed, "reference"), attend(mixed, WALKING)
    assert [x.dtype for x in ours] == [x.dtype for x in own]
    for got, theirs, expected in zip(ours, own, exact, strict=True):
        allowed = budget(WALKING, "", error(theirs, expected), expected, dtype)
        assert error(got, expected) <= allowed


@pytest.mark.parametrize("backend", NAMES)
def test_features_of_a_hundred_stay_finite(backend: str) -> None:
    """Products of two such rows pass the largest float16, 65,504; their sums are kept wider."""
    case = ONE.with_(queries=200, head_dim=64, value_dim=64, dtype=torch.float16)
    tensors = {n: x.detach() for n, x in case.inputs().items()}
    wide = {n: x if n == "value" else x.abs() + 100 for n, x in tensors.items()}
    ours = on_backend(case, backend, {n: x.requires_grad_() for n, x in wide.items()})
    exact = by_definition(case, wide, torch.float64)

    assert [name for name, x in ours.items() if not torch.isfinite(x).all()] == []
    torch.testing.assert_close(ours["out"].double(), exact["out"], rtol=2**-10, atol=2**-11)


@of_each_kernel
def test_any_layout_is_read(one: Case) -> None:
    """The lean kernels take rows that begin at multiples of 16 bytes; others round differently."""
    case = one.with_(queries=130)
    rounding = 2**-6 if one in LAYERS[3:] else 0
    tensors = case.inputs()
    expected = on_backend(case, WALKING, tensors)
    for name, layout in LAYOUTS.items():
        laid = {n: layout(x.detach()).requires_grad_() for n, x in tensors.items()}
        for what, x in on_backend(case, WALKING, laid).items():
            atol = rounding * max(1.0, expected[what].abs().max().item())
            torch.testing.assert_close(
                x, expected[what], rtol=rounding, atol=atol, msg=f"{name}, {what}"
            )


@pytest.mark.parametrize("one", [LAYERS[0], *LAYERS[3:]], ids=str)
@pytest.mark.parametrize("backend", NAMES)
def test_the_same_bits_in_any_order_of_blocks_and_warps(
    backend: str, one: Case, emulation: ModuleType
) -> None:
    case = one.with_(queries=200, initial_state=True)
    tensors, results = case.inputs(), []
    for seed in (0, -1, 7):
        emulation.set_order(seed)
        results.append(on_backend(case, backend, tensors))
    emulation.set_order(0)

    for name, x in results[0].items():
        assert all(torch.equal(x, other[name]) for other in results[1:]), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("dim", "value_dim"), [(1, 1), (5, 3), (32, 64), (100, 36), (300, 7)])
def test_steps_agree_with_float64(dim: int, value_dim: int, dtype: torch.dtype) -> None:
    """Any width, a state of any strides, three steps one after another."""
    q, k = (torch.randn(3, 5, dim).to(dtype) for _ in range(2))
    v = torch.randn(3, 5, value_dim).to(dtype)
    strided = torch.randn(3, 5, value_dim, dim).mT
    ours = LinearAttentionState(strided, torch.rand(3, 5, 2 * dim)[..., ::2])
    exact = LinearAttentionState(*(x.double() for x in ours))
    for _ in range(3):
        out, _ = linear_attention_step(q, k, v, ours, inplace=True, backend=WALKING)
        expected, exact = linear_attention_step(
            q.double(), k.double(), v.double(), exact, backend="reference"
        )
        torch.testing.assert_close(
            out.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-5, msg=str
        )
    for x, y in zip(ours, exact, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-5, atol=1e-5)


def test_a_matrix_precision_of_high_keeps_sixteen_bits() -> None:
    """As torch's own products are told; the default keeps all that float32 has."""
    case = ONE.with_(queries=300, head_dim=64, value_dim=64)
    tensors = case.inputs()
    exact = by_definition(case, tensors, torch.float64)["out"]
    errors = []
    try:
        for precision in ("highest", "high"):
            torch.set_float32_matmul_precision(precision)
            errors.append(error(on_backend(case, WALKING, tensors)["out"], exact))
    finally:
        torch.set_float32_matmul_precision("highest")

    size = exact.abs().max()
    assert errors[0] < 2**-20 * size < errors[1] < 2**-13 * size


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_tiny_features_do_not_underflow(backend: str, dtype: torch.dtype) -> None:
    """Their products are too small for the inverse of their sum to be a number."""
    q = torch.full((1, 1, 2, 1), -44.5).to(dtype)
    v = torch.tensor([[[[1.0], [2.0]]]]).to(dtype)
    out = linear_attention(q, q, v, is_causal=True, eps=0.0, backend=backend)
    torch.testing.assert_close(out, torch.tensor([[[[1.0], [1.5]]]]).to(dtype), rtol=1e-2, atol=0)


@pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 2), (torch.float32, 4)])
def test_bytes_that_a_position_costs(dtype: torch.dtype, size: int, emulation: ModuleType) -> None:
    """What is read: the least forward, and in two passes backward; results are written once.

    The queries' pass reads q, k, v, the output, its gradient, and n. That of keys and values reads
    q, k, v, the gradient, n, and h. The lean kernels do not copy n and h, but load them.
    """
    width, length = 64, 512
    case = ONE.with_(heads=1, queries=length, head_dim=width, value_dim=width, dtype=dtype)
    call = AttentionCall(*case.inputs().values(), is_causal=True, requires_grad=True)
    backend = EmulatedBackend()
    emulation.take_copied_bytes()

    output = backend.attention(call)
    assert emulation.take_copied_bytes() == length * 3 * width * size
    backend.attention_backward(call, output, torch.ones_like(output.out), None)
    numbers = 0 if dtype == torch.bfloat16 else 3
    assert emulation.take_copied_bytes() == length * (9 * width * size + numbers * 4)


@pytest.mark.parametrize("state", [False, True], ids=["no state", "states"])
@pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 2), (torch.float32, 4)])
def test_bytes_in_segments(
    dtype: torch.dtype, size: int, state: bool, emulation: ModuleType
) -> None:
    """What is summed first is read twice, but for the segment whose sum nothing continues.

    The lean kernels sum queries while they compute their gradients.
    """
    width, length = 64, 3 * 256
    case = ONE.with_(
        heads=1, queries=length, head_dim=width, value_dim=width, dtype=dtype, initial_state=state
    )
    query, key, value, *numbers = case.inputs().values()
    start = LinearAttentionState(*numbers) if state else None
    call = AttentionCall(
        query, key, value, is_causal=True, initial_state=start, return_state=state,
        requires_grad=True,
    )  # fmt: skip
    backend = CutBackend()
    row, two_of_three = length * width * size, length * 2 // 3
    summed = length if state else two_of_three
    emulation.take_copied_bytes()

    output = backend.attention(call)
    assert emulation.take_copied_bytes() == 3 * row + summed * 2 * width * size
    backend.attention_backward(call, output, torch.ones_like(output.out), None)
    lean = dtype == torch.bfloat16
    number, queries = (0, 0) if lean else (4, summed)  # n and h, as above
    sums = (two_of_three + queries) * 2 * width * size + queries * 2 * number
    assert emulation.take_copied_bytes() == 9 * row + length * 3 * number + sums


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("dim", [32, 64, 128])
def test_schedulers_share_the_work(dim: int, dtype: torch.dtype, emulation: ModuleType) -> None:
    """Later rows of a chunk see more keys; their warps are spread over all schedulers."""
    case = ONE.with_(heads=64, queries=128, head_dim=dim, value_dim=dim, dtype=dtype)
    call = AttentionCall(*case.inputs().values(), is_causal=True, requires_grad=True)
    backend = EmulatedBackend()
    emulation.take_products()

    output = backend.attention(call)
    forward = emulation.take_products()
    backend.attention_backward(call, output, torch.ones_like(output.out), None)

    for products in (forward, emulation.take_products()):
        assert min(products) > 0
        assert max(products) <= 1.03 * sum(products) / len(products), products


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize(
    ("dim", "value_dim", "normalize"),
    [(16, 48, True), (48, 16, False), (64, 64, True), (64, 64, False), (24, 72, True)],
)
def test_keys_and_values_in_one_pass_or_two(
    dim: int, value_dim: int, normalize: bool, backend: str
) -> None:
    """Up to 64 dims one pass computes both gradients; the state's gradient flows through it."""
    case = ONE.with_(
        queries=150, head_dim=dim, value_dim=value_dim, initial_state=True, normalize=normalize
    )
    assert_within_budget(case, backend)
    assert_within_budget(case.with_(dtype=torch.bfloat16), backend)
    assert_within_budget(case.with_(is_causal=False), backend)


@pytest.mark.parametrize(
    ("width", "dtype"),
    [(24, torch.float32), (24, torch.float16), (80, torch.float32), (80, torch.bfloat16)],
)
@pytest.mark.parametrize("backend", NAMES)
def test_a_mask_is_read_where_the_keys_are(backend: str, width: int, dtype: torch.dtype) -> None:
    """What masked rows hold reaches no result."""
    plain = Case(heads=2, queries=150, head_dim=width, value_dim=width, dtype=dtype, mask="gaps")
    packed = plain.with_(batch=1, cu_seqlens=(0, 64, 65, 150))
    for case in (plain, packed, plain.with_(initial_state=True)):
        assert_within_budget(case, backend)
        assert_within_budget(case.with_(is_causal=False), backend)


@pytest.mark.parametrize(("width", "is_causal"), [(16, True), (80, True), (16, False)])
@pytest.mark.parametrize("backend", NAMES)
def test_only_wanted_gradients_are_computed(
    backend: str, is_causal: bool, width: int, emulation: ModuleType
) -> None:
    """Each alone is what it is among all, and takes fewer products."""
    tensors = [torch.randn(1, 2, 150, width) for _ in range(3)]
    state = [torch.randn(1, 2, width, width).abs(), torch.rand(1, 2, width)]

    def gradients(*wanted: int) -> tuple[list[Tensor], int]:
        leaves = [x.clone().requires_grad_(i in wanted) for i, x in enumerate([*tensors, *state])]
        out = linear_attention(
            *leaves[:3], is_causal=is_causal, backend=backend,
            initial_state=LinearAttentionState(*leaves[3:]),
        )  # fmt: skip
        emulation.take_products()
        grads = torch.autograd.grad(out.square().sum(), [leaves[i] for i in wanted])
        return list(grads), sum(emulation.take_products())

    among_all, all_products = gradients(0, 1, 2, 3, 4)
    for wanted in ([0], [1], [2], [3, 4], [1, 2]):
        alone, products = gradients(*wanted)
        assert products < all_products
        for i, x in zip(wanted, alone, strict=True):
            torch.testing.assert_close(x, among_all[i], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value_dim", [128, 50])
def test_a_step_has_the_same_bits_whether_warps_share_a_head(value_dim: int) -> None:
    """Those of one row alone, and among so many that each head has one warp."""
    many = 300
    query, key = torch.randn(2, many, 2, 8)
    value = torch.randn(many, 2, value_dim)
    state = LinearAttentionState(torch.randn(many, 2, 8, value_dim), torch.rand(many, 2, 8))
    alone = LinearAttentionState(state.s[:1].clone(), state.z[:1].clone())
    out, _ = linear_attention_step(query, key, value, state, inplace=True, backend=WALKING)
    first, _ = linear_attention_step(
        query[:1], key[:1], value[:1], alone, inplace=True, backend=WALKING
    )
    assert torch.equal(first, out[:1])
    assert torch.equal(alone.s, state.s[:1]) and torch.equal(alone.z, state.z[:1])
