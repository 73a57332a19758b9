"""What must hold between calls: splitting, causality, padding, packing, permutations, strides."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from linattn_core import (
    LinearAttentionState,
    feature_map_names,
    linear_attention,
    linear_attention_step,
)

from .agreement import assert_agree
from .cases import Case, evaluate, phi
from .minimum import may_refuse
from .places import widest
from .rows import Rows

LONG = Case(queries=150, head_dim=6, value_dim=9)


def exact(case: Case, backend: str) -> Case:
    """The case in the widest numbers that the backend takes."""
    return case.with_(dtype=widest(backend))


def assert_all_agree(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, x in expected.items():
        assert_agree(got[name], x, name)


def qkv(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    tensors = case.inputs()
    return tensors["query"], tensors["key"], tensors["value"]


STEPPED = [
    Case(queries=20),
    Case(queries=9, heads=4, kv_heads=2, initial_state=True, normalize=False),
    Case(queries=9, heads=4, kv_heads=2, initial_state=True, log_decay="heads"),
    Case(queries=9, initial_state=True, log_decay="positions"),
    Case(queries=9, log_decay="positions", normalize=False),
]


@pytest.mark.parametrize("case", may_refuse(STEPPED))
def test_steps_equal_the_whole_with_gradients(case: Case, backend: str) -> None:
    tensors, options = exact(case, backend).inputs(), {**case.options(), "backend": backend}

    def by_steps(q, k, v, *, initial_state, return_state, log_decay=None, is_causal, **options):
        state, outputs = initial_state, []
        if state is None:
            sizes = *q.shape[:2], q.shape[3], v.shape[3]
            state = LinearAttentionState.zeros(*sizes, dtype=q.dtype)
        for i in range(q.shape[2]):
            decay = log_decay[:, :, i] if case.log_decay == "positions" else log_decay
            rows = (x[:, :, i] for x in (q, k, v))
            out, state = linear_attention_step(*rows, state, log_decay=decay, **options)
            outputs.append(out)
        return torch.stack(outputs, 2), state

    stepping = {x: y for x, y in options.items() if x not in ("key_lengths", "cu_seqlens")}
    assert_all_agree(
        evaluate(by_steps, tensors, stepping), evaluate(linear_attention, tensors, options)
    )


@torch.no_grad()
def test_steps_equal_the_whole_for_every_map(backend: str) -> None:
    case = exact(Case(queries=12, head_dim=4), backend)
    q, k, v = (0.5 * x for x in qkv(case))
    if case.dtype != torch.float64:
        # Where their product is nearly zero, so may be a denominator, and rounding shows.
        q, k = q.abs(), k.abs()
    for name in feature_map_names():
        mapping = phi(name, 4)
        options = {"feature_map": mapping, "backend": backend}
        whole, final = linear_attention(q, k, v, is_causal=True, return_state=True, **options)
        state, outputs = LinearAttentionState(*map(torch.zeros_like, final)), []
        for i in range(12):
            rows = (x[:, :, i] for x in (q, k, v))
            outputs.append(linear_attention_step(*rows, state, inplace=True, **options)[0])
        assert_agree(torch.stack(outputs, 2), whole, name)
        for x, y in zip(state, final, strict=True):
            assert_agree(x, y, name)


@pytest.mark.parametrize(
    "case",
    may_refuse(
        [
            LONG.with_(initial_state=True),
            LONG.with_(initial_state=True, log_decay="positions", mask="gaps"),
            LONG.with_(initial_state=True, is_causal=False, mask="gaps"),
        ]
    ),
)
@settings(max_examples=8)
@given(cut=st.integers(0, 150))
def test_split_anywhere_and_resumed_equals_the_whole(case: Case, backend: str, cut: int) -> None:
    """A state carried over a cut, masks and decay included; non-causal sums carry keys."""
    tensors, options = exact(case, backend).inputs(), {**case.options(), "backend": backend}

    def in_two(q, k, v, *, initial_state, log_decay=None, attn_mask=None, **options):
        state, outputs = initial_state, []
        for window in (slice(0, cut), slice(cut, None)):
            decay = None if log_decay is None else log_decay[:, :, window]
            mask = None if attn_mask is None else attn_mask[:, window]
            out, state = linear_attention(
                q[:, :, window if case.is_causal else slice(0)], k[:, :, window], v[:, :, window],
                attn_mask=mask, initial_state=state, log_decay=decay, **options,
            )  # fmt: skip
            outputs.append(out)
        if not case.is_causal:  # no new keys: the state is read
            none = k[:, :, :0], v[:, :, :0]
            outputs = [linear_attention(q, *none, initial_state=state, **options)[0]]
        return torch.cat(outputs, 2), state

    split = evaluate(in_two, tensors, options)
    assert_all_agree(split, evaluate(linear_attention, tensors, options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@settings(max_examples=15)
@given(t=st.integers(0, 149))
@torch.no_grad()
def test_the_future_does_not_touch_the_past(dtype: torch.dtype, backend: str, t: int) -> None:
    q, k, v = qkv(LONG.with_(dtype=dtype))
    before = linear_attention(q, k, v, is_causal=True, backend=backend)
    for x in (q, k, v):
        x[:, :, t] += 1.5
    after = linear_attention(q, k, v, is_causal=True, backend=backend)
    assert torch.equal(before[:, :, :t], after[:, :, :t])
    assert not torch.equal(before[:, :, t:], after[:, :, t:])


@pytest.mark.parametrize("masked", [False, pytest.param(True, marks=pytest.mark.may_refuse)])
@pytest.mark.parametrize("is_causal", [True, False])
@settings(max_examples=8)
@given(data=st.data())
def test_padding_anywhere_changes_nothing(
    is_causal: bool, masked: bool, backend: str, data: st.DataObject
) -> None:
    """Padded left, right, anywhere, packed and alone: one output, one state, one gradient."""
    lengths = data.draw(st.lists(st.integers(0, 70), min_size=2, max_size=4))
    longest, total = max(lengths), max(lengths) + data.draw(st.integers(0, 3))
    case = Case(batch=len(lengths), heads=2, queries=max(1, longest), head_dim=4, value_dim=3)
    tensors = [x.abs() for x in qkv(exact(case, backend))]
    seeds = torch.Generator("cpu").manual_seed(data.draw(st.integers(0, 99)))
    # Maps whose features are never negative, so that no normalizer is a sum that cancels.
    name = data.draw(st.sampled_from(("elu", "relu", "identity", "taylor", "hedgehog")))
    options = {"is_causal": is_causal, "feature_map": phi(name, 4), "backend": backend}
    rows = Rows(lengths, tensors, torch.rand_like(tensors[2]), options)
    right = [torch.arange(n) for n in lengths]
    if masked:
        orders = [torch.randperm(total, generator=seeds, device="cpu") for _ in lengths]
        anywhere = [x[:n].sort().values for x, n in zip(orders, lengths, strict=True)]
        left = [total - n + x for n, x in zip(lengths, right, strict=True)]
        forms = [rows.padded(x, total) for x in (right, left, anywhere)]
    else:
        forms = [rows.packed(), rows.padded(right, total, key_lengths=torch.tensor(lengths))]
    expected, sizes = rows.alone(), rows.sizes()
    for results in forms:
        for got, wanted, size in zip(results, expected, sizes, strict=True):
            assert_agree(got, wanted, size=size)


@pytest.mark.may_refuse
@pytest.mark.parametrize("is_causal", [True, False])
def test_shapes_of_a_mask(is_causal: bool, backend: str) -> None:
    q, k, v = (x.detach() for x in qkv(Case(queries=20)))
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


@pytest.mark.parametrize(("is_causal", "poison"), [(True, torch.nan), (False, torch.inf)])
def test_absent_keys_may_hold_anything(is_causal: bool, poison: float, backend: str) -> None:
    case = exact(Case(queries=90, is_causal=is_causal, key_lengths=(90, 40)), backend)
    tensors, options = case.inputs(), {**case.options(), "backend": backend}
    clean = evaluate(linear_attention, tensors, options)
    dirty = {name: x.detach().clone() for name, x in tensors.items()}
    dirty["key"][1, :, 40:] = poison
    dirty["value"][1, :, 40:] = poison
    dirty = {name: x.requires_grad_() for name, x in dirty.items()}
    for name, x in evaluate(linear_attention, dirty, options).items():
        assert torch.equal(x, clean[name]), name


def test_sequences_do_not_see_each_other(backend: str) -> None:
    """A NaN stays in its own sequence, in a batch and when packed."""
    q, k, v = (x.detach() for x in qkv(Case(queries=80)))
    v[1, :, 3] = float("nan")
    out = linear_attention(q, k, v, is_causal=True, backend=backend)
    assert torch.isfinite(out[0]).all()
    bounds = torch.tensor([0, 30, 80])
    packed = [x[:1].clone() for x in (q, k, v)]
    packed[2][:, :, 29] = float("nan")
    out = linear_attention(*packed, is_causal=True, cu_seqlens=bounds, backend=backend)
    assert torch.isfinite(out[:, :, 30:]).all()


@pytest.mark.parametrize("is_causal", [True, False])
def test_permuting_commutes(is_causal: bool, backend: str) -> None:
    """Batch and heads."""
    q, k, v = (x.detach() for x in qkv(exact(LONG.with_(batch=4, heads=4), backend)))
    rows, heads = torch.tensor([2, 0, 3, 1]), torch.tensor([1, 3, 0, 2])
    options = {"is_causal": is_causal, "backend": backend}

    def permute(x: Tensor) -> Tensor:
        return x.index_select(0, rows).index_select(1, heads)

    out = permute(linear_attention(q, k, v, **options))
    assert_agree(linear_attention(*map(permute, (q, k, v)), **options), out)


@pytest.mark.parametrize("is_causal", [True, False])
def test_strides_do_not_matter(is_causal: bool, backend: str) -> None:
    tensors = exact(LONG, backend).inputs()
    options = {"is_causal": is_causal, "backend": backend}
    plain = evaluate(linear_attention, tensors, options)

    def views(x: Tensor) -> list[Tensor]:
        every_other = torch.empty(*x.shape[:3], 2 * x.shape[3], dtype=x.dtype)
        every_other[..., ::2] = x.detach()
        return [
            x.detach().transpose(1, 2).contiguous().transpose(1, 2),  # (B, N, H, D) underneath
            x.detach().mT.contiguous().mT,
            every_other[..., ::2],
        ]

    names = ("query", "key", "value")
    for strided in zip(*(views(tensors[x]) for x in names), strict=True):
        leaves = {n: x.requires_grad_() for n, x in zip(names, strided, strict=True)}
        assert_all_agree(evaluate(linear_attention, leaves, options), plain)


def test_broadcast_views_are_read_in_place(backend: str) -> None:
    q, k, v = (x.detach() for x in qkv(exact(LONG, backend)))
    shared = k[:, :1].expand(-1, 3, -1, -1)  # one key head for all, stride 0
    out = linear_attention(q, shared, v, is_causal=True, backend=backend)
    assert_agree(out, linear_attention(q, shared.contiguous(), v, is_causal=True, backend=backend))


def test_a_step_in_place_is_the_step_that_returns_its_state(backend: str) -> None:
    """Bit for bit, by the operator too, which takes a parameter."""
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 5)
    before = LinearAttentionState(torch.rand(2, 3, 4, 5), torch.rand(2, 3, 4))
    updated, kept = before.clone(), before.clone()
    out, same = linear_attention_step(q, k, v, updated, inplace=True, backend=backend)
    assert same.s is updated.s
    parameter = torch.nn.Parameter(q, requires_grad=False)
    again, new = linear_attention_step(parameter, k, v, kept, backend=backend)
    assert torch.equal(out, again)
    for x, y, z, old in zip(updated, new, kept, before, strict=True):
        assert torch.equal(x, y) and torch.equal(z, old)


@settings(max_examples=10)
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
