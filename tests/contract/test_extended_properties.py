"""What must hold between calls with masks, states, groups of heads and decay."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from linattn_core import (
    LinearAttentionState,
    feature_map_names,
    linear_attention,
    linear_attention_step,
)

from .agreement import assert_agree
from .cases import Case, evaluate, phi
from .places import widest
from .rows import Rows
from .test_properties import assert_all_agree, exact

MAY_REFUSE = True


def leaves(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    tensors = case.inputs()
    return tensors["query"], tensors["key"], tensors["value"]


@pytest.mark.parametrize("feature_map", feature_map_names())
@pytest.mark.parametrize("is_causal", [True, False])
@settings(max_examples=3)
@given(data=st.data())
def test_padding_anywhere_changes_nothing(
    is_causal: bool, feature_map: str, backend: str, data: st.DataObject
) -> None:
    """Padded left, right, anywhere, packed and alone: one output, one state, one gradient."""
    lengths = data.draw(st.lists(st.integers(0, 20), min_size=2, max_size=3))
    longest, total = max(lengths), max(lengths) + data.draw(st.integers(0, 3))
    case = Case(batch=len(lengths), heads=2, queries=max(1, longest), head_dim=4, value_dim=3)
    tensors = [x.abs() for x in leaves(exact(case, backend))]
    seeds = torch.Generator("cpu").manual_seed(data.draw(st.integers(0, 99)))
    options = {"is_causal": is_causal, "feature_map": phi(feature_map, 4), "backend": backend}
    rows = Rows(lengths, tensors, torch.rand_like(tensors[2]), options)
    expected, sizes = rows.alone(), rows.sizes()
    orders = [torch.randperm(total, generator=seeds, device="cpu") for _ in lengths]
    anywhere = [x[:n].sort().values for x, n in zip(orders, lengths, strict=True)]
    right = [torch.arange(n) for n in lengths]
    left = [total - n + x for n, x in zip(lengths, right, strict=True)]
    for results in (rows.packed(), *(rows.padded(x, total) for x in (right, left, anywhere))):
        for got, wanted, size in zip(results, expected, sizes, strict=True):
            assert_agree(got, wanted, size=size)


@pytest.mark.parametrize("is_causal", [True, False])
def test_shapes_of_a_mask(is_causal: bool, backend: str) -> None:
    q, k, v = (x.detach() for x in leaves(Case(queries=20)))
    mask = torch.rand(2, 20) > 0.4
    options = {"is_causal": is_causal, "backend": backend}
    whole = linear_attention(q, k, v, attn_mask=mask, **options)
    assert torch.equal(linear_attention(q, k, v, attn_mask=mask[:, None, None], **options), whole)
    shared = linear_attention(q, k, v, attn_mask=mask[:1].expand(2, -1), **options)
    for same in (mask[0], mask[:1], mask[None, None, :1], mask[:1, None, None]):
        assert torch.equal(linear_attention(q, k, v, attn_mask=same, **options), shared)
    all_of_them = torch.ones(2, 20, dtype=torch.bool)
    assert torch.equal(
        linear_attention(q, k, v, attn_mask=all_of_them, **options),
        linear_attention(q, k, v, **options),
    )


def test_masks_agree_with_scaled_dot_product_attention_on_what_takes_part(backend: str) -> None:
    """A masked key has no weight there either: changing it changes neither result."""
    q, k, v = (x.detach() for x in leaves(Case(queries=12, value_dim=8)))
    mask = torch.rand(2, 1, 1, 12) > 0.5
    changed = k.masked_fill(~mask.mT, 7.0)
    softmax = torch.nn.functional.scaled_dot_product_attention
    for attend in (softmax, lambda *x, **y: linear_attention(*x, **y, backend=backend)):
        assert torch.equal(attend(q, k, v, attn_mask=mask), attend(q, changed, v, attn_mask=mask))


@settings(max_examples=10)
@given(cut=st.integers(0, 60), is_causal=st.booleans(), decays=st.booleans())
def test_split_anywhere_and_resumed(cut: int, is_causal: bool, decays: bool, backend: str) -> None:
    """A state carried over a cut, masks and decay included; non-causal sums carry keys."""
    case = Case(queries=60, head_dim=4, value_dim=3, is_causal=is_causal, initial_state=True)
    case = exact(case.with_(log_decay="positions" if is_causal and decays else None), backend)
    tensors, mask = case.inputs(), torch.rand(2, 60) > 0.3
    plain = {"is_causal": is_causal, "backend": backend, "return_state": True}

    def in_two(q, k, v, *, initial_state, return_state, log_decay=None):
        state, outputs = initial_state, []
        for window in (slice(0, cut), slice(cut, None)):
            decay = None if log_decay is None else log_decay[:, :, window]
            out, state = linear_attention(
                q[:, :, window if is_causal else slice(0)], k[:, :, window], v[:, :, window],
                attn_mask=mask[:, window], initial_state=state, log_decay=decay, **plain,
            )  # fmt: skip
            outputs.append(out)
        if not is_causal:  # no new keys: the state is read
            outputs = [
                linear_attention(q, k[:, :, :0], v[:, :, :0], initial_state=state, **plain)[0]
            ]
        return torch.cat(outputs, 2), state

    split = evaluate(in_two, tensors, {})
    options = {"is_causal": is_causal, "backend": backend, "attn_mask": mask}
    assert_all_agree(split, evaluate(linear_attention, tensors, options))


@pytest.mark.parametrize("is_causal", [True, False])
def test_groups_equal_expanding(is_causal: bool, backend: str) -> None:
    case = Case(heads=6, kv_heads=2, queries=70, is_causal=is_causal, initial_state=True)
    tensors = exact(case, backend).inputs()

    def expanded(q, k, v, *, initial_state, **options):
        k, v, s, z = (x.repeat_interleave(3, 1) for x in (k, v, *initial_state))
        out, state = linear_attention(
            q, k, v, initial_state=LinearAttentionState(s, z), backend=backend, **options
        )
        return out, LinearAttentionState(state.s[:, ::3], state.z[:, ::3])

    options = {"is_causal": is_causal}
    grouped = {**options, "enable_gqa": True, "backend": backend}
    got = evaluate(linear_attention, tensors, grouped)
    assert got["s"].shape == tensors["s"].shape
    assert_all_agree(got, evaluate(expanded, tensors, options))


@pytest.mark.parametrize("shape", [(3,), (2, 3, 150)], ids=["heads", "positions"])
def test_a_decay_of_zero_changes_nothing(shape: tuple[int, ...], backend: str) -> None:
    tensors = exact(Case(queries=150, initial_state=True), backend).inputs()
    sums = tensors["s"].dtype
    plain = evaluate(linear_attention, tensors, {"is_causal": True, "backend": backend})
    decay = {"log_decay": torch.zeros(shape, dtype=sums)}
    got = evaluate(linear_attention, tensors, {"is_causal": True, "backend": backend, **decay})
    assert_all_agree(got, plain)


@pytest.mark.parametrize("rate", [1e-3, 0.5, 30.0, 1e6])
def test_decay_is_the_naive_formula(rate: float, backend: str) -> None:
    """S = exp(g) S + phi(k) v^T as a loop, at rates at which quotients of powers overflow."""
    case = exact(Case(queries=100, heads=2, head_dim=4, value_dim=3), backend)
    q, k, v = leaves(case)
    g = -rate * torch.rand(2, 2, 100, dtype=q.dtype)
    out, state = linear_attention(
        q, k, v, is_causal=True, log_decay=g, return_state=True, backend=backend
    )
    f_q, f_k = (torch.where(x > 0, x + 1, x.exp()) for x in (q, k))
    s, z, rows = torch.zeros_like(state.s), torch.zeros_like(state.z), []
    for i in range(100):
        left = g[:, :, i].exp()[..., None]
        s = left[..., None] * s + f_k[:, :, i, :, None] * v[:, :, i, None]
        z = left * z + f_k[:, :, i]
        read = (f_q[:, :, i, :, None] * s).sum(2), (f_q[:, :, i] * z).sum(2, keepdim=True)
        rows.append(read[0] / (read[1] + 1e-6))
    assert_agree(out, torch.stack(rows, 2))
    assert_agree(state.s, s)
    gradients = torch.autograd.grad(out.sum() + state.s.sum(), (q, k, v))
    assert all(torch.isfinite(x).all() for x in gradients)


def test_a_decay_of_minus_infinity_forgets_all_before(backend: str) -> None:
    case = exact(Case(queries=100, initial_state=True), backend)
    tensors = case.inputs()
    decay = torch.zeros(2, 3, 100, dtype=tensors["s"].dtype)
    decay[:, :, 40] = -torch.inf
    tensors["log_decay"] = decay.requires_grad_()
    got = evaluate(linear_attention, tensors, {"is_causal": True, "backend": backend})
    q, k, v = (tensors[x][:, :, 40:] for x in ("query", "key", "value"))
    out, state = linear_attention(q, k, v, is_causal=True, return_state=True, backend=backend)
    assert_agree(got["out"][:, :, 40:], out)
    assert_agree(got["s"], state.s)
    assert not got["grad_s"].isnan().any() and not got["grad_log_decay"][:, :, 40].any()


@pytest.mark.parametrize("is_causal", [True, False])
def test_without_eps_a_small_normalizer_keeps_its_digits(is_causal: bool, backend: str) -> None:
    q, k, v = (1e-5 * x.detach().abs() for x in leaves(Case(queries=20)))
    options = {"is_causal": is_causal, "feature_map": "identity", "return_normalizer": True}
    _, normalizer = linear_attention(q, k, v, eps=0.0, backend=backend, **options)
    exact = q.double() @ k.double().mT
    exact = (exact.tril() if is_causal else exact).sum(-1)
    assert exact.max() < 1e-7
    assert_close(normalizer.double(), exact, rtol=1e-5, atol=0)


def test_constant_values_stay_constant_under_decay(backend: str) -> None:
    """With decay the weights are a convex combination still: constants come out constant."""
    q, k, _ = (x.detach() for x in leaves(Case(queries=200)))
    v = torch.full((2, 3, 200, 2), 1.5)
    decay = -10 * torch.rand(2, 3, 200)
    out = linear_attention(q, k, v, is_causal=True, log_decay=decay, backend=backend)
    assert_close(out, v, rtol=1e-4, atol=0)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("decayed", [None, "heads", "positions"])
@pytest.mark.parametrize("normalize", [True, False])
def test_steps_equal_the_whole(
    groups: int, decayed: str | None, normalize: bool, backend: str
) -> None:
    case = Case(
        heads=2 * groups, kv_heads=2, queries=9, initial_state=True, normalize=normalize,
        log_decay=decayed,
    )  # fmt: skip
    tensors = exact(case, backend).inputs()

    def by_steps(q, k, v, *, initial_state, return_state, log_decay=None):
        outputs, state = [], initial_state
        for i in range(9):
            decay = log_decay[:, :, i] if decayed == "positions" else log_decay
            out, state = linear_attention_step(
                q[:, :, i], k[:, :, i], v[:, :, i], state, log_decay=decay, enable_gqa=True,
                normalize=normalize, backend=backend,
            )  # fmt: skip
            outputs.append(out)
        return torch.stack(outputs, 2), state

    options = {"is_causal": True, "enable_gqa": True, "normalize": normalize, "backend": backend}
    whole = evaluate(linear_attention, tensors, options)
    assert_all_agree(evaluate(by_steps, tensors, {}), whole)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("dim", "value_dim"), [(2, 3), (2, 0), (0, 3)])
def test_step_gradients(dim: int, value_dim: int, normalize: bool, backend: str) -> None:
    dtype = widest(backend)
    if dtype != torch.float64:
        pytest.skip("rounding drowns finite differences")
    rows = (2, 2, dim), (2, 2, value_dim)
    shapes = (2, 4, dim), *rows, (2, 2, dim, value_dim), (2, 2, dim), (2, 2)
    inputs = [torch.rand(x, dtype=dtype, requires_grad=True) for x in shapes]

    def attend(q, k, v, s, z, decay):
        out, state = linear_attention_step(
            q - 0.5, k - 0.5, v, LinearAttentionState(s, z), log_decay=-decay - 0.1,
            enable_gqa=True, normalize=normalize, backend=backend,
        )  # fmt: skip
        return out, *state

    assert torch.autograd.gradcheck(attend, inputs)
    assert torch.autograd.gradgradcheck(attend, inputs)


@settings(max_examples=20)
@given(data=st.data())
def test_rows_work_on_their_slots(data: st.DataObject, backend: str) -> None:
    """A step on slots of a pool equals a step on the states alone; the other slots stay."""
    slots = data.draw(st.permutations(range(5)))[: data.draw(st.integers(1, 5))]
    rows = [x if data.draw(st.booleans()) else -1 for x in slots]
    dtype, b = widest(backend), len(rows)
    q, k, v = (torch.randn(b, 2, d, dtype=dtype) for d in (4, 4, 3))
    pool = LinearAttentionState(
        torch.rand(5, 2, 4, 3, dtype=dtype), torch.rand(5, 2, 4, dtype=dtype)
    )
    before, indices = pool.clone(), torch.tensor(rows, dtype=torch.int32)
    out, same = linear_attention_step(
        q, k, v, pool, state_indices=indices, inplace=True, backend=backend
    )
    assert same.s is pool.s
    for row, slot in enumerate(rows):
        if slot < 0:
            assert not out[row].any()
            continue
        one = (x[row : row + 1] for x in (q, k, v))
        alone = before.split(1)[slot].clone()
        expected, _ = linear_attention_step(*one, alone, inplace=True, backend=backend)
        assert_agree(out[row : row + 1], expected)
        assert_agree(pool.s[slot : slot + 1], alone.s)
        assert_agree(pool.z[slot : slot + 1], alone.z)
    for slot in set(range(5)) - set(rows):
        assert all(torch.equal(x[slot], y[slot]) for x, y in zip(pool, before, strict=True))
