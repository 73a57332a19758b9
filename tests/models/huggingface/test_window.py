"""Windows beside a Hedgehog map against their definition, and converted models with a window."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounter

pytest.importorskip("transformers", reason="needs the extra [transformers]")

from transformers import DynamicCache

from linattn_core.feature_maps import Hedgehog
from linattn_models.attention.window_states import continue_windows
from linattn_models.attention.windows import Window
from linattn_models.huggingface import convert, transfer_attention
from linattn_models.huggingface.cache import CACHE
from linattn_models.state import WindowCache
from tests.models.huggingface import tiny

ROWS = [tiny.tokens(1, length, seed=length)[0] for length in (11, 3, 7)]
LEFT = tiny.prompts(ROWS)
SIZE = 4


def converted(kind: str, window_size: int = SIZE) -> Any:
    return convert(tiny.MODELS[kind](), window_size=window_size)


class Case(NamedTuple):
    """Arguments of `continue_windows` with a Hedgehog map, in float64; lengths of both rows."""

    query: Tensor
    key: Tensor
    value: Tensor
    lengths: Tensor
    window_size: int
    feature_map: Hedgehog
    log_gamma: Tensor

    @classmethod
    def random(
        cls, length: int, size: int, kv_heads: int = 2, padding: int = 0, scale: float = 1
    ) -> Case:
        """Two rows, the second with padding, four heads, D = 3, six features, random weights."""
        torch.manual_seed(0)
        query, key, value = (
            (scale * torch.randn(2, heads, length, 3).double()).requires_grad_()
            for heads in (4, kv_heads, kv_heads)
        )
        feature_map = Hedgehog(3, 6, 4, kv_heads).double()
        log_gamma = torch.randn(4).double().requires_grad_()
        with torch.no_grad():
            for weight in feature_map.parameters():
                weight.add_(torch.randn_like(weight))
        lengths = torch.tensor([length, max(1, length - padding)])
        return cls(query, key, value, lengths, size, feature_map, log_gamma)

    def to(self, dtype: torch.dtype) -> Case:
        """All tensors in another dtype, which rounds them, with gradients of their own."""
        query, key, value, log_gamma = (
            x.detach().to(dtype).requires_grad_() for x in (*self[:3], self.log_gamma)
        )
        feature_map = copy.deepcopy(self.feature_map).to(dtype)
        return self._replace(
            query=query, key=key, value=value, feature_map=feature_map, log_gamma=log_gamma
        )

    def result(self, start: int = 0, cache: WindowCache | None = None) -> tuple[Tensor, Any]:
        window = Window(self.window_size, self.feature_map, self.log_gamma)
        return continue_windows(window, *self[:4], torch.full((2,), start), cache)

    def real(self, out: Tensor) -> Tensor:
        """The outputs at tokens, 0 elsewhere."""
        padding = torch.arange(out.shape[2]) >= self.lengths[:, None]
        return out.masked_fill(padding[:, None, :, None], 0.0)

    def definition(self) -> Tensor:
        """By the whole matrix of weights, of which the largest in a row is 1."""
        groups, length = self.query.shape[1] // self.key.shape[1], self.query.shape[2]
        query, key = (x * x.shape[-1] ** -0.25 for x in (self.query, self.key))
        distance = torch.arange(length)[:, None] - torch.arange(length)
        inside, before = (distance >= 0) & (distance < self.window_size), distance >= 0
        features = self.feature_map.keys(key).repeat_interleave(groups, 1)
        key, value = (x.repeat_interleave(groups, 1) for x in (key, self.value))
        projected = query @ self.feature_map.query_weight
        scale = torch.cat((projected, -projected), -1).logsumexp(-1) + self.log_gamma[:, None]
        products = self.feature_map.queries(query) @ features.transpose(2, 3)
        logs = products.log() + (scale - math.log(4))[..., None]
        logs = torch.where(inside, query @ key.transpose(2, 3), logs)
        weights = logs.masked_fill(~before, -torch.inf).softmax(-1)
        return weights @ value

    def gradients(self, out: Tensor) -> tuple[Tensor, ...]:
        upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out)
        inputs = (*self[:3], self.log_gamma, *self.feature_map.parameters())
        return torch.autograd.grad(self.real(out), inputs, upstream, materialize_grads=True)


@given(
    length=st.integers(1, 20), size=st.integers(1, 24), kv_heads=st.sampled_from([1, 2, 4]),
    padding=st.integers(0, 9),
)  # fmt: skip
def test_it_is_the_definition_with_its_gradients(
    length: int, size: int, kv_heads: int, padding: int
) -> None:
    case = Case.random(length, size, kv_heads, padding)

    out, _ = case.result()
    wanted = case.definition()

    torch.testing.assert_close(case.real(out), case.real(wanted), rtol=1e-9, atol=1e-11)
    got, expected = case.gradients(out), case.gradients(wanted)
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("length", "size"), [(150, 3), (150, 70), (200, 64), (129, 128)])
def test_several_blocks(length: int, size: int) -> None:
    case = Case.random(length, size, padding=20)

    out, wanted = case.real(case.result()[0]), case.real(case.definition())

    torch.testing.assert_close(out, wanted, rtol=1e-9, atol=1e-11)


@given(cuts=st.lists(st.integers(1, 17), max_size=5, unique=True), size=st.integers(1, 20))
def test_pieces_are_the_whole_with_its_gradients(cuts: list[int], size: int) -> None:
    case = Case.random(18, size)
    ends, parts, state = [0, *sorted(cuts), 18], [], None
    for start, end in itertools.pairwise(ends):
        tensors = (x[:, :, start:end] for x in case[:3])
        lengths = torch.full((2,), end - start)
        out, state = Case(*tensors, lengths, *case[4:]).result(start, state)
        parts.append(out)

    whole, wanted = case.result()

    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=1e-9, atol=1e-11)
    gradients = case.gradients(torch.cat(parts, 2)), case.gradients(whole)
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(state, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_dtypes_are_near_the_definition(dtype: torch.dtype) -> None:
    case = Case.random(40, 6).to(dtype)
    exact = case.to(torch.float64)
    wanted = exact.definition()

    out, state = case.result()

    assert out.dtype == dtype and state.keys.dtype == dtype
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), wanted, rtol=tolerance, atol=tolerance)
    for got, gradient in zip(case.gradients(out), exact.gradients(wanted), strict=True):
        bound = 20 * torch.finfo(dtype).eps * float(gradient.abs().max())
        torch.testing.assert_close(got.double(), gradient, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_large_scores(dtype: torch.dtype) -> None:
    """Beyond the exponent that the dtype has."""
    case = Case.random(12, 3, scale=30).to(dtype)
    wanted = case.to(torch.float64).definition()

    out, _ = case.result()

    assert all(gradient.isfinite().all() for gradient in case.gradients(out))
    # A score of 1,000 has an error of 1,000 eps, so weights that share a row are inexact.
    near = 30 * torch.finfo(dtype).eps * case.value.detach().abs().max()
    assert ((out - wanted).abs() < near).double().mean() > 0.9


def test_autocast_keeps_the_scores() -> None:
    case = Case.random(30, 8, scale=3).to(torch.float32)
    wanted = case.result()[0]

    with torch.autocast("cpu", torch.bfloat16):
        out = case.result()[0]

    torch.testing.assert_close(out.float(), wanted, rtol=0.03, atol=0.1)


@pytest.mark.parametrize("kind", tiny.DECODERS)
def test_a_window_over_all_tokens_is_the_softmax_model(kind: str) -> None:
    teacher = tiny.MODELS[kind]()
    student = convert(copy.deepcopy(teacher), window_size=20)
    batch = tiny.padded(ROWS, "left")

    got, wanted = student(**batch).logits, teacher(**batch).logits

    real = batch["attention_mask"].bool()
    torch.testing.assert_close(got[real], wanted[real], rtol=1e-8, atol=1e-8)
    settings = {"max_new_tokens": 8, "do_sample": False}
    assert student.generate(**LEFT, **settings).equal(teacher.generate(**LEFT, **settings))


def test_rows_of_a_state_are_selected_and_repeated() -> None:
    model, cache = converted("llama"), DynamicCache()
    tokens = tiny.tokens(2, 9)
    model(tokens, **{CACHE: cache})

    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([3, 0]))
    got = model(torch.tensor([[3], [5]]), **{CACHE: cache}).logits[:, 0]

    both = torch.cat((tokens.flip(0), torch.tensor([[3], [5]])), 1)
    torch.testing.assert_close(got, model(both).logits[:, -1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("use_cache", "size"), [(False, 100), (True, SIZE)])
def test_the_forward_is_compiled_as_a_whole(use_cache: bool, size: int) -> None:
    model = convert(tiny.llama(num_hidden_layers=1), window_size=size)

    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)

    for rows in (ROWS, ROWS[1:], [*ROWS, tiny.tokens(1, 70)[0]]):
        batch = {**tiny.padded(rows, "left"), "use_cache": use_cache}
        torch.testing.assert_close(compiled(**batch).logits, model(**batch).logits)
    assert counter.frame_count == 2  # for all lengths up to 64 tokens, and for all above


class TestRefusals:
    def test_batches_with_nothing_before_the_window(self) -> None:
        with pytest.raises(ValueError, match="window_size"):
            transfer_attention(converted("llama"), [tiny.tokens(2, 4)])

    def test_layers_that_are_not_causal(self) -> None:
        for model in (tiny.bert(), tiny.llama(is_causal=False)):
            with pytest.raises(ValueError, match="causal"):
                convert(model, window_size=4)
            assert not tiny.layers(model)

    def test_a_call_that_is_not_causal(self) -> None:
        with pytest.raises(ValueError, match="is_causal"):
            converted("llama")(tiny.tokens(1, 3), is_causal=False, use_cache=False)

    @pytest.mark.parametrize(("before", "after"), [(0, 4), (4, 0), (4, 5), (5, 4)])
    def test_a_state_of_another_window(self, before: int, after: int) -> None:
        ids = tiny.tokens(1, 7)
        cache = converted("llama", before)(ids)[CACHE]
        with pytest.raises(ValueError, match="cache"):
            converted("llama", after)(ids, **{CACHE: cache})

    def test_a_state_of_another_model_or_batch(self) -> None:
        ids = tiny.tokens(2, 7)
        cache = converted("llama")(ids)[CACHE]
        with pytest.raises(ValueError, match="keys"):
            converted("gpt2")(ids, **{CACHE: cache})
        with pytest.raises(ValueError, match="keys"):
            converted("llama")(ids[:1], **{CACHE: cache})
