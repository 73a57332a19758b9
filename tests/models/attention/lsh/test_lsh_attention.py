"""`lsh_attention` is the softmax over the keys that its rounds show, without N x N tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from linattn_models import draw_rotations, lsh_attention
from linattn_models.attention.lsh import windows
from tests.models.attention.lsh import oracle

causal = pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "both-ways"])


def problem(*shape: int, width: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Queries (B, H, N, D) and values (B, H, N, width) in float64."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(shape, generator=generator, dtype=torch.float64)
    value = torch.randn(*shape[:3], width, generator=generator, dtype=torch.float64)
    return query, value


def rotations_for(query: Tensor, rounds: int, buckets: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    _, heads, _, head_dim = query.shape
    return draw_rotations(rounds, heads, head_dim, buckets, generator=generator).double()


@given(
    length=st.integers(1, 23),
    data=st.data(),
    rounds=st.integers(1, 4),
    buckets=st.sampled_from([1, 2, 4, 10]),
    is_causal=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=50)
def test_it_is_its_definition(
    length: int, data: st.DataObject, rounds: int, buckets: int, is_causal: bool, seed: int
) -> None:
    chunk = data.draw(st.integers(1, length))
    query, value = problem(2, 2, length, 4, seed=seed)
    rotations = rotations_for(query, rounds, buckets, seed)
    query.requires_grad_()
    value.requires_grad_()
    out = lsh_attention(query, value, is_causal=is_causal, chunk=chunk, rotations=rotations)
    expected = oracle.lsh(query, value, rotations, chunk, is_causal=is_causal)
    torch.testing.assert_close(out, expected)
    upstream = torch.randn_like(out)
    ours = torch.autograd.grad(out, (query, value), upstream)
    torch.testing.assert_close(ours, torch.autograd.grad(expected, (query, value), upstream))


@given(
    lengths=st.lists(st.integers(1, 19), min_size=1, max_size=3),
    chunk=st.integers(1, 7),
    rounds=st.integers(1, 3),
    is_causal=st.booleans(),
)
def test_a_padded_sequence_gives_what_it_gives_alone(
    lengths: list[int], chunk: int, rounds: int, is_causal: bool
) -> None:
    query, value = problem(len(lengths), 2, 19, 4)
    rotations = rotations_for(query, rounds, 6)
    how: dict[str, Any] = {"is_causal": is_causal, "rotations": rotations}
    query.requires_grad_()
    padded = lsh_attention(query, value, chunk=chunk, key_lengths=torch.tensor(lengths), **how)
    (of_padded,) = torch.autograd.grad(padded.square().sum(), query)
    for row, length in enumerate(lengths):
        inputs = [x[row : row + 1, :, :length].detach().requires_grad_() for x in (query, value)]
        alone = lsh_attention(*inputs, chunk=min(chunk, length), **how)
        torch.testing.assert_close(padded[row : row + 1, :, :length], alone)
        (of_alone,) = torch.autograd.grad(alone.square().sum(), inputs[0])
        torch.testing.assert_close(of_padded[row, :, :length], of_alone[0])
        assert (padded[row, :, length:] == 0).all() and (of_padded[row, :, length:] == 0).all()


@causal
def test_what_stands_in_padding_is_not_looked_at(is_causal: bool) -> None:
    query, value = problem(2, 2, 12, 4)
    rotations = rotations_for(query, 2, 4)
    results = []
    for filler in (0.0, torch.nan, torch.inf):
        inputs = [x.clone() for x in (query, value)]
        for x in inputs:
            x[1, :, 7:] = filler
            x.requires_grad_()
        out = lsh_attention(
            *inputs, is_causal=is_causal, chunk=4, rotations=rotations,
            key_lengths=torch.tensor([12, 7]),
        )  # fmt: skip
        upstream = torch.ones_like(out)
        upstream[1, :, 7:] = filler
        results.append((out, *torch.autograd.grad(out, inputs, upstream)))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=0)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    query, value = problem(2, 3, 37, 4)
    rotations = rotations_for(query, 3, 8)
    whole = lsh_attention(query, value, chunk=4, rotations=rotations, is_causal=True)
    monkeypatch.setattr(windows, "_SCORES_AT_ONCE", {"cpu": 5 * 2 * 4**2})
    cut = lsh_attention(query, value, chunk=4, rotations=rotations, is_causal=True)
    torch.testing.assert_close(cut, whole, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_is_rounding_alone(dtype: torch.dtype) -> None:
    """Same hashes, since both hash the rounded queries; the rest is computed in float32."""
    query, value = (x.to(dtype) for x in problem(1, 2, 50, 8))
    rotations = rotations_for(query, 2, 8)
    out = lsh_attention(query, value, chunk=8, rotations=rotations.float(), is_causal=True)
    exact = lsh_attention(
        query.double(), value.double(), chunk=8, rotations=rotations, is_causal=True
    )
    assert out.dtype == dtype
    assert (out.double() - exact).abs().max() < 4 * torch.finfo(dtype).eps * value.abs().max()


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_large_and_small_queries_stay_finite(scale: float) -> None:
    query, value = (x.float() for x in problem(1, 1, 20, 4))
    query = (query * scale).requires_grad_()
    out = lsh_attention(query, value, chunk=5, rounds=2, buckets=4)
    (gradient,) = torch.autograd.grad(out.sum(), query)
    assert out.isfinite().all() and gradient.isfinite().all()


def test_queries_of_zero_norm_average_what_they_see() -> None:
    query, value = problem(1, 1, 6, 4)
    zero = torch.zeros_like(query).requires_grad_()
    out = lsh_attention(zero, value, chunk=6, rounds=1, buckets=1)
    others = (value.sum(2, keepdim=True) - value) / 5
    torch.testing.assert_close(out, others)
    (gradient,) = torch.autograd.grad(out.sum(), zero)
    assert gradient.isfinite().all()


def test_a_position_does_not_see_itself_however_large_it_is() -> None:
    query = torch.tensor([6e4, -1.0, -1.0, -1.0]).view(1, 1, 4, 1)
    value = torch.tensor([0.0, 1.0, 2.0, 3.0]).view(1, 1, 4, 1)
    out = lsh_attention(query, value, chunk=4, rounds=1, buckets=1)
    assert out[0, 0, 0] == 2.0


def test_a_position_that_sees_nothing_else_returns_its_own_value() -> None:
    query, value = problem(1, 2, 9, 4)
    value.requires_grad_()
    rotations = rotations_for(query, 3, 4)
    out = lsh_attention(query, value, chunk=3, rotations=rotations, is_causal=True)
    assert torch.equal(out[:, :, 0], value[:, :, 0])
    (gradient,) = torch.autograd.grad(out[:, :, 0].sum(), value)
    assert (gradient[:, :, 0] == 1).all() and (gradient[:, :, 1:] == 0).all()


@pytest.mark.parametrize("shape", [(0, 2, 5, 4), (2, 0, 5, 4)])
def test_no_sequences_or_heads_give_empty_outputs(shape: tuple[int, ...]) -> None:
    query, value = problem(*shape)
    query.requires_grad_()
    out = lsh_attention(query, value, chunk=2, key_lengths=torch.full(shape[:1], 3))
    assert out.shape == value.shape
    assert torch.autograd.grad(out.sum(), query)[0].shape == query.shape


def test_hashing_repeats_with_its_seed() -> None:
    query, value = problem(1, 2, 30, 4)

    def drawn(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return lsh_attention(query, value, chunk=4, buckets=8, generator=generator)

    assert torch.equal(drawn(0), drawn(0))
    assert not torch.equal(drawn(0), drawn(1))
    torch.manual_seed(5)
    before = lsh_attention(query, value, chunk=4)
    torch.manual_seed(5)
    assert torch.equal(before, lsh_attention(query, value, chunk=4))


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that any operation returns."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, Tensor) and not x._is_view():
                self.numbers = max(self.numbers, x.numel())
        return result


def test_no_tensor_is_of_size_n_by_n() -> None:
    """The largest grows with N, and stays far below N x N."""
    largest = []
    for length in (1_024, 4_096):
        query, value = problem(1, 1, length, 8)
        query.requires_grad_()
        with Largest() as seen:
            out = lsh_attention(query, value, rounds=2, is_causal=True)
            out.sum().backward()
        largest.append(seen.numbers)
    assert largest[1] <= 4.1 * largest[0] < 1_024**2
    assert largest[1] < 4_096**2 / 40


@causal
def test_compiles_into_one_graph(is_causal: bool) -> None:
    query, value = problem(2, 2, 21, 4)
    rotations = rotations_for(query, 2, 4)

    def call(query: Tensor, value: Tensor, lengths: Tensor) -> Tensor:
        return lsh_attention(
            query, value, is_causal=is_causal, chunk=5, key_lengths=lengths, rotations=rotations
        )

    arguments = (query.requires_grad_(), value, torch.tensor([21, 9]))
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")(*arguments)
    torch.testing.assert_close(compiled, call(*arguments))
    ours = torch.autograd.grad(compiled.square().sum(), query)
    torch.testing.assert_close(ours, torch.autograd.grad(call(*arguments).square().sum(), query))


def test_operators_keep_torch_s_rules() -> None:
    query, value = problem(2, 2, 11, 4)
    query.requires_grad_()
    value.requires_grad_()
    lengths = torch.tensor([11, 5])
    rotations = rotations_for(query, 2, 4)
    torch.library.opcheck(
        torch.ops.linattn_models.lsh_attention, (query, value, rotations, lengths, 4, True)
    )


def test_second_derivatives_are_refused() -> None:
    query, value = problem(1, 1, 8, 4)
    query.requires_grad_()
    out = lsh_attention(query, value, chunk=4)
    (first,) = torch.autograd.grad(out.square().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="derivatives"):
        first.sum().backward()


def test_forward_mode_is_refused() -> None:
    query, value = problem(1, 1, 8, 4)
    with pytest.raises(NotImplementedError, match="forward-mode"):
        torch.func.jvp(lambda x: lsh_attention(x, value, chunk=4), (query,), (query,))


def test_gradients_of_torch_func_are_refused() -> None:
    query, value = problem(2, 1, 8, 4)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return lsh_attention(x[None], y[None], chunk=4).sum()

    with pytest.raises(NotImplementedError, match=r"torch\.func"):
        torch.func.grad(loss)(query[0], value[0])
    with pytest.raises(NotImplementedError, match=r"torch\.func"):
        torch.func.vmap(torch.func.grad(loss), randomness="different")(query, value)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"buckets": 7}, "buckets"),
        ({"rounds": 0}, "rounds"),
        ({"chunk": 0}, "chunk"),
        ({"chunk": 13}, "chunk"),
        ({"key_lengths": torch.tensor([12, 0])}, "key_lengths"),
        ({"key_lengths": torch.tensor([12, 13])}, "key_lengths"),
        ({"key_lengths": torch.tensor([12])}, "key_lengths"),
        ({"rotations": torch.zeros(2, 3, 5, 4)}, "rotations"),
        ({"rotations": torch.zeros(0, 3, 4, 4)}, "rotations"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], name: str) -> None:
    query, value = problem(2, 3, 12, 4)
    with pytest.raises(ValueError, match=name):
        lsh_attention(query, value, **{"chunk": 4, **arguments})


@pytest.mark.parametrize(
    ("query", "value", "name"),
    [
        (torch.zeros(1, 1, 0, 4), torch.zeros(1, 1, 0, 4), "length"),
        (torch.zeros(1, 8, 4), torch.zeros(1, 1, 8, 4), "query"),
        (torch.zeros(1, 1, 8, 0), torch.zeros(1, 1, 8, 4), "dim"),
        (torch.zeros(1, 1, 8, 4), torch.zeros(1, 1, 9, 4), "length"),
        (torch.zeros(1, 1, 8, 4), torch.zeros(1, 1, 8, 4).double(), "value"),
        (torch.zeros(1, 1, 8, 4).long(), torch.zeros(1, 1, 8, 4), "query"),
    ],
)
def test_wrong_tensors_are_refused(query: Tensor, value: Tensor, name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        lsh_attention(query, value, chunk=1)
