"""top_k, top_p and min_p: what may be drawn, by the definition of each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linattn_models.decoding import Filters
from linattn_models.heads.filters import keep_likely
from tests.models.decoding.decoders import Kind, long_model
from tests.models.tiny import seeded

TEMPERATURES = st.sampled_from([0.3, 1.0, 2.0])


def passing(filters: Filters, logits: torch.Tensor, temperature: float = 1.0) -> list[set[int]]:
    """The tokens of each row that may be drawn."""
    return [
        set(row.isfinite().nonzero().flatten().tolist()) for row in filters(logits, temperature)
    ]


@given(vocabulary=st.integers(2, 12), k=st.integers(1, 12), seed=st.integers(0, 99))
def test_top_k_leaves_the_likeliest(vocabulary: int, k: int, seed: int) -> None:
    logits = torch.randn(3, vocabulary, generator=seeded(seed))
    ranked = logits.argsort(descending=True)
    for row, kept in enumerate(passing(Filters(top_k=k), logits)):
        assert kept == set(ranked[row, :k].tolist())


@given(
    vocabulary=st.sampled_from([2, 7, 300, 1_000]),
    top_p=st.floats(0.01, 1.0),
    temperature=TEMPERATURES,
    seed=st.integers(0, 99),
)
def test_top_p_leaves_the_fewest_that_reach_it(
    vocabulary: int, top_p: float, temperature: float, seed: int
) -> None:
    logits = 2 * torch.randn(2, vocabulary, generator=seeded(seed), dtype=torch.float64)
    probabilities = torch.softmax(logits / temperature, -1)
    for row, kept in enumerate(passing(Filters(top_p=top_p), logits, temperature)):
        ordered = sorted(probabilities[row].tolist(), reverse=True)
        assert sum(ordered[: len(kept)]) >= top_p - 1e-12
        assert sum(ordered[: len(kept) - 1]) < top_p + 1e-12
        assert kept == set(probabilities[row].topk(len(kept)).indices.tolist())


@given(min_p=st.floats(0.0, 1.0), temperature=TEMPERATURES, seed=st.integers(0, 99))
def test_min_p_leaves_what_is_likely_enough(min_p: float, temperature: float, seed: int) -> None:
    logits = torch.randn(2, 9, generator=seeded(seed), dtype=torch.float64)
    probabilities = torch.softmax(logits / temperature, -1)
    for row, kept in enumerate(passing(Filters(min_p=min_p), logits, temperature)):
        least = min_p * probabilities[row].max()
        assert kept == {i for i, p in enumerate(probabilities[row]) if p >= least}


def test_rows_with_small_and_large_nuclei_side_by_side() -> None:
    """Of 5,000 tokens: a few, some hundreds, thousands, and a plateau after the likeliest."""
    ranks = torch.arange(5_000, dtype=torch.float64)
    logits = torch.stack([-ranks, -ranks / 300, -ranks / 5_000, -10 * (ranks > 0).double()])
    for top_p in (0.2, 0.9, 0.999):
        together = passing(Filters(top_p=top_p), logits)
        for row, kept in zip(logits.softmax(-1), together, strict=True):
            before = row.cumsum(-1) - row
            least = row[before < top_p].min()
            assert kept == set((row >= least).nonzero().flatten().tolist())


def test_sorting_all_tokens_keeps_those_that_the_likeliest_decide() -> None:
    generator = seeded()
    logits = 3 * torch.randn(5, 2_000, generator=generator)
    temperature, top_p, min_p = torch.rand(3, 5, dtype=torch.float64, generator=generator).unbind(0)
    top_k = torch.tensor([0, 40, 0, 300, 1])
    for limits in ((top_k, top_p, min_p / 100), (0 * top_k, 0 * top_p, min_p)):
        likely, whole = (keep_likely(logits, temperature, *limits, sorts=x) for x in (False, True))
        assert torch.equal(likely, whole)


@pytest.mark.parametrize("top_p", [1e-50, 1.0])
def test_the_ends_of_the_range_of_top_p(top_p: float) -> None:
    logits = torch.randn(3, 1_000, generator=seeded())
    kept = passing(Filters(top_p=top_p), logits)
    likeliest = [{index} for index in logits.argmax(-1).tolist()]
    assert kept == (likeliest if top_p < 1 else [set(range(1_000))] * 3)


FILTERS = [
    {"top_p": 0.7},
    {"top_k": 3, "temperature": 0.6},
    {"min_p": 0.3},
    {"top_k": 5, "top_p": 0.8, "min_p": 0.1, "temperature": 0.6},
]


@pytest.mark.parametrize("options", FILTERS, ids=str)
def test_compiled_decoders_draw_the_models_own_filtered_tokens(
    compiled: Kind, options: dict[str, Any]
) -> None:
    model = long_model(7).to(compiled.device)
    torch.nn.init.normal_(model.output.weight, std=1.0)
    decoder = compiled.decoder(model)
    eager, drawn = (
        model.generate(16, generator=compiled.seeded(), decoder=each, stop_tokens=6, **options)
        for each in ("eager", decoder)
    )
    assert torch.equal(drawn, eager)
