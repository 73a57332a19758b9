"""What must hold between calls: splitting, causality, padding, packing, permutations, strides."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from linattn_core import (
    FeatureMap,
    LinearAttentionState,
    feature_map_names,
    linear_attention,
    linear_attention_step,
)
from linattn_core.reference import chunked, recurrent

from .agreement import assert_agree
from .cases import Case, evaluate, phi
from .places import widest

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


def step_by_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    backend: str,
    feature_map: str | FeatureMap = "elu",
    inplace: bool = False,
) -> tuple[Tensor, LinearAttentionState]:
    features = LinearAttentionState.zeros(*q.shape[:2], q.shape[3], v.shape[3], dtype=q.dtype)
    if feature_map not in ("elu", "relu", "identity"):
        _, final = linear_attention(
            q[:, :, :0], k[:, :, :0], v[:, :, :0],
            is_causal=True, feature_map=feature_map, return_state=True,
        )  # fmt: skip
        features = final
    outputs, state = [], features
    for i in range(q.shape[2]):
        out, state = linear_attention_step(
            q[:, :, i], k[:, :, i], v[:, :, i], state,
            feature_map=feature_map, backend=backend, inplace=inplace,
        )  # fmt: skip
        outputs.append(out)
    return torch.stack(outputs, 2), state


def test_steps_equal_the_whole_with_gradients(backend: str) -> None:
    tensors = exact(Case(queries=20), backend).inputs()

    def attend(q, k, v, *, initial_state, return_state):
        return step_by_step(q, k, v, backend)

    by_steps = evaluate(attend, tensors, {})
    whole = evaluate(linear_attention, tensors, {"is_causal": True, "backend": backend})
    assert_all_agree(by_steps, whole)


@pytest.mark.parametrize("feature_map", feature_map_names())
def test_steps_equal_the_whole_for_every_map(feature_map: str, backend: str) -> None:
    case = exact(Case(queries=12, head_dim=4), backend)
    with torch.no_grad():
        q, k, v = (0.5 * x for x in qkv(case))
        if case.dtype != torch.float64:
            # Where their product is nearly zero, so may be a denominator, and rounding shows.
            q, k = q.abs(), k.abs()
        mapping = phi(feature_map, 4)
        whole, final = linear_attention(
            q, k, v, is_causal=True, feature_map=mapping, return_state=True, backend=backend
        )
        out, state = step_by_step(q, k, v, backend, mapping, inplace=True)
    assert_agree(out, whole)
    for x, y in zip(state, final, strict=True):
        assert_agree(x, y)


@pytest.mark.parametrize("form", [chunked, recurrent], ids=["chunked", "recurrent"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_every_form_agrees(form, is_causal: bool, backend: str) -> None:
    tensors = exact(LONG.with_(initial_state=is_causal), backend).inputs()
    options = {"is_causal": is_causal}
    plain = evaluate(form, tensors, options)
    ours = evaluate(linear_attention, tensors, {**options, "backend": backend})
    assert_all_agree(ours, plain)


@given(cut=st.integers(0, 150))
def test_split_and_resumed_equals_the_whole(cut: int, backend: str) -> None:
    tensors = exact(LONG.with_(initial_state=True), backend).inputs()

    def in_two(q, k, v, *, initial_state, return_state):
        first, state = linear_attention(
            q[:, :, :cut], k[:, :, :cut], v[:, :, :cut],
            is_causal=True, initial_state=initial_state, return_state=True, backend=backend,
        )  # fmt: skip
        second, state = linear_attention(
            q[:, :, cut:], k[:, :, cut:], v[:, :, cut:],
            is_causal=True, initial_state=state, return_state=True, backend=backend,
        )  # fmt: skip
        return torch.cat((first, second), 2), state

    split = evaluate(in_two, tensors, {})
    whole = evaluate(linear_attention, tensors, {"is_causal": True, "backend": backend})
    assert_all_agree(split, whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@given(t=st.integers(0, 149))
def test_the_future_does_not_touch_the_past(dtype: torch.dtype, t: int, backend: str) -> None:
    with torch.no_grad():
        q, k, v = qkv(LONG.with_(dtype=dtype))
        before = linear_attention(q, k, v, is_causal=True, backend=backend)
        for x in (q, k, v):
            x[:, :, t] += 1.5
        after = linear_attention(q, k, v, is_causal=True, backend=backend)
    assert torch.equal(before[:, :, :t], after[:, :, :t])
    assert not torch.equal(before[:, :, t:], after[:, :, t:])


@pytest.mark.parametrize("is_causal", [True, False])
def test_padded_equals_packed_equals_alone(is_causal: bool, backend: str) -> None:
    lengths, longest = (5, 70, 0, 64, 33), 70
    tensors = exact(Case(batch=5, queries=longest), backend).inputs()
    weights = torch.randn_like(tensors["value"])
    exists = torch.arange(longest) < torch.tensor(lengths)[:, None]  # (B, L)
    options = {"is_causal": is_causal, "return_state": True, "backend": backend}

    def gradients(out_weighted: Tensor, final: LinearAttentionState) -> list[Tensor]:
        total = out_weighted.sum() + final.s.sin().sum() + final.z.cos().sum()
        return list(torch.autograd.grad(total, [tensors[x] for x in ("query", "key", "value")]))

    q, k, v = (tensors[x] for x in ("query", "key", "value"))
    out, final = linear_attention(q, k, v, key_lengths=torch.tensor(lengths), **options)
    mask = exists[:, None, :, None]
    padded = gradients(out * weights * mask, final)

    def pack(x: Tensor) -> Tensor:
        return x.transpose(0, 1)[:, exists][None]  # (1, H, total, D)

    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    packed_out, packed_last = linear_attention(
        pack(q), pack(k), pack(v), cu_seqlens=bounds, **options
    )
    packed = gradients(packed_out * pack(weights), packed_last)

    alone = [
        linear_attention(q[i : i + 1, :, :n], k[i : i + 1, :, :n], v[i : i + 1, :, :n], **options)
        for i, n in enumerate(lengths)
    ]
    alone_out = torch.cat([x for x, _ in alone], 2)
    alone_last = LinearAttentionState.cat([x for _, x in alone])
    one_by_one = gradients(alone_out * pack(weights), alone_last)

    first = (pack(out), *final, *padded)
    second = (packed_out, *packed_last, *packed)
    third = (alone_out, *alone_last, *one_by_one)
    for a, b, c in zip(first, second, third, strict=True):
        assert_agree(a, b)
        assert_agree(b, c)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("is_causal", [True, False])
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


@pytest.mark.parametrize("dim", [0, 1], ids=["batch", "heads"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_permuting_commutes(dim: int, is_causal: bool, backend: str) -> None:
    q, k, v = (x.detach() for x in qkv(exact(LONG.with_(batch=4, heads=4), backend)))
    order = torch.tensor([2, 0, 3, 1])
    options = {"is_causal": is_causal, "backend": backend}
    out = linear_attention(q, k, v, **options).index_select(dim, order)
    permuted = linear_attention(*(x.index_select(dim, order) for x in (q, k, v)), **options)
    assert_agree(permuted, out)


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


def test_a_step_in_place_is_the_operator(backend: str) -> None:
    """Tensors and parameters give the same result, and so does the step that returns its state."""
    q, k, v = (torch.randn(2, 3, 4) for _ in range(3))
    states = [LinearAttentionState.zeros(2, 3, 4, 4) for _ in range(2)]
    out, _ = linear_attention_step(q, k, v, states[0], inplace=True, backend=backend)
    parameter = torch.nn.Parameter(q, requires_grad=False)
    again, states[1] = linear_attention_step(parameter, k, v, states[1], backend=backend)
    assert torch.equal(out, again)
    assert all(torch.equal(x, y) for x, y in zip(*states, strict=True))
